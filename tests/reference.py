"""The penalties once more, from their definitions: numpy and finite differences, no automatic differentiation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]


@torch.no_grad()
def summed_jacobian(function: Function, x: Tensor, step: float = 1e-6) -> np.ndarray:
    """``sum_b d f[b, k] / d x[c]``, as ``[k, c, features]``, by central differences of ``f: x -> [batch, k]``.

    Without batch norm ``f[b]`` depends on ``x[b]`` alone, and this is the Jacobian of each example.
    """
    flat = x.reshape(len(x), -1)
    rows = function(x).reshape(len(x), -1).shape[1]
    jacobian = np.zeros((rows, *flat.shape))
    for example in range(len(x)):
        for feature in range(flat.shape[1]):
            up, down = flat.clone(), flat.clone()
            up[example, feature] += step
            down[example, feature] -= step
            difference = function(up.reshape(x.shape)) - function(down.reshape(x.shape))
            jacobian[:, example, feature] = difference.reshape(len(x), -1).sum(0).numpy() / (2 * step)
    return jacobian


def squared_norms(jacobian: np.ndarray) -> np.ndarray:
    """Squared Frobenius norm for each example."""
    return np.square(jacobian).sum((0, 2))


def softmax(logits: Tensor) -> Tensor:
    weights = np.exp(logits.numpy() - logits.numpy().max(1, keepdims=True))
    return torch.from_numpy(weights / weights.sum(1, keepdims=True))


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    return -torch.log(softmax(logits)[torch.arange(len(y)), y])
