"""``gradreg reproduce``."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gradreg.cli import options as o
from gradreg.data import load
from gradreg.data.authors import SUFFIX
from gradreg.papers.experiment import Cell, Experiment
from gradreg.papers.reproduce import Reproduction
from gradreg.papers.results import Results
from gradreg.papers.tuned import can_be_tuned, tuning_of
from gradreg.papers.tuned import tuned as with_tuned_weights
from gradreg.papers.varga2018 import PROTOCOLS, experiments
from gradreg.report.reproduction import as_data, as_text, headline
from gradreg.report.reproduction_page import write_page
from gradreg.study.execute import default_workers
from gradreg.study.records import Store
from gradreg.training import RunRecord

RESULTS = Path("results/varga2018")
TITLE = "Gradient Regularization Improves Accuracy of Discriminative Models"


def reproduce(
    ids: Annotated[list[str], typer.Argument(help="Tables and figures (gradreg list names them), or all.", metavar="ID...")],
    protocol: Annotated[str, typer.Option(help=f"How to read the paper: {', '.join(PROTOCOLS)}.")] = "authors_code",
    data: Annotated[list[str] | None, typer.Option(help="Only the cells of these datasets. Repeatable.")] = None,
    runs: Annotated[int | None, typer.Option(help="Runs of each cell.", show_default="the experiment's", min=1)] = None,
    tuned: Annotated[
        bool, typer.Option("--tuned", help="Choose the weights on validation data, instead of taking the paper's.")
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="Show what is recorded; run nothing.")] = False,
    data_dir: o.DataDir = None,
    device: o.Device = None,
    workers: o.Workers = None,
    out: Annotated[Path, typer.Option(help="Folder of the results, a file an experiment.")] = RESULTS,
    merge: Annotated[Path | None, typer.Option(help="Another such folder, to take the runs from that are not here.")] = None,
    as_json: o.Json = False,
) -> None:
    """Reproduce tables and figures of the paper: published and measured side by side.

    What is recorded in the folder of results is not run again. The MNIST tables take minutes on a GPU, and many hours on a
    CPU: --show first.
    """
    chosen = _of_data(chosen_experiments(ids, protocol), data, runs)
    where, part = o.default_device(device), f"{protocol}_tuned" if tuned else protocol
    reproduction = Reproduction(
        experiments=chosen,
        results=Results(out / part),
        store=Path("runs") / "varga2018" / "records",
        load=partial(load, data_dir=data_dir),
        device=where,
        num_workers=workers or default_workers(where),
        watch=None if as_json else _Counter(),
    )
    if merge is not None:
        _merge(reproduction, merge / part)
    with o.interruptible(lambda: _kept(reproduction)):
        _reproduce(reproduction, tuned=tuned, show=show, as_json=as_json)


def _merge(reproduction: Reproduction, folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(f"--merge: there is no folder {folder}. Name one that --out wrote, without the protocol.")
    reproduction.merge(Results(folder))


def _kept(reproduction: Reproduction) -> str:
    """What is there after an interruption."""
    if not any(map(reproduction.results.load, reproduction.experiments)):
        return "no run was finished (many train together in one step, and end together), so nothing is kept."
    return f"finished runs are kept in {reproduction.results.folder}, and the same command goes on from there."


def _reproduce(reproduction: Reproduction, *, tuned: bool, show: bool, as_json: bool) -> None:
    """Run what is missing, unless it is only to be shown, and print it."""
    if tuned:
        reproduction = _tuned(reproduction, run=not show)
    if show and not any(map(reproduction.results.load, reproduction.experiments)):
        raise ValueError(
            f"--show: there are no results of these in {reproduction.results.folder}. Leave --show out to run them, or name "
            "a folder that has some with --out (gradreg's own are in results/varga2018 of its repository)."
        )
    if not show:
        _say_what_is_missing(reproduction)
        reproduction.run()
    _print(reproduction, as_json)


def _say_what_is_missing(reproduction: Reproduction) -> None:
    missing, store = reproduction.missing(), Store(reproduction.store)
    if not missing:
        return
    there = sum(map(store.has, missing))
    known = f"; {there} of them are recorded in {reproduction.store}" if there else ""
    begin = f", and {'the others begin' if there else 'begin'} now on {reproduction.device}" if there < len(missing) else ""
    typer.echo(f"{len(missing)} runs are missing in {reproduction.results.folder}{known}{begin}.", err=True)


def _tuned(reproduction: Reproduction, *, run: bool) -> Reproduction:
    """With the weights that are best on validation data, for which the validation runs are made first."""
    chosen = [experiment for experiment in reproduction.experiments if can_be_tuned(experiment)]
    if not chosen:
        names = ", ".join(experiment.id for experiment in reproduction.experiments)
        raise ValueError(
            f"--tuned: {names} has no weights to choose, is about the weights themselves, or sets no data aside to choose "
            "them on. Leave --tuned out."
        )
    trials = {experiment.id: tuning_of(experiment) for experiment in chosen}
    if run:
        replace(reproduction, experiments=[*trials.values()]).run()
    tried = {name: reproduction.results.load(trial) for name, trial in trials.items()}
    return replace(reproduction, experiments=[with_tuned_weights(e, tried[e.id]) for e in chosen])


def _print(reproduction: Reproduction, as_json: bool) -> None:
    by_id = {experiment.id: experiment for experiment in reproduction.experiments}
    records = {name: reproduction.results.load(experiment) for name, experiment in by_id.items()}
    if as_json:
        typer.echo(json.dumps([as_data(experiment, records[name]) for name, experiment in by_id.items()], indent=1))
        return
    console = Console(soft_wrap=True)
    for name, experiment in by_id.items():
        console.print(as_text(experiment, records[name]) + "\n", highlight=False, markup=False)
    console.print(headline(reproduction.experiments, records), highlight=False, markup=False)
    page = _page_of(reproduction.results.folder)
    try:
        console.print(f"\nReport: {write_page(by_id, records, page, title=TITLE)}", highlight=False, markup=False)
    except OSError as error:
        typer.echo(f"warning: the page cannot be written to {page} ({error.strerror}).", err=True)


def _page_of(results: Path) -> Path:
    """Beside the runs, under the name of the folder of results."""
    return Path("runs") / results.parent.name / results.name / "index.html"


def chosen_experiments(ids: list[str], protocol: str) -> list[Experiment]:
    """The experiments of these ids, or all."""
    known = experiments(protocol)
    if "all" in ids:
        return list(known.values())
    for name in ids:
        if name not in known:
            raise ValueError(f"experiment {name!r} is unknown: choose {', '.join(known)}, or all.")
    return [known[name] for name in ids]


def _of_data(experiments: list[Experiment], data: list[str] | None, runs: int | None) -> list[Experiment]:
    """What of the experiments is about these datasets."""
    known = dict.fromkeys(_base(cell) for experiment in experiments for cell in experiment.cells)
    for name in data or []:
        if name not in known:
            raise ValueError(f"--data {name!r}: there is no cell with it here; choose {', '.join(known)}.")
    parts = [_only(experiment, data, runs) for experiment in experiments]
    return [part for part in parts if part.cells]


def _only(experiment: Experiment, data: list[str] | None, runs: int | None) -> Experiment:
    """The cells of these datasets, and the claims that speak of them."""
    cells = tuple(cell for cell in experiment.cells if not data or _base(cell) in data)
    places = {cell.place for cell in cells}
    claims = tuple(claim for claim in experiment.claims if {claim.better, claim.worse} <= places)
    return replace(experiment, cells=cells, claims=claims, num_runs=runs or experiment.num_runs)


def _base(cell: Cell) -> str:
    """Its dataset, whoever drew from it."""
    return cell.config.data.removesuffix(SUFFIX)


class _Counter:
    """Says how far it is, every few seconds."""

    def __init__(self) -> None:
        self.done, self.started, self.last = 0, time.monotonic(), 0.0

    def __call__(self, record: RunRecord) -> None:
        self.done += 1
        now = time.monotonic()
        if now - self.last > 2:
            self.last = now
            typer.echo(f"{self.done} runs after {now - self.started:.0f} s: {record.config.arm}", err=True)
