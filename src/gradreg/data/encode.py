"""Rows of a table, and pictures, as the inputs of a model that was trained on such."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from gradreg.data.dataset import Array
from gradreg.data.errors import DataError
from gradreg.data.images import read_images

#: The columns of a table in the order of the features: each with its categories, or none where it holds numbers.
Columns = Mapping[str, Sequence[str]]


def encode_rows(rows: Iterable[Mapping[str, object]], columns: Columns) -> Array:
    """Features ``[n, features]`` of rows such as ``csv.DictReader`` gives; what is no column of the model is left out.

    Args:
        rows: cells by the name of their column; or a table of pandas.
        columns: those of the dataset that the model was trained on, as ``Dataset.columns`` has them.

    >>> encode_rows([{"size": "1.5", "colour": "red"}], {"size": (), "colour": ("blue", "red")})
    array([[1.5, 0. , 1. ]], dtype=float32)
    """
    if isinstance(rows, Mapping):
        raise DataError("one row was given, and rows are expected: put it into a list, [row].")
    if hasattr(rows, "to_dict"):
        rows = rows.to_dict("records")
    encoded = [_encoded(number, row, columns) for number, row in enumerate(rows)]
    width = sum(max(len(categories), 1) for categories in columns.values())
    return np.array(encoded, dtype=np.float32).reshape(len(encoded), width)


def encode_images(paths: Sequence[str | Path], input_shape: tuple[int, int, int]) -> Array:
    """Image files as uint8 ``[n, channels, height, width]``, resized as for training.

    Args:
        paths: of pictures that Pillow reads.
        input_shape: ``(channels, height, width)``, as the dataset and the loaded model have it.
    """
    if isinstance(paths, (str, Path)):
        raise DataError(f"one path was given, {str(paths)!r}, and several are expected: put it into a list.")
    channels, height, width = input_shape
    if not paths:
        return np.zeros((0, *input_shape), dtype=np.uint8)
    if channels not in (1, 3):
        raise DataError(
            f"pictures have 1 channel or 3, and input_shape={input_shape} names {channels}: was it trained on some?"
        )
    images = read_images([*map(Path, paths)], mode="L" if channels == 1 else "RGB", size=(width, height))
    return images[:, None] if channels == 1 else np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def _encoded(number: int, row: Mapping[str, object], columns: Columns) -> list[float]:
    features: list[float] = []
    for name, categories in columns.items():
        if name not in row:
            raise DataError(f"row {number} has no {name!r}, and the columns are {', '.join(columns)}: give all of them.")
        cell = str(row[name]).strip()
        features += _indicators(number, name, cell, categories) if categories else [_number(number, name, cell)]
    return features


def _indicators(number: int, name: str, cell: str, categories: Sequence[str]) -> list[float]:
    if cell not in categories:
        raise DataError(
            f"row {number}: column {name!r} is {cell!r}, which no example had: choose one of {', '.join(categories)}."
        )
    return [float(cell == category) for category in categories]


def _number(number: int, name: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"row {number}: column {name!r} is {cell!r}, expected a finite number. Correct it.")
    return value
