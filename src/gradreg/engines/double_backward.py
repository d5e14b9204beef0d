"""The reference engine: a backward pass that is itself differentiated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import Node
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradreg.engines.base import DifferentiationError, Evaluation
from gradreg.engines.inputs import Inputs, logits_of
from gradreg.engines.own_pass import OwnPass, call
from gradreg.engines.taps import check_points, tapped
from gradreg.penalties.probe import VJP, autograd_vjp


@dataclass(frozen=True)
class DoubleBackward:
    """Exact, in eager autograd, for every model whose operations have a second derivative in PyTorch.

    Attention runs on PyTorch's ``MATH`` kernel, since the fused ones cannot be differentiated twice.
    """

    name: ClassVar[str] = "double_backward"
    _checked: WeakSet[Any] = field(default_factory=WeakSet, init=False, repr=False, compare=False)

    def evaluate(
        self, model: Callable[..., Any], inputs: Inputs, *, wrt: Collection[str], own: OwnPass | None = None
    ) -> Evaluation:
        if model not in self._checked:
            _check_module(model)
        with sdpa_kernel(SDPBackend.MATH), tapped(model, inputs, wrt) as (fed, points):
            logits = logits_of(call(model, fed, own))
        check_points(points, len(logits))
        return Evaluation(logits, {name: self._vjp(model, logits, points[name]) for name in wrt})

    def _vjp(self, model: Callable[..., Any], logits: Tensor, points: Sequence[Tensor]) -> VJP:
        """The vector-Jacobian product, looked through once a model for operations without a second derivative."""
        vjp = autograd_vjp(logits, points)
        if model in self._checked:
            return vjp

        def checked(cotangents: Tensor) -> Sequence[Tensor]:
            gradients = vjp(cotangents)
            _check_second_derivatives(logits, points, gradients)
            self._checked.add(model)
            return gradients

        return checked


def _check_module(model: Callable[..., Any]) -> None:
    if not isinstance(model, nn.Module):
        return
    for name, module in model.named_modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise DifferentiationError(
                f"{name or 'the model'} was compiled by torch.compile, whose backward pass cannot be differentiated again. "
                "Give the objective the module as it was before: model._orig_mod after torch.compile(model), "
                "or a model on which .compile() was not called."
            )
        if any(base.__name__ in ("FSDPModule", "FullyShardedDataParallel") for base in type(module).__mro__):
            raise DifferentiationError(
                f"{name or 'the model'} is sharded by FSDP, which frees parameters between forward and backward: the "
                "second derivative would be wrong without notice. Use DistributedDataParallel, or weight=0."
            )


def _check_second_derivatives(logits: Tensor, points: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Raise now what PyTorch would raise in the caller's ``backward()``, or never, with a way out."""
    between = _graph([logits], until=points)
    for complaint in chain(map(_marked_once, between), map(_not_implemented, _graph(gradients))):
        if complaint:
            raise DifferentiationError(
                f"{complaint}, so the gradient cannot be differentiated again. "
                "Ways out: for a recurrent layer on a GPU, run the step under torch.backends.cudnn.flags(enabled=False); "
                "for a custom operation, give it a differentiable backward; or name a module after it in wrt, so that the "
                "gradient does not pass through it."
            )


def _graph(tensors: Sequence[Tensor], until: Sequence[Tensor] = ()) -> Iterator[Node]:
    """The nodes that made these tensors, back to the leaves or to the nodes that made ``until``."""
    waiting = [tensor.grad_fn for tensor in tensors]
    seen = {tensor.grad_fn for tensor in until}
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting.extend(following for following, _ in node.next_functions)


def _marked_once(node: Node) -> str | None:
    """PyTorch takes the gradient of such a function for a constant and says nothing."""
    function: Any = getattr(node, "_forward_cls", None)
    marked = function is not None and getattr(function.backward, "__code__", None) is _ONCE
    return f"{function.__name__} is marked @once_differentiable" if marked else None


def _not_implemented(node: Node) -> str | None:
    if node.name() not in ("torch::autograd::NotImplemented", "torch::autograd::Error"):
        return None
    try:  # it raises when run, and names its operation
        node(*[torch.zeros(())] * len(node._input_metadata))  # type: ignore[operator]
    except (RuntimeError, TypeError) as error:
        return str(error).strip().splitlines()[0].rstrip(".")
    return f"{node.name()} has no derivative"


_ONCE = once_differentiable(lambda _, gradient: gradient).__code__
