"""From the user's arrays to a checked Dataset: labels numbered, types settled, errors that say what to change."""

from __future__ import annotations

import numpy as np

from gradreg.data.dataset import Array, Dataset, Task
from gradreg.data.errors import DataError
from gradreg.data.holdout import hold_out
from gradreg.data.labels import ASK_FOR_A_QUANTITY, class_name, task_of

#: The share of the examples to test on, where the data come without a test set.
TEST_SHARE = 0.2

#: More channels than this in the last dimension means that the channels are elsewhere.
MAX_CHANNELS = 4


def assemble(
    name: str, x_train: Array, y_train: Array, x_test: Array, y_test: Array, *, task: Task | None = None
) -> Dataset:
    """A dataset of the four arrays. What the labels mean follows from those of the training data, unless it is given.

    >>> dataset = assemble("pets", np.eye(2), np.array(["dog", "cat"]), np.eye(2), np.array(["cat", "cat"]))
    >>> dataset.class_names, dataset.y_train
    (('cat', 'dog'), array([1, 0]))
    """
    _check_lengths(name, "training ", x_train, y_train)
    _check_lengths(name, "test ", x_test, y_test)
    if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype.kind != x_test.dtype.kind:
        raise DataError(
            f"{name}: a training example is {x_train.dtype} {x_train.shape[1:]} and a test example is {x_test.dtype} "
            f"{x_test.shape[1:]}. Give both the same shape and type."
        )
    x = _inputs(name, "x_train", x_train), _inputs(name, "x_test", x_test)
    _check_labels(name, "y_train", y_train)
    _check_labels(name, "y_test", y_test)
    if (task or task_of(name, "y_train", y_train)) == "regression":
        y = _targets(name, "y_train", y_train), _targets(name, "y_test", y_test)
        return Dataset(name=name, x_train=x[0], y_train=y[0], x_test=x[1], y_test=y[1], task="regression")
    train, test, class_names = _numbered(name, y_train, y_test)
    return Dataset(name=name, x_train=x[0], y_train=train, x_test=x[1], y_test=test, class_names=class_names)


def assemble_with_test_set(name: str, x: Array, y: Array, *, task: Task | None = None, label: str = "y") -> Dataset:
    """A dataset of examples that come without a test set: a fifth, always the same ones, becomes it.

    Args:
        name: how the user called it.
        x: the inputs.
        y: the labels.
        task: what they mean, where the user said so.
        label: what messages call them.
    """
    _check_lengths(name, "", x, y)
    if len(x) < 2:
        raise DataError(f"{name} has 1 example: training and testing need one each, at the very least. Add examples.")
    x = _inputs(name, "x", x)  # checked before the split, so that a message names the row of the file
    _check_labels(name, label, y)
    task = task or task_of(name, label, y)
    y = _targets(name, label, y) if task == "regression" else _flat(name, label, y)
    num_test = max(round(len(x) * TEST_SHARE), 1)
    if task == "classification":
        _check_one_of_each_is_left(name, y, num_test)
    train, test = hold_out(len(x), num_test, y if task == "classification" else None)
    return assemble(name, x[train], y[train], x[test], y[test], task=task)


def _check_one_of_each_is_left(name: str, y: Array, num_test: int) -> None:
    num_classes, num_train = len(np.unique(y)), len(y) - num_test
    if 1 < num_classes > num_train:
        raise DataError(
            f"{name} has {len(y)} examples of {num_classes} classes: with {num_test} for testing, {num_train} cannot show "
            "every class. Add examples."
        )


def _check_lengths(name: str, part: str, x: Array, y: Array) -> None:
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise DataError(
            f"{name}: the {part}inputs have shape {x.shape} and the labels {y.shape}. Give one label for each example."
        )
    if len(x) == 0:
        raise DataError(f"{name} has no {part}examples: an empty set cannot be used. Add examples.")


def _inputs(name: str, key: str, x: Array) -> Array:
    """Images as they are, features as float32."""
    if x.dtype == np.uint8 and x.ndim > 2:
        return _checked_images(name, key, x)
    if x.dtype.kind not in "fiub":
        raise DataError(f"{name}: {key} is {x.dtype}, expected numbers. Encode other values as numbers, or use a CSV.")
    if x.ndim > 2:
        raise DataError(
            f"{name}: {key} is {x.dtype} {x.shape}; expected float features [n, features] or uint8 images [n, height, "
            "width] or [n, height, width, channels]. Store images as uint8 from 0 to 255 with the channels last, as "
            "(images * 255).round().astype('uint8')."
        )
    return _finite(name, key, x.reshape(len(x), -1))


def _checked_images(name: str, key: str, x: Array) -> Array:
    if x.ndim > 4 or (x.ndim == 4 and x.shape[3] > MAX_CHANNELS):
        raise DataError(
            f"{name}: {key} has shape {x.shape}; expected [n, height, width] or [n, height, width, channels]. Put the "
            f"channels last: {key}.transpose(0, 2, 3, 1)."
        )
    return x


def _check_labels(name: str, key: str, y: Array) -> None:
    """Whatever they mean, none may be missing."""
    if y.dtype.kind == "f":
        _finite(name, key, y.reshape(len(y), -1))


def _targets(name: str, key: str, y: Array) -> Array:
    if y.dtype.kind not in "fiu" or y.ndim > 2:
        raise DataError(
            f"{name}: {key} is {y.dtype} {y.shape}; expected regression targets, numbers [n] or [n, outputs]. Write them as "
            "numbers, or say task='classification' (--task classification)."
        )
    return _finite(name, key, y.reshape(len(y), -1))


def _finite(name: str, key: str, values: Array) -> Array:
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = bad[0]
        raise DataError(
            f"{name}: {key} has {values[row, column]} in row {row}, column {column} ({len(bad)} in all), which "
            "no model can learn from. Remove those rows, or fill them in."
        )
    return values


def _numbered(name: str, y_train: Array, y_test: Array) -> tuple[Array, Array, tuple[str, ...]]:
    """Labels as 0 to K - 1, in the sorted order of their names."""
    train, test = _flat(name, "y_train", y_train), _flat(name, "y_test", y_test)
    classes, numbers = np.unique(train, return_inverse=True)
    names = tuple(map(class_name, classes))
    if len(classes) < 2:
        raise DataError(
            f"{name}: all training examples are of class {names[0]}: there is nothing to learn. Add another class."
        )
    unknown = np.setdiff1d(test, classes)
    if len(unknown):
        or_else = f", or {ASK_FOR_A_QUANTITY} if they are a quantity" if classes.dtype.kind in "fiu" else ""
        raise DataError(
            f"{name}: y_test has labels that y_train lacks: {', '.join(map(class_name, unknown[:5]))}. Training knows "
            f"{len(classes)} classes, {names[0]} to {names[-1]}. Correct the labels, or add training examples of "
            f"these{or_else}."
        )
    return numbers.astype(np.int64), np.searchsorted(classes, test), names


def _flat(name: str, key: str, labels: Array) -> Array:
    """Labels as ``[n]``, of ``[n]`` or ``[n, 1]``."""
    if labels.dtype.kind not in "fiubUS" or labels.size != len(labels):
        raise DataError(
            f"{name}: {key} is {labels.dtype} {labels.shape}; expected one number or text for each example, or floats "
            "[n, outputs] for several quantities. Turn one-hot labels into numbers with y.argmax(1)."
        )
    flat = labels.reshape(-1)
    return np.char.decode(flat) if flat.dtype.kind == "S" else flat
