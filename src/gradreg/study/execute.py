"""Executing runs on this machine: skip what is recorded, record what is done."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace

from gradreg.data import Dataset
from gradreg.study.records import Store
from gradreg.training import RunConfig, RunRecord, run

#: Told of each record as it is there, new or found.
Watcher = Callable[[RunRecord], None]


@dataclass(frozen=True)
class Executor:
    """Runs configs and keeps their records.

    Attributes:
        dataset: what all runs are trained on.
        store: where records are looked for and written.
        device: ``cpu``, ``cuda``, ``cuda:1``, ...
        num_workers: processes to share the work among; 1 runs in this one.
        watch: called with each record.
    """

    dataset: Dataset
    store: Store
    device: str = "cpu"
    num_workers: int = 1
    watch: Watcher | None = None

    def __call__(self, configs: Iterable[RunConfig]) -> list[RunRecord]:
        """The records of these configs, in their order. Whatever is finished when it is interrupted stays recorded."""
        wanted = list(configs)
        found = {config.key: self.store.load(config) for config in wanted if self.store.has(config)}
        self._tell(found.values())
        missing = list({config.key: config for config in wanted if config.key not in found}.values())
        for record in self._run_all(missing):
            self.store.save(record)
            self._tell([record])
            found[record.config.key] = record
        return [replace(found[config.key], config=config) for config in wanted]  # under the label it is asked for

    def _tell(self, records: Iterable[RunRecord]) -> None:
        if self.watch is not None:
            for record in records:
                self.watch(record)

    def _run_all(self, configs: list[RunConfig]) -> Iterator[RunRecord]:
        if self.num_workers == 1 or len(configs) < 2:
            for config in configs:
                yield run(config, self.dataset, device=self.device).record
            return
        workers = min(self.num_workers, len(configs))
        others = set(multiprocessing.active_children())
        spawn = multiprocessing.get_context("spawn")  # a forked child cannot use CUDA or OpenMP threads of its parent
        pool = ProcessPoolExecutor(workers, spawn, _Worker.start, (self.dataset, self.device))
        try:
            for finished in as_completed([pool.submit(_Worker.work, config) for config in configs]):
                yield finished.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            raise
        pool.shutdown()


class _Worker:
    """What a worker process keeps between runs: sending the data with every config would cost more than a run."""

    dataset: Dataset
    device: str

    @classmethod
    def start(cls, dataset: Dataset, device: str) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
        cls.dataset, cls.device = dataset, device

    @classmethod
    def work(cls, config: RunConfig) -> RunRecord:
        return run(config, cls.dataset, device=cls.device).record


def default_workers(device: str) -> int:
    """One for each core that this process may use; on an accelerator one alone."""
    if device != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
