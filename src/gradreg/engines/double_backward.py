"""The reference engine: a backward pass that is itself differentiated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import Node

from gradreg.engines.attention import math_attention
from gradreg.engines.base import DifferentiationError, Evaluation
from gradreg.engines.forward_pass import Pass
from gradreg.engines.inputs import Inputs, device_of
from gradreg.engines.parallel import is_sharded
from gradreg.engines.recorded import record, transform
from gradreg.engines.tried import Trial
from gradreg.penalties.probe import autograd_vjp
from gradreg.recorded_graph import custom_function, nodes_between, nodes_of


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
            with math_attention():
                return _in_transform(model, inputs, wrt, how)
        trial = Trial("differentiated twice", model)
        if untried := trial.untried(wrt):
            check_not_compiled(model)
            _check_not_sharded(model)
        with math_attention():
            logits, points = record(model, inputs, wrt, how)
        for name in untried:
            _check_second_derivative(logits, points[name])
            trial.passed(name)
        return Evaluation(logits, {name: autograd_vjp(logits, points[name]) for name in wrt})


def _in_transform(model: Callable[..., Any], inputs: Inputs, wrt: Collection[str], how: Pass) -> Evaluation:
    """One pass for each name: the first is the loss's."""
    first, *others = wrt
    again = how.again(model, device_of(inputs))
    logits, vjp, _ = transform(model, inputs, first, how)
    return Evaluation(logits, {first: vjp} | {name: transform(model, inputs, name, again)[1] for name in others})


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
    for node in nodes_between(logits, points):
        if complaint := _marked_once(node):
            raise _error(complaint)
    gradients = autograd_vjp(logits, points)(torch.ones_like(logits).unsqueeze(0))
    leaves = [node.variable for node in nodes_of(gradients) if hasattr(node, "variable")]
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


def _marked_once(node: Node) -> str | None:
    """PyTorch takes the gradient of such a function for a constant and says nothing."""
    function: Any = custom_function(node)
    marked = function is not None and getattr(function.backward, "__code__", None) is _ONCE
    return f"{function.__name__} is marked @once_differentiable" if marked else None


_ONCE = once_differentiable(lambda _, gradient: gradient).__code__
