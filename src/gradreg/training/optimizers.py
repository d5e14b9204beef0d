"""The optimizers as functions, for many members at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

BETA1, BETA2, EPSILON, MOMENTUM = 0.9, 0.999, 1e-8, 0.9


@dataclass(frozen=True)
class Optimizer:
    """``torch.optim.Adam``, or ``SGD`` with Nesterov's momentum 0.9, as a pure function of its state."""

    name: Literal["adam", "sgd"]

    def start(self, parameter: Tensor) -> list[Tensor]:
        """The state before the first step."""
        return [torch.zeros_like(parameter) for _ in range(2 if self.name == "adam" else 1)]

    def step(
        self, parameter: Tensor, gradient: Tensor, state: list[Tensor], rate: Tensor, count: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """The parameter and the state after a step with this learning rate; ``count`` is the number of steps, this one too."""
        return (_adam if self.name == "adam" else _sgd)(parameter, gradient, state, rate, count)


def _adam(
    parameter: Tensor, gradient: Tensor, state: list[Tensor], rate: Tensor, count: Tensor
) -> tuple[Tensor, list[Tensor]]:
    mean = BETA1 * state[0] + (1 - BETA1) * gradient
    square = BETA2 * state[1] + (1 - BETA2) * gradient * gradient
    step_size = rate / (1 - BETA1**count)
    spread = square.sqrt() / (1 - BETA2**count).sqrt() + EPSILON
    return parameter - step_size * mean / spread, [mean, square]


def _sgd(
    parameter: Tensor,
    gradient: Tensor,
    state: list[Tensor],
    rate: Tensor,
    count: Tensor,  # noqa: ARG001
) -> tuple[Tensor, list[Tensor]]:
    velocity = MOMENTUM * state[0] + gradient
    return parameter - rate * (gradient + MOMENTUM * velocity), [velocity]
