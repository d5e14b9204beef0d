"""What happens at which step: batches, learning rates, points of the curve."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradreg.draws import Draws
from gradreg.training.config import RunConfig

#: Row numbers to shuffle in one go: many small epochs, or one large.
ORDERED_AT_ONCE = 2**20


def batches(num_examples: int, config: RunConfig, keys: Tensor) -> Iterator[Tensor]:
    """Row numbers of each batch, ``[members, batch]``: shuffled anew when all have been seen, running on across that border.

    Without ``config.shuffle`` in the same order again.

    Args:
        num_examples: in the training subset.
        config: gives the number of steps and the batch size.
        keys: of each member's draws.
    """
    size = min(config.batch_size, num_examples)
    at_once = max(1, min(ORDERED_AT_ONCE // (len(keys) * num_examples), -(-config.num_steps * size // num_examples)))
    epochs = torch.arange(at_once, device=keys.device)
    rows = keys.new_empty(len(keys), 0)
    for _ in range(config.num_steps):
        if rows.shape[1] < size:
            more = _orders(num_examples, keys, epochs) if config.shuffle else _as_they_come(num_examples, keys, at_once)
            rows = torch.cat([rows, more], 1)
            epochs = epochs + at_once
        yield rows[:, :size]
        rows = rows[:, size:]


def _orders(num_examples: int, keys: Tensor, epochs: Tensor) -> Tensor:
    """Of each member, one epoch after the other."""

    def order(key: Tensor, epoch: Tensor) -> Tensor:
        return Draws(key).at("order", epoch).permutation(num_examples, keys.device)

    of_epochs = torch.func.vmap(order, (None, 0))
    orders: Tensor = torch.func.vmap(of_epochs, (0, None))(keys, epochs)
    return orders.flatten(1)


def _as_they_come(num_examples: int, keys: Tensor, num_epochs: int) -> Tensor:
    return torch.arange(num_examples, device=keys.device).repeat(len(keys), num_epochs)


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
    count = max(1, min(config.num_evaluations, config.num_steps))
    return {round(config.num_steps * (point + 1) / count) for point in range(count)}


def some(num_examples: int, at_most: int, device: torch.device) -> Tensor:
    """Rows spread evenly over a split."""
    return torch.linspace(0, num_examples - 1, min(num_examples, at_most), device=device).round().long()
