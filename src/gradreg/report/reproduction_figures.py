"""The figures of a reproduction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradreg.papers.experiment import ACCURACY, Experiment, arm_id
from gradreg.papers.judge import Judged, judge
from gradreg.report.drawing import COLOURS, FAINT, INK, house_style, legend_below, panels, settle
from gradreg.study.statistics import Summary
from gradreg.training import RunRecord

Records = Sequence[RunRecord]
HEADINGS = {
    "differences": "Ours minus published",
    "train_size": "Size of the training set",
    "weight_norm": "DoubleBack, accuracy and the norm of the weights",
    "sin_functions": "Functions learned on SIN",
    "sin_errors": "Error on SIN by weight",
    "mnist_gradients": "Gradients beyond the training points",
}
#: What the paper says of each figure.
CAPTIONS = {
    "differences": "Ours minus the published number, with its 95 % confidence interval, each dataset on "
    "a scale of its own; blue: within two standard errors.",
    "train_size": "Accuracy by the size of the training set; bars are 95 % confidence intervals of the mean. The paper: "
    "“DoubleBack performs best consistently for all sizes.”",
    "weight_norm": "Blue: accuracy in per cent; black: squared norm of the weights. The paper: “Increasing λ increases "
    "accuracy, until a phase transition where accuracy collapses.”",
    "sin_functions": "Functions learned on SIN, one run each. The paper: “Although the gradient is controlled only on 100 "
    "training points, the whole manifold becomes smoother”, and “too large λ weights manifest in learning sawtooth-shaped "
    "functions rather than step functions” (here 0.3 and 3).",
    "sin_errors": "Mean squared error on SIN by weight, at the 50 points that the printed errors are of: our runs on the "
    "authors' training points, and the published value times 36. The paper: “The optimal weight is 0.03 which yields a "
    "reduction in MSE by a factor of 10.”",
    "mnist_gradients": "Norm of the logits' Jacobian, mean over points and runs. The paper: “stochastic gradient descent "
    "converges to a solution where gradients are globally controlled.”",
}


def draw(experiments: Mapping[str, Experiment], records: Mapping[str, Records]) -> dict[str, Figure]:
    """All figures for which there are runs, by name."""
    makers: dict[str, Callable[[], Figure | None]] = {
        "differences": lambda: differences([e for n, e in experiments.items() if n.startswith("table")], records),
        "train_size": lambda: _of(train_size, "train_size", experiments, records),
        "weight_norm": lambda: _of(weight_norm, "weight_norm", experiments, records),
        "sin_functions": lambda: _of(sin_functions, "sin_domain", experiments, records),
        "sin_errors": lambda: _of(sin_errors, "table7", experiments, records),
        "mnist_gradients": lambda: _of(gradients, "mnist_gradients", experiments, records),
    }
    with house_style():
        drawn = {name: make() for name, make in makers.items()}
    return {name: settle(figure) for name, figure in drawn.items() if figure is not None}


def _of(
    make: Callable[[Experiment, Records], Figure],
    name: str,
    experiments: Mapping[str, Experiment],
    records: Mapping[str, Records],
) -> Figure | None:
    return make(experiments[name], records[name]) if records.get(name) else None


def differences(experiments: Sequence[Experiment], records: Mapping[str, Records]) -> Figure | None:
    """Every accuracy cell that was run: the difference to the published mean, each dataset on a scale of its own."""
    judged = [(e, one) for e in experiments for one in judge(e, records.get(e.id, ())) if _in_per_cent(one)]
    if not judged:
        return None
    names = list(dict.fromkeys(one.cell.config.data for _, one in judged))
    groups = [[(e, one) for e, one in judged if one.cell.config.data == name] for name in names]
    height = 0.24 * len(judged) + len(groups)
    figure = Figure(figsize=(8, height), layout="constrained")
    grid = figure.subplots(len(groups), squeeze=False, height_ratios=[len(group) + 1 for group in groups])
    for axes, group in zip(grid[:, 0], groups, strict=True):
        _differences_of(group, axes)
    grid[-1, 0].set_xlabel("points of accuracy")
    figure.get_layout_engine().set(w_pad=0.15)  # type: ignore[union-attr,call-arg]
    return figure


def _differences_of(judged: Sequence[tuple[Experiment, Judged]], axes: Axes) -> None:
    for place, (_, one) in enumerate(judged):
        assert one.difference is not None
        colour = COLOURS[0] if one.verdict == "agrees" else COLOURS[1]
        axes.errorbar(one.difference, place, xerr=one.margin, fmt="o", color=colour, markersize=4, linewidth=1.4)
    axes.set_yticks(range(len(judged)), [f"{e.id}  {one.cell.row}, {one.cell.column}" for e, one in judged])
    axes.set_ylim(len(judged) - 0.5, -0.5)
    axes.axvline(0, color=FAINT, linewidth=1)


def _in_per_cent(one: Judged) -> bool:
    return one.difference is not None and one.margin is not None and one.cell.metric.unit == "%"


def train_size(experiment: Experiment, records: Records) -> Figure:
    """Accuracy by size, an arm a line."""
    figure = Figure(figsize=(6.6, 4.2), layout="constrained")
    axes = figure.add_subplot()
    found = {one.cell.place: one.ours for one in judge(experiment, records) if one.ours is not None}
    sizes = [int(row) for row in experiment.rows]
    for number, arm in enumerate(experiment.columns):
        points = [(size, found[str(size), arm]) for size in sizes if (str(size), arm) in found]
        if points:
            _line(axes, points, arm, FAINT if arm == "Baseline" else COLOURS[number - 1])
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,}".replace(",", " ") for size in sizes], rotation=45)
    axes.minorticks_off()
    axes.set(xlabel="training images", ylabel="accuracy on test, %")
    axes.grid(axis="y")
    axes.legend()
    return figure


def _line(axes: Axes, points: Sequence[tuple[float, Summary]], label: str, colour: str) -> None:
    margins = [summary.interval[1] - summary.mean for _, summary in points]
    x, means = [place for place, _ in points], [summary.mean for _, summary in points]
    axes.errorbar(x, means, yerr=margins, label=label, color=colour, marker="o", markersize=3, linewidth=1.4)


def weight_norm(experiment: Experiment, records: Records) -> Figure:
    """Accuracy and squared norm of the weights by the weight of DoubleBack, a panel a weight decay."""
    by_arm: dict[str, list[RunRecord]] = {}
    for record in records:
        by_arm.setdefault(arm_id(record.config), []).append(record)
    figure = Figure()
    rows = list(dict.fromkeys(cell.row for cell in experiment.cells if cell.metric == ACCURACY))
    for axes, row in zip(panels(figure, len(rows)), rows, strict=True):
        runs = [by_arm.get(arm_id(experiment.cell(row, column).config), []) for column in experiment.columns]
        _weight_norm_panel(axes, experiment.columns, runs)
        axes.set_title(f"weight decay {row}")
    figure.supxlabel("weight of DoubleBack", fontsize=10)
    return figure


def _weight_norm_panel(axes: Axes, weights: Sequence[str], runs: Sequence[Sequence[RunRecord]]) -> None:
    places = range(len(weights))
    accuracy, norm = ([_mean(group, name) for group in runs] for name in ("accuracy", "squared_weight_norm"))
    axes.plot(places, 100 * np.array(accuracy), color=COLOURS[0], marker="o", markersize=3)
    axes.set_ylim(88, 98.6)
    axes.set_xticks(places, weights, rotation=90, fontsize=7)
    beside = axes.twinx()
    beside.plot(places, norm, color=INK, linewidth=1.2)
    if not np.isnan(norm).all():
        beside.set_ylim(0, 1.1 * np.nanmax(norm))
    beside.tick_params(labelsize=7)


def _mean(runs: Sequence[RunRecord], name: str) -> float:
    values = [run.metrics[name] for run in runs if name in run.metrics]
    return float(np.mean(values)) if values else float("nan")


def sin_functions(experiment: Experiment, records: Records) -> Figure:
    """Learned functions for some weights, the last panel a part of the domain."""
    by_arm = {arm_id(record.config): record.function for record in records if record.function is not None}
    functions = {cell.column: by_arm.get(arm_id(cell.config)) for cell in experiment.cells}
    figure = Figure(figsize=(8.4, 5.2), layout="constrained")
    *every, zoomed = figure.subplots(2, 3).flat
    for axes, weight in zip(every, ("0", "0.003", "0.03", "0.3", "3"), strict=True):
        _draw_function(axes, functions.get(weight), COLOURS[0])
        axes.set(title=f"SpectReg {weight}" if weight != "0" else "baseline", ylim=(-1.4, 1.4))
    for weight, colour in (("0", COLOURS[1]), ("0.03", COLOURS[0])):
        _draw_function(zoomed, functions.get(weight), colour)
    zoomed.set(title="baseline (orange) and 0.03", xlim=(0.1, 0.55), ylim=(0.3, 1.25))
    return figure


def _draw_function(axes: Axes, function: Mapping[str, list[float]] | None, colour: str) -> None:
    if function is None:
        return
    axes.plot(function["train_x"], function["train_y"], ".", color=FAINT, markersize=3)
    axes.plot(function["x"], function["target"], color=INK, linewidth=0.8, linestyle=":")
    axes.plot(function["x"], function["y"], color=colour, linewidth=1.4)


def sin_errors(experiment: Experiment, records: Records) -> Figure:
    """Every run's error by weight, and the published values."""
    figure = Figure(figsize=(6.2, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for place, one in enumerate(judge(experiment, records)):
        if one.ours is not None:
            spread = np.linspace(-0.15, 0.15, one.ours.n)
            axes.plot(place + spread, one.ours.values, ".", color=COLOURS[0], alpha=0.5, markersize=4)
            axes.plot(place, one.ours.mean, "_", color=COLOURS[0], markersize=16)
        if one.cell.published is not None:
            axes.plot(place, one.cell.published.mean, "D", color=COLOURS[1], markersize=5)
    axes.set_yscale("log")
    axes.set_xticks(range(len(experiment.cells)), [cell.column for cell in experiment.cells])
    axes.set(xlabel="weight of SpectReg", ylabel="mean squared error, 1e-5")
    handles = [axes.plot([], [], mark, color=colour)[0] for mark, colour in ((".", COLOURS[0]), ("D", COLOURS[1]))]
    legend_below(figure, handles, ["our runs, and their mean", "published, times 36 (one run)"])
    return figure


def gradients(experiment: Experiment, records: Records) -> Figure:
    """Gradient norms by arm and place."""
    figure = Figure(figsize=(5.6, 3.2), layout="constrained")
    axes = figure.add_subplot()
    judged = {one.cell.place: one.ours for one in judge(experiment, records)}
    width = 0.8 / len(experiment.rows)
    for number, row in enumerate(experiment.rows):
        values = [judged[row, column] for column in experiment.columns]
        places = np.arange(len(values)) + (number - (len(experiment.rows) - 1) / 2) * width
        colour = FAINT if row == "Baseline" else COLOURS[number - 1]
        means, margins = ([0.0 if v is None else part(v) for v in values] for part in (_middle, _margin))
        axes.bar(places, means, 0.92 * width, yerr=margins, color=colour, label=row, error_kw={"linewidth": 1})
    axes.set_xticks(range(len(experiment.columns)), experiment.columns)
    axes.set_ylabel("norm of the Jacobian")
    axes.legend()
    return figure


def _middle(summary: Summary) -> float:
    return summary.mean


def _margin(summary: Summary) -> float:
    return summary.interval[1] - summary.mean
