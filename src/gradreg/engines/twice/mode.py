"""The switch that puts the fast layers in the place of PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradreg.engines.attention import attention
from gradreg.engines.normalisation import layer_norm
from gradreg.engines.swap import Swap
from gradreg.engines.twice.batch_norm import batch_norm
from gradreg.engines.twice.convolution import convolution
from gradreg.engines.twice.geometry import Geometry
from gradreg.engines.twice.max_pool import is_tiling, max_pool
from gradreg.engines.twice.relu import relu


class FastTwice(Swap):
    """While active, convolutions, pooling, attention, norms and ReLU are those that are fast when differentiated twice.

    Args:
        everywhere: replace convolutions and pooling on the CPU too, where PyTorch's own are the faster ones.
    """

    def __init__(self, *, everywhere: bool = False) -> None:
        super().__init__()
        self.everywhere = everywhere

    def replacement(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        if _PAUSED.get():
            return None
        if function in _CONVOLUTIONS or function is F.max_pool2d:
            x = args[0] if args else kwargs["input"]
            if not (self.everywhere or x.is_cuda):
                return None
            return _max_pool if function is F.max_pool2d else partial(_convolution, function)
        return _LAYERS.get(function)


_PAUSED: ContextVar[bool] = ContextVar("paused", default=False)


@contextmanager
def pytorchs_layers() -> Iterator[None]:
    """PyTorch's own layers for the while, inside FastTwice too: ours have no forward mode."""
    token = _PAUSED.set(True)
    try:
        yield
    finally:
        _PAUSED.reset(token)


_LAYERS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.scaled_dot_product_attention: attention,
    F.batch_norm: batch_norm,
    F.layer_norm: layer_norm,
    F.relu: relu,
    torch.relu: relu,
}
_CONVOLUTIONS = {F.conv1d: 1, F.conv2d: 2, F.conv3d: 3}


def _convolution(
    func: Callable[..., Any],
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    dims = _CONVOLUTIONS[func]
    if isinstance(padding, str) or input.ndim != dims + 2:
        found: Tensor = func(input, weight, bias, stride, padding, dilation, groups)
        return found
    if torch.is_autocast_enabled(input.device.type):
        dtype = torch.get_autocast_dtype(input.device.type)
        input, weight = input.to(dtype), weight.to(dtype)  # noqa: A001
        bias = None if bias is None else bias.to(dtype)
    geometry = Geometry(
        x_shape=tuple(input.shape),
        w_shape=tuple(weight.shape),
        stride=_each(stride, dims),
        padding=_each(padding, dims),
        dilation=_each(dilation, dims),
        groups=groups,
    )
    return convolution(input, weight, bias, geometry)


def _max_pool(
    input: Tensor,  # noqa: A002
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    kernel, step = _each(kernel_size, 2), _each(kernel_size if stride is None else stride, 2)
    margin, spread = _each(padding, 2), _each(dilation, 2)
    if not return_indices and is_tiling(input, kernel, step, margin, spread, ceil_mode):
        return max_pool(input, kernel)
    return F.max_pool2d(input, kernel, step, margin, spread, ceil_mode, return_indices)  # type: ignore[call-overload,no-any-return]


def _each(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    return (value,) * dims if isinstance(value, int) else tuple(value)
