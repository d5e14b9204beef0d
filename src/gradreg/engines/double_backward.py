"""The reference engine: a backward pass that is itself differentiated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradreg.engines.base import DifferentiationError, Evaluation
from gradreg.engines.forward_pass import Pass
from gradreg.engines.inputs import Inputs, device_of
from gradreg.engines.parallel import is_sharded
from gradreg.engines.recorded import record, transform
from gradreg.penalties.probe import autograd_vjp


@dataclass(frozen=True)
class DoubleBackward:
    """Exact, for every model whose operations have a second derivative in PyTorch.

    Attention runs on PyTorch's ``MATH`` kernel, since the fused ones cannot be differentiated twice.

    Attributes:
        transformed: go through ``torch.func`` instead of autograd's own graph, to be used inside its transforms.

    Cost for one cotangent: a backward pass to the point, a forward pass of its tangent, and the weight gradients of
    both: 2.0 times a plain step in operations.
    """

    name: ClassVar[str] = "double_backward"

    transformed: bool = False

    def evaluate(self, model: Callable[..., Any], inputs: Inputs, *, wrt: Collection[str], how: Pass) -> Evaluation:
        if self.transformed:
            with sdpa_kernel(SDPBackend.MATH):
                return _in_transform(model, inputs, wrt, how)
        tried = _tried(model)
        if not tried:
            check_not_compiled(model)
            _check_not_sharded(model)
        with sdpa_kernel(SDPBackend.MATH):
            logits, points = record(model, inputs, wrt, how)
        for name in set(wrt) - tried:
            _check_second_derivative(logits, points[name])
            tried.add(name)
        return Evaluation(logits, {name: autograd_vjp(logits, points[name]) for name in wrt})


def _in_transform(model: Callable[..., Any], inputs: Inputs, wrt: Collection[str], how: Pass) -> Evaluation:
    """One pass for each name: the first is the loss's."""
    first, *others = wrt
    again = how.again(model, device_of(inputs))
    logits, vjp, _ = transform(model, inputs, first, how)
    return Evaluation(logits, {first: vjp} | {name: transform(model, inputs, name, again)[1] for name in others})


#: What was tried on each model already: the names differentiated by.
_TRIED: WeakKeyDictionary[Callable[..., Any], set[str]] = WeakKeyDictionary()


def _tried(model: Callable[..., Any]) -> set[str]:
    try:
        return _TRIED.setdefault(model, set())
    except TypeError:  # neither hashable nor weakly referable: tried every time
        return set()


def check_not_compiled(model: Callable[..., Any]) -> None:
    """What ``torch.compile`` made has one backward pass."""
    for name, module in _modules(model):
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise DifferentiationError(
                f"{name or 'the model'} was compiled by torch.compile, whose backward pass cannot be differentiated again. "
                "Give the objective the module as it was before (model._orig_mod after torch.compile(model)) with "
                "engine='compiled', which compiles the whole step; or use engine='linearized', which takes it as it is."
            )


def _check_not_sharded(model: Callable[..., Any]) -> None:
    for name, module in _modules(model):
        if is_sharded(module):
            raise DifferentiationError(
                f"{name or 'the model'} is sharded by FSDP, which frees parameters between forward and backward: the "
                "second derivative would be wrong without notice. Use engine='finite_difference', which needs none, or "
                "DistributedDataParallel."
            )


def _modules(model: Callable[..., Any]) -> Iterator[tuple[str, nn.Module]]:
    return model.named_modules() if isinstance(model, nn.Module) else iter(())


def _check_second_derivative(logits: Tensor, points: Sequence[Tensor]) -> None:
    """Differentiate twice for a trial, to raise now and with a way out what PyTorch would raise later, or never."""
    for node in _between(logits, points):
        if complaint := _marked_once(node):
            raise _error(complaint)
    gradients = autograd_vjp(logits, points)(torch.ones_like(logits).unsqueeze(0))
    leaves = [node.variable for node in _graph(gradients) if hasattr(node, "variable")]
    if not leaves:
        return
    norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
    try:
        torch.autograd.grad(norm, leaves, retain_graph=True, allow_unused=True)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise _error(str(error).strip().splitlines()[0].rstrip(".")) from error


def _error(complaint: str) -> DifferentiationError:
    return DifferentiationError(
        f"{complaint}, so the gradient cannot be differentiated again. "
        "Ways out: engine='finite_difference', which needs no second derivative; for a recurrent layer on a GPU, run the "
        "step under torch.backends.cudnn.flags(enabled=False); for a custom operation, give it a differentiable backward; "
        "or name a module after it in wrt, so that the gradient does not pass through it."
    )


def _graph(tensors: Sequence[Tensor]) -> Iterator[Node]:
    """The nodes that made these tensors, back to the leaves."""
    waiting = [tensor.grad_fn for tensor in tensors]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting.extend(following for following, _ in node.next_functions)


def _between(output: Tensor, points: Sequence[Tensor]) -> set[Node]:
    """The nodes through which the gradient of the output flows on its way to the points."""
    users: dict[Node, list[Node]] = {}
    for node in _graph([output]):
        for following, _ in node.next_functions:
            if following is not None:
                users.setdefault(following, []).append(node)
    waiting = [get_gradient_edge(point).node for point in points]
    between: set[Node] = set()
    while waiting:
        new = [user for user in users.get(waiting.pop(), []) if user not in between]
        between.update(new)
        waiting.extend(new)
    return between


def _marked_once(node: Node) -> str | None:
    """PyTorch takes the gradient of such a function for a constant and says nothing."""
    function: Any = getattr(node, "_forward_cls", None)
    marked = function is not None and getattr(function.backward, "__code__", None) is _ONCE
    return f"{function.__name__} is marked @once_differentiable" if marked else None


_ONCE = once_differentiable(lambda _, gradient: gradient).__code__
