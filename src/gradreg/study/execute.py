"""Executing runs on this machine, in fleets where they fit together: skip what is recorded, record what is done."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradreg.data import Dataset
from gradreg.study.records import Store
from gradreg.training import RunConfig, RunRecord
from gradreg.training.lanes import Codes
from gradreg.training.snapshot import forget_snapshot
from gradreg.training.together import in_fleets, in_lanes, train_together

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
    _workers: list[_Workers] = field(default_factory=list, init=False, repr=False, compare=False)
    _codes: Codes = field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self, configs: Iterable[RunConfig]) -> list[RunRecord]:
        """The records of these configs, in their order. Whatever is finished when it is interrupted stays recorded."""
        wanted = list(configs)
        found = {config.key: self.store.load(config) for config in wanted if self.store.has(config)}
        self._tell(found.values())
        for record in found.values():
            forget_snapshot(self.store.folder, record.config)
        missing = list({config.key: config for config in wanted if config.key not in found}.values())
        for record in self._run_all(missing):
            self.store.save(record)
            self._tell([record])
            found[record.config.key] = record
            forget_snapshot(self.store.folder, record.config)
        return [replace(found[config.key], config=config) for config in wanted]  # under the label it is asked for

    def _tell(self, records: Iterable[RunRecord]) -> None:
        if self.watch is not None:
            for record in records:
                self.watch(record)

    def _run_all(self, configs: list[RunConfig]) -> Iterator[RunRecord]:
        groups = list(in_fleets(configs, self.dataset, self.device, self.num_workers))
        # Lanes here: they fill the device by themselves, and give each record as it is there.
        here = [group for group in groups if in_lanes(group, self.dataset, self.device)]
        fleets = [group for group in groups if group not in here]
        if self.num_workers == 1 or len(fleets) < 2:
            here, fleets = groups, []
        yield from self._with_workers(fleets)
        for group in here:
            yield from train_together(group, self.dataset, self.device, self.store.folder, self._codes)

    def _with_workers(self, fleets: list[list[RunConfig]]) -> Iterator[RunRecord]:
        if not fleets:
            return
        if not self._workers:
            workers = _Workers(self.num_workers, self.dataset, self.device, self.store.folder)
            self._workers.append(workers)
            # Left to itself the pool ends beside the interpreter, which then sometimes finds its pipe closed.
            weakref.finalize(self, workers.close)
        try:
            for records in self._workers[0].train(fleets):
                yield from records
        except BaseException:
            self._workers.pop().stop()
            raise


class _Workers:
    """Processes that stay for the next call: to start one takes seconds."""

    def __init__(self, number: int, dataset: Dataset, device: str, snapshots: Path) -> None:
        self._others = set(multiprocessing.active_children())
        spawn = multiprocessing.get_context("spawn")  # a forked child cannot use CUDA or OpenMP threads of its parent
        self._pool = ProcessPoolExecutor(number, spawn, _Worker.start, (dataset, device, snapshots))

    def train(self, fleets: list[list[RunConfig]]) -> Iterator[list[RunRecord]]:
        # As data: penalties of the user's own are of modules that another process does not have.
        fleets_as_data = [[config.to_data() for config in fleet] for fleet in fleets]
        for finished in as_completed([self._pool.submit(_Worker.work, fleet) for fleet in fleets_as_data]):
            records, warned = finished.result()
            for text, kind in warned:
                warnings.warn(text, kind, stacklevel=2)
            yield [RunRecord.from_data(record) for record in records]

    def close(self) -> None:
        """Let the processes end, and wait for it."""
        self._pool.shutdown()

    def stop(self) -> None:
        """End the processes, whatever they do."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in set(multiprocessing.active_children()) - self._others:
            worker.terminate()


class _Worker:
    """What a worker process keeps between runs: sending the data with every config would cost more than a run."""

    dataset: Dataset
    device: str
    snapshots: Path

    @classmethod
    def start(cls, dataset: Dataset, device: str, snapshots: Path) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
        threading.Thread(target=_end_with_the_parent, daemon=True).start()
        _keep_freed_memory()
        cls.dataset, cls.device, cls.snapshots = dataset, device, snapshots

    @classmethod
    def work(cls, fleet: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[tuple[str, type[Warning]]]]:
        """The records, and what there was to warn of, for whoever waits for them."""
        configs = [RunConfig.from_data(config, to_run=True) for config in fleet]
        with warnings.catch_warnings(record=True) as warned:
            records = [one.to_data() for one in train_together(configs, cls.dataset, cls.device, cls.snapshots)]
        return records, [(str(one.message), one.category) for one in warned]


def _end_with_the_parent() -> None:
    """However it ends: a worker that is left behind would keep its memory and the terminal for good."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _keep_freed_memory() -> None:
    """Let the C library keep what a step frees for the next one; else the system hands it out page by page each time.

    Costs a tenth to a sixth of a fleet's step otherwise. Only where the library is GNU's.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(_MMAP_THRESHOLD, 2**30)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h


def default_workers(device: str) -> int:
    """One for each core that this process may use; on an accelerator a few, so that one compiles while another trains."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if device == "cpu" else max(1, min(4, cores // 4))
