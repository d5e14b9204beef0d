"""What the penalties act on: the size of the gradient at training and at test points."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from gradreg.report.drawing import FAINT, INK, TINY, arm_styles, house_style, legend_below, log_if_wide, shown
from gradreg.report.selection import by_arm
from gradreg.study.records import RunRecord
from gradreg.study.statistics import Comparison

OFFSETS = {"train": -0.17, "test": 0.17}


def gradient_norms(records: Iterable[RunRecord], comparison: Comparison) -> Figure | None:
    """Norms of the outputs' gradient at training and at test points, all runs together; None where there are none."""
    runs = by_arm(records, comparison, "test")
    norms = {(arm, split): _norms(runs[arm], split) for arm in runs for split in OFFSETS}
    if not any(values.size for values in norms.values()):
        return None
    with house_style():
        figure = Figure(figsize=(7.0, 1.4 + 0.5 * len(runs)), layout="constrained")
        axes = figure.subplots()
        _draw_boxes(axes, norms, comparison)
        log_if_wide(axes, "x", np.concatenate(list(norms.values())))
        axes.set_yticks(range(len(runs)), [shown(arm) for arm in runs])
        axes.set_ylim(len(runs) - 0.5, -0.5)
        axes.set_xlabel("norm of the gradient of the outputs with respect to the input")
        axes.grid(axis="x")
        kinds = [Patch(facecolor="none", edgecolor=INK), Patch(facecolor=FAINT, edgecolor=FAINT)]
        legend_below(figure, kinds, ["training points", "test points"])
    return figure


def _draw_boxes(axes: Axes, norms: dict[tuple[str, str], NDArray[Any]], comparison: Comparison) -> None:
    heights = {row.arm: y for y, row in enumerate(comparison.rows)}
    styles = arm_styles(comparison)
    for (arm, split), values in norms.items():
        if values.size:
            filled = split == "test"
            _draw_box(axes, heights[arm] + OFFSETS[split], values, styles[arm].colour, filled)


def _draw_box(axes: Axes, y: float, values: NDArray[Any], colour: str, filled: bool) -> None:
    axes.boxplot(
        values,
        positions=[y],
        widths=0.26,
        orientation="horizontal",
        manage_ticks=False,
        whis=(5, 95),
        showfliers=False,
        patch_artist=True,
        boxprops={"facecolor": colour if filled else "none", "edgecolor": colour},
        medianprops={"color": INK, "linewidth": 1.4},
        whiskerprops={"color": colour},
        capprops={"color": colour},
    )


def _norms(runs: Iterable[RunRecord], split: str) -> NDArray[Any]:
    return np.maximum([norm for run in runs for norm in run.gradient_norms.get(split, [])], TINY)
