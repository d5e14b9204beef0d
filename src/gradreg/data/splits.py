"""Which training examples a run learns from, and which it is tuned on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradreg.data.authors import SUFFIX, drawn_by_numpy
from gradreg.data.dataset import Array, Dataset
from gradreg.data.errors import DataError

#: First number of the seeds: keeps the two draws apart, and validation the same for every run.
VALIDATION_STREAM, TRAIN_STREAM = 0, 1

#: Examples to train on and to validate on, by dataset: the paper's small sets, with validation carved from training data.
DEFAULT_SIZES = {
    "digits": (100, 300),
    "mnist5k": (200, 1000),
    "sin": (100, 1000),
    "sin_pairs": (200, 2000),
    "mnist": (2000, 10_000),
    "fashion_mnist": (2000, 10_000),
    "cifar10": (2000, 10_000),
    "cifar100": (20_000, 10_000),
    "tinyimagenet": (90_000, 10_000),
}


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of a dataset's training data, as two disjoint index arrays.

    Attributes:
        train: what one run trains on, in the seeded order of the draw.
        validation: the same for every run.
    """

    train: Array
    validation: Array


def split(dataset: Dataset, *, train_size: int, validation_size: int, seed: int, balanced: bool = False) -> Split:
    """Set validation examples aside, then draw a run's training examples from the rest.

    Args:
        dataset: only its training data are split; test data stay untouched.
        train_size: how many to train on: the first ones of a seeded permutation.
        validation_size: how many to set aside; which ones does not depend on the seed.
        seed: decides the training subset.
        balanced: draw equally many of each class, instead of as they come.

    >>> from gradreg.data.embedded import sin
    >>> parts = split(sin(), train_size=100, validation_size=1000, seed=0)
    >>> len(parts.train), len(parts.validation), len(set(parts.train) & set(parts.validation))
    (100, 1000, 0)
    """
    _check_sizes(dataset, train_size, validation_size, seed)
    if dataset.numpy_seeds:
        _check_as_authors(dataset, validation_size, balanced=balanced)
        return Split(drawn_by_numpy(len(dataset.x_train), train_size, seed), np.arange(0))
    num_groups = len(dataset.x_train) // dataset.group_size
    cut = validation_size // dataset.group_size
    order = _permutation(num_groups, VALIDATION_STREAM)
    validation, rest = order[:cut], np.sort(order[cut:])
    pool = rest[_permutation(len(rest), TRAIN_STREAM, seed)]
    train = _balanced(dataset, pool, train_size) if balanced else pool[: train_size // dataset.group_size]
    return Split(_rows(train, dataset.group_size), _rows(np.sort(validation), dataset.group_size))


def default_sizes(dataset: Dataset, *, balanced: bool = False) -> tuple[int, int]:
    """``(train_size, validation_size)``: the paper's, or sizes that leave room for different subsets.

    For the user's own data, a fifth is for validation, and a run trains on four fifths of the rest, at most 2 000. Balanced
    classes share what the rarest of them has enough for.

    >>> from gradreg.data.embedded import sin
    >>> default_sizes(sin())
    (100, 1000)
    """
    if (name := dataset.name.removesuffix(SUFFIX)) in DEFAULT_SIZES:
        train, validation = DEFAULT_SIZES[name]
        validation = 0 if dataset.numpy_seeds else validation
    else:
        train, validation = _sizes_of_own(dataset)
    if balanced and dataset.task == "classification":
        train = _shared_equally(dataset, train, validation)
    return train, validation


def _sizes_of_own(dataset: Dataset) -> tuple[int, int]:
    num_groups = len(dataset.x_train) // dataset.group_size
    num_classes = dataset.num_outputs if dataset.task == "classification" else 1
    validation = min(max(num_groups // 5, num_classes), num_groups - 1)
    train = min(max((num_groups - validation) * 4 // 5, 1), 2000)
    return train * dataset.group_size, validation * dataset.group_size


def _shared_equally(dataset: Dataset, train_size: int, validation_size: int) -> int:
    """At most so many: equally many of each class, beside validation, and at least one."""
    classes = dataset.y_train[:: dataset.group_size]
    left = _permutation(len(classes), VALIDATION_STREAM)[validation_size // dataset.group_size :]
    rarest = int(np.bincount(classes[left], minlength=dataset.num_outputs).min())
    unit = dataset.num_outputs * dataset.group_size
    return max(min(train_size // unit, rarest), 1) * unit


def _check_sizes(dataset: Dataset, train_size: int, validation_size: int, seed: int) -> None:
    available = len(dataset.x_train)
    if train_size < 1 or validation_size < 0 or seed < 0:
        raise DataError(
            f"train_size={train_size}, validation_size={validation_size}, seed={seed}: training needs an example, and sizes "
            "and seeds are not negative. Use train_size of at least 1 and the others of at least 0."
        )
    if train_size + validation_size > available:
        raise DataError(
            f"{dataset.name}: train_size={train_size} and validation_size={validation_size} ask for "
            f"{train_size + validation_size} training examples, and there are {available}. Ask for fewer "
            "(--train-size, --validation-size)."
        )
    if train_size % dataset.group_size or validation_size % dataset.group_size:
        raise DataError(
            f"{dataset.name}: its rows are drawn in groups of {dataset.group_size}, and train_size={train_size} or "
            f"validation_size={validation_size} would divide one. Use multiples of {dataset.group_size}."
        )


def _check_as_authors(dataset: Dataset, validation_size: int, *, balanced: bool) -> None:
    if validation_size or balanced:
        raise DataError(
            f"{dataset.name}: validation_size={validation_size} and balanced={balanced}, but the authors set no training "
            "examples aside and did not balance classes. Use 0 and False, or the dataset without @authors."
        )


def _permutation(length: int, *seeds: int) -> Array:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seeds))).permutation(length)


def _rows(groups: Array, group_size: int) -> Array:
    return (groups[:, None] * group_size + np.arange(group_size)).reshape(-1)


def _balanced(dataset: Dataset, pool: Array, train_size: int) -> Array:
    """The first groups of each class, in the order of the pool."""
    num_classes = _check_balance(dataset, train_size)
    share = train_size // dataset.group_size // num_classes
    classes = dataset.y_train[pool * dataset.group_size]
    chosen = [np.flatnonzero(classes == k)[:share] for k in range(num_classes)]
    for name, positions in zip(dataset.class_names, chosen, strict=True):
        if len(positions) < share:
            raise DataError(
                f"{dataset.name}: train_size={train_size}, balanced, needs {share} examples of class {name}, and "
                f"{len(positions)} are left beside validation. Use a smaller train_size (--train-size), or balanced=False "
                "(no --balanced)."
            )
    return pool[np.sort(np.concatenate(chosen))]


def _check_balance(dataset: Dataset, train_size: int) -> int:
    if dataset.task != "classification":
        raise DataError(
            f"{dataset.name}: balanced=True needs classes, and this is regression. Use balanced=False (no --balanced)."
        )
    unit = dataset.num_outputs * dataset.group_size
    if train_size % unit:
        raise DataError(
            f"{dataset.name}: train_size={train_size} cannot be shared equally by {dataset.num_outputs} classes. "
            f"Use a multiple of {unit}, such as {max(train_size // unit, 1) * unit} (--train-size), or balanced=False "
            "(no --balanced)."
        )
    return dataset.num_outputs
