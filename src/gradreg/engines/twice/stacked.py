"""Convolutions of many members at once, each with filters of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from gradreg.engines.twice import alone, grouped, rows, windows
from gradreg.engines.twice.geometry import Geometry, Products

#: Multiplications for one example, and for a batch, from which on one member's convolution keeps a GPU busy by itself.
LARGE, LARGE_BATCH = 10_000_000, 200_000_000
#: Multiplications that take as long as to write and read one number: 2 ps on an H200.
PER_NUMBER = 200


def product(kind: str, first: Tensor, second: Tensor, geometry: Geometry) -> Tensor:
    """The product of this kind for every member: all tensors have the members in front."""
    return ways(geometry, on_gpu=first.is_cuda)[kind](first, second, geometry)


def ways(g: Geometry, *, on_gpu: bool) -> Products:
    """The three products in the way that is fastest for these sizes.

    Large convolutions one member after the other. Small ones, which are bound by memory, as matrix products: with whole
    windows, or with bands of rows if fewer numbers make up for more multiplications.
    """
    if on_gpu and _multiplications(g) >= LARGE and g.batch * _multiplications(g) >= LARGE_BATCH:
        return _ONE_BY_ONE
    if not on_gpu or g.groups != 1 or {*g.dilation, *g.stride} != {1} or len(g.stride) != 2:
        return grouped.PRODUCTS
    (height, width), (kernel_rows, kernel_columns) = g.output_size, g.w_shape[2:]
    padded_width = width + kernel_columns - 1
    in_windows = height * width * math.prod(g.w_shape[1:])
    in_bands = height * padded_width * kernel_rows * g.w_shape[1]
    by_bands = _multiplications(g) * padded_width // kernel_columns
    if in_bands * PER_NUMBER + by_bands < in_windows * PER_NUMBER + _multiplications(g):
        return rows.PRODUCTS
    return windows.PRODUCTS


def _multiplications(g: Geometry) -> int:
    """Of one example."""
    return math.prod(g.output_size) * math.prod(g.w_shape)


def _one_by_one(kind: str) -> Callable[[Tensor, Tensor, Geometry], Tensor]:
    def every(first: Tensor, second: Tensor, g: Geometry) -> Tensor:
        one = replace(g, members=None)
        return torch.stack([alone.PRODUCTS[kind](*pair, one) for pair in zip(first, second, strict=True)])

    return every


_ONE_BY_ONE = {kind: _one_by_one(kind) for kind in alone.PRODUCTS}
