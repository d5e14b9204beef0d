"""Results that are kept: one compact file an experiment, with what every run measured and where it ran."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradreg.papers.experiment import Experiment, arm_id
from gradreg.training import RunConfig, RunRecord

SCHEMA = 1
#: What is said of a run's origin; the rest differs from run to run.
ORIGIN = ("gradreg", "git", "torch", "python", "device")
#: Runs whose learned function is kept, for the figures.
FUNCTION_SEEDS = 1


@dataclass(frozen=True)
class Results:
    """A folder of results, a file an experiment. Folders merge: a run that is in both is kept once."""

    folder: Path

    def path(self, experiment: Experiment) -> Path:
        return self.folder / f"{experiment.id}.json"

    def load(self, experiment: Experiment) -> list[RunRecord]:
        """The runs that are kept; none where there is no file."""
        path = self.path(experiment)
        try:
            return _records(json.loads(path.read_text())) if path.is_file() else []
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is no file of results ({type(error).__name__}: {error}): bring it back from where it came, or "
                "remove it, and its runs are made again."
            ) from error

    def add(self, experiment: Experiment, records: Iterable[RunRecord]) -> None:
        """Keep these runs beside those that are there, as far as they belong to the experiment."""
        arms = {arm_id(cell.config) for cell in experiment.cells}
        new = {run_id(record.config): record for record in records if arm_id(record.config) in arms}
        if not new:
            return
        merged = {run_id(record.config): record for record in self.load(experiment)} | new
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self.path(experiment).with_suffix(f".{os.getpid()}.tmp")
        unfinished.write_text(_text(experiment, [merged[place] for place in sorted(merged)]))
        unfinished.replace(self.path(experiment))


def run_id(config: RunConfig) -> tuple[str, int]:
    """One run, whatever it is called and wherever its data came from."""
    return arm_id(config), config.seed


def compact(record: RunRecord) -> RunRecord:
    """The record without curves, and with the means of its gradient norms among its metrics."""
    norms = {
        f"gradient_norm_{split}": round(statistics.fmean(values), 6)
        for split, values in record.gradient_norms.items()
        if values
    }
    metrics = {name: float(f"{value:.7g}") for name, value in (record.metrics | norms).items()}
    function = record.function if record.config.seed < FUNCTION_SEEDS else None
    return replace(record, metrics=metrics, curve={}, gradient_norms={}, function=function)


def _text(experiment: Experiment, records: Sequence[RunRecord]) -> str:
    """As JSON: an arm's config once, a run a line."""
    origins = list(dict.fromkeys(_origin(record) for record in records))
    arms: dict[str, list[RunRecord]] = {}
    for record in records:
        arms.setdefault(arm_id(record.config), []).append(compact(record))
    head = json.dumps({"schema": SCHEMA, "experiment": experiment.id})[:-1]
    blocks = _lines(_arm_text(members, origins) for members in arms.values())
    return f'{head},\n"origins": {_lines(origins)},\n"arms": {blocks}}}\n'


def _arm_text(records: Sequence[RunRecord], origins: Sequence[str]) -> str:
    config = replace(records[0].config, seed=0, arm="").to_data()
    runs = _lines(json.dumps(_run_data(record, origins)) for record in sorted(records, key=lambda r: r.config.seed))
    return f'{{"config": {json.dumps(config)},\n"runs": {runs}}}'


def _lines(entries: Iterable[str]) -> str:
    return "[\n" + ",\n".join(entries) + "\n]"


def _run_data(record: RunRecord, origins: Sequence[str]) -> dict[str, Any]:
    place: dict[str, Any] = {"seed": record.config.seed, "origin": origins.index(_origin(record))}
    seconds = {name: record.provenance[name] for name in ("train_s", "fleet") if name in record.provenance}
    function = {} if record.function is None else {"function": record.function}
    return place | seconds | {"metrics": record.metrics} | function


def _origin(record: RunRecord) -> str:
    return json.dumps({name: record.provenance.get(name) for name in ORIGIN})


def _records(data: dict[str, Any]) -> list[RunRecord]:
    return [
        RunRecord(
            config=replace(RunConfig.from_data(arm["config"]), seed=run["seed"]),
            metrics=run["metrics"],
            function=run.get("function"),
            provenance=data["origins"][run["origin"]] | {n: run[n] for n in ("train_s", "fleet") if n in run},
        )
        for arm in data["arms"]
        for run in arm["runs"]
    ]
