"""One run: from a config to a record and a trained model."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Generator, Tensor, nn

from gradreg.data import Dataset
from gradreg.engines.forward_pass import random_state_of
from gradreg.engines.program import TraceError
from gradreg.models import build
from gradreg.models.init import initialise_by_numpy
from gradreg.training.config import RunConfig
from gradreg.training.provenance import provenance
from gradreg.training.record import RunRecord
from gradreg.training.resident import dtype_of, prepare
from gradreg.training.session import EagerStep, Session
from gradreg.training.snapshot import Snapshot

#: Told after each evaluation: the number of steps done, and the curve so far.
Progress = Callable[[int, dict[str, list[float]]], None]


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    record: RunRecord
    model: nn.Module


def run(
    config: RunConfig,
    dataset: Dataset,
    *,
    device: str = "cpu",
    progress: Progress | None = None,
    snapshots: Path | None = None,
) -> Trained:
    """Train and evaluate as the config says.

    A function of its arguments: the same config gives the same record bit for bit on the same machine, and the global
    random state is left alone. With a folder for snapshots, a run that was stopped goes on from the last of them.
    """
    where = torch.device(device)
    with random_state_of(stream(config.seed, "dropout"), where), numerics(config.precision):
        model = initial_model(config, dataset).to(where)
        take_step = EagerStep(config, dataset.task, model)
        session = Session(config, dataset.task, prepare(dataset, config, where), model, take_step)
        snapshot = Snapshot(session, take_step.optimizer, snapshots)
        snapshot.resume()
        for step in session.train():
            snapshot.keep()
            if progress is not None:
                progress(step, session.curve)
        return Trained(record_of(session, snapshot.started), model)


def record_of(session: Session, started: float) -> RunRecord:
    """Evaluate what was trained since this time."""
    trained = time.perf_counter()
    record = RunRecord(
        config=session.config,
        metrics=session.final_metrics(),
        curve=session.curve,
        gradient_norms=session.gradient_norms(),
        function=session.learned_function(),
        provenance=provenance(session.data.train.x.device) | {"train_s": round(trained - started, 3)},
    )
    if session.resumed_at:
        record.provenance["resumed_at"] = session.resumed_at
    record.provenance["evaluate_s"] = round(time.perf_counter() - trained, 3)
    return record


def initial_model(config: RunConfig, dataset: Dataset) -> nn.Module:
    """The model before training, as the seed draws it; also one that takes no generator."""
    seed = stream(config.seed, "weights")
    shape, outputs, generator = dataset.input_shape, dataset.num_outputs, Generator().manual_seed(seed)
    with random_state_of(seed, torch.device("cpu")):
        model = build(config.model, shape, outputs, dropout=config.dropout, generator=generator)
    if dataset.numpy_seeds and ":" not in config.model:  # one's own model may have been trained before
        initialise_by_numpy(model, config.seed)
    return model.to(dtype_of(config))


def check_seeds_decide_state_alone(configs: Sequence[RunConfig], dataset: Dataset) -> None:
    """Runs that are trained together share a model, and have parameters and buffers of their own."""
    first, *others = dict.fromkeys(config.seed for config in configs)
    if not others:
        return
    one, other = (_beside_state(initial_model(replace(configs[0], seed=seed), dataset)) for seed in (first, others[0]))
    for name in one.keys() & other.keys():
        if not _equal(one[name], other[name]):
            raise TraceError(
                f"model {configs[0].model!r}: {name} depends on the seed and is neither parameter nor buffer, so runs "
                "cannot share it. Use register_buffer, or train its runs alone, with gradreg.training.run"
            )


def _equal(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return one == other


def _beside_state(model: nn.Module) -> dict[str, object]:
    """Numbers, words and tensors that modules keep without registering them, by name."""
    return {
        f"{name}.{attribute}".lstrip("."): value
        for name, module in model.named_modules()
        for attribute, value in vars(module).items()
        if isinstance(value, (bool, int, float, str, Tensor))
    }


def stream(seed: int, purpose: str) -> int:
    """A seed for each purpose, so that none depends on how much another draws."""
    return int.from_bytes(hashlib.sha256(f"{purpose} {seed}".encode()).digest()[:7], "little")


@contextmanager
def numerics(precision: str) -> Iterator[None]:
    """With or without TensorFloat-32, and sums in an order that repeats itself: one thread, fixed kernels.

    One thread is also the fastest where cores are shared: two that wait for each other after every small operation take
    many times as long as soon as another process wants a core.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with matmul_precision(precision, deterministic=True):
            yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def matmul_precision(precision: str, *, deterministic: bool = False) -> Iterator[None]:
    """Matrix products and convolutions with or without TensorFloat-32."""
    before, tf32 = torch.get_float32_matmul_precision(), precision in ("tf32", "bf16")
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, deterministic=deterministic, allow_tf32=tf32):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
