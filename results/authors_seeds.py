"""Arms of tables 1 to 3 with the authors' own seeds, on the CPU: on the images that they tested on, and on the official.

The protocol ``authors_seeds`` has their training images and initial weights, which numpy draws today as it did then.
``python results/authors_seeds.py`` takes over an hour on two cores, and adds what is missing to
``results/varga2018/authors_seeds.csv``. (On a GPU ``gradreg reproduce all --protocol authors_seeds`` runs all tables.)
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from lines import add_missing
from two_test_sets import accuracy

from gradreg.data import Dataset, load
from gradreg.papers.varga2018 import experiments
from gradreg.training import RunConfig, run
from gradreg.training.resident import prepare

SEEDS = range(1, 11)
#: Table, row, column and seed.
Job = tuple[str, str, str, int]
#: Table, row and column, table 3 first: other tables share its arms. Then those without a gradient penalty, which are cheap.
ARMS = [("table3", "No CP", "Baseline"), ("table3", "CP", "Baseline")]
ARMS += [("table3", row, column) for row in ("No CP", "CP") for column in ("DoubleBack", "SpectReg")]
ARMS += [("table1", "small MNIST", "Baseline, no weight decay")]
ARMS += [("table2", "Baseline", "NoGR"), ("table2", "Batchnorm", "NoGR")]
ARMS += [("table6", "small MNIST", "JacReg"), ("table1", "small MNIST", "SpectReg, weight decay")]
OUT = Path(__file__).parent / "varga2018" / "authors_seeds.csv"
HEADER = ("table", "row", "column", "seed", "last_10000_of_training", "official")


def accuracies(job: Job) -> tuple[float, float]:
    table, row, column, seed = job
    config = experiments("authors_seeds")[table].cell(row, column).config
    return on_both_test_sets(replace(config, seed=seed), load("mnist@authors", data_dir=Path("data")))


def on_both_test_sets(config: RunConfig, data: Dataset) -> tuple[float, float]:
    """The accuracy of a run in single precision, on the data's own test images (the authors'), and on the official."""
    official = load("mnist", data_dir=Path("data"))
    config = replace(config, precision="fp32", fingerprint=data.fingerprint, num_evaluations=1)
    trained, scale = run(config, data), prepare(data, config, torch.device("cpu")).train
    on_official = accuracy(trained.model, official.x_test, official.y_test, scale.mean, scale.std)
    return round(trained.record.metrics["accuracy"], 4), on_official


def main() -> None:
    add_missing(OUT, HEADER, [(*arm, seed) for arm in ARMS for seed in SEEDS], accuracies)


if __name__ == "__main__":
    main()
