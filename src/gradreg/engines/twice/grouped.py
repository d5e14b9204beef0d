"""Convolutions of many members as the groups of one."""

from __future__ import annotations

import torch
from torch import Tensor

from gradreg.engines.twice.geometry import Geometry, split


def _output(x: Tensor, w: Tensor, g: Geometry) -> Tensor:
    assert g.members is not None
    y = torch.convolution(
        _side_by_side(x), w.flatten(0, 1), None, g.stride, g.padding, g.dilation, False, g.zeros, _groups(g)
    )
    return _apart(y, g.members)


def _input(y: Tensor, w: Tensor, g: Geometry) -> Tensor:
    assert g.members is not None
    extra = g.output_padding(y[0])
    x = torch.convolution(_side_by_side(y), w.flatten(0, 1), None, g.stride, g.padding, g.dilation, True, extra, _groups(g))
    return _apart(x, g.members)


def _weight(y: Tensor, x: Tensor, g: Geometry) -> Tensor:
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
    return split(found, 0, g.members, -1)


def _groups(g: Geometry) -> int:
    assert g.members is not None
    return g.members * g.groups


def _side_by_side(t: Tensor) -> Tensor:
    """``[members, batch, channels, ...]`` to ``[batch, members x channels, ...]``."""
    return t.transpose(0, 1).flatten(1, 2)


def _apart(t: Tensor, members: int) -> Tensor:
    return split(t, 1, members, -1).transpose(0, 1)


PRODUCTS = {"y": _output, "x": _input, "w": _weight}
