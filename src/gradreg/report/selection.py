"""The records and numbers that figures show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradreg.study.records import RunRecord
from gradreg.study.statistics import Comparison


def by_arm(records: Iterable[RunRecord], comparison: Comparison, split: str) -> dict[str, list[RunRecord]]:
    """The runs of each arm evaluated on that split, in the order of their seeds."""
    runs: dict[str, list[RunRecord]] = {row.arm: [] for row in comparison.rows}
    for record in sorted(records, key=lambda record: record.config.seed):
        if record.config.evaluate_on == split and record.config.arm in runs:
            runs[record.config.arm].append(record)
    return runs


def scaled(values: Sequence[float], comparison: Comparison) -> NDArray[Any]:
    """The metric as it is shown: accuracy in per cent."""
    return np.asarray(values, dtype=float) * (100 if comparison.metric == "accuracy" else 1)


def metric_label(comparison: Comparison, split: str) -> str:
    """What an axis of the metric is called."""
    return f"{split} accuracy (%)" if comparison.metric == "accuracy" else f"{split} mean squared error"
