"""The problems that every penalty is tested on: small, in double precision, and different in kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH = 3


@dataclass(frozen=True)
class Problem:
    name: str
    model: nn.Module
    x: Tensor
    y: Tensor
    loss: Callable[..., Tensor]

    @property
    def is_classification(self) -> bool:
        return self.loss is F.cross_entropy

    def logits(self, x: Tensor) -> Tensor:
        """The model on x, always with the same dropout mask: that of a step after ``torch.manual_seed(0)``."""
        torch.manual_seed(0)
        return self.model(x)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, activation="gelu")
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


def _linear() -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Linear(5, 4), (5,)


def _mlp() -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6), nn.Softplus(), nn.Linear(6, 4)), (5,)


def _conv_dropout() -> tuple[nn.Module, tuple[int, ...]]:
    layers = [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 4)]
    return nn.Sequential(*layers), (1, 6, 6)


def _conv_batch_norm() -> tuple[nn.Module, tuple[int, ...]]:
    layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 4)]
    return nn.Sequential(*layers), (1, 6, 6)


def _attention() -> tuple[nn.Module, tuple[int, ...]]:
    return Attention(), (3, 4)


def _regression() -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1)), (1,)


_MAKERS = {
    "linear": _linear,
    "mlp": _mlp,
    "conv_dropout": _conv_dropout,
    "conv_batch_norm": _conv_batch_norm,
    "attention": _attention,
    "regression": _regression,
}


@cache
def problem(name: str) -> Problem:
    torch.manual_seed(1)
    model, shape = _MAKERS[name]()
    model = model.double()
    x = torch.randn(BATCH, *shape, dtype=torch.float64)
    if name == "regression":
        return Problem(name, model, x, torch.randn(BATCH, 1, dtype=torch.float64), F.mse_loss)
    return Problem(name, model, x, torch.tensor([1, 0, 2]), F.cross_entropy)


NAMES = tuple(_MAKERS)
CLASSIFICATION = tuple(name for name in NAMES if name != "regression")
