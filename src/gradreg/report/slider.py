"""The data behind the page's slider: learned functions by arm and weight."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gradreg.report.drawing import arm_styles
from gradreg.study.records import RunRecord
from gradreg.study.statistics import Comparison, arm_weight, diverged

#: More functions at a weight would fill the page with bytes, not with insight.
MAX_RUNS = 5


def slider_data(records: Iterable[RunRecord], comparison: Comparison) -> dict[str, Any] | None:
    """For each arm the learned functions at every weight that was run; None unless it is regression on one number."""
    usable = [r for r in records if r.function and not diverged(r, comparison.metric)]
    stops = {row.arm: _stops(row.arm, usable, comparison) for row in comparison.rows}
    if not any(stops.values()):
        return None
    styles, chosen = arm_styles(comparison), {row.arm: row.weight for row in comparison.rows}
    known = [r.function for r in usable if r.function and "target" in r.function]
    return {
        "target": {"x": _short(known[0]["x"]), "y": _short(known[0]["target"])} if known else None,
        "arms": [
            {"name": arm, "colour": styles[arm].colour, "chosen": chosen[arm], "stops": stops[arm]}
            for arm in stops
            if stops[arm]
        ],
    }


def _stops(arm: str, records: Iterable[RunRecord], comparison: Comparison) -> list[dict[str, Any]]:
    """The positions of the slider: one for each weight."""
    groups: dict[float, list[RunRecord]] = defaultdict(list)
    for record in records:
        if record.config.arm == arm:
            groups[0.0 if arm == comparison.baseline else arm_weight(record.config) or 0.0].append(record)
    return [_stop(weight, _of_one_split(groups[weight])) for weight in sorted(groups)]


def _of_one_split(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Validation runs where there are some, so that the weights next to each other are comparable."""
    tuning = [run for run in runs if run.config.evaluate_on == "validation"]
    return sorted(tuning or runs, key=lambda run: run.config.seed)


def _stop(weight: float, runs: Sequence[RunRecord]) -> dict[str, Any]:
    functions = [run.function for run in runs[:MAX_RUNS] if run.function]
    return {
        "weight": weight,
        "split": runs[0].config.evaluate_on,
        "mse": _short([np.mean([run.metrics["mse"] for run in runs])])[0],
        "runs": [{n: _short(values) for n, values in function.items() if n != "target"} for function in functions],
    }


def _short(values: Sequence[Any]) -> list[float]:
    """Four digits: more cannot be seen."""
    return [float(f"{value:.4g}") for value in values]
