"""Does it matter how the authors tested on MNIST? Baselines tested as here, and as they did.

They tested on the last 10 000 training images, and standardised what they tested on with its own mean and deviation instead
of those of the training subset. ``python results/two_test_sets.py`` trains on the CPU, with subsets of the first 50 000
images, each a minute or two of a core, and adds those that are missing to ``results/varga2018/two_test_sets.csv``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from lines import add_missing
from torch import Tensor, nn

from gradreg.data import Dataset, load
from gradreg.data.dataset import Array
from gradreg.papers.varga2018 import protocol
from gradreg.training import run
from gradreg.training.metrics import classification_metrics
from gradreg.training.resident import prepare, standardised

POOL, NUM_RUNS = 50_000, 30
OUT = Path(__file__).parent / "varga2018" / "two_test_sets.csv"
HEADER = ("seed", "official", "last_10000_of_training", "official_by_its_own", "last_10000_by_their_own")


def accuracies(job: tuple[int]) -> tuple[float, ...]:
    """Of one baseline, on the official test set and on the authors', standardised as in training, and each by its own."""
    (seed,) = job
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
    sets = [(mnist.x_test, mnist.y_test), (x[POOL:], y[POOL:])]
    by_training = [accuracy(trained.model, *pair, scale.mean, scale.std) for pair in sets]
    by_their_own = [accuracy(trained.model, *pair, pair[0].mean() / 255, pair[0].std() / 255) for pair in sets]
    return *by_training, *by_their_own


@torch.no_grad()
def accuracy(model: nn.Module, x: Array, y: Array, mean: Tensor | float, std: Tensor | float) -> float:
    mean, std = torch.as_tensor(mean, dtype=torch.float32), torch.as_tensor(std, dtype=torch.float32)
    parts = [model.eval()(standardised(part, mean, std)) for part in torch.as_tensor(x)[:, None].split(1000)]
    return round(classification_metrics(torch.cat(parts), torch.as_tensor(y))["accuracy"].item(), 4)


def main() -> None:
    add_missing(OUT, HEADER, [(seed,) for seed in range(NUM_RUNS)], accuracies)


if __name__ == "__main__":
    main()
