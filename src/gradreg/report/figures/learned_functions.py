"""What was learned, for regression from one number to one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gradreg.report.drawing import FAINT, INK, arm_styles, house_style, label_panels, legend_below, panels, shown
from gradreg.report.selection import by_arm
from gradreg.study.records import RunRecord
from gradreg.study.statistics import Comparison

LEGEND = {
    "target": Line2D([], [], color=INK, linestyle="--", linewidth=1.2),
    "one run": Line2D([], [], color=FAINT, linewidth=1.8),
    "its training points": Line2D([], [], color=INK, marker="o", linestyle="", markersize=3.5),
    "other runs": Line2D([], [], color=FAINT, linewidth=0.8, alpha=0.5),
}


def learned_functions(records: Iterable[RunRecord], comparison: Comparison) -> Figure | None:
    """Target, training points and learned functions, a panel an arm; None unless it is regression on one number."""
    functions = {
        arm: learned
        for arm, runs in by_arm(records, comparison, "test").items()
        if (learned := [run.function for run in runs if run.function])
    }
    if not functions:
        return None
    with house_style():
        figure = Figure(layout="constrained")
        every = panels(figure, len(functions))
        for axes, (arm, learned) in zip(every, functions.items(), strict=True):
            _draw_functions(axes, learned, arm_styles(comparison)[arm].colour)
            axes.set_title(shown(arm, width=28))
        label_panels(figure, every, "input", "output")
        legend_below(figure, list(LEGEND.values()), list(LEGEND))
    return figure


def _draw_functions(axes: Axes, functions: Sequence[dict[str, list[float]]], colour: str) -> None:
    """All runs faintly, the first with its training points."""
    first = functions[0]
    if "target" in first:
        axes.plot(first["x"], first["target"], color=INK, linewidth=1.2, linestyle="--")
    for function in functions:
        axes.plot(function["x"], function["y"], color=colour, linewidth=0.8, alpha=0.3)
    axes.plot(first["x"], first["y"], color=colour, linewidth=1.8)
    axes.plot(first.get("train_x", []), first.get("train_y", []), "o", color=INK, markersize=3.5)
