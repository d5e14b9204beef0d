"""How the weights were tuned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradreg.report.drawing import COLOURS, FAINT, INK, house_style, label_panels, log_if_wide, panels, shown
from gradreg.report.selection import by_arm, metric_label, scaled
from gradreg.study.records import RunRecord
from gradreg.study.statistics import Comparison, Row, arm_weight, diverged


def metric_by_weight(records: Iterable[RunRecord], comparison: Comparison) -> Figure | None:
    """The validation metric against the weight, a panel an arm, with the weight that was chosen; None without tuning."""
    records = list(records)
    tuning = by_arm(records, comparison, "validation")
    points = {row.arm: _by_weight(tuning[row.arm], comparison) for row in comparison.penalised}
    tuned = [row for row in comparison.penalised if points[row.arm]]
    if not tuned:
        return None
    with house_style():
        figure = Figure(layout="constrained")
        every = panels(figure, len(tuned))
        for axes, row in zip(every, tuned, strict=True):
            _draw_baseline(axes, _baseline_runs(records, comparison), comparison)
            _draw_weights(axes, row, points[row.arm])
        if comparison.metric == "mse":
            log_if_wide(every[0], "y", np.array([v for row in tuned for vs in points[row.arm].values() for v in vs]))
        else:
            low, high = _accuracy_range([points[row.arm] for row in tuned])
            every[0].set_ylim(low, high)
            for axes, row in zip(every, tuned, strict=True):
                _mark_below(axes, points[row.arm], low)
        label_panels(figure, every, "weight of the penalty", metric_label(comparison, "validation"))
    return figure


def _accuracy_range(points: Sequence[dict[float, list[float]]]) -> tuple[float, float]:
    """The range of the better weights: that training collapses beyond them is seen, and how deep is no matter."""
    means = np.sort([np.mean(values) for by_weight in points for values in by_weight.values()])
    best = max(max(values) for by_weight in points for values in by_weight.values())
    depth = max(best - means[len(means) // 4], 2.0)
    lowest = min(min(values) for by_weight in points for values in by_weight.values())
    return max(best - 2 * depth, lowest - 0.5), best + 0.1 * depth


def _mark_below(axes: Axes, points: dict[float, list[float]], low: float) -> None:
    """A triangle at the edge for weights with runs that end below it."""
    for weight, values in points.items():
        if min(values) < low:
            axes.plot(weight, low, "v", color=COLOURS[0], clip_on=False, in_layout=False, markersize=6, markeredgewidth=0)


def _draw_weights(axes: Axes, row: Row, points: dict[float, list[float]]) -> None:
    if row.weight:
        axes.axvline(row.weight, color=INK, linewidth=1, linestyle=":")
    for weight, values in points.items():
        axes.plot([weight] * len(values), values, "o", color=COLOURS[0], alpha=0.4, markersize=4, markeredgewidth=0)
    axes.plot(list(points), [np.mean(values) for values in points.values()], color=COLOURS[0], linewidth=1.6)
    axes.set_xscale("log")
    axes.set_title(shown(row.arm, width=28) + (f"\nchosen: {row.weight:g}" if row.weight else ""))
    axes.grid(axis="y")


def _draw_baseline(axes: Axes, runs: Sequence[RunRecord], comparison: Comparison) -> None:
    values = scaled([r.metrics[comparison.metric] for r in runs if not diverged(r, comparison.metric)], comparison)
    if values.size:
        axes.axhspan(values.min(), values.max(), color=FAINT, alpha=0.15, linewidth=0)
        axes.axhline(values.mean(), color=FAINT, linewidth=1.2)


def _baseline_runs(records: Iterable[RunRecord], comparison: Comparison) -> list[RunRecord]:
    """The baseline's validation runs with the settings of its final runs: it may have been tuned too."""
    runs = by_arm(records, comparison, "validation")[comparison.baseline]
    final = by_arm(records, comparison, "test")[comparison.baseline][0].config
    return [run for run in runs if replace(run.config, seed=final.seed, evaluate_on="test").key == final.key]


def _by_weight(runs: Sequence[RunRecord], comparison: Comparison) -> dict[float, list[float]]:
    """The metric of the runs at each weight above 0, as it is shown."""
    points: dict[float, list[float]] = defaultdict(list)
    for run in runs:
        weight = arm_weight(run.config)
        if weight and not diverged(run, comparison.metric):
            points[weight] += scaled([run.metrics[comparison.metric]], comparison).tolist()
    return dict(sorted(points.items()))
