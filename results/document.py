"""Write docs/reproduction.md, docs/best.md, their pictures and the summary of the README anew from the results here."""

from __future__ import annotations

import csv
import math
import re
import statistics
from pathlib import Path

import numpy as np
import seeds
from best import BUDGETS, PENALTIES, PUBLISHED, chosen, earlier, final, gain, load_runs, page, ranked
from best import draw as draw_best
from scipy.stats import bootstrap, t
from seeds import OURS, THEIRS, recorded

from gradreg.bench.tables import read
from gradreg.papers.experiment import arm_id, distinct_runs
from gradreg.papers.judge import claims_tested, judge
from gradreg.papers.results import Results, run_id
from gradreg.papers.tuned import can_be_tuned, tuned, tuning_of
from gradreg.papers.varga2018 import experiments, protocol
from gradreg.papers.varga2018.claims import CIFAR10
from gradreg.penalties import GradientPenalty, WeightDecay
from gradreg.report.drawing import house_style
from gradreg.report.reproduction import CLAIM_HEADERS, body, cells, claim_cells, headline, table
from gradreg.report.reproduction_figures import CAPTIONS, draw
from gradreg.study.plan import mean_score
from gradreg.study.statistics import Summary
from gradreg.study.verdict import p_text
from gradreg.training import RunConfig

ROOT = Path(__file__).parent.parent
PAGE, README, IMAGES = ROOT / "docs" / "reproduction.md", ROOT / "README.md", ROOT / "docs" / "images"
BEST = ROOT / "docs" / "best.md"
BENCHMARKS = ROOT / "benchmarks" / "results"
COMPILED = ("plain compiled", "compiled")
#: Searches for the best accuracy, in the order of their page.
TASKS = {
    "mnist": "Small MNIST: the paper's LeNet",
    "mnist_wide": "Small MNIST: LeNet with four times the filters and units",
    "cifar10": "Small CIFAR-10",
}
#: The figure that belongs to an experiment stands below its table.
FIGURES = {
    "table7": ("sin_errors",),
    "sin_domain": ("sin_functions",),
    "train_size": ("train_size",),
    "weight_norm": ("weight_norm",),
    "mnist_gradients": ("mnist_gradients",),
}


def generated() -> str:
    """All that is between the markers of the page."""
    known, records = experiments(OURS), recorded()
    parts = [
        f"**{headline(list(known.values()), records)}** {seeds.count_with_their_seeds()}",
        _progress(),
        "## Disagreements first",
        seeds.disagreements(),
        _two_test_sets(),
        _on_the_cpu(),
        _picture("differences"),
        "## Small MNIST with the authors' own seeds",
        seeds.tables_and_claims(),
        seeds.images_or_weights(),
    ]
    if with_own := _with_own_weights():
        parts += ["## Weights of our own choice", with_own, _by_weight()]
    parts += ["## As the text says, instead of as the code did", _by_the_text()]
    parts += ["## Small CIFAR-10 in a twentieth of the steps", _short()]
    parts += ["## Cost by the number of labels", _by_labels(), "## What is left, and how long it takes", _time_left()]
    for name, experiment in known.items():
        parts += [f"## `{name}`: {experiment.title}", f"{experiment.where}.", "\n".join(body(experiment, records[name]))]
        parts += [_picture(figure) for figure in FIGURES.get(name, ())]
        parts += [NOTES[name]()] if name in NOTES else []
    return "\n\n".join([parts[0], _contents(parts), *parts[1:]])


def _contents(parts: list[str]) -> str:
    """A line of links to the headings."""
    headings = [part.removeprefix("## ") for part in parts if part.startswith("## ")]
    links = [f"[{heading.partition(':')[0].replace('`', '')}](#{_anchor(heading)})" for heading in headings]
    return "Contents: " + " · ".join(links) + "."


def _anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def summary() -> str:
    """The sentences of the README."""
    task = max(filter(final, ("mnist", "mnist_wide")), key=lambda task: ranked(task)[0][1].mean)
    (first, best), *_ = ranked(task)
    return (
        f"{headline(list(experiments(OURS).values()), recorded())}\n{seeds.count_with_their_seeds()}\n{_gain_by_size()}\n"
        f"The best mean that was found for small MNIST is "
        f"{100 * best.mean:.2f}\n({first.arm}; {TASKS[task].partition(': ')[2]}; tuned on validation data); the paper's "
        f"best is {PUBLISHED[task]:.2f}."
    )


def _gain_by_size() -> str:
    """What the best gradient penalty gains on MNIST, by the number of training images."""
    found = {one.cell.place: one.ours for one in judge(experiments(OURS)["train_size"], recorded()["train_size"])}
    gains = {}
    for size in ("500", "2000", "5000", "20000"):
        baseline, *others = (found[size, arm] for arm in ("Baseline", "DoubleBack", "SpectReg"))
        gains[size] = max(one.mean for one in others if one) - baseline.mean if baseline else 0.0
    listed = ", ".join(f"{gain:.1f} at {size}" for size, gain in gains.items())
    return f"On MNIST the best gradient penalty gains, in points by the number of training images: {listed}."


def _two_test_sets() -> str:
    with (ROOT / "results" / "varga2018" / "two_test_sets.csv").open() as file:
        lines = list(csv.DictReader(file))
    official, theirs = (Summary.of([100 * float(line[n]) for line in lines]) for n in ("official", "last_10000_of_training"))
    own = [line for line in lines if line["last_10000_by_their_own"]]
    apart = [100 * (float(line["last_10000_by_their_own"]) - float(line["last_10000_of_training"])) for line in own]
    return (
        f"{official.n} further baselines of small MNIST, trained on other subsets on the CPU in single precision, have "
        f"{official.mean:.2f} ({official.std:.2f}) on the official test set and {theirs.mean:.2f} ({theirs.std:.2f}) on the "
        "last 10 000 training images, which the authors tested on (`results/two_test_sets.py`). They also standardised what "
        f"they tested on by its own mean and deviation: that changes {len(apart)} of these accuracies by "
        f"{Summary.of(apart).mean:+.2f} on average."
    )


def _on_the_cpu() -> str:
    arms = {
        arm_id(cell.config): cell.column
        for name in ("table3", "table6")
        for cell in experiments(OURS)[name].cells
        if cell.row != "CP"
    }
    known = {
        (arms[arm_id(record.config)], record.config.seed): record.metrics["accuracy"]
        for name in ("table3", "table6")
        for record in recorded()[name]
        if arm_id(record.config) in arms
    }
    with (ROOT / "results" / "varga2018" / "on_the_cpu.csv").open() as file:
        lines = list(csv.DictReader(file))
    differences = [100 * (float(line["accuracy"]) - known[line["arm"], int(line["seed"])]) for line in lines]
    found = Summary.of(differences)
    low, high = found.interval
    return (
        f"{found.n} of the runs of tables 3 and 6 again, FrobReg and JacReg among them, each alone on the CPU in single "
        "precision: their accuracy minus that of "
        f"the same seed in a fleet on the GPU is {found.mean:+.2f} on average, 95 % interval {low:+.2f} to {high:+.2f} "
        "(`results/on_the_cpu.py`)."
    )


def _double_back_on_cifar() -> str:
    """Few runs tell little of their own spread: with the published one for both sides."""
    judged = {one.cell.place: one for one in judge(experiments(OURS)["table4"], recorded()["table4"])}
    ours, published = judged[CIFAR10, "DoubleBack"].ours, judged[CIFAR10, "DoubleBack"].cell.published
    assert ours is not None
    assert published is not None
    assert published.std is not None
    error = published.std * math.sqrt(1 / published.num_runs + 1 / ours.n)
    p_value = 2 * t.sf(abs(ours.mean - published.mean) / error, published.num_runs + ours.n - 2)
    return (
        f"So few runs as the {ours.n} of DoubleBack tell little of their own spread. With the published deviation on both "
        f"sides its difference has {p_text(p_value)}."
    )


def _factor_on_sin() -> str:
    """The paper's “reduction in MSE by a factor of 10”, which is no test of two means."""
    found = {name: _factor(name) for name in ("table7", "sin_domain")}
    return (
        f"The paper has 0.03 lower the error by a factor of 10. Ours is {found['table7']} at those points, and "
        f"{found['sin_domain']} over the whole domain and other draws of the training points (`sin_domain`), where 0.01 is "
        "better (intervals by bootstrap). The paper compares two runs: "
        f"{100 * _share_of_pairs('table7', 10):.0f} % of all pairs of ours have a factor of 10 or more."
    )


def _share_of_pairs(name: str, factor: float) -> float:
    """How often the error of one run of the baseline is so many times that of one run of SpectReg with 0.03."""
    baseline, other = _errors(name)
    return float((baseline[:, None] >= factor * other).mean())


def _errors(name: str) -> list[np.ndarray]:
    """Of all runs of the baseline, and of SpectReg with 0.03."""
    judged = {one.cell.column: one.ours for one in judge(experiments(OURS)[name], recorded()[name])}
    return [np.array(summary.values) for column in ("0", "0.03") if (summary := judged[column]) is not None]


def _factor(name: str) -> str:
    """The mean error of the baseline over that of SpectReg with 0.03, with its 95 % interval."""
    samples = _errors(name)

    def ratio(of: np.ndarray, to: np.ndarray, axis: int = -1) -> np.ndarray:
        return of.mean(axis) / to.mean(axis)

    low, high = bootstrap(samples, ratio, rng=np.random.default_rng(0)).confidence_interval
    return f"{ratio(*samples):.1f} [{low:.1f}, {high:.1f}]"


def _progress() -> str:
    with (ROOT / "results" / "varga2018" / "mnist_progress.csv").open() as file:
        last = {name: int(number) for name, number in list(csv.DictReader(file))[-1].items()}
    known = experiments(OURS).values()
    runs = sum(config.data == "mnist" for config in distinct_runs(known))
    return (
        f"{last['runs']} of the {runs} runs on MNIST, 10 000 steps each, were done after {last['seconds']} s on one H200, "
        f"from nothing and with compilation (`results/varga2018/mnist_progress.csv`): at that rate all take "
        f"{runs * last['seconds'] / last['runs'] / 60:.0f} minutes."
    )


def _short() -> str:
    """Small CIFAR-10 in few steps: beside the whole training, and not judged by the published numbers."""
    known, records, whole, rows, claims = experiments("short"), recorded("short"), recorded(), {}, []
    for name in ("table1", "table4"):
        beside = {one.cell.place: cells(one) for one in judge(experiments(OURS)[name], whole[name])}
        judged = judge(known[name], records[name])
        for one in judged:
            if one.ours is not None:
                of_all = beside[one.cell.place]
                rows.setdefault(arm_id(one.cell.config), [one.cell.column, *of_all[2:5], *cells(one)[3:5]])
        claims += [claim_cells(one) for one in claims_tested(known[name], judged) if one.p_value is not None]
    steps, rate = (getattr(protocol("short").cifar("cifar10"), what) for what in ("num_steps", "learning_rate"))
    text = (
        f"Under the protocol `short`, {steps} steps instead of 50 000, at a learning rate of {rate:g} instead of 0.01, so "
        "that weight decay has as much effect in all. In no count and no other table; the published numbers are those of "
        "the whole training. One H200, bfloat16."
    )
    headers = ("", "published", "ours, 50 000 steps", "n", f"ours, {steps} steps", "n")
    return "\n\n".join([text, *("\n".join(table(*one)) for one in ((headers, [*rows.values()]), (CLAIM_HEADERS, claims)))])


def _by_the_text() -> str:
    """Cells of MNIST under the protocol of the paper's text beside those under the protocol of the authors' code."""
    theirs, records, rows = recorded(), recorded("paper"), []
    for name, experiment in experiments("paper").items():
        beside = {one.cell.place: cells(one) for one in judge(experiments(OURS)[name], theirs[name])}
        lines = (cells(one) for one in judge(experiment, records[name]) if one.ours is not None)
        rows += [[name, *line[:3], beside[line[0], line[1]][3], *line[3:5]] for line in lines]
    text = (
        f"The text gives Adam a learning rate of {protocol('paper').mnist().learning_rate:g}, the authors' code has "
        f"{protocol(OURS).mnist().learning_rate:g}. It also says balanced subsets, penalties on the "
        "loss's own forward pass, and means for sums. One H200, the same seeds."
    )
    headers = ("experiment", "", "", "published", "by the code", "by the text", "n")
    return text + "\n\n" + "\n".join(table(headers, rows))


def _with_own_weights() -> str:
    """Cells with the weights of the appendix beside the same with weights chosen on validation data."""
    folder, rows = Results(ROOT / "results" / "varga2018" / f"{OURS}_tuned"), []
    for name, experiment in experiments(OURS).items():
        tried = folder.load(tuning_of(experiment)) if can_be_tuned(experiment) else []
        theirs = {one.cell.place: one for one in judge(experiment, recorded()[name])}
        chosen = tuned(experiment, tried) if tried else experiment
        for own in judge(chosen, folder.load(chosen)):
            before = theirs[own.cell.place]
            if own.ours is not None and own.cell.config.penalties != before.cell.config.penalties:
                weights = [_weight_of_choice(one.cell.config) for one in (before, own)]
                line, beside = cells(own), cells(before)
                rows.append([name, *line[:3], weights[0], beside[3], weights[1], line[3], line[4]])
    headers = ("experiment", "", "", "published", "weight", "ours", "weight on validation", "ours with that", "n")
    text = "The grid of `gradreg compare`, three validation runs a weight; not those whose best weight is the paper's."
    return text + "\n\n" + "\n".join(table(headers, rows)) if rows else ""


def _by_weight() -> str:
    """Section 2.2: “Regularization based on the logits is significantly more robust to choice of hyperparameter.”"""
    folder, found = Results(ROOT / "results" / "varga2018" / f"{OURS}_tuned"), {}
    for name in ("table3", "table6"):
        for record in folder.load(tuning_of(experiments(OURS)[name])):
            _, *others = record.config.penalties  # the first is weight decay
            if len(others) == 1:
                found.setdefault(others[0].name, {}).setdefault(others[0].weight, []).append(record.metrics["accuracy"])
    weights = sorted({weight for accuracies in found.values() for weight in accuracies})
    rows = [
        [f"{w:g}", *(f"{100 * statistics.fmean(of[w]):.2f}" if w in of else "" for of in found.values())] for w in weights
    ]
    text = (
        "Accuracy on validation data by weight, the mean of three runs, with weight decay and dropout. The paper: "
        "“Regularization based on the logits (FrobReg, SpectReg) is significantly more robust to choice of hyperparameter.”"
    )
    return text + "\n\n" + "\n".join(table(("weight", *found), rows))


def _weight_of_choice(config: RunConfig) -> str:
    return f"{next(one for one in config.penalties if not isinstance(one, WeightDecay)).weight:g}"


def _by_labels() -> str:
    """Section 2.3: the cost of whole Jacobians grows with the number of classes, that of a projection does not."""
    eager, compiled = (
        _by_classes("engines_by_classes", "plain", "double_backward"),
        _by_classes("lenet_by_classes", *COMPILED),
    )
    lines = [[str(classes), *ratios, *compiled[classes][0], *compiled[classes][1]] for classes, (ratios, _) in eager.items()]
    columns = ("time, CPU", "time, GPU", "MiB, GPU")
    headers = ("classes", *(f"{name}, {what}" for what in columns for name in ("SpectReg", "FrobReg", "JacReg")))
    text = (
        "A step of LeNet in plain steps: eager on two CPU cores, and compiled on one H200, which batches of 50 do not fill. "
        "Memory on the GPU begins with that of a plain step, 99 MiB. The paper: “scaling with the number of class labels.”"
    )
    return text + "\n\n" + "\n".join(table(headers, lines))


def _by_classes(theme: str, plain: str, method: str) -> dict[int, tuple[list[str], list[str]]]:
    """Times in plain steps, and memory, of SpectReg, FrobReg and JacReg, by the number of classes."""
    rows = read(next(BENCHMARKS.glob(f"{theme}_*.csv")))
    timed = {(row.num_classes, row.penalty): row for row in rows if row.method in (plain, method)}
    names = ("spect_reg", "frob_reg", "jac_reg")

    def of(classes: int) -> tuple[list[str], list[str]]:
        found = [timed[classes, name] for name in names]
        return [f"{one.ms / timed[classes, ''].ms:.1f}" for one in found], [f"{one.memory_mib:.0f}" for one in found]

    return {classes: of(classes) for classes in dict.fromkeys(row.num_classes for row in rows)}


def _time_left() -> str:
    """From the steps that were timed on one H200."""
    (resnet, _), (resnet18, batch_size) = _steps("resnet_bf16"), _steps("resnet18_bf16")
    with next(BENCHMARKS.glob("lanes_*.csv")).open() as file:
        *_, three = (float(line["ms_per_step_and_run"]) for line in csv.DictReader(file))
    lanes = three / resnet["spect_reg"]
    done = {run_id(record.config) for records in recorded().values() for record in records}
    runs = [config for config in distinct_runs(experiments(OURS).values()) if run_id(config) not in done]
    lines = []
    for data, ms, shared in (("cifar10", resnet, lanes), ("cifar100", resnet, lanes), ("tinyimagenet", resnet18, 1.0)):
        left = [config for config in runs if config.data == data]
        hours = sum(config.num_steps * ms["spect_reg" if _penalised(config) else ""] for config in left) / 3.6e6
        lines.append([f"`gradreg reproduce all --data {data}`", str(len(left)), f"{shared * hours:.1f}"])
    text = (
        "From steps timed on one H200, three runs at a time for CIFAR, batches of "
        f"{batch_size} for TinyImageNet; the data have to be prepared. (The runs of CIFAR-10 that are there took up to a "
        "third more, partly beside others.)"
    )
    return text + "\n\n" + "\n".join(table(("command", "runs", "hours"), lines))


def _steps(theme: str) -> tuple[dict[str, float], int]:
    """Milliseconds of a compiled step by penalty, and the size of its batches."""
    timed = [row for row in read(next(BENCHMARKS.glob(f"{theme}_*.csv"))) if row.method.endswith("compiled")]
    return {row.penalty: row.ms for row in timed}, timed[0].batch_size


def _penalised(config: RunConfig) -> bool:
    return any(isinstance(penalty, GradientPenalty) for penalty in config.penalties)


def best_found() -> str:
    """What is generated of docs/best.md."""
    return "\n\n".join(f"## {heading}\n\n{_best_of(task)}" for task, heading in TASKS.items())


def _best_of(task: str) -> str:
    if not _is_complete(task):
        return f"{_searched(task)} So far, the best that was tried of each, at {_steps_tried(task)} steps:\n\n{page(task)}"
    first, summary = ranked(task)[0]
    text = (
        f"{_searched(task)} First is {first.arm} with {100 * summary.mean:.2f} (standard deviation "
        f"{100 * (summary.std or 0):.2f}){_by_validation(task)}; the paper's best is {PUBLISHED[task]:.2f}."
    )
    both = [(one, f"{one}, confidence penalty") for one in ("DoubleBack", "SpectReg")]
    gains = " and ".join(f"{gain(task, with_both, 'confidence penalty')} for {one}" for one, with_both in both)
    beside = " and ".join(f"{gain(task, with_both, one)} for {one}" for one, with_both in both)
    alone = " and ".join(f"{gain(task, one, 'confidence penalty')} for {one}" for one, _ in both)
    added = (
        "Seed by seed, not corrected. What a gradient penalty adds to the confidence penalty: "
        f"{gains}. What the confidence penalty adds to a gradient penalty: {beside}. A gradient penalty in the place of the "
        f"confidence penalty: {alone}."
    )
    picture = f"![Test accuracy by recipe](images/best_{task}.png)\n\n*Ticks are runs; bars are 95 % intervals of the mean.*"
    before = [f"Seen before the search went on, of the first {BUDGETS[task].num_candidates} candidates:", earlier(task)]
    return "\n\n".join([text, page(task), *(before if before[1] else []), added, picture])


def _by_validation(task: str) -> str:
    """Which recipe validation data would have taken: the first of several tests is a little lucky."""
    picked, tests = chosen(task), {row.arm: summary for row, summary in ranked(task)}
    taken = max(picked, key=lambda arm: mean_score(picked[arm]))
    if taken == next(iter(tests)):
        return ", as on validation data"
    return f", on validation data {taken}, with {100 * tests[taken].mean:.2f} on the test set"


def _searched(task: str) -> str:
    """How hard the recipes of a task are searched."""
    budget, steps, tried = BUDGETS[task], _steps_tried(task), load_runs(task, "validation")
    near = f" and {budget.num_refined} more near the best of them" if budget.num_refined else ""
    longer = f", which train for {budget.longer * steps} steps" if budget.longer > 1 else ""
    return (
        f"{tried[0].config.train_size} training points, {steps} steps, one H200: {len(PENALTIES)} recipes, "
        f"{budget.num_candidates} candidates of each{near} on validation data, {budget.num_tuning_runs} runs of the best "
        f"{budget.num_finalists}{longer}, and {budget.num_runs} test runs of the best of those."
    )


def _is_complete(task: str) -> bool:
    """Whether every recipe was tested."""
    return len(ranked(task)) == len(PENALTIES)


def _steps_tried(task: str) -> int:
    """Of a candidate."""
    return min(record.config.num_steps for record in load_runs(task, "validation"))


def _picture(name: str) -> str:
    return f"![{name.replace('_', ' ')}](images/reproduction_{name}.png)\n\n*{CAPTIONS[name]}*"


def _between(path: Path, marker: str, text: str) -> None:
    before, _, rest = path.read_text().partition(f"<!-- {marker} -->\n")
    after = rest.partition(f"<!-- /{marker} -->")[2]
    path.write_text(f"{before}<!-- {marker} -->\n{text}\n<!-- /{marker} -->{after}")


#: What stands below an experiment's table and figure.
NOTES = {"table4": _double_back_on_cifar, "table7": _factor_on_sin}


def main() -> None:
    figures = draw(experiments(OURS), recorded())
    figures[THEIRS] = draw(experiments(THEIRS), recorded(THEIRS))["differences"]
    for name, figure in figures.items():
        with house_style():
            figure.savefig(IMAGES / f"reproduction_{name}.png", dpi=120)
    with house_style():
        for task in filter(_is_complete, TASKS):
            draw_best(task).savefig(IMAGES / f"best_{task}.png", dpi=120)
    _between(BEST, "generated", best_found())
    _between(PAGE, "generated", generated())
    _between(README, "reproduction", summary())


if __name__ == "__main__":
    main()
