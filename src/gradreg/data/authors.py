"""Datasets as the paper's authors drew them: by numpy's old generator, which gives today what it gave then."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradreg.data.dataset import Array, Dataset
from gradreg.data.errors import DataError

#: What a name ends in to ask for one.
SUFFIX = "@authors"
SIN_OF_THE_AUTHORS = f"sin{SUFFIX}"
#: Of MNIST's training images they trained on the first of this many, and tested on the others.
POOL = 50_000
#: The seed of their SIN, and how many of its 900 test points, the last ones, the printed errors are of.
SIN_SEED, SIN_TESTED = 10, 50


def as_authors(dataset: Dataset) -> Dataset:
    """The same images, of which a seed draws what it drew for the authors.

    For MNIST those they trained on are apart from those they tested on, the last 10 000 training images; they tuned on the
    official test images. For CIFAR they tuned and tested on the official ones.
    """
    named = replace(dataset, name=dataset.name + SUFFIX, numpy_seeds=True)
    if dataset.name.startswith("cifar"):
        return named
    if dataset.name != "mnist":
        raise DataError(
            f"{dataset.name}{SUFFIX}: how the authors drew {dataset.name} is not known. Leave {SUFFIX} out, or use it with "
            "sin, mnist, cifar10 or cifar100."
        )
    x, y = dataset.x_train, dataset.y_train
    return replace(named, x_train=x[:POOL], y_train=y[:POOL], x_test=x[POOL:], y_test=y[POOL:])


def sin_of_the_authors() -> Dataset:
    """Their 100 points of SIN, and the 50 test points that the errors of the paper's table are of.

    >>> sin = sin_of_the_authors()
    >>> len(sin.x_train), len(sin.x_test), round(float(sin.x_test.min()), 3)
    (100, 50, 0.889)
    """
    draws = np.random.RandomState(SIN_SEED)
    x = draws.uniform(-1, 1, (100, 1))
    y = np.sin(5 * x) + 0.1 * draws.normal(size=x.shape)
    tested = np.arange(-1, 1, 2 / 900)[-SIN_TESTED:, None]
    return Dataset(
        name=SIN_OF_THE_AUTHORS,
        x_train=x.astype(np.float32),
        y_train=y.astype(np.float32),
        x_test=tested.astype(np.float32),
        y_test=np.sin(5 * tested).astype(np.float32),
        task="regression",
        standardise=False,
        numpy_seeds=True,
    )


def drawn_by_numpy(num_rows: int, train_size: int, seed: int) -> Array:
    """The rows that this seed trains on: the first ones of its permutation; all of them, if it takes all, as they come."""
    if train_size == num_rows:
        return np.arange(num_rows)
    return np.random.RandomState(seed).permutation(num_rows)[:train_size]
