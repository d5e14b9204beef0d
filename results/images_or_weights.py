"""Is it their images or their initial weights that make our baselines on MNIST as good as published? One at a time.

``authors_seeds.csv`` has baselines with images and initial weights of the authors, ``two_test_sets.csv`` those with ours.
``python results/images_or_weights.py`` trains with one of theirs and the other of ours, on the CPU, 30 runs each (most of
half an hour on two cores), and adds what is missing to ``results/varga2018/images_or_weights.csv``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from authors_seeds import on_both_test_sets
from lines import add_missing

from gradreg.data import Dataset, load, split
from gradreg.papers.varga2018 import protocol

#: Their seeds are 1 to 10; each is used this often, with another draw of ours.
THEIR_SEEDS, REPEATS = range(1, 11), 3
#: Whose images, whose initial weights, the seed of the images and that of the weights.
Job = tuple[str, str, int, int]
OUT = Path(__file__).parent / "varga2018" / "images_or_weights.csv"
HEADER = ("images", "weights", "images_seed", "weights_seed", "last_10000_of_training", "official")


def jobs() -> list[Job]:
    """Our seeds are such that none is theirs."""
    pairs = [(theirs, 10 * repeat + theirs) for repeat in range(1, REPEATS + 1) for theirs in THEIR_SEEDS]
    found: list[Job] = []
    for theirs, ours in pairs:
        found += [("theirs", "ours", theirs, ours), ("ours", "theirs", ours, theirs)]
    return found


def subset(images: str, weights: str, seed: int) -> Dataset:
    """The 2000 training images that this seed draws as they did or as we do, to be trained on from their weights or ours."""
    whole = load("mnist@authors", data_dir=Path("data"))
    whole = replace(whole, numpy_seeds=images == "theirs")
    rows = split(whole, train_size=2000, validation_size=0, seed=seed).train
    x, y = whole.x_train[rows], whole.y_train[rows]
    return replace(whole, name="mnist2k", x_train=x, y_train=y, numpy_seeds=weights == "theirs")


def accuracies(job: Job) -> tuple[float, float]:
    images, weights, images_seed, weights_seed = job
    data, authors = subset(images, weights, images_seed), protocol("authors_code")
    config = authors.mnist(authors.decay(0.0005))
    config = replace(config, data=data.name, seed=weights_seed, validation_size=0)
    return on_both_test_sets(config, data)


def main() -> None:
    add_missing(OUT, HEADER, jobs(), accuracies)


if __name__ == "__main__":
    main()
