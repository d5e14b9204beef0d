"""From a gradient to a number: the norms and the target slope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class TargetSlope:
    r"""A parabola around a wanted slope, instead of around zero.

    With the slope :math:`s = \lVert g \rVert_2` and the target :math:`t`:

    - ``"parabola"``: :math:`(s/t - 1)^2`, pulls the slope to the target from both sides;
    - ``"gentle"``: :math:`\max(0, s/t - 1)^2`, the half-parabola that starts from zero at the target;
    - ``"steep"``: :math:`\max(1, s/t)^2`, the half-parabola that starts from one, with slope two, at the target.

    These are the variants of the authors' code; as there, the slope is divided by the target first.
    The gradient of the penalty at slope zero is defined as zero.

    >>> TargetSlope(2.0, "gentle")(torch.tensor([1.0, 2.0, 4.0]))
    tensor([0., 0., 1.])
    """

    target: float = 1.0
    shape: Literal["parabola", "gentle", "steep"] = "gentle"

    def __post_init__(self) -> None:
        if not (0 < self.target < float("inf")):
            raise ValueError(f"target={self.target!r} must be positive and finite: it is the slope to aim at.")
        if self.shape not in ("parabola", "gentle", "steep"):
            raise ValueError(f"shape={self.shape!r} is unknown: choose 'parabola', 'gentle' or 'steep'.")

    def __call__(self, slope: Tensor) -> Tensor:
        ratio = slope / self.target
        if self.shape == "steep":
            return ratio.clamp(min=1).square()
        distance = ratio - 1
        return (distance.clamp(min=0) if self.shape == "gentle" else distance).square()


#: How a gradient becomes one number.
Norm = Literal["squared_l2", "l2", "l1"] | TargetSlope


def check_norm(norm: Norm) -> None:
    if not isinstance(norm, TargetSlope) and norm not in ("squared_l2", "l2", "l1"):
        raise ValueError(f"norm={norm!r} is unknown: choose 'squared_l2', 'l2', 'l1' or a gradreg.TargetSlope.")


def power_sum(gradients: Sequence[Tensor], norm: Norm) -> Tensor:
    """Sum of the squared (for L1: absolute) entries of each example's gradient, ``[num, batch]``."""
    return torch.stack([_power(g, norm).flatten(2).sum(2) for g in gradients]).sum(0)


def wide(tensor: Tensor) -> Tensor:
    """In single precision at least: squares in half precision leave their range at 256, or lose most digits."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def _power(gradient: Tensor, norm: Norm) -> Tensor:
    gradient = wide(gradient)
    entries = gradient.abs() if norm == "l1" else gradient.square()
    return entries if entries.ndim > 2 else entries.unsqueeze(-1)


def size(power: Tensor, norm: Norm) -> Tensor:
    """The norm, from the sum of powers."""
    if norm in ("squared_l2", "l1"):
        return power
    slope = safe_sqrt(power)
    return norm(slope) if isinstance(norm, TargetSlope) else slope


def safe_sqrt(value: Tensor) -> Tensor:
    """Square root whose derivative at zero is zero instead of infinite."""
    positive = value > 0
    return torch.where(positive, torch.where(positive, value, 1.0).sqrt(), 0.0)
