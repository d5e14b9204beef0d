"""ReLU whose second derivative is left out where it is zero, rather than computed as a tensor of zeros."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def relu(input: Tensor, inplace: bool = False) -> Tensor:  # noqa: A002
    """``F.relu``; what is done in place is, for those who look at the input again, and costs nothing if nobody does."""
    y: Tensor = Relu.apply(input)  # type: ignore[no-untyped-call]
    if inplace:
        input.copy_(y)
    return y


class Relu(Function):
    """The positive part."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clamp_min(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return _masked(dy, *ctx.saved_tensors)


class Masked(Function):
    """What passes where the output was positive; linear, and constant in the output."""

    generate_vmap_rule = True

    @staticmethod
    def forward(dy: Tensor, y: Tensor) -> Tensor:
        passed: Tensor = torch.ops.aten.threshold_backward(dy, y, 0)
        return passed

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None]:
        return _masked(v, *ctx.saved_tensors), None


def _masked(dy: Tensor, y: Tensor) -> Tensor:
    passed: Tensor = Masked.apply(dy, y)  # type: ignore[no-untyped-call]
    return passed
