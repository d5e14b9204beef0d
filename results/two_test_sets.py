"""Does it matter that the authors tested on the last 10 000 training images of MNIST? Baselines tested on both sets.

``python results/two_test_sets.py`` trains them on the CPU, on subsets of the first 50 000 images, each a minute or two of a
core, and adds those that are missing to ``results/varga2018/two_test_sets.csv``.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import torch

from gradreg.data import Dataset, load
from gradreg.papers.varga2018 import protocol
from gradreg.training import run
from gradreg.training.metrics import classification_metrics
from gradreg.training.resident import prepare, standardised

POOL, NUM_RUNS = 50_000, 30
OUT = Path(__file__).parent / "varga2018" / "two_test_sets.csv"


def accuracies(seed: int) -> tuple[int, float, float]:
    """Of one baseline, on the official test set and on the authors'."""
    mnist, authors = load("mnist", data_dir=Path("data")), protocol("authors_code")
    x, y = mnist.x_train, mnist.y_train
    data = Dataset(
        name="mnist50k",
        x_train=x[:POOL],
        y_train=y[:POOL],
        x_test=mnist.x_test,
        y_test=mnist.y_test,
        class_names=mnist.class_names,
    )
    config = authors.mnist(authors.decay(0.0005))
    config = replace(config, seed=seed, validation_size=0, precision="fp32", num_evaluations=1, data=data.name)
    trained, scale = run(config, data), prepare(data, config, torch.device("cpu")).train
    images, classes = torch.as_tensor(x[POOL:])[:, None], torch.as_tensor(y[POOL:])
    with torch.no_grad():
        parts = [trained.model.eval()(standardised(part, scale.mean, scale.std)) for part in images.split(1000)]
    theirs = classification_metrics(torch.cat(parts), classes)["accuracy"].item()
    return seed, round(trained.record.metrics["accuracy"], 4), round(theirs, 4)


def main() -> None:
    with OUT.open(newline="") as file:
        known = {int(row["seed"]) for row in csv.DictReader(file)}
    with get_context("spawn").Pool() as pool, OUT.open("a", newline="") as file:
        for row in pool.imap(accuracies, [seed for seed in range(NUM_RUNS) if seed not in known]):
            csv.writer(file).writerow(row)
            file.flush()


if __name__ == "__main__":
    main()
