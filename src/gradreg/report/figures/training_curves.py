"""How training went."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from gradreg.report.drawing import TINY, arm_styles, house_style, legend_below, plain_log, shown
from gradreg.report.selection import by_arm, metric_label
from gradreg.study.records import RunRecord
from gradreg.study.statistics import Comparison


@dataclass(frozen=True)
class Band:
    """Mean over the runs that reached each step, and one standard deviation to either side."""

    steps: NDArray[Any]
    mean: NDArray[Any]
    low: NDArray[Any]
    high: NDArray[Any]


def training_curves(records: Iterable[RunRecord], comparison: Comparison) -> Figure | None:
    """Training loss and test metric by step: mean and standard deviation over the runs; None without curves."""
    runs = {
        arm: with_curve
        for arm, finals in by_arm(records, comparison, "test").items()
        if (with_curve := [record for record in finals if record.curve.get("step")])
    }
    if not runs:
        return None
    with house_style():
        figure = Figure(figsize=(7.8, 3.3 + 0.08 * len(runs)), layout="constrained")
        loss_axes, metric_axes = figure.subplots(1, 2)
        lines = _draw_bands(loss_axes, comparison, {arm: log_band(runs[arm], "train_loss") for arm in runs})
        plain_log(loss_axes, "y")
        _draw_metric(metric_axes, comparison, runs)
        loss_axes.set(xlabel="step", ylabel="training loss")
        metric_axes.set(xlabel="step", ylabel=metric_label(comparison, "test"))
        legend_below(figure, lines, [shown(arm, width=40, lines=1) for arm in runs])
    return figure


def _draw_metric(axes: Axes, comparison: Comparison, runs: dict[str, list[RunRecord]]) -> None:
    if comparison.metric == "mse":
        _draw_bands(axes, comparison, {arm: log_band(runs[arm], "mse") for arm in runs})
        plain_log(axes, "y")
        return
    bands = {arm: band(runs[arm], "accuracy", scale=100) for arm in runs}
    _draw_bands(axes, comparison, bands)
    # The first steps are far below the rest, where the arms differ.
    last = max(float(one.steps.max(initial=0)) for one in bands.values())
    later = np.concatenate([ends[one.steps > last / 4] for one in bands.values() for ends in (one.low, one.high)])
    if later.size and np.ptp(later):
        axes.set_ylim(later.min() - 0.08 * np.ptp(later), later.max() + 0.08 * np.ptp(later))


def _draw_bands(axes: Axes, comparison: Comparison, bands: dict[str, Band]) -> list[Line2D]:
    styles, lines = arm_styles(comparison), []
    for arm, one in bands.items():
        look: dict[str, Any] = {"color": styles[arm].colour, "linestyle": styles[arm].dash, "linewidth": 1.6}
        lines += axes.plot(one.steps, one.mean, **look)
        axes.fill_between(one.steps, one.low, one.high, color=styles[arm].colour, alpha=0.12, linewidth=0)
    axes.grid(axis="y")
    return lines


def band(records: Sequence[RunRecord], name: str, scale: float = 1) -> Band:
    """Of a curve as it is recorded, times a scale."""
    at_step: dict[float, list[float]] = defaultdict(list)
    for record in records:
        for step, value in zip(record.curve["step"], record.curve.get(name, []), strict=False):
            if math.isfinite(value):
                at_step[step].append(scale * value)
    steps = sorted(at_step)
    mean = np.array([np.mean(at_step[step]) for step in steps])
    spread = np.array([np.std(at_step[step]) for step in steps])
    return Band(np.array(steps), mean, mean - spread, mean + spread)


def log_band(records: Sequence[RunRecord], name: str) -> Band:
    """The same of its logarithm: on a logarithmic axis the plain band would reach below zero."""
    logs = [
        replace(r, curve={"step": r.curve["step"], name: np.log(np.maximum(r.curve.get(name, []), TINY)).tolist()})
        for r in records
    ]
    of_log = band(logs, name)
    return Band(of_log.steps, *(np.exp(values) for values in (of_log.mean, of_log.low, of_log.high)))
