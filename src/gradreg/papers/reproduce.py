"""Running what is missing of experiments, on whatever data and device are there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from gradreg.data import Dataset
from gradreg.papers.experiment import Experiment, distinct_runs
from gradreg.papers.results import Results, run_id
from gradreg.study.execute import Executor, Watcher
from gradreg.study.records import Store
from gradreg.training import RunConfig, RunRecord

#: Seconds between two times that results are written while runs go on.
SAVE_EVERY = 5.0


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """Experiments, the results that are kept of them, and how to run what is missing.

    Attributes:
        experiments: what to reproduce.
        results: where they are kept.
        store: where whole records go, with their curves.
        load: gives a dataset by its name.
        device: where to run.
        num_workers: how many processes share it.
        watch: told of each record.
    """

    experiments: Sequence[Experiment]
    results: Results
    store: Path
    load: Callable[[str], Dataset]
    device: str = "cpu"
    num_workers: int = 1
    watch: Watcher | None = None

    def missing(self) -> list[RunConfig]:
        """The runs that are not kept yet, those that experiments share once."""
        known = {run_id(record.config) for experiment in self.experiments for record in self.results.load(experiment)}
        return [config for config in distinct_runs(self.experiments) if run_id(config) not in known]

    def run(self) -> None:
        """Run what is missing, dataset by dataset; results are written as they come."""
        self._share_what_is_known()
        missing = self.missing()
        datasets = {name: self.load(name) for name in dict.fromkeys(config.data for config in missing)}
        for name, dataset in datasets.items():
            self._check_same_data(name, {dataset.fingerprint})
            configs = [replace(config, fingerprint=dataset.fingerprint) for config in missing if config.data == name]
            saver = _Saver(self)
            try:
                Executor(dataset, Store(self.store), self.device, self.num_workers, saver)(configs)
            finally:
                saver.save()

    def merge(self, other: Results) -> None:
        """Take the runs of another folder that are not here; those that are in both stay as they are here."""
        for experiment in self.experiments:
            records = other.load(experiment)
            for name in dict.fromkeys(record.config.data for record in records):
                theirs = {record.config.fingerprint for record in records if record.config.data == name}
                self._check_same_data(name, theirs)
            self._add_absent(experiment, records)

    def keep(self, records: Iterable[RunRecord]) -> None:
        """Write these records to the results of every experiment that they belong to."""
        records = list(records)
        for experiment in self.experiments:
            self.results.add(experiment, records)

    def _share_what_is_known(self) -> None:
        """Arms that experiments share were perhaps run for one of them alone. What an experiment has stays as it is."""
        kept = [record for experiment in self.experiments for record in self.results.load(experiment)]
        for experiment in self.experiments:
            self._add_absent(experiment, kept)

    def _add_absent(self, experiment: Experiment, records: Iterable[RunRecord]) -> None:
        own = {run_id(record.config) for record in self.results.load(experiment)}
        self.results.add(experiment, [record for record in records if run_id(record.config) not in own])

    def _check_same_data(self, name: str, fingerprints: Set[str]) -> None:
        """Runs on other data under the same name would be taken for more of the same."""
        for experiment in self.experiments:
            kept = {record.config.fingerprint for record in self.results.load(experiment) if record.config.data == name}
            if other := kept - fingerprints:
                raise ValueError(
                    f"{name} is not what the runs in {self.results.path(experiment)} were trained on: its fingerprint is "
                    f"{', '.join(sorted(fingerprints))}, theirs {', '.join(sorted(other))}. Prepare it anew, or keep its "
                    "results in another folder (--out)."
                )


class _Saver:
    """Collects records, and writes them now and then."""

    def __init__(self, reproduction: Reproduction) -> None:
        self.reproduction = reproduction
        self.waiting: list[RunRecord] = []
        self.last = time.monotonic()

    def __call__(self, record: RunRecord) -> None:
        self.waiting.append(record)
        if self.reproduction.watch is not None:
            self.reproduction.watch(record)
        if time.monotonic() - self.last > SAVE_EVERY:
            self.save()

    def save(self) -> None:
        self.reproduction.keep(self.waiting)
        self.waiting.clear()
        self.last = time.monotonic()
