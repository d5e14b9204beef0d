"""Normalisation layers in plain operations, for the derivatives that PyTorch gets wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradreg.penalties.norm import wide


def batch_norm(
    input: Tensor,  # noqa: A002
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """``F.batch_norm``: over the batch and all positions."""
    x = wide(input)
    if training or running_mean is None or running_var is None:
        var, mean = batch_statistics(x, running_mean, running_var, momentum)
    else:
        var, mean = by_channel(running_var, x), by_channel(running_mean, x)
    y = (x - mean) * (var + eps).rsqrt()
    return _affine_by_channel(y, weight, bias).to(input.dtype)


def batch_statistics(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, momentum: float
) -> tuple[Tensor, Tensor]:
    """Variance and mean of each channel; the running ones, where there are any, move towards them in place."""
    count = x.numel() // x.shape[1]
    if count < 2:
        raise ValueError(
            f"batch norm in training mode needs more than one value for each channel, got input {tuple(x.shape)}."
        )
    var, mean = torch.var_mean(x, all_but_channels(x), correction=0, keepdim=True)
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.mul_(1 - momentum).add_(mean.detach().flatten().to(running_mean.dtype), alpha=momentum)
            unbiased = var.detach().flatten() * (count / (count - 1))
            running_var.mul_(1 - momentum).add_(unbiased.to(running_var.dtype), alpha=momentum)
    return var, mean


def layer_norm(
    input: Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """``F.layer_norm``: over the last dimensions of each example."""
    y = _normalised(wide(input), list(range(-len(normalized_shape), 0)), eps)
    return _affine(y, weight, bias).to(input.dtype)


def group_norm(
    input: Tensor,  # noqa: A002
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """``F.group_norm``: over each group of channels of each example."""
    x = wide(input)
    y = _normalised(x.reshape(len(x), num_groups, -1), [-1], eps).reshape(x.shape)
    return _affine_by_channel(y, weight, bias).to(input.dtype)


def by_channel(values: Tensor, x: Tensor) -> Tensor:
    """Shaped to broadcast over the channels of x."""
    return values.view(1, -1, *[1] * (x.ndim - 2))


def all_but_channels(x: Tensor) -> list[int]:
    return [0, *range(2, x.ndim)]


def _normalised(x: Tensor, dims: list[int], eps: float) -> Tensor:
    var, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    return (x - mean) * (var + eps).rsqrt()


def _affine(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _affine_by_channel(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return _affine(y, None if weight is None else by_channel(weight, y), None if bias is None else by_channel(bias, y))


def _instance_norm(
    input: Tensor,  # noqa: A002
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Running statistics stay as they are: passes with tangents are the penalty's own, and what they write is forgotten."""
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    return group_norm(input, input.shape[1], weight, bias, eps)


def _torchs_batch_norm(
    input: Tensor,  # noqa: A002
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    *_: bool,
) -> Tensor:
    return batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def _torchs_instance_norm(
    input: Tensor,  # noqa: A002
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *statistics: Any,
) -> Tensor:
    return _instance_norm(input, running_mean, running_var, weight, bias, *statistics[:3])


def _torchs_layer_norm(input: Tensor, normalized_shape: Sequence[int], *others: Any) -> Tensor:  # noqa: A002
    return layer_norm(input, normalized_shape, *others[:3])


def _torchs_group_norm(input: Tensor, num_groups: int, *others: Any) -> Tensor:  # noqa: A002
    return group_norm(input, num_groups, *others[:3])


#: Batch, layer, group and instance norm from means and variances. PyTorch's own take the statistics for constants when a
#: forward-mode derivative is differentiated once more: the result is wrong, and nothing says so.
PLAIN_NORMALISATION: dict[Callable[..., Any], Callable[..., Any]] = {
    F.batch_norm: batch_norm,
    F.layer_norm: layer_norm,
    F.group_norm: group_norm,
    F.instance_norm: _instance_norm,
    torch.batch_norm: _torchs_batch_norm,
    torch.layer_norm: _torchs_layer_norm,
    torch.group_norm: _torchs_group_norm,
    torch.instance_norm: _torchs_instance_norm,
}
