"""The three products of a convolution, on PyTorch's three ordinary kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from gradreg.engines.twice.geometry import Geometry


def _output(x: Tensor, w: Tensor, g: Geometry) -> Tensor:
    return torch.convolution(x, w, None, g.stride, g.padding, g.dilation, False, g.zeros, g.groups)


def _input(y: Tensor, w: Tensor, g: Geometry) -> Tensor:
    return torch.convolution(y, w, None, g.stride, g.padding, g.dilation, True, g.output_padding(y), g.groups)


def _weight(y: Tensor, x: Tensor, g: Geometry) -> Tensor:
    w = x.new_empty(g.w_shape)  # only its shape is read
    found: Tensor = torch.ops.aten.convolution_backward(
        y, x, w, None, g.stride, g.padding, g.dilation, False, g.zeros, g.groups, [False, True, False]
    )[1]
    return found


PRODUCTS = {"y": _output, "x": _input, "w": _weight}
