"""The initialisation of the authors' code."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Generator, nn


@torch.no_grad()
def initialise(model: nn.Module, generator: Generator | None = None) -> None:
    r"""Draw the weights as the authors' code did, uniformly with mean zero; biases are zero.

    The standard deviation is :math:`\sqrt{2 / (n_{in} + n_{out})}` for dense layers and
    :math:`\sqrt{4 / (n_{in} + n_{out})}` for convolutions, where :math:`n_{out}` is divided by the squared stride.

    >>> layer = nn.Linear(300, 100)
    >>> initialise(layer, torch.Generator().manual_seed(0))
    >>> round(layer.weight.std().item(), 3), layer.bias.abs().max().item()
    (0.071, 0.0)
    """
    for layer in _layers(model):
        bound = math.sqrt(3) * _standard_deviation(layer)
        layer.weight.uniform_(-bound, bound, generator=generator)
        if layer.bias is not None:
            layer.bias.zero_()


@torch.no_grad()
def initialise_by_numpy(model: nn.Module, seed: int) -> None:
    """Give an initialised model the very weights that the authors' code started from with this seed.

    It drew them layer after layer by numpy, in the layout of TensorFlow, where inputs and outputs stand last.
    """
    draws = np.random.RandomState(seed)
    for layer in _layers(model):
        num_outputs, num_inputs, *taps = layer.weight.shape
        bound = math.sqrt(3) * _standard_deviation(layer)
        drawn = draws.uniform(-bound, bound, (*taps, num_inputs, num_outputs)).astype(np.float32)
        layer.weight.copy_(torch.from_numpy(drawn).movedim((-1, -2), (0, 1)))


def _layers(model: nn.Module) -> Iterator[nn.Linear | nn.Conv2d]:
    return (module for module in model.modules() if isinstance(module, (nn.Linear, nn.Conv2d)))


def _standard_deviation(layer: nn.Linear | nn.Conv2d) -> float:
    if isinstance(layer, nn.Linear):
        return math.sqrt(2 / (layer.in_features + layer.out_features))
    taps = math.prod(layer.kernel_size)
    fan_out = layer.out_channels * taps / math.prod(layer.stride)
    return math.sqrt(4 / (layer.in_channels * taps + fan_out))
