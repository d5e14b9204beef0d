"""FrobReg on the CPU: rows of the Jacobian one by one, ten at a time, and in the textbook's loop, by model and batch.

``python benchmarks/rows.py`` takes the three in turns, five rounds after a first that does not count, and writes their
medians to ``--out``.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradreg as gr
from gradreg.bench.tables import file_name
from gradreg.penalties import probe

ROUNDS, WEIGHT = 5, 0.1


def cnn() -> nn.Sequential:
    """Two convolutions, as many a user's first."""
    first, second = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
    return nn.Sequential(
        first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    )


def mlp(features: int, width: int) -> nn.Sequential:
    """Three layers."""
    return nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 10))


CASES: tuple[tuple[str, Callable[[], nn.Module], tuple[int, ...]], ...] = (
    ("LeNet", gr.models.lenet, (50, 1, 28, 28)),
    ("LeNet", gr.models.lenet, (200, 1, 28, 28)),
    ("two convolutions", cnn, (16, 3, 32, 32)),
    ("two convolutions", cnn, (64, 3, 32, 32)),
    ("ResNet, narrow", lambda: gr.models.resnet(widths=(8, 16), blocks_per_level=1), (32, 3, 32, 32)),
    ("perceptron, 256 wide", lambda: mlp(64, 256), (32, 64)),
    ("perceptron, 1024 wide", lambda: mlp(784, 1024), (128, 784)),
)


def textbook(model: nn.Module, x: Tensor, y: Tensor) -> None:
    x = x.detach().requires_grad_()
    logits = model(x)
    rows = [torch.autograd.grad(logit.sum(), x, create_graph=True)[0] for logit in logits.unbind(1)]
    total = F.cross_entropy(logits, y) + WEIGHT * sum(row.square().sum() for row in rows) / len(x)
    total.backward()  # type: ignore[no-untyped-call]


def step(model: nn.Module, x: Tensor, y: Tensor, small: float) -> None:
    """With rows together up to so many numbers in the inputs."""
    probe.SMALL = small  # type: ignore[assignment]
    objective = gr.Objective(F.cross_entropy, gr.FrobReg(weight=WEIGHT))
    objective(model, x, y).total.backward()  # type: ignore[no-untyped-call]


def milliseconds(model: nn.Module, shape: tuple[int, ...]) -> list[float]:
    """Of the three ways."""
    x, y = torch.rand(shape), torch.randint(10, shape[:1])
    ways: list[Callable[[], None]] = [
        lambda: step(model, x, y, 0),
        lambda: step(model, x, y, math.inf),
        lambda: textbook(model, x, y),
    ]
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(1 + ROUNDS):
        for way, own in zip(ways, seconds, strict=True):
            model.zero_grad()
            started = time.perf_counter()
            way()
            own.append(time.perf_counter() - started)
    return [round(1e3 * statistics.median(own[1:]), 2) for own in seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    torch.manual_seed(0)
    rows = [(name, math.prod(shape), shape[0], *milliseconds(make(), shape)) for name, make, shape in CASES]
    with (given.out / file_name("cpu", "rows", "fp32")).open("w", newline="") as file:
        csv.writer(file).writerows([("model", "numbers", "batch", "one_by_one_ms", "ten_at_once_ms", "textbook_ms"), *rows])


if __name__ == "__main__":
    main()
