"""Times, ratios and memory, measured in turns so that a busy machine slows all methods alike."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch

from gradreg.bench.cases import Case
from gradreg.bench.methods import PENALTIES, Run, prepare
from gradreg.data import Dataset
from gradreg.training import Fleet, RunConfig

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a benchmark.

    Attributes:
        ms: median time of a step over the rounds; of a fleet, divided by its members.
        low_ms, high_ms: fastest and slowest round.
        memory_mib: at the peak of a step, what is allocated for model, optimizer and step; 0 on the CPU.
        seconds_to_start: the first step, with whatever is traced and compiled.
    """

    model: str
    method: str
    penalty: str
    batch_size: int
    num_classes: int
    precision: str
    ms: float
    low_ms: float
    high_ms: float
    memory_mib: float = 0.0
    seconds_to_start: float = 0.0
    members: int = 1

    def to_data(self) -> dict[str, object]:
        return asdict(self)


def bench_case(
    case: Case, methods: Sequence[tuple[str, str]], device: str, *, num_steps: int = 20, num_rounds: int = 5, say: Say
) -> list[Row]:
    """All methods, given with their penalties, on this case: prepared one after the other, then timed in turns."""
    where = torch.device(device)
    runs: dict[tuple[str, str], tuple[Run, float, float]] = {}
    with fastest_kernels():
        for method, penalty in methods:
            try:
                runs[method, penalty] = _prepared(method, penalty, case, where)
                say(f"{case.name}: {method}, {penalty}: ready in {runs[method, penalty][2]:.0f} s")
            except Exception as error:  # what one method cannot do must not stop the others
                say(f"{case.name}: {method}, {penalty}: left out, {type(error).__name__}: {str(error)[:200]}")
    times: dict[tuple[str, str], list[float]] = {place: [] for place in runs}
    for _ in range(num_rounds):
        for place, (run, _, _) in runs.items():
            times[place].append(_milliseconds(run, num_steps, where))
    return [_row(case, *place, times[place], memory, start) for place, (_, memory, start) in runs.items()]


@contextmanager
def fastest_kernels() -> Iterator[None]:
    """Let cuDNN try its kernels instead of guessing, for all methods: what it chose for one it keeps for the next."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _prepared(method: str, penalty: str, case: Case, device: torch.device) -> tuple[Run, float, float]:
    """A step that has run, its memory, and the seconds to its first."""
    started = time.perf_counter()
    run = _first_run(method, penalty, case, device)
    seconds = time.perf_counter() - started
    return run, _memory(method, penalty, case, device) if device.type == "cuda" else 0.0, seconds


def _memory(method: str, penalty: str, case: Case, device: torch.device) -> float:
    """Of another one like it: the first of a process was seen to be charged with memory that no later one needs."""
    gc.collect()
    before = torch.cuda.memory_allocated(device)
    run = _first_run(method, penalty, case, device)
    if "compiled" not in method:  # its peak is that of the capture
        torch.cuda.reset_peak_memory_stats(device)
        run()
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def _first_run(method: str, penalty: str, case: Case, device: torch.device) -> Run:
    run = prepare(method, penalty, case, device)
    run()
    _wait(device)
    return run


def _row(case: Case, method: str, penalty: str, times: list[float], memory: float, start: float) -> Row:
    return Row(
        model=case.name,
        method=method,
        penalty="" if method.startswith("plain") else penalty,
        batch_size=case.batch_size,
        num_classes=case.num_classes,
        precision=case.precision,
        ms=round(statistics.median(times), 4),
        low_ms=round(min(times), 4),
        high_ms=round(max(times), 4),
        memory_mib=round(memory, 1),
        seconds_to_start=round(start, 1),
    )


def bench_fleet(
    dataset: Dataset,
    config: RunConfig,
    sizes: Sequence[int],
    penalties: Sequence[str],
    device: str,
    *,
    num_steps: int,
    say: Say,
) -> list[Row]:
    """The time of a step for each member, by the number of members; without tracing and evaluation."""
    rows = []
    for penalty, size in itertools.product(penalties, sizes):
        added = (PENALTIES[penalty],) if penalty else ()
        members = [replace(config, seed=seed, penalties=added, num_steps=num_steps) for seed in range(size)]
        first, times = Fleet(members, dataset, device=device).time_steps()
        rows.append(
            Row(
                model=config.model,
                method="fleet",
                penalty=penalty,
                batch_size=config.batch_size,
                num_classes=dataset.num_outputs,
                precision=config.precision,
                ms=round(1e3 * statistics.median(times) / size, 5),
                low_ms=round(1e3 * min(times) / size, 5),
                high_ms=round(1e3 * max(times) / size, 5),
                seconds_to_start=round(first, 1),
                members=size,
            )
        )
        say(f"fleet of {size}, {penalty or 'plain'}: {rows[-1].ms:.4f} ms a member and step")
    return rows


def noise(shape: tuple[int, ...], num_examples: int = 500) -> Dataset:
    """Random images ``[channels, height, width]`` of ten classes."""
    rng = np.random.Generator(np.random.PCG64(0))
    x = rng.integers(0, 256, (num_examples, *shape[1:], shape[0]), dtype=np.uint8)
    y = rng.integers(0, 10, num_examples)
    names = tuple("0123456789")
    cut = num_examples * 4 // 5
    return Dataset(name="noise", x_train=x[:cut], y_train=y[:cut], x_test=x[cut:], y_test=y[cut:], class_names=names)


def _milliseconds(run: Run, num_steps: int, device: torch.device) -> float:
    run()
    _wait(device)
    started = time.perf_counter()
    for _ in range(num_steps):
        run()
    _wait(device)
    return 1e3 * (time.perf_counter() - started) / num_steps


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
