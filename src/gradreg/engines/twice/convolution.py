"""Convolution whose second derivative runs on the same three kernels as a plain step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from torch import Tensor
from torch.autograd import Function

from gradreg.engines.twice import alone, stacked
from gradreg.engines.twice.geometry import Geometry

#: Which of the three tensors of a convolution is computed from the other two: output, input or weight.
Kind = Literal["y", "x", "w"]
#: The two others, in the order they are given.
OTHERS: dict[Kind, tuple[Kind, Kind]] = {"y": ("x", "w"), "x": ("y", "w"), "w": ("y", "x")}


def convolution(x: Tensor, w: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """The convolution of x with the filters w."""
    y: Tensor = Product.apply("y", x, w, geometry)  # type: ignore[no-untyped-call]
    return y if bias is None else y + bias.view(1, -1, *[1] * (y.ndim - 2))


class Product(Function):
    r"""One of the three tensors of the trilinear form :math:`\langle y, x * w \rangle` from the two others.

    The convolution gives y; its derivatives give x and w by the same form; and the derivatives of those are again of this
    form. PyTorch's own second derivative computes a weight gradient as a convolution with a filter as large as the image.
    """

    @staticmethod
    def forward(kind: Kind, first: Tensor, second: Tensor, geometry: Geometry) -> Tensor:
        if geometry.members is not None:
            return stacked.product(kind, first, second, geometry)
        return alone.PRODUCTS[kind](first, second, geometry)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.kind, first, second, ctx.geometry = inputs
        ctx.save_for_backward(first, second)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: a checkpoint gives them once
        known = dict(zip(OTHERS[ctx.kind], saved, strict=True)) | {ctx.kind: cotangent.to(saved[0].dtype)}

        def derivative(kind: Kind) -> Tensor:
            first, second = (known[other] for other in OTHERS[kind])
            found: Tensor = Product.apply(kind, first, second, ctx.geometry)  # type: ignore[no-untyped-call]
            return found

        needed = zip(OTHERS[ctx.kind], ctx.needs_input_grad[1:3], strict=True)
        return None, *[derivative(kind) if need else None for kind, need in needed], None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], kind: Kind, first: Tensor, second: Tensor, geometry: Geometry) -> Any:
        _, of_first, of_second, _ = in_dims
        if kind != "w" and of_second is None:  # the filters are shared: the members are one large batch
            size = info.batch_size
            folded = first.movedim(of_first, 0).flatten(0, 1)
            found = Product.apply(kind, folded, second, geometry.with_batch(size * geometry.batch))  # type: ignore[no-untyped-call]
            return found.unflatten(0, (size, -1)), 0
        if geometry.members is not None:
            raise ValueError("a convolution can be vectorised over its filters once: there are no fleets of fleets.")
        operands = [_stack(t, dim, info.batch_size) for t, dim in ((first, of_first), (second, of_second))]
        found = Product.apply(kind, *operands, replace(geometry, members=info.batch_size))  # type: ignore[no-untyped-call]
        return found, 0


def _stack(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
