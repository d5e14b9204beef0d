"""Convolutions of many members as matrix products with every window of the image."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gradreg.engines.twice.geometry import Geometry, padded, split, sum_of, without_margins


def _output(x: Tensor, w: Tensor, g: Geometry) -> Tensor:
    columns, (batch, *size) = _columns(x, g)
    y = torch.bmm(w.flatten(2), columns)
    return split(y, 2, batch, *size).transpose(1, 2)


def _input(y: Tensor, w: Tensor, g: Geometry) -> Tensor:
    """Each tap of the filter sends its share back to where it was read from."""
    rows, columns = y.shape[-2:]
    shares = torch.bmm(w.flatten(2).transpose(1, 2), _as_columns(y))
    taps = split(split(shares, 2, g.batch, rows, columns), 1, *g.w_shape[1:])
    moved = [
        F.pad(taps[:, :, i, j], (j, g.w_shape[3] - 1 - j, i, g.w_shape[2] - 1 - i))
        for i in range(g.w_shape[2])
        for j in range(g.w_shape[3])
    ]
    return without_margins(sum_of(moved), g).transpose(1, 2)


def _weight(y: Tensor, x: Tensor, g: Geometry) -> Tensor:
    columns, _ = _columns(x, g)
    return split(torch.bmm(_as_columns(y), columns.transpose(1, 2)), 2, *g.w_shape[1:])


def _columns(x: Tensor, g: Geometry) -> tuple[Tensor, tuple[int, ...]]:
    """``[members, channels x kernel, batch x positions]``: every window a column."""
    windows = padded(x, g).unfold(3, g.w_shape[2], 1).unfold(4, g.w_shape[3], 1)
    in_order = windows.permute(0, 2, 5, 6, 1, 3, 4)
    return in_order.flatten(4).flatten(1, 3), tuple(in_order.shape[4:])


def _as_columns(y: Tensor) -> Tensor:
    return y.transpose(1, 2).flatten(2)


PRODUCTS = {"y": _output, "x": _input, "w": _weight}
