"""A CSV file with a column to predict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from gradreg.data.assemble import assemble_with_test_set
from gradreg.data.cells import Column, read_columns
from gradreg.data.dataset import Array, Dataset, Task
from gradreg.data.errors import DataError

LABEL_NAMES = ("label", "target", "y")

#: A text column with more distinct values than this is a name or a key, which says nothing about new rows.
MAX_CATEGORIES = 100


def load_table(path: Path, label: str | None = None, task: Task | None = None) -> Dataset:
    """Rows of a CSV as features; text columns become one column for each of their values (one-hot).

    Args:
        path: a file with a header line; commas, semicolons or tabs between the cells. A fifth of the rows, always the same
            ones, becomes the test set.
        label: the column to predict; without it, the first of ``label``, ``target``, ``y``, or else the last column.
        task: what its cells mean; without it, what :func:`~gradreg.data.labels.task_of` makes of them.
    """
    columns = read_columns(path)
    target = columns.pop(_label_column(path, [column.name for column in columns], label))
    y, named = _labels(target, task), f"column {target.name!r}"
    categories = {column.name: _categories(column) for column in columns}
    x = np.concatenate([_features(column, categories[column.name]) for column in columns], axis=1)
    return replace(assemble_with_test_set(str(path), x, y, task=task, label=named), columns=categories)


def _label_column(path: Path, header: list[str], label: str | None) -> int:
    if label is None:
        lower = [name.lower() for name in header]
        return next((lower.index(name) for name in LABEL_NAMES if name in lower), len(header) - 1)
    if label not in header:
        raise DataError(f"label={label!r} is no column of {path}: choose one of {', '.join(header)}.")
    return header.index(label)


def _categories(column: Column) -> tuple[str, ...]:
    """The different texts in sorted order; none of a column of numbers."""
    if column.numbers is not None:
        return ()
    line, cell = column.first_text
    if column.is_mostly_numbers:
        raise DataError(
            f"{column.path}, line {line}: column {column.name!r} is {cell!r}, and most of its cells are numbers. Correct it "
            "(decimals have a point), or remove the line; if the column holds categories, write none of them as a number."
        )
    _check_commas(column, "if the column holds categories, write them in another way")
    categories = tuple(sorted({*column.cells}))
    if len(categories) > MAX_CATEGORIES:
        raise DataError(
            f"{column.path}: column {column.name!r} has {len(categories)} different texts, such as {cell!r}: too many to be "
            f"categories (at most {MAX_CATEGORIES}). Remove the column if it is a name; correct it if it should be numbers."
        )
    return categories


def _features(column: Column, categories: tuple[str, ...]) -> Array:
    """A column of numbers as it is, categories as an indicator for each of them."""
    if column.numbers is not None:
        return _finite(column, column.numbers)[:, None]
    return np.eye(len(categories))[np.searchsorted(categories, column.cells)]


def _labels(column: Column, task: Task | None) -> Array:
    """Numbers where all are, else texts."""
    if column.numbers is not None:
        return _finite(column, column.numbers)
    if task == "regression" or (task is None and column.is_mostly_numbers):
        line, cell = column.first_text
        raise DataError(
            f"{column.path}, line {line}: column {column.name!r} is {cell!r}, which is no number to predict. Correct it, "
            "name another column (label), or say task='classification' (--task classification) if it is a class."
        )
    if task is None:
        _check_commas(column, "say task='classification' (--task classification) if these are classes")
    return np.array(column.cells)


def _check_commas(column: Column, or_else: str) -> None:
    if column.has_decimal_commas:
        line, cell = column.first_text
        raise DataError(
            f"{column.path}, line {line}: column {column.name!r} is {cell!r}, a number with a comma. Write decimals with a "
            f"point and thousands without a comma; {or_else}."
        )


def _finite(column: Column, numbers: Array) -> Array:
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        first = bad[0]
        raise DataError(
            f"{column.path}, line {column.lines[first]}: column {column.name!r} is {numbers[first]}. Give a finite number."
        )
    return numbers
