"""The figures of a study, from its records: one file a figure, each a function that returns a matplotlib Figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from gradreg.report.drawing import as_svg, save, settle
from gradreg.report.figures.accuracy_by_arm import accuracy_by_arm
from gradreg.report.figures.gradient_norms import gradient_norms
from gradreg.report.figures.learned_functions import learned_functions
from gradreg.report.figures.metric_by_weight import metric_by_weight
from gradreg.report.figures.training_curves import training_curves
from gradreg.study.records import RunRecord
from gradreg.study.statistics import Comparison, compare_arms


def draw_all(records: Sequence[RunRecord], comparison: Comparison) -> dict[str, Figure]:
    """Every figure the records have the data for, by name."""
    figures = {
        "accuracy_by_arm": accuracy_by_arm(comparison),
        "metric_by_weight": metric_by_weight(records, comparison),
        "learned_functions": learned_functions(records, comparison),
        "training_curves": training_curves(records, comparison),
        "gradient_norms": gradient_norms(records, comparison),
    }
    return {name: settle(figure) for name, figure in figures.items() if figure is not None}


def save_figures(records: Iterable[RunRecord], folder: Path, *, baseline: str = "baseline") -> list[Path]:
    """Write every figure as SVG and PDF; returns their paths."""
    records = list(records)
    figures = draw_all(records, compare_arms(records, baseline))
    return save_all(figures, {name: as_svg(figure) for name, figure in figures.items()}, folder)


def save_all(figures: dict[str, Figure], svgs: dict[str, str], folder: Path) -> list[Path]:
    """Write figures as SVG, which they are drawn as already, and as PDF; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [path for name, figure in figures.items() for path in save(figure, svgs[name], folder / name)]


__all__ = [
    "accuracy_by_arm",
    "draw_all",
    "gradient_norms",
    "learned_functions",
    "metric_by_weight",
    "save_all",
    "save_figures",
    "training_curves",
]
