"""Every run of every arm, and the differences to the baseline."""

from __future__ import annotations

from collections import defaultdict

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradreg.report.drawing import FAINT, INK, arm_styles, few_ticks, house_style, log_if_wide, shown
from gradreg.report.selection import metric_label, scaled
from gradreg.study.statistics import Comparison


def accuracy_by_arm(comparison: Comparison) -> Figure:
    """Every run as a point, runs of the same seed joined; means and differences to the baseline with 95 % intervals."""
    tested = any(row.difference for row in comparison.rows)
    with house_style():
        figure = Figure(figsize=(7.8 if tested else 5.4, 1.15 + 0.5 * len(comparison.rows)), layout="constrained")
        axes = figure.subplots(1, 2 if tested else 1, sharey=True, squeeze=False, width_ratios=[3, 2][: 1 + tested])[0]
        _draw_runs(axes[0], comparison)
        if tested:
            _draw_differences(axes[1], comparison)
        axes[0].set_yticks(range(len(comparison.rows)), [shown(row.arm) for row in comparison.rows])
        axes[0].set_ylim(len(comparison.rows) - 0.4, -0.6)
    return figure


def _draw_runs(axes: Axes, comparison: Comparison) -> None:
    styles = arm_styles(comparison)
    _join_pairs(axes, comparison)
    for y, row in enumerate(comparison.rows):
        if row.summary:
            colour = styles[row.arm].colour
            values = scaled(row.summary.values, comparison)
            axes.plot(values, [y] * row.summary.n, "o", color=colour, alpha=0.65, markersize=5, markeredgewidth=0)
            _draw_interval(axes, y + 0.24, row.summary.mean, row.summary.interval, comparison, colour)
    axes.set_xlabel(metric_label(comparison, "test"))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    everything = scaled([v for row in comparison.rows if row.summary for v in row.summary.values], comparison)
    if not log_if_wide(axes, "x", everything):
        few_ticks(axes, 6)
    if comparison.metric == "accuracy":
        _end_at_100(axes)


def _end_at_100(axes: Axes) -> None:
    """There is no more, whatever the margin."""
    low, high = axes.get_xlim()
    axes.set_xlim(right=min(high, 100 + 0.02 * (100 - low)))


def _join_pairs(axes: Axes, comparison: Comparison) -> None:
    by_seed: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for y, row in enumerate(comparison.rows):
        for seed, value in zip(row.seeds, row.summary.values if row.summary else (), strict=True):
            by_seed[seed].append((value, y))
    for points in by_seed.values():
        values, heights = zip(*points, strict=True)
        axes.plot(scaled(values, comparison), heights, color=FAINT, linewidth=0.7, alpha=0.4, zorder=1)


def _draw_differences(axes: Axes, comparison: Comparison) -> None:
    styles = arm_styles(comparison)
    axes.axvline(0, color=FAINT, linewidth=1)
    for y, row in enumerate(comparison.rows):
        if row.difference:
            ends = row.difference.low, row.difference.high
            _draw_interval(axes, y, row.difference.mean, ends, comparison, styles[row.arm].colour)
    unit = " (points)" if comparison.metric == "accuracy" else ""
    axes.set_xlabel(f"difference to {shown(comparison.baseline, lines=1)}{unit}")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    few_ticks(axes, 4)


def _draw_interval(
    axes: Axes, y: float, mean: float, interval: tuple[float, float], comparison: Comparison, colour: str
) -> None:
    axes.plot(scaled(interval, comparison), [y, y], color=colour, linewidth=2.2, solid_capstyle="butt")
    axes.plot(scaled([mean], comparison), [y], "D", color=colour, markersize=6, markeredgecolor=INK, markeredgewidth=0.8)
