"""Datasets of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradreg.data.assemble import assemble, assemble_with_test_set
from gradreg.data.dataset import Array, Dataset, Task
from gradreg.data.errors import DataError
from gradreg.data.images import common_mode, to_array
from gradreg.data.optional import require

PREFIX = "hf:"
LABEL_NAMES = ("label", "labels", "target", "y", "fine_label", "class")
TEST_SPLITS = ("test", "validation", "valid")


def load_hub(name: str, label: str | None = None, image_size: int | None = None, task: Task | None = None) -> Dataset:
    """A dataset of the hub with an image column, or with columns of numbers.

    Args:
        name: ``hf:owner/name``. The split ``train`` is needed; ``test`` is used, or else ``validation``, or else a fifth of
            the training data.
        label: the column to predict; without it, the first of the usual names.
        image_size: pixels of a side, to which images are resized; without it, the size of the first image.
        task: what the labels mean; without it, what :func:`~gradreg.data.labels.task_of` makes of them.
    """
    splits = _download(name)
    if "train" not in splits:
        raise DataError(f"{name} has the splits {', '.join(splits)} and no train: use a dataset that has one.")
    train = splits["train"]
    target = _label_column(name, train.column_names, label)
    inputs = _reader(name, train, target, image_size)
    test = next((splits[one] for one in TEST_SPLITS if one in splits and _is_labelled(splits[one], target)), None)
    if test is None:
        return assemble_with_test_set(name, inputs(train), _labels(train, target), task=task)
    return assemble(name, inputs(train), _labels(train, target), inputs(test), _labels(test, target), task=task)


def _download(name: str) -> Any:
    datasets = require("datasets", "hub")
    try:
        return datasets.load_dataset(name.removeprefix(PREFIX))
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"{name} could not be loaded ({error}): check its name on the hub, and the connection.") from error


def _label_column(name: str, columns: list[str], label: str | None) -> str:
    found = next((column for column in LABEL_NAMES if column in columns), None) if label is None else label
    if found not in columns:
        raise DataError(f"{name}: label={label!r} is no column: name one of {', '.join(columns)} with label.")
    return found


def _labels(rows: Any, target: str) -> Array:
    """The names of the classes, where the hub knows them."""
    labels, names = np.array(list(rows[target])), getattr(rows.features.get(target), "names", None)
    return labels if names is None else np.array(names)[labels]


def _is_labelled(rows: Any, target: str) -> bool:
    """Test sets of competitions come with -1 for every label."""
    return target in rows.column_names and any(value != -1 for value in rows[target])


def _reader(name: str, rows: Any, target: str, image_size: int | None) -> Callable[[Any], Array]:
    """How to make an array of a split: of its images, if the training data have some, else of its columns of numbers."""
    first = rows[0]
    images = next((column for column, value in first.items() if hasattr(value, "convert")), None)
    if images is not None:
        mode = common_mode([image.mode for image in rows[images]])
        size = (image_size, image_size) if image_size else first[images].size
        return lambda part: np.stack([to_array(image, mode, size) for image in part[images]])
    numeric = [column for column, value in first.items() if column != target and isinstance(value, int | float)]
    if not numeric:
        raise DataError(f"{name}: none of {', '.join(first)} holds images or numbers: use a dataset that has them.")
    return lambda part: np.stack([np.array(list(part[column]), np.float64) for column in numeric], axis=1)
