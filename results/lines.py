"""CSV files that grow by a line a run: what is there is not run again."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

Line = tuple[object, ...]
Job = TypeVar("Job", bound=Line)


def add_missing(path: Path, header: Sequence[str], jobs: Sequence[Job], measure: Callable[[Job], Line]) -> None:
    """Measure what the file does not have yet, on all cores. A line is its job and what was measured."""
    known = _known(path)
    todo = [job for job in jobs if tuple(map(str, job)) not in {line[: len(job)] for line in known}]
    with get_context("spawn").Pool() as pool, path.open("a", newline="") as file:
        writer = csv.writer(file)
        if not known:
            writer.writerow(header)
        for job, measured in zip(todo, pool.imap(measure, todo), strict=True):
            writer.writerow([*job, *measured])
            file.flush()


def _known(path: Path) -> list[tuple[str, ...]]:
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [tuple(line) for line in csv.reader(file)]
