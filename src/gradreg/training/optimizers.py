"""The optimizers for many members at once, each with a learning rate of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

BETA1, BETA2, EPSILON, MOMENTUM = 0.9, 0.999, 1e-8, 0.9


@dataclass(frozen=True)
class Optimizer:
    """``torch.optim.Adam``, or ``SGD`` with Nesterov's momentum 0.9, in place on tensors with the members in front."""

    name: Literal["adam", "sgd"]

    def start(self, parameter: Tensor) -> list[Tensor]:
        """The state before the first step."""
        return [torch.zeros_like(parameter) for _ in range(2 if self.name == "adam" else 1)]

    def step(self, parameter: Tensor, gradient: Tensor, state: list[Tensor], rate: Tensor, count: Tensor) -> None:
        """One step with this learning rate; ``count`` is the number of steps, this one too."""
        if self.name == "adam":
            _adam(parameter, gradient, state, rate, count)
        else:
            _sgd(parameter, gradient, state, rate)


def _adam(parameter: Tensor, gradient: Tensor, state: list[Tensor], rate: Tensor, count: Tensor) -> None:
    mean, square = state
    # The two corrections of the start go into the small factors, not into passes over the parameters.
    mean.lerp_(gradient, 1 - BETA1)
    square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    correction = (1 - BETA2**count).sqrt()
    parameter.addcdiv_(mean * (-rate * correction / (1 - BETA1**count)), square.sqrt().add_(EPSILON * correction))


def _sgd(parameter: Tensor, gradient: Tensor, state: list[Tensor], rate: Tensor) -> None:
    (velocity,) = state
    velocity.mul_(MOMENTUM).add_(gradient)
    parameter.addcmul_(gradient.add(velocity, alpha=MOMENTUM), -rate)
