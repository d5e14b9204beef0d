"""Rows of a table as the features that a model was trained on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gradreg.data.dataset import Array
from gradreg.data.errors import DataError

#: The columns of a table in the order of the features: each with its categories, or none where it holds numbers.
Columns = Mapping[str, Sequence[str]]


def encode_rows(rows: Iterable[Mapping[str, object]], columns: Columns) -> Array:
    """Features ``[n, features]`` of rows such as ``csv.DictReader`` gives; what is no column of the model is left out.

    Args:
        rows: cells by the name of their column.
        columns: those of the dataset that the model was trained on, as ``Dataset.columns`` has them.

    >>> encode_rows([{"size": "1.5", "colour": "red"}], {"size": (), "colour": ("blue", "red")})
    array([[1.5, 0. , 1. ]], dtype=float32)
    """
    encoded = [_encoded(number, row, columns) for number, row in enumerate(rows)]
    width = sum(max(len(categories), 1) for categories in columns.values())
    return np.array(encoded, dtype=np.float32).reshape(len(encoded), width)


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
