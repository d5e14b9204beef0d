"""What happens at which step: batches, learning rates, points of the curve."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradreg.draws import Draws
from gradreg.training.config import RunConfig


def batches(num_examples: int, config: RunConfig, keys: Tensor) -> Iterator[Tensor]:
    """Row numbers of each batch, ``[members, batch]``: shuffled anew when all have been seen, running on across that border.

    Args:
        num_examples: in the training subset.
        config: gives the number of steps and the batch size.
        keys: of each member's draws.
    """
    size = min(config.batch_size, num_examples)
    rows = keys.new_empty(len(keys), 0)
    epoch = 0
    for _ in range(config.num_steps):
        if rows.shape[1] < size:
            rows = torch.cat([rows, _orders(num_examples, keys, epoch)], 1)
            epoch += 1
        yield rows[:, :size]
        rows = rows[:, size:]


def _orders(num_examples: int, keys: Tensor, epoch: int) -> Tensor:
    def order(key: Tensor) -> Tensor:
        return Draws(key).at("order", epoch).permutation(num_examples, keys.device)

    orders: Tensor = torch.func.vmap(order)(keys)
    return orders


def key_of(config: RunConfig) -> int:
    """The key from which all draws of a run come."""
    key = Draws.of_seed(config.seed).at("run").key
    assert isinstance(key, int)
    return key


def learning_rate_factor(config: RunConfig, step: int) -> float:
    """Divided by 10 at each of the config's drops."""
    return float(0.1 ** sum(step >= drop * config.num_steps for drop in config.drops))


def evaluation_steps(config: RunConfig) -> set[int]:
    """After which steps the curve has its points; the last step always."""
    count = min(config.num_evaluations, config.num_steps)
    return {round(config.num_steps * (point + 1) / count) for point in range(count)}


def some(num_examples: int, at_most: int, device: torch.device) -> Tensor:
    """Rows spread evenly over a split."""
    return torch.linspace(0, num_examples - 1, min(num_examples, at_most), device=device).round().long()
