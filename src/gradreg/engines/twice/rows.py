"""Convolutions of many members as matrix products with bands of rows of the image.

The rows that a filter touches, side by side, times a matrix in which the filter stands once for every horizontal position,
give a whole row of the output. The bands are several times smaller than all windows; the many zeros of the matrix cost
multiplications, of which a GPU has plenty.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gradreg.engines.twice.geometry import Geometry, padded, split, sum_of, without_margins


def _output(x: Tensor, w: Tensor, g: Geometry) -> Tensor:
    y = torch.bmm(_bands(x, g), _matrix(w, g))
    return split(split(y, 2, g.w_shape[0], -1), 1, g.batch, -1).transpose(2, 3)


def _input(y: Tensor, w: Tensor, g: Geometry) -> Tensor:
    """Each row of the filter sends its share back to the rows it was read from."""
    shares = torch.bmm(_as_rows(y), _matrix(w, g).transpose(1, 2))
    bands = split(split(shares, 2, g.w_shape[2], g.w_shape[1], -1), 1, g.batch, -1)
    moved = [F.pad(bands[:, :, :, i].transpose(2, 3), (0, 0, i, g.w_shape[2] - 1 - i)) for i in range(g.w_shape[2])]
    return without_margins(sum_of(moved), g)


def _weight(y: Tensor, x: Tensor, g: Geometry) -> Tensor:
    """A tap of the filter stands on one diagonal of the matrix."""
    matrix = torch.bmm(_bands(x, g).transpose(1, 2), _as_rows(y))
    taps = split(split(matrix, 2, g.w_shape[0], -1), 1, g.w_shape[2], g.w_shape[1], -1)
    sums = torch.stack([taps.diagonal(-i, 3, 5).sum(-1) for i in range(g.w_shape[3])], -1)
    return sums.permute(0, 3, 2, 1, 4)


def _bands(x: Tensor, g: Geometry) -> Tensor:
    """``[members, batch x rows, kernel rows x channels x width]``."""
    windows = padded(x, g).unfold(3, g.w_shape[2], 1)
    return windows.permute(0, 1, 3, 5, 2, 4).flatten(3).flatten(1, 2)


def _as_rows(y: Tensor) -> Tensor:
    return y.transpose(2, 3).flatten(3).flatten(1, 2)


def _matrix(w: Tensor, g: Geometry) -> Tensor:
    """``[members, kernel rows x channels x width, out channels x out width]``: the filter at every horizontal position.

    A filter, as many zeros as make one more than the width, again and again, cut into rows of the width: each row stands
    one place to the right of the last.
    """
    width = g.x_shape[3] + 2 * g.padding[1]
    positions = width - g.w_shape[3] + 1
    apart = F.pad(w, (0, width + 1 - g.w_shape[3])).unsqueeze(-2).expand(-1, -1, -1, -1, positions, -1)
    moved = split(apart.flatten(-2)[..., : positions * width], 4, positions, width)
    return moved.permute(0, 3, 2, 5, 1, 4).flatten(4).flatten(1, 3)


PRODUCTS = {"y": _output, "x": _input, "w": _weight}
