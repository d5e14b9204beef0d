"""The optimizers for many members at once, each with a learning rate of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

BETA1, BETA2, EPSILON, MOMENTUM = 0.9, 0.999, 1e-8, 0.9

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Optimizer:
    """``torch.optim.Adam``, or ``SGD`` with Nesterov's momentum 0.9, in place on tensors with the members in front."""

    name: Literal["adam", "sgd"]

    def start(self, parameter: Tensor) -> list[Tensor]:
        """The state of a parameter before the first step."""
        return [torch.zeros_like(parameter) for _ in range(2 if self.name == "adam" else 1)]

    def step(
        self, parameters: Tensors, gradients: Tensors, states: Mapping[str, list[Tensor]], rates: Tensor, count: Tensor
    ) -> None:
        """One step with these learning rates; ``count`` is the number of steps, this one too."""
        step = _adam if self.name == "adam" else _sgd
        step(parameters, gradients, states, rates, count.to(rates.dtype))


def _adam(parameters: Tensors, gradients: Tensors, states: Mapping[str, list[Tensor]], rates: Tensor, count: Tensor) -> None:
    # The two corrections of the start go into the small factors, not into passes over the parameters.
    correction = _one_minus_power(BETA2, count).sqrt()
    factors, epsilon = -rates * correction / _one_minus_power(BETA1, count), EPSILON * correction
    for name, parameter in parameters.items():
        gradient, (mean, square) = gradients[name], states[name]
        mean.lerp_(gradient, 1 - BETA1)
        square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        parameter.addcdiv_(mean * beside(factors, mean), square.sqrt().add_(epsilon))


def _one_minus_power(beta: float, count: Tensor) -> Tensor:
    """``1 - beta**count``, of which single precision would lose the last digits where the power is close to 1."""
    return -(count * math.log(beta)).expm1()


def _sgd(
    parameters: Tensors,
    gradients: Tensors,
    states: Mapping[str, list[Tensor]],
    rates: Tensor,
    count: Tensor,  # noqa: ARG001
) -> None:
    for name, parameter in parameters.items():
        gradient, (velocity,) = gradients[name], states[name]
        velocity.mul_(MOMENTUM).add_(gradient)
        parameter.addcmul_(gradient.add(velocity, alpha=MOMENTUM), -beside(rates, parameter))


def beside(values: Tensor, tensor: Tensor) -> Tensor:
    """One value a member, shaped to broadcast over the tensor."""
    return values.view(-1, *[1] * (tensor.ndim - 1))
