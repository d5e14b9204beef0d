"""``gradreg compare`` and ``gradreg tune``."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gradreg.cli import options as o
from gradreg.cli.report import show_study
from gradreg.cli.train import train
from gradreg.data import Dataset
from gradreg.penalties import WeightDecay
from gradreg.penalties.own import is_own, origin_of
from gradreg.study.compare import Outcome, StudyFolder, compare, tune
from gradreg.study.execute import Executor, Watcher, default_workers
from gradreg.study.plan import BASELINE, Plan, arms_of
from gradreg.study.statistics import Row
from gradreg.study.verdict import joined
from gradreg.training import RunConfig

STUDY = "The comparison"

COMPARE_HELP = (
    "Is gradient regularization worth it on this data?\n\n"
    "Trains a baseline and each penalty over several runs with different random training subsets, the same for all of them, "
    "after choosing every penalty's weight on validation data. Ends with a table, a verdict and a report.\n\n"
    "Finished runs are recorded: the same command goes on where it stopped, and shows its result again at once."
)
TUNE_HELP = "Choose each penalty's weight on validation data, without touching the test data."


def study(
    ctx: typer.Context,
    data: o.Data = "digits",
    model: o.Model = None,
    penalties: Annotated[
        str | None,
        typer.Option(help="Names, separated by commas (gradreg list).", show_default="by task", rich_help_panel=STUDY),
    ] = None,
    runs: Annotated[int, typer.Option(help="Final runs of each arm.", rich_help_panel=STUDY, min=1)] = 10,
    tuning_runs: Annotated[int, typer.Option(help="Validation runs for each weight.", rich_help_panel=STUDY, min=1)] = 3,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            help="Weights to try: spect_reg=0.01,0.1. Repeatable.", show_default="the paper's grid", rich_help_panel=STUDY
        ),
    ] = None,
    search: Annotated[str, typer.Option(help="grid, or optuna within its range.", rich_help_panel=STUDY)] = "grid",
    tune_baseline: Annotated[
        bool,
        typer.Option(
            "--tune-baseline", help="Search the baseline's learning rate and weight decay first.", rich_help_panel=STUDY
        ),
    ] = False,
    train_size: o.TrainSize = None,
    validation_size: o.ValidationSize = None,
    balanced: o.Balanced = False,
    label: o.Label = None,
    image_size: o.ImageSize = None,
    task: o.Task = None,
    data_dir: o.DataDir = None,
    steps: o.Steps = None,
    batch_size: o.BatchSize = 50,
    optimizer: o.Optimizer = "adam",
    learning_rate: o.LearningRate = 0.001,
    weight_decay: o.Decay = 0.0005,
    dropout: o.Dropout = None,
    precision: o.Precision = "fp32",
    engine: o.Engine = "double_backward",
    device: o.Device = None,
    workers: o.Workers = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of records and report.", show_default="runs/<data>-<model>-<hash>", rich_help_panel=o.WHERE
        ),
    ] = None,
    as_json: o.Json = False,
) -> None:
    dataset = o.load_data(data, data_dir, label, image_size, task)
    base = o.TrainingOptions.of(ctx).config(dataset)
    o.check_model(base, dataset)
    names = default_penalties(dataset) if penalties is None else penalties
    o.check_penalties(o.parse_penalties(names), dataset)
    plan = make_plan(base, names, weights or [], runs, tuning_runs, search, tune_baseline)
    only_tuning = ctx.info_name == "tune"
    o.check_subsets(plan.tuning_configs(base) + ([] if only_tuning else plan.final_configs(base)), dataset)
    folder = StudyFolder(out or Path("runs") / f"{Path(data).stem}-{_safe(base.model)}-{plan.key}")
    where = o.default_device(device)
    o.make_folder(folder.folder)
    o.say_what_is_understood(base, dataset, quiet=as_json)
    with o.interruptible(lambda: _recorded(folder)), _progress(plan, only_tuning, quiet=as_json) as watch:
        executor = Executor(dataset, folder.store, where, workers or default_workers(where), watch)
        outcome = (tune if only_tuning else compare)(plan, executor)
    folder.save(outcome, title=f"{data}: {base.model}")
    if only_tuning:
        _show_weights(outcome, folder, as_json)
    else:
        comparison = show_study(folder, as_json, _notice(outcome, tune_baseline))
        _say_how_to_train(ctx, comparison.best, outcome, quiet=as_json)


def default_penalties(dataset: Dataset) -> str:
    """Those of the paper that fit the task; JacReg only where its cost, a backward pass for each class, is bearable."""
    if dataset.task == "regression":
        return "spect_reg,double_back"
    return (
        "spect_reg,double_back,confidence_penalty"
        if dataset.num_outputs > 20
        else "spect_reg,double_back,jac_reg,confidence_penalty"
    )


def make_plan(
    base: RunConfig, penalties: str, weights: list[str], runs: int, tuning_runs: int, search: str, tune_baseline: bool
) -> Plan:
    """The plan that the options ask for."""
    if not base.validation_size:
        raise ValueError(
            f"--data {base.data}: its authors set no examples aside, so there are none to choose weights on. Use it with "
            f"gradreg train, or compare on {base.data.partition('@')[0]}."
        )
    given = [o.parse_weights(text) for text in weights]
    grids, names = dict(given), o.parse_penalties(penalties)
    if len(grids) < len(given):
        raise ValueError("--weights are given twice for one penalty: put them into one list, spect_reg=0.01,0.1.")
    if not names:
        raise ValueError("--penalties is empty: name some, for instance spect_reg,double_back, or leave it out.")
    if unused := set(grids) - set(names):
        raise ValueError(f"--weights are given for {', '.join(sorted(unused))}, which --penalties does not name.")
    if search not in ("grid", "optuna"):
        raise ValueError(f"--search {search!r} is unknown: choose grid or optuna.")
    rate = base.learning_rate
    return Plan(
        base=base,
        arms=arms_of(names, grids),
        num_runs=runs,
        num_tuning_runs=tuning_runs,
        search=search,  # type: ignore[arg-type]
        learning_rates=(rate / 3, rate, rate * 3) if tune_baseline else (),
        weight_decays=(1e-4, 5e-4, 2e-3) if tune_baseline else (),
    )


def _say_how_to_train(ctx: typer.Context, best: Row | None, outcome: Outcome, *, quiet: bool) -> None:
    """The command that trains a model as the best arm was."""
    if quiet or best is None:
        return
    words = shlex.join(["gradreg", "train", *_as_typed(ctx), *_settings_of(outcome.chosen[best.arm]), "--out", "model"])
    Console().print(f"\nA model of {best.arm}: {words}", highlight=False, markup=False, soft_wrap=True)


def _as_typed(ctx: typer.Context) -> list[str]:
    """The options that ``gradreg train`` has too, but for those that the comparison may have chosen."""
    shared = [name for name in inspect.signature(train).parameters if name not in _NOT_AS_TYPED]
    typed = [name for name in shared if (source := ctx.get_parameter_source(name)) and source.name == "COMMANDLINE"]
    flags = [(f"--{name.replace('_', '-')}", ctx.params[name]) for name in typed]
    return [word for flag, value in flags for word in ([flag] if value is True else [flag, str(value)])]


def _settings_of(config: RunConfig) -> list[str]:
    decay = sum(penalty.weight for penalty in config.penalties if isinstance(penalty, WeightDecay))
    words = ["--learning-rate", str(config.learning_rate), "--weight-decay", str(decay)]
    for penalty in config.penalties:
        name = origin_of(type(penalty)).kind if is_own(type(penalty)) else penalty.name
        words += [] if isinstance(penalty, WeightDecay) else ["--penalty", f"{name}={penalty.weight}"]
    return words


_NOT_AS_TYPED = ("learning_rate", "weight_decay", "out", "as_json")


def _safe(name: str) -> str:
    """Part of a folder's name: the function of a user's own model."""
    return name.rpartition(":")[2]


def _recorded(folder: StudyFolder) -> str:
    done = len(list(folder.store.folder.glob("*.json")))
    return f"{done} runs are recorded, and the same command goes on from there."


@contextmanager
def _progress(plan: Plan, only_tuning: bool, quiet: bool) -> Iterator[Watcher]:
    """A bar on the terminal; nothing where there is none."""
    console = Console(stderr=True)
    total = plan.num_runs_in_all() - (len(plan.arms) * plan.num_runs if only_tuning else 0)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True) as bar:
        task = bar.add_task("starting", total=total)
        seen: set[str] = set()

        def watch(record: Any) -> None:
            new = record.config.key not in seen
            seen.add(record.config.key)
            stage = "tuning" if record.config.evaluate_on == "validation" else "testing"
            bar.update(task, advance=int(new), description=f"{stage} {record.config.arm}")

        yield watch


def _show_weights(outcome: Outcome, folder: StudyFolder, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({label: _settings(config) for label, config in outcome.chosen.items()}, indent=1))
        return
    console = Console()
    for label, config in outcome.chosen.items():
        added = ", ".join(map(repr, config.penalties)) or "no penalty"
        console.print(f"{label}: {added}, learning rate {config.learning_rate:g}", markup=False)
    console.print(_notice(outcome, tune_baseline=False), style="yellow")
    console.print(f"Records: {folder.store.folder}", highlight=False, markup=False, soft_wrap=True)


def _settings(config: RunConfig) -> dict[str, Any]:
    """What was chosen: the config without what differs from run to run."""
    return {name: value for name, value in config.to_data().items() if name not in ("seed", "evaluate_on")}


def _notice(outcome: Outcome, tune_baseline: bool) -> str:
    """What a reader of the table should know beside it."""
    base = outcome.chosen[BASELINE]
    notices = [f"The tuned baseline has learning rate {base.learning_rate:g} and {', '.join(map(repr, base.penalties))}."]
    notices = notices * tune_baseline
    if outcome.at_edge:
        notices.append(
            f"The best weight of {joined(outcome.at_edge)} lies at the edge of those tried: --weights can widen them."
        )
    if outcome.undecided:
        notices.append(
            f"Several weights of {joined(outcome.undecided)} are equally good on validation data: the first tried is taken."
        )
    return "\n".join(notices)
