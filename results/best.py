"""The best accuracy on small training sets: recipes with and without gradient penalties, searched equally hard.

``python results/best.py mnist`` adds what is missing to ``results/best``: runs that are there are not made again.
``mnist_wide`` is LeNet with four times the filters, ``cifar10`` the paper's ResNet. ``--candidates 4 --steps 100`` and so on
is for a trial; give it another ``--out``.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from gradreg.data import load
from gradreg.papers.experiment import Cell, Experiment, arm_id
from gradreg.papers.results import Results, compact, run_id
from gradreg.papers.varga2018 import protocol
from gradreg.penalties import ConfidencePenalty, DoubleBack, Penalty, SpectReg, WeightDecay
from gradreg.report.drawing import COLOURS, FAINT
from gradreg.report.reproduction import table
from gradreg.study.execute import Executor, default_workers
from gradreg.study.plan import mean_score
from gradreg.study.recipes import Budget, Range, Recipe, search
from gradreg.study.records import Store
from gradreg.study.search import Execute
from gradreg.study.statistics import Difference, Row, Summary, compare_arms
from gradreg.study.verdict import p_text
from gradreg.training import RunConfig, RunRecord

OUT = Path(__file__).parent / "best"
AUTHORS = protocol("authors_code")
DECAY, DOUBLE, SPECT = WeightDecay(weight=0.001), DoubleBack(weight=1.0), SpectReg(weight=0.01)
CONFIDENCE = ConfidencePenalty(weight=0.01, reduction="sum")
OF_MNIST = {
    "learning_rate": Range(3e-4, 3e-3),
    "dropout": Range(0.1, 0.7),
    "weight_decay": Range(3e-5, 3e-3),
    "confidence_penalty": Range(1e-3, 1e-1),
    "double_back": Range(1.0, 200.0),
    "spect_reg": Range(3e-3, 0.3),
}
RANGES = {
    "mnist": OF_MNIST,
    "mnist_wide": OF_MNIST,
    # Rate and decay are higher than the paper's by as much as there are fewer steps.
    "cifar10": {
        "learning_rate": Range(0.03, 0.3),
        "weight_decay": Range(3e-3, 3e-2),
        "confidence_penalty": Range(3e-4, 3e-2),
        "double_back": Range(0.1, 10.0),
        "spect_reg": Range(3e-4, 0.1),
    },
}
#: The paper's best mean in per cent: DoubleBack with the confidence penalty, SpectReg with weight decay.
PUBLISHED = {"mnist": 98.07, "mnist_wide": 98.07, "cifar10": 59.24}
MEAN: dict[str, Any] = {"fmt": "o", "color": COLOURS[0], "capsize": 3}
SPLITS = ("test", "validation")
#: Of the budget, on the command line.
KNOBS = ("candidates", "refined", "finalists", "tuning_runs", "runs")
BUDGETS = {
    "mnist": Budget(),
    "mnist_wide": Budget(num_candidates=24, num_finalists=4, num_tuning_runs=4, num_runs=10),
    "cifar10": Budget(num_candidates=10, num_refined=8, num_finalists=2, num_tuning_runs=2, num_runs=5, longer=3),
}
#: Of a candidate; fewer than the paper's, so that the search takes minutes.
STEPS = {"mnist_wide": 5000, "cifar10": 800}
PENALTIES: dict[str, tuple[Penalty, ...]] = {
    "baseline": (DECAY,),
    "confidence penalty": (DECAY, CONFIDENCE),
    "SpectReg": (DECAY, SPECT),
    "DoubleBack": (DECAY, DOUBLE),
    "SpectReg, confidence penalty": (DECAY, SPECT, CONFIDENCE),
    "DoubleBack, confidence penalty": (DECAY, DOUBLE, CONFIDENCE),
}


def recipes(task: str, num_steps: int | None = None) -> list[Recipe]:
    """The paper's network, or a wider one, its optimizer and schedule, with these penalties."""
    steps = num_steps or STEPS.get(task)

    def base(penalties: Sequence[Penalty]) -> RunConfig:
        wide = "lenet_wide" if task == "mnist_wide" else "lenet"
        cifar = task == "cifar10"
        config = AUTHORS.cifar("cifar10", *penalties) if cifar else AUTHORS.mnist(*penalties, dropout=0.5, model=wide)
        return replace(config, num_steps=steps or config.num_steps, num_evaluations=1)

    def ranges(penalties: Sequence[Penalty]) -> dict[str, Range]:
        names = {"learning_rate", "dropout", *(penalty.name for penalty in penalties)}
        return {name: one for name, one in RANGES[task].items() if name in names}

    return [Recipe(name=name, base=base(own), ranges=ranges(own)) for name, own in PENALTIES.items()]


def kept(task: str, evaluate_on: str, records: Sequence[RunRecord] = ()) -> Experiment:
    """What these records are kept as: the tests of what was chosen, or all that was tried on validation data."""
    tests = evaluate_on == "test"
    configs = [replace(record.config, seed=0) for record in records if record.config.evaluate_on == evaluate_on]
    return Experiment(
        id=task if tests else f"{task}_tuning",
        title=f"Best accuracy on small {task}" if tests else f"Validation runs of {task}",
        where="beyond the paper",
        cells=tuple(Cell(row=task, column=str(number), config=config) for number, config in enumerate(configs)),
    )


def load_runs(task: str, evaluate_on: str, folder: Path = OUT) -> list[RunRecord]:
    """The runs that are kept."""
    return Results(folder).load(kept(task, evaluate_on))


def keep(task: str, records: Sequence[RunRecord], folder: Path = OUT) -> None:
    """Write these runs to the results."""
    for evaluate_on in SPLITS:
        Results(folder).add(kept(task, evaluate_on, records), records)


def only_missing(task: str, execute: Execute, folder: Path = OUT) -> Execute:
    """Runs what is not kept yet."""

    def run(configs: Sequence[RunConfig]) -> list[RunRecord]:
        known = {run_id(one.config): one for split in SPLITS for one in load_runs(task, split, folder)}
        made = execute([config for config in configs if run_id(config) not in known])
        known |= {run_id(record.config): compact(record) for record in made}  # as they will be read the next time
        return [replace(known[run_id(config)], config=config) for config in configs]

    return run


def page(task: str, folder: Path = OUT) -> str:
    """What was found, as markdown: the recipes with the numbers chosen for them, best first, then those without tests."""
    picked, tested = chosen(task, folder), ranked(task, folder)
    lines = [
        [
            row.arm,
            *_choice(picked.pop(row.arm)),
            f"{100 * summary.mean:.2f} ({100 * (summary.std or 0):.2f})",
            str(summary.n),
            "" if row.difference is None else _difference(row.difference),
        ]
        for row, summary in tested
    ]
    lines += [[name, *_choice(runs), "not run yet", "0", ""] for name, runs in picked.items()]
    headers = ("recipe", "chosen on validation", "validation", "test", "n", "test, minus baseline [95 %], p (Holm)")
    return "\n".join(table(headers, lines))


def chosen(task: str, folder: Path = OUT) -> dict[str, list[RunRecord]]:
    """By recipe the validation runs of what came furthest: trained for longest, tested, run most often, and best."""
    tested = {arm_id(record.config) for record in load_runs(task, "test", folder)}

    def how_far(runs: Sequence[RunRecord]) -> tuple[int, bool, int, float]:
        config = runs[0].config
        return config.num_steps, arm_id(replace(config, evaluate_on="test")) in tested, len(runs), mean_score(runs)

    tried: dict[str, dict[str, list[RunRecord]]] = {name: {} for name in PENALTIES}
    for record in map(_named, load_runs(task, "validation", folder)):
        tried[record.config.arm].setdefault(arm_id(record.config), []).append(record)
    return {name: max(own.values(), key=how_far) for name, own in tried.items() if own}


def final(task: str, folder: Path = OUT) -> list[RunRecord]:
    """The test runs of what was chosen, each named by its recipe."""
    arms = {arm_id(replace(runs[0].config, evaluate_on="test")) for runs in chosen(task, folder).values()}
    return [_named(record) for record in load_runs(task, "test", folder) if arm_id(record.config) in arms]


def ranked(task: str, folder: Path = OUT) -> list[tuple[Row, Summary]]:
    """The recipes that were tested, best first; none before the baseline was, with which they are compared."""
    tests = final(task, folder)
    ready = any(record.config.arm == "baseline" for record in tests)
    rows = [(row, row.summary) for row in compare_arms(tests).rows if row.summary is not None] if ready else []
    return sorted(rows, key=lambda row: -row[1].mean)


def gain(task: str, arm: str, over: str, folder: Path = OUT) -> str:
    """What one recipe has over another, seed by seed; not corrected."""
    both = [record for record in final(task, folder) if record.config.arm in (arm, over)]
    difference = compare_arms(both, baseline=over).rows[1].difference
    return "not run yet" if difference is None else _difference(difference)


def earlier(task: str, folder: Path = OUT) -> str:
    """Test runs of what was chosen before the search went on, as markdown: what the best of now has over each."""
    now, (best, _) = final(task, folder), ranked(task, folder)[0]
    of_best, arms = [one for one in now if one.config.arm == best.arm], {arm_id(one.config) for one in now}
    before: dict[str, list[RunRecord]] = {}
    for record in map(_named, load_runs(task, "test", folder)):
        before.setdefault(arm_id(record.config), []).append(record)
    lines = [_earlier(runs, of_best) for arm, runs in before.items() if arm not in arms]
    headers = ("tested before", "chosen", "steps", "test", "n", f"{best.arm}, minus that [95 %], p")
    return "\n".join(table(headers, lines)) if lines else ""


def _earlier(runs: Sequence[RunRecord], of_best: Sequence[RunRecord]) -> list[str]:
    config, summary = runs[0].config, Summary.of([100 * record.metrics["accuracy"] for record in runs])
    before = [replace(record, config=replace(record.config, arm="before")) for record in runs]
    difference = compare_arms([*before, *of_best], baseline="before").rows[1].difference
    accuracy = f"{summary.mean:.2f} ({summary.std or 0:.2f})"
    return [
        *(config.arm, _numbers(config), str(config.num_steps), accuracy, str(summary.n)),
        "" if difference is None else _difference(difference),
    ]


def draw(task: str, folder: Path = OUT) -> Figure:
    """Every test run by recipe, with the mean and its 95 % interval."""
    figure = Figure(figsize=(7.2, 2.9), layout="constrained")
    axes = figure.subplots()
    rows, runs = ranked(task, folder), final(task, folder)
    for place, (row, summary) in enumerate(rows):
        own = [100 * record.metrics["accuracy"] for record in runs if record.config.arm == row.arm]
        low, high = summary.interval
        axes.plot(own, [place + 0.16] * len(own), "|", color=FAINT, markersize=7)
        axes.errorbar(100 * summary.mean, place, xerr=[[100 * (summary.mean - low)], [100 * (high - summary.mean)]], **MEAN)
    axes.axvline(PUBLISHED[task], color=COLOURS[1], linewidth=1, linestyle="--")
    axes.annotate(
        "the paper's best",
        (PUBLISHED[task], -0.55),
        xytext=(-4, 0),
        textcoords="offset points",
        color=COLOURS[1],
        ha="right",
    )
    axes.set_yticks(range(len(rows)), [row.arm for row, _ in rows])
    axes.set(xlabel="test accuracy, %", ylim=(len(rows) - 0.5, -0.8))
    return figure


def _named(record: RunRecord) -> RunRecord:
    names = {tuple(penalty.name for penalty in own): name for name, own in PENALTIES.items()}
    return replace(record, config=replace(record.config, arm=names[tuple(p.name for p in record.config.penalties)]))


def _choice(validation: Sequence[RunRecord]) -> list[str]:
    summary = Summary.of([100 * record.metrics["accuracy"] for record in validation])
    return [_numbers(validation[0].config), f"{summary.mean:.2f} ({summary.std or 0:.2f}), n = {summary.n}"]


def _numbers(config: RunConfig) -> str:
    rate = [] if config.dropout is None else [f"dropout {config.dropout:g}"]
    return ", ".join(
        [f"learning rate {config.learning_rate:g}", *rate, *(f"{p.name} {p.weight:g}" for p in config.penalties)]
    )


def _difference(one: Difference) -> str:
    return f"{100 * one.mean:+.2f} [{100 * one.low:+.2f}, {100 * one.high:+.2f}], {p_text(one.p_corrected)}"


def main() -> None:
    given = _arguments()
    dataset = load(given.task.partition("_")[0], data_dir=given.data_dir)
    own = {f"num_{name}": getattr(given, name) for name in KNOBS if getattr(given, name) is not None}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ready = [
        replace(recipe, base=replace(recipe.base, fingerprint=dataset.fingerprint))
        for recipe in recipes(given.task, given.steps)
    ]
    done = itertools.count(1)

    def watch(record: RunRecord) -> None:
        keep(given.task, [record], given.out)
        print(next(done), record.config.arm, record.metrics.get("accuracy"), flush=True)

    executor = Executor(dataset, Store(given.records), device, default_workers(device), watch)
    search(ready, only_missing(given.task, executor, given.out), replace(BUDGETS[given.task], **own))
    print(page(given.task, given.out), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=[*RANGES])
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--records", type=Path, default=Path("runs/best"))
    for name in (*KNOBS, "steps"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
