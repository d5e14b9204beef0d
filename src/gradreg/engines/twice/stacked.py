"""Convolutions of many members at once, each with filters of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from gradreg.engines.twice.geometry import Geometry


def product(kind: str, first: Tensor, second: Tensor, geometry: Geometry) -> Tensor:
    """The product of this kind for every member: all tensors have the members in front."""
    by_matrices = first.is_cuda and geometry.groups == 1 and {*geometry.dilation, *geometry.stride} == {1}
    by_matrices = by_matrices and len(geometry.stride) == 2
    return (_BY_MATRICES if by_matrices else _GROUPED)[kind](first, second, geometry)


# ---- members as groups of one convolution ----


def _grouped_output(x: Tensor, w: Tensor, g: Geometry) -> Tensor:
    assert g.members is not None
    y = torch.convolution(
        _side_by_side(x), w.flatten(0, 1), None, g.stride, g.padding, g.dilation, False, g.zeros, _groups(g)
    )
    return _apart(y, g.members)


def _grouped_input(y: Tensor, w: Tensor, g: Geometry) -> Tensor:
    assert g.members is not None
    extra = g.output_padding(y[0])
    x = torch.convolution(_side_by_side(y), w.flatten(0, 1), None, g.stride, g.padding, g.dilation, True, extra, _groups(g))
    return _apart(x, g.members)


def _grouped_weight(y: Tensor, x: Tensor, g: Geometry) -> Tensor:
    assert g.members is not None
    w = x.new_empty((g.members * g.w_shape[0], *g.w_shape[1:]))
    found: Tensor = torch.ops.aten.convolution_backward(
        _side_by_side(y),
        _side_by_side(x),
        w,
        None,
        g.stride,
        g.padding,
        g.dilation,
        False,
        g.zeros,
        _groups(g),
        [False, True, False],
    )[1]
    return _split(found, 0, g.members, -1)


def _groups(g: Geometry) -> int:
    assert g.members is not None
    return g.members * g.groups


def _side_by_side(t: Tensor) -> Tensor:
    """``[members, batch, channels, ...]`` to ``[batch, members x channels, ...]``."""
    return t.transpose(0, 1).flatten(1, 2)


def _apart(t: Tensor, members: int) -> Tensor:
    return _split(t, 1, members, -1).transpose(0, 1)


# ---- windows of the image as columns of a matrix ----


def _matrix_output(x: Tensor, w: Tensor, g: Geometry) -> Tensor:
    columns, (batch, *size) = _columns(x, g)
    y = torch.bmm(w.flatten(2), columns)
    return _split(y, 2, batch, *size).transpose(1, 2)


def _matrix_input(y: Tensor, w: Tensor, g: Geometry) -> Tensor:
    """Each tap of the filter sends its share back to where it was read from."""
    rows, columns = y.shape[-2:]
    (height, width), (top, left) = g.x_shape[-2:], g.padding
    shares = torch.bmm(w.flatten(2).transpose(1, 2), _as_columns(y))
    taps = _split(_split(shares, 2, g.batch, rows, columns), 1, *g.w_shape[1:])
    moved = [
        F.pad(taps[:, :, i, j], (j - left, width - columns - j + left, i - top, height - rows - i + top))
        for i in range(g.w_shape[2])
        for j in range(g.w_shape[3])
    ]
    return _sum(moved).transpose(1, 2)


def _matrix_weight(y: Tensor, x: Tensor, g: Geometry) -> Tensor:
    columns, _ = _columns(x, g)
    return _split(torch.bmm(_as_columns(y), columns.transpose(1, 2)), 2, *g.w_shape[1:])


def _columns(x: Tensor, g: Geometry) -> tuple[Tensor, tuple[int, ...]]:
    """``[members, channels x kernel, batch x positions]``: every window a column."""
    top, left = g.padding
    padded = F.pad(x, (left, left, top, top)) if top or left else x
    windows = padded.unfold(3, g.w_shape[2], 1).unfold(4, g.w_shape[3], 1)
    in_order = windows.permute(0, 2, 5, 6, 1, 3, 4)
    return in_order.flatten(4).flatten(1, 3), tuple(in_order.shape[4:])


def _as_columns(y: Tensor) -> Tensor:
    return y.transpose(1, 2).flatten(2)


def _split(t: Tensor, dim: int, *sizes: int) -> Tensor:
    return t.reshape(*t.shape[:dim], *sizes, *t.shape[dim + 1 :])


def _sum(tensors: list[Tensor]) -> Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


_GROUPED: dict[str, Callable[[Tensor, Tensor, Geometry], Tensor]] = {
    "y": _grouped_output,
    "x": _grouped_input,
    "w": _grouped_weight,
}
_BY_MATRICES: dict[str, Callable[[Tensor, Tensor, Geometry], Tensor]] = {
    "y": _matrix_output,
    "x": _matrix_input,
    "w": _matrix_weight,
}
