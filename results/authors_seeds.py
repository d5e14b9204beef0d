"""Small MNIST with the authors' own seeds: their training images and initial weights, on which they tested.

Their code seeds numpy with 1 to 10, and numpy's old generator still draws today what it drew then: the order of the first
50 000 images, of which the first 2000 are trained on, and the initial weights, layer after layer. (Dropout and projections
were drawn by TensorFlow, and are ours.) ``python results/authors_seeds.py`` takes about an hour on two cores, and adds what
is missing to ``results/varga2018/authors_seeds.csv``.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch import nn

from gradreg.data import Dataset, load
from gradreg.models import lenet
from gradreg.papers.varga2018 import experiments
from gradreg.training.resident import prepare
from gradreg.training.run import numerics
from gradreg.training.session import EagerStep, Session

POOL, SEEDS = 50_000, range(1, 11)
#: Row and column of table 3, the cheapest first.
ARMS = [("No CP", "Baseline"), ("CP", "Baseline")]
ARMS += [(row, column) for row in ("No CP", "CP") for column in ("DoubleBack", "SpectReg")]
OUT = Path(__file__).parent / "varga2018" / "authors_seeds.csv"
HEADER = ("row", "column", "seed", "last_10000_of_training", "official")


def their_subset(mnist: Dataset, seed: int, size: int) -> Dataset:
    """What they trained on, and the last 10 000 training images, which they tested on."""
    rows = np.random.RandomState(seed).permutation(POOL)[:size]
    return replace(
        mnist,
        x_train=mnist.x_train[rows],
        y_train=mnist.y_train[rows],
        x_test=mnist.x_train[POOL:],
        y_test=mnist.y_train[POOL:],
    )


@torch.no_grad()
def with_their_weights(model: nn.Module, seed: int) -> nn.Module:
    """The network before training: uniform draws in the layout of TensorFlow, whose outputs stand last."""
    draws = np.random.RandomState(seed)
    for layer in model.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            filters = np.moveaxis(np.empty(layer.weight.shape), (0, 1), (-1, -2))
            bound = math.sqrt(3) * _deviation(filters.shape)
            drawn = torch.from_numpy(draws.uniform(-bound, bound, filters.shape).astype(np.float32))
            layer.weight.copy_(drawn.movedim((-1, -2), (0, 1)))
    return model


def _deviation(shape: tuple[int, ...]) -> float:
    *taps, inputs, outputs = shape
    return math.sqrt((4 if taps else 2) / (math.prod(taps) * (inputs + outputs)))


def accuracies(job: tuple[str, str, int]) -> tuple[str, str, int, float, float]:
    """Of one run, on the images that the authors tested on and on the official test set."""
    row, column, seed = job
    mnist = load("mnist", data_dir=Path("data"))
    config = experiments()["table3"].cell(row, column).config
    config = replace(config, seed=seed, validation_size=0, precision="fp32", num_evaluations=1)
    data = their_subset(mnist, seed, config.train_size)
    with numerics(config.precision):
        model = with_their_weights(lenet(), seed)
        resident = prepare(data, config, torch.device("cpu"))
        session = Session(config, data.task, resident, model, EagerStep(config, data.task, model))
        for _ in session.train():
            pass
        theirs = session.final_metrics()["accuracy"]
        session.data = prepare(replace(data, x_test=mnist.x_test, y_test=mnist.y_test), config, torch.device("cpu"))
        return row, column, seed, round(theirs, 4), round(session.final_metrics()["accuracy"], 4)


def missing() -> Iterable[tuple[str, str, int]]:
    known: set[tuple[str, str, int]] = set()
    if OUT.is_file():
        with OUT.open(newline="") as file:
            known = {(line["row"], line["column"], int(line["seed"])) for line in csv.DictReader(file)}
    return [job for arm in ARMS for seed in SEEDS if (job := (*arm, seed)) not in known]


def main() -> None:
    jobs, started = missing(), OUT.is_file()
    with get_context("spawn").Pool() as pool, OUT.open("a", newline="") as file:
        if not started:
            csv.writer(file).writerow(HEADER)
        for result in pool.imap(accuracies, jobs):
            csv.writer(file).writerow(result)
            file.flush()


if __name__ == "__main__":
    main()
