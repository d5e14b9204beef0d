"""The sizes of a convolution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """All that decides a convolution besides its tensors.

    Attributes:
        x_shape: of the input, ``(batch, channels, *spatial)``.
        w_shape: of the filters, ``(out_channels, channels / groups, *kernel)``.
        members: how many are stacked in front of every tensor, each with its own filters; None for one.
    """

    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    members: int | None = None

    @property
    def batch(self) -> int:
        return self.x_shape[0]

    @property
    def zeros(self) -> list[int]:
        return [0] * len(self.stride)

    def with_batch(self, batch: int) -> Geometry:
        return replace(self, x_shape=(batch, *self.x_shape[1:]))

    @property
    def output_size(self) -> tuple[int, ...]:
        sizes = zip(self.x_shape[2:], self.w_shape[2:], self.stride, self.padding, self.dilation, strict=True)
        return tuple((x + 2 * p - d * (k - 1) - 1) // s + 1 for x, k, s, p, d in sizes)

    def output_padding(self, y: Tensor) -> list[int]:
        """What the transposed convolution must add at the end to give the size of the input back."""
        sizes = zip(self.x_shape[2:], y.shape[2:], self.w_shape[2:], self.stride, self.padding, self.dilation, strict=True)
        return [x - ((y - 1) * s - 2 * p + d * (k - 1) + 1) for x, y, k, s, p, d in sizes]


#: The output, the input or the weight from the two others, by name.
Products = Mapping[str, Callable[[Tensor, Tensor, Geometry], Tensor]]


def padded(x: Tensor, g: Geometry) -> Tensor:
    """The images of all members with their margins."""
    top, left = g.padding
    return F.pad(x, (left, left, top, top)) if top or left else x


def without_margins(x: Tensor, g: Geometry) -> Tensor:
    """Back from there. (Padding by negative widths has been miscompiled: https://github.com/pytorch/pytorch/issues/195582.)"""
    (height, width), (top, left) = g.x_shape[-2:], g.padding
    return x[..., top : top + height, left : left + width]


def split(t: Tensor, dim: int, *sizes: int) -> Tensor:
    """One dimension into several."""
    return t.reshape(*t.shape[:dim], *sizes, *t.shape[dim + 1 :])


def sum_of(tensors: list[Tensor]) -> Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total
