"""The reference engine: a backward pass that is itself differentiated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakSet

import torch
from torch import Tensor, nn
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
        _check_module(model)
        with sdpa_kernel(SDPBackend.MATH), tapped(model, inputs, wrt) as (fed, points):
            logits = logits_of(call(model, fed, own))
        check_points(points, len(logits))
        return Evaluation(logits, {name: self._checking(model, autograd_vjp(logits, points[name])) for name in wrt})

    def _checking(self, model: Callable[..., Any], vjp: VJP) -> VJP:
        """The same product, looked through once a model for operations without a second derivative."""
        if model in self._checked:
            return vjp

        def checked(cotangents: Tensor) -> Sequence[Tensor]:
            gradients = vjp(cotangents)
            _check_second_derivatives(gradients)
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


def _check_second_derivatives(gradients: Sequence[Tensor]) -> None:
    """Raise now what PyTorch would raise in the caller's ``backward()``, with a way out."""
    for node in _graph(gradients):
        if node.name() in ("torch::autograd::NotImplemented", "torch::autograd::Error"):
            raise DifferentiationError(
                f"{_complaint(node)}, so the gradient cannot be differentiated again. "
                "Ways out: for a recurrent layer on a GPU, run the step under torch.backends.cudnn.flags(enabled=False); "
                "for a custom operation, give it a differentiable backward; or name a module after it in wrt, so that the "
                "gradient does not pass through it."
            )


def _graph(gradients: Sequence[Tensor]) -> Iterator[torch.autograd.graph.Node]:
    waiting = [gradient.grad_fn for gradient in gradients]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting.extend(following for following, _ in node.next_functions)


def _complaint(node: torch.autograd.graph.Node) -> str:
    """What the node itself says when it is run, which names the operation."""
    try:
        node(torch.zeros(()))  # type: ignore[operator]
    except RuntimeError as error:
        return str(error).strip().splitlines()[0].rstrip(".")
    return "an operation has no second derivative"
