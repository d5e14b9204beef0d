"""Max pooling of windows that do not overlap, in plain operations."""

from __future__ import annotations

import torch
from torch import Tensor


def is_tiling(
    x: Tensor,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    ceil_mode: bool,
) -> bool:
    """Whether the windows lie side by side and cover the image."""
    simple = kernel == stride and set(padding) == {0} and set(dilation) == {1} and not ceil_mode
    return simple and x.ndim >= 3 and x.shape[-2] % kernel[0] == 0 and x.shape[-1] % kernel[1] == 0


def max_pool(x: Tensor, kernel: tuple[int, ...]) -> Tensor:
    """The largest value of every window: a sum over the window, in which zeros stand for all others.

    Linear once it is known which value is the largest, so that all derivatives are the same few operations. PyTorch's own
    scatter and gather by index, again for each derivative.
    """
    rows, columns = (side // length for side, length in zip(x.shape[-2:], kernel, strict=True))
    windows = x.reshape(*x.shape[:-2], rows, kernel[0], columns, kernel[1]).transpose(-3, -2).flatten(-2)
    places = torch.arange(windows.shape[-1], device=x.device)
    largest = windows.detach().argmax(-1, keepdim=True) == places
    return torch.where(largest, windows, 0).sum(-1)
