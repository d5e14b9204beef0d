"""Runs of a network too large for a fleet: captured steps side by side, each on a stream of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gradreg.data import Dataset
from gradreg.draws import Draws
from gradreg.engines import Auto, Compiled, DoubleBackward
from gradreg.engines.forward_pass import Pass, RandomState, call, random_state_of
from gradreg.engines.program import Code, TraceError
from gradreg.objective import Terms
from gradreg.step import Step
from gradreg.training.config import RunConfig
from gradreg.training.fleet import shape_of
from gradreg.training.resident import RunData, prepare
from gradreg.training.run import Trained, check_seeds_decide_state_alone, initial_model, numerics, record_of, stream
from gradreg.training.schedule import evaluation_steps
from gradreg.training.session import Session, make_optimizer, objective_of, set_learning_rate
from gradreg.training.snapshot import Snapshot

#: How many runs share a GPU. A third still gains something on an H200 with the CIFAR ResNet.
NUM_LANES = 3
#: Compiled steps by what they train, for all lanes that share this.
Codes = dict[RunConfig, dict[Any, Code]]
#: Seconds that the steps between two points of a curve may take on the GPU once they are all under way.
STANDSTILL = 600.0


class Lanes:
    """Trains runs of one shape, a few at a time, each as it would be alone.

    A GPU is not filled by the small kernels of one run. The steps of a lane are one CUDA graph, compiled once and used by
    one run after the other; the lanes' graphs overlap. A run that diverges ends at the next point of its curve.
    Kernels are those that cuDNN expects to be fastest: with those that it finds by trying, lanes have stood still.
    A model that draws random numbers of its own, beside dropout, is refused: they would depend on the other lanes.

    Args:
        configs: the runs, which may differ in seed, learning rate and the weights of their penalties.
        dataset: what they are trained on.
        device: where.
        num_lanes: how many at a time.
        snapshots: a folder to keep runs in on their way; those that were stopped go on from there.
        codes: steps that earlier lanes compiled on the same data, to go on with.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        dataset: Dataset,
        *,
        device: str = "cuda",
        num_lanes: int = NUM_LANES,
        snapshots: Path | None = None,
        codes: Codes | None = None,
    ) -> None:
        if len({_shape_in_a_lane(config) for config in configs}) != 1:
            raise ValueError(
                f"lanes need runs of one shape and one rate of dropout, and these {len(configs)} differ: they may differ in "
                "seed, train_size, learning_rate and penalties' weights alone."
            )
        self.configs, self.dataset, self.device = list(configs), dataset, torch.device(device)
        self.num_lanes, self.snapshots = min(num_lanes, len(self.configs)), snapshots
        self.codes = ({} if codes is None else codes).setdefault(_step_of(self.configs[0]), {})

    def train(self) -> Iterator[Trained]:
        """The runs, in the order in which they end. Between them the global random state and numerics are the caller's."""
        ended = self._ended()
        randomness: int | RandomState = stream(self.configs[0].seed, "dropout")
        while True:
            with random_state_of(randomness, self.device), numerics(self.configs[0].precision):
                trained = next(ended, None)
                randomness = RandomState.now(self.device)
            if trained is None:
                return
            yield trained

    def _ended(self) -> Iterator[Trained]:
        self._check_model()
        waiting = iter(self.configs)
        lanes = [Lane(self.configs[0], self.dataset, self.device, self.codes) for _ in range(self.num_lanes)]
        running = [lane.train(config, self.snapshots) for lane, config in zip(lanes, waiting, strict=False)]
        while running:
            for place, (lane, steps) in enumerate(zip(lanes, running, strict=True)):
                with lane.on_its_stream():
                    trained = next(steps)
                if trained is None:
                    continue
                yield trained
                config = next(waiting, None)
                if config is not None:
                    running[place] = lane.train(config, self.snapshots)
                    continue
                del lanes[place], running[place]
                break

    def _check_model(self) -> None:
        check_seeds_decide_state_alone(self.configs, self.dataset)
        config = self.configs[0]
        model = initial_model(config, self.dataset).to(self.device)
        if draws_by_itself(model, prepare(self.dataset, config, self.device).train.inputs(slice(config.batch_size))):
            raise TraceError(
                f"model {config.model!r} draws random numbers of its own, beside dropout, and lanes share one generator: "
                "train its runs alone, with gradreg.training.run."
            )


class Lane:
    """A model, its optimizer and its captured step, for one run after the other."""

    def __init__(
        self, config: RunConfig, dataset: Dataset, device: torch.device, codes: dict[Any, Code] | None = None
    ) -> None:
        self.config, self.dataset, self.device = config, dataset, device
        self.data: RunData | None = None
        self.evaluate_at = evaluation_steps(config)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        with self.on_its_stream():
            self.model = initial_model(config, dataset).to(device)
            if device.type == "cuda" and len(dataset.input_shape) == 3:
                self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.optimizer = make_optimizer(config, self.model)
            self.objective = objective_of(config, dataset.task)
            self.objective.engine = compiled(self.objective.engine, codes)
            self.step = Step(self.objective, self.model, self.optimizer)

    def train(self, config: RunConfig, snapshots: Path | None = None) -> Iterator[Trained | None]:
        """Train this run: None after each step, and at the end what it gave."""
        self.config, self.objective.penalties, self.evaluate_at = config, config.penalties, evaluation_steps(config)
        self._reset()
        self.data = prepare(self.dataset, config, self.device, beside=self.data)
        session = Session(config, self.dataset.task, self.data, self.model, self)
        snapshot = Snapshot(session, self.optimizer, snapshots)
        snapshot.resume()
        for step in session.steps():
            if step in self.evaluate_at:
                snapshot.keep()
            yield None
        record = record_of(session, snapshot.started)
        model = initial_model(config, self.dataset).to(self.device)
        _copy(self.model, model)
        if self.stream is not None:
            self.stream.synchronize()  # whoever takes the model reads it on another stream
        yield Trained(record, model)

    def __call__(self, x: Tensor, y: Tensor, generator: Draws, *, step: int) -> Terms | None:
        set_learning_rate(self.optimizer, self.config, step)
        if x.ndim == 4 and x.is_cuda:
            x = x.contiguous(memory_format=torch.channels_last)
        terms = self.step(x, y, generator=generator, step=step)
        if self.stream is not None and step + 1 in self.evaluate_at:
            wait_for(self.stream.record_event(), STANDSTILL)
        return terms

    def on_its_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def _reset(self) -> None:
        """Initial weights and an optimizer without a past, in the tensors that the graph knows."""
        _copy(initial_model(self.config, self.dataset), self.model)
        for state in self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()


class Event(Protocol):
    """A mark in a stream."""

    def query(self) -> bool:
        """Whether all work before it is done."""
        ...


def wait_for(event: Event, seconds: float) -> None:
    """Until the event is there; an error if it takes longer, where PyTorch would wait for ever."""
    until = time.monotonic() + seconds
    while not event.query():
        if time.monotonic() > until:
            raise RuntimeError(
                f"a run on the GPU has stood still for {seconds:g} s. Start again: runs that are done are recorded, and "
                "are not made again."
            )
        time.sleep(0.001)


def draws_by_itself(model: nn.Module, x: Tensor) -> bool:
    """Whether the model in training takes from PyTorch's generators, with masks of dropout drawn by key."""
    with random_state_of(0, x.device), torch.no_grad():
        before = _random_state(x.device)
        call(model.train(), x, Pass(randomness=Draws(0)))
        return _random_state(x.device) != before


def _random_state(device: torch.device) -> list[object]:
    state = RandomState.now(device)
    return [part if part is None else part.tolist() for part in (state.cpu, state.device)]


def _shape_in_a_lane(config: RunConfig) -> RunConfig:
    penalties = tuple(replace(penalty, weight=1.0) for penalty in config.penalties)
    return replace(shape_of(replace(config, penalties=penalties)), dropout=config.dropout)


def _step_of(config: RunConfig) -> RunConfig:
    """The same for runs whose steps do the same to tensors of the same shapes."""
    return replace(_shape_in_a_lane(config), num_steps=1, num_evaluations=1, drops=(), evaluate_on="test", validation_size=0)


@torch.no_grad()
def _copy(source: nn.Module, target: nn.Module) -> None:
    """All parameters and buffers, also those that are not part of the state dict."""
    for new, old in zip(_tensors(source), _tensors(target), strict=True):
        old.copy_(new)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def compiled(engine: object, codes: dict[Any, Code] | None = None) -> Compiled:
    """The engine as one graph."""
    if isinstance(engine, Compiled):
        return replace(engine, codes=codes)
    return Compiled(DoubleBackward() if isinstance(engine, Auto) else engine, codes)  # type: ignore[arg-type]
