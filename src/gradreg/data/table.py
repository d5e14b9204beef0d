"""A CSV file with a column to predict."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np

from gradreg.data.assemble import assemble_with_test_set
from gradreg.data.dataset import Array, Dataset, Task
from gradreg.data.errors import DataError

LABEL_NAMES = ("label", "target", "y")
MISSING = frozenset({"", "?", "na", "n/a", "nan", "none", "null"})

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
    header, rows = _read_cells(path)
    target = _label_column(path, header, label)
    columns = {i: [row[i].strip() for row in rows] for i in range(len(header))}
    for i, cells in columns.items():
        _check_nothing_missing(path, header[i], cells)
    y, named = _labels(path, header[target], columns.pop(target), task), f"column {header[target]!r}"
    features = {i: _features(path, header[i], cells) for i, cells in columns.items()}
    dataset = assemble_with_test_set(str(path), np.concatenate([*features.values()], axis=1), y, task=task, label=named)
    categories = {header[i]: features[i].shape[1] for i, cells in columns.items() if _as_numbers(cells) is None}
    return replace(dataset, categories=categories)


def _read_cells(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}): save it as CSV in UTF-8.") from error
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    lines = list(csv.reader(io.StringIO(text.rstrip("\r\n"), newline=""), delimiter=delimiter))
    if len(lines) < 2:
        raise DataError(f"{path} has {len(lines)} lines: expected a header line and then one line for each example.")
    header, *rows = [name.strip() for name in lines[0]], *lines[1:]
    _check_header(path, header)
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise DataError(
                f"{path}, line {number} has {len(row)} cells and the header has {len(header)}: correct the line."
            )
    return header, rows


def _check_header(path: Path, header: list[str]) -> None:
    if len(header) < 2:
        raise DataError(f"{path} has the column {header[0]!r} alone: expected the label and at least one feature.")
    if _as_numbers(header) is not None:
        raise DataError(f"{path} begins with numbers: add a header line that names the {len(header)} columns.")


def _label_column(path: Path, header: list[str], label: str | None) -> int:
    if label is None:
        lower = [name.lower() for name in header]
        return next((lower.index(name) for name in LABEL_NAMES if name in lower), len(header) - 1)
    if label not in header:
        raise DataError(f"label={label!r} is no column of {path}: choose one of {', '.join(header)}.")
    return header.index(label)


def _check_nothing_missing(path: Path, name: str, cells: list[str]) -> None:
    for number, cell in enumerate(cells, start=2):
        if cell.lower() in MISSING:
            raise DataError(
                f"{path}, line {number}: column {name!r} has no value ({cell!r}). Fill it in, or remove the line or column."
            )


def _features(path: Path, name: str, cells: list[str]) -> Array:
    """A numeric column as it is, a text column as one column for each of its values."""
    numbers = _as_numbers(cells)
    if numbers is not None:
        return _finite(path, name, numbers)[:, None]
    number, cell = _first_text(cells)
    if _mostly_numbers(cells):
        raise DataError(
            f"{path}, line {number}: column {name!r} is {cell!r}, and most of its cells are numbers. Correct it (decimals "
            "have a point), or remove the line; if the column holds categories, write none of them as a number."
        )
    values = np.unique(cells)
    if len(values) > MAX_CATEGORIES:
        raise DataError(
            f"{path}: column {name!r} has {len(values)} different texts, such as {cell!r}: too many to be "
            f"categories (at most {MAX_CATEGORIES}). Remove the column if it is a name; correct it if it should be numbers."
        )
    return np.eye(len(values))[np.searchsorted(values, cells)]


def _labels(path: Path, name: str, cells: list[str], task: Task | None) -> Array:
    """Numbers where all are, else texts."""
    numbers = _as_numbers(cells)
    if numbers is not None:
        return _finite(path, name, numbers)
    if task == "regression" or (task is None and _mostly_numbers(cells)):
        number, cell = _first_text(cells)
        raise DataError(
            f"{path}, line {number}: column {name!r} is {cell!r}, which is no number to predict. Correct it, name another "
            "column (label), or say task='classification' (--task classification) if it is a class."
        )
    return np.array(cells)


def _as_numbers(cells: list[str]) -> Array | None:
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        return None


def _mostly_numbers(cells: list[str]) -> bool:
    """Whether a text among them is a slip rather than a category."""
    return 2 * sum(_as_numbers([cell]) is not None for cell in cells) > len(cells)


def _first_text(cells: list[str]) -> tuple[int, str]:
    """The line and the cell that is no number."""
    return next((number, cell) for number, cell in enumerate(cells, start=2) if _as_numbers([cell]) is None)


def _finite(path: Path, name: str, numbers: Array) -> Array:
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        raise DataError(f"{path}, line {bad[0] + 2}: column {name!r} is {numbers[bad[0]]}. Give a finite number.")
    return numbers
