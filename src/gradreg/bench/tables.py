"""Benchmarks as a file name, a table and a plot."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from gradreg.bench.timing import Row
from gradreg.training.provenance import processor


def file_name(device: str, theme: str, precision: str) -> str:
    """Theme, precision, hardware and version: ``engines_bf16_nvidia-h200_torch-2.11.0.csv``."""
    hardware = torch.cuda.get_device_name() if device.startswith("cuda") else f"cpu-{processor()}"
    version = str(torch.__version__).split("+")[0]
    return f"{theme}_{precision}_{re.sub(r'[^a-z0-9.]+', '-', hardware.lower())}_torch-{version}.csv"


def read(path: Path) -> list[Row]:
    """The rows of a file that ``gradreg bench`` wrote."""
    with path.open() as file:
        return [_row(line) for line in csv.DictReader(file)]


def _row(line: dict[str, str]) -> Row:
    texts = ("model", "method", "penalty", "precision")
    whole = ("batch_size", "num_classes", "members")
    numbers = ("ms", "low_ms", "high_ms", "memory_mib", "seconds_to_start")
    return Row(
        **{name: line[name] for name in texts},  # type: ignore[arg-type]
        **{name: int(line[name]) for name in whole},  # type: ignore[arg-type]
        **{name: float(line[name]) for name in numbers},  # type: ignore[arg-type]
    )


COLUMNS = (
    "model",
    "batch",
    "classes",
    "precision",
    "method",
    "penalty",
    "ms",
    "x plain",
    "x faster than textbook",
    "MiB",
    "x plain",
    "start, s",
)


def table(rows: Sequence[Row]) -> str:
    """In Markdown: times, and their ratios to the plain step of the same kind and to the textbook."""
    lines = [
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
    ]
    for row in rows:
        plain, textbook = plain_of(row, rows), _textbook_of(row, rows)
        cells = [
            row.model,
            str(row.batch_size),
            str(row.num_classes),
            row.precision,
            row.method if row.members == 1 else f"fleet of {row.members}",
            row.penalty,
            f"{row.ms:.4g}",
            _ratio(row.ms, plain.ms if plain else 0),
            _ratio(textbook.ms if textbook else 0, row.ms),
            f"{row.memory_mib:.0f}" if row.memory_mib else "",
            _ratio(row.memory_mib, plain.memory_mib if plain else 0),
            f"{row.seconds_to_start:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def plain_of(row: Row, rows: Iterable[Row]) -> Row | None:
    """The plain step of the same case and kind: eager, compiled, or a fleet of the same size."""
    eager = "plain compiled" if "compiled" in row.method else "plain"
    name = "fleet" if row.method == "fleet" else eager
    same = (other for other in _of_case(row, rows) if other.method == name and not other.penalty)
    return next((other for other in same if other.members == row.members), None)


def _textbook_of(row: Row, rows: Iterable[Row]) -> Row | None:
    penalised = "spect_reg" in row.penalty
    return next((other for other in _of_case(row, rows) if other.method == "textbook"), None) if penalised else None


def _of_case(row: Row, rows: Iterable[Row]) -> Iterable[Row]:
    def case(one: Row) -> tuple[object, ...]:
        return one.model, one.batch_size, one.num_classes, one.precision

    return (other for other in rows if case(other) == case(row))


def _ratio(value: float, unit: float) -> str:
    return f"{value / unit:.2f}" if value and unit else ""
