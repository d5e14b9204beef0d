"""The cells of a CSV file, column by column, and where they are."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from gradreg.data.dataset import Array
from gradreg.data.errors import DataError

MISSING = frozenset({"", "?", "na", "n/a", "nan", "none", "null"})

#: 2,5 and 1.234,50 and 1,234.
NUMBER_WITH_COMMA = re.compile(r"[-+]?\d[\d.,]*,\d+")


@dataclass(frozen=True)
class Column:
    """What is written below a name, and the line that each of it begins in."""

    path: Path
    name: str
    cells: tuple[str, ...]
    lines: tuple[int, ...]

    @cached_property
    def numbers(self) -> Array | None:
        """None where one of the cells is a text."""
        try:
            return np.array([float(cell) for cell in self.cells])
        except ValueError:
            return None

    @property
    def holes(self) -> list[tuple[int, str]]:
        """Lines and cells without a value."""
        return [(line, cell) for line, cell in zip(self.lines, self.cells, strict=True) if cell.lower() in MISSING]

    @property
    def first_text(self) -> tuple[int, str]:
        """Its line and the cell."""
        return next((line, cell) for line, cell in zip(self.lines, self.cells, strict=True) if not is_number(cell))

    @property
    def is_mostly_numbers(self) -> bool:
        """Whether a text among them is a slip rather than a category."""
        return 2 * sum(map(is_number, self.cells)) > len(self.cells)

    @property
    def has_decimal_commas(self) -> bool:
        """Whether all that keeps them from being numbers are commas."""
        texts = [cell for cell in self.cells if not is_number(cell)]
        return bool(texts) and all(map(NUMBER_WITH_COMMA.fullmatch, texts))


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def read_columns(path: Path) -> list[Column]:
    """The columns of a file with a header line; commas, semicolons or tabs between the cells. Blank lines do not count."""
    text = _read_text(path)
    delimiter = max(",;\t", key=text.lstrip().partition("\n")[0].count)
    rows = [(line, row) for line, row in _rows(path, text, delimiter) if any(row)]
    if len(rows) < 2:
        raise DataError(f"{path} has {len(rows)} lines: expected a header line and then one line for each example.")
    (_, header), *rows = rows
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(f"{path}, line {line} has {len(row)} cells and the header has {len(header)}: correct the line.")
    lines, cells = zip(*rows, strict=True)
    columns = [Column(path, *column, lines) for column in zip(header, zip(*cells, strict=True), strict=True)]
    _check_header(path, columns)
    _check_nothing_missing(columns)
    return columns


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}): save it as CSV in UTF-8.") from error


def _rows(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Each row with the line that it begins in."""
    reader, line = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True), 1
    try:
        for row in reader:
            yield line, [cell.strip() for cell in row]
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}: unclosed quote in line {line} ({error}). Close it, or remove it; a quote inside a quoted text "
            "is written twice."
        ) from error


def _check_header(path: Path, columns: list[Column]) -> None:
    header = [column.name for column in columns]
    if len(header) < 2:
        raise DataError(f"{path} has the column {header[0]!r} alone: expected the label and at least one feature.")
    if all(map(is_number, header)):
        raise DataError(f"{path} begins with numbers: add a header line that names the {len(header)} columns.")
    for i, name in enumerate(header):
        if name in header[:i]:
            raise DataError(f"{path} has two columns {name!r}: give each a name of its own.")
    with_numbers = any(map(is_number, header))
    for column in columns:
        if with_numbers and column.numbers is None and column.name in column.cells:
            raise DataError(
                f"{path} begins with {', '.join(header)}, which looks like an example ({column.name!r} is also among the "
                f"cells below it): add a header line that names the {len(header)} columns."
            )


def _check_nothing_missing(columns: list[Column]) -> None:
    found = {column.name: holes for column in columns if (holes := column.holes)}
    if not found:
        return
    (name, [(line, cell), *_]), *_ = found.items()
    counts = ", ".join(f"{len(holes)} in {name!r}" for name, holes in found.items())
    raise DataError(
        f"{columns[0].path}, line {line}: column {name!r} has no value ({cell!r}). Fill it in, or remove the line or "
        f"column (a category of that name needs another one). Missing in all: {counts}."
    )
