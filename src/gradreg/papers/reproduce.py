"""Running what is missing of experiments, on whatever data and device are there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
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
            configs = [replace(config, fingerprint=dataset.fingerprint) for config in missing if config.data == name]
            saver = _Saver(self)
            try:
                Executor(dataset, Store(self.store), self.device, self.num_workers, saver)(configs)
            finally:
                saver.save()

    def keep(self, records: Iterable[RunRecord]) -> None:
        """Write these records to the results of every experiment that they belong to."""
        records = list(records)
        for experiment in self.experiments:
            self.results.add(experiment, records)

    def _share_what_is_known(self) -> None:
        """Arms that experiments share were perhaps run for one of them alone."""
        self.keep(record for experiment in self.experiments for record in self.results.load(experiment))


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
