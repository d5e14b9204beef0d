"""Many runs in one vectorised step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from gradreg.data import Dataset
from gradreg.draws import Draws
from gradreg.engines import Engine
from gradreg.engines.forward_pass import random_state_of
from gradreg.engines.program import Program
from gradreg.engines.twice import FastTwice
from gradreg.objective import Job
from gradreg.sources import KeyedSource
from gradreg.training.config import RunConfig
from gradreg.training.evaluator import Evaluator, Scales, Tensors
from gradreg.training.metrics import finite_only, squared_weight_norm
from gradreg.training.optimizers import Optimizer, beside
from gradreg.training.provenance import provenance
from gradreg.training.record import RunRecord
from gradreg.training.resident import RunData, dtype_of, prepare, standardised
from gradreg.training.run import Trained, initial_model, numerics, stream
from gradreg.training.schedule import batches, evaluation_steps, key_of, learning_rate_factor, some
from gradreg.training.session import (
    CURVE_POINTS,
    NORM_POINTS,
    add_point,
    function_columns,
    objective_of,
    rounded,
    targets,
)

#: Examples of all members together that are evaluated at once.
EVALUATED_AT_ONCE = 25_000


def shape_of(config: RunConfig) -> RunConfig:
    """What the members of a fleet must share: the config without seed, arm, weights, learning rate and dropout's rate."""
    penalties = tuple(replace(penalty, weight=1.0) for penalty in config.penalties)
    rate = config.dropout
    if config.model in ("lenet", "mlp") and rate:  # one rate for all layers, and one architecture for all rates
        rate = 0.5
    return replace(config, seed=0, arm="", learning_rate=0.0, penalties=penalties, dropout=rate)


class Fleet:
    """Trains the runs of these configs together, each as it would be alone: same subset, weights, masks and projections.

    Args:
        configs: the members, which may differ in seed (and so in the training subset), learning rate, dropout's rate, and
            the weights of their penalties, weight decay among them.
        dataset: what they are trained on.
        device: where.

    >>> from gradreg.data import load
    >>> from gradreg.training import RunConfig
    >>> data = load("sin")
    >>> one = RunConfig(data="sin", fingerprint=data.fingerprint, model="mlp", train_size=20, validation_size=0, num_steps=2)
    >>> members = Fleet([replace(one, seed=seed) for seed in range(3)], data).train()
    >>> [member.record.config.seed for member in members]
    [0, 1, 2]
    """

    def __init__(self, configs: Sequence[RunConfig], dataset: Dataset, *, device: str = "cpu") -> None:
        shapes = {shape_of(config) for config in configs}
        if len(shapes) != 1:
            raise ValueError(
                f"a fleet needs members of one shape, and these {len(configs)} configs have {len(shapes)}: they may differ "
                "in seed, learning_rate, dropout and penalties' weights alone. Group them with gradreg.training.shape_of."
            )
        self.configs, self.dataset, self.device = list(configs), dataset, torch.device(device)

    def train(self) -> list[Trained]:
        """Train all members to the end. Those that diverge are frozen where they are, and the others go on."""
        started = time.perf_counter()
        first = self.configs[0]
        with random_state_of(stream(first.seed, "dropout"), self.device), numerics(first.precision):
            session = _Session.start(self.configs, self.dataset, self.device)
            for _ in session.train():
                pass
            trained = time.perf_counter()
            records, models = session.records(), [session.model_of(member) for member in range(len(self.configs))]
        seconds = {
            "fleet": len(self.configs),
            "train_s": round((trained - started) / len(self.configs), 3),
            "evaluate_s": round((time.perf_counter() - trained) / len(self.configs), 3),
        }
        about = provenance(self.device) | seconds
        return [Trained(replace(record, provenance=about), model) for record, model in zip(records, models, strict=True)]

    def time_steps(self, num_rounds: int = 5) -> tuple[float, list[float]]:
        """Seconds of the first step, with tracing and compilation, and of a step in each of several rounds of the rest."""
        first = self.configs[0]
        with random_state_of(stream(first.seed, "dropout"), self.device), numerics(first.precision):
            session = _Session.start(self.configs, self.dataset, self.device)
            step = _Step(session)
            rows = list(batches(step.y.shape[1], step.config, step.keys))
            first_step = _seconds(step, [(0, rows[0])], self.device)
            size = (len(rows) - 1) // num_rounds
            rounds = [[(i, rows[i]) for i in range(start, start + size)] for start in range(1, 1 + size * num_rounds, size)]
            return first_step, [_seconds(step, work, self.device) / size for work in rounds]


def _seconds(step: _Step, work: list[tuple[int, Tensor]], device: torch.device) -> float:
    started = time.perf_counter()
    for number, rows in work:
        step(number, rows)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


@dataclass
class _Session:
    """The members in training: every tensor has them in front."""

    configs: list[RunConfig]
    dataset: Dataset
    data: list[RunData]
    model: nn.Module
    parameters: Tensors
    buffers: Tensors
    rates: Tensor | None
    curves: list[dict[str, list[float]]]
    alive: list[bool] = field(default_factory=list)

    @classmethod
    def start(cls, configs: list[RunConfig], dataset: Dataset, device: torch.device) -> _Session:
        models = [initial_model(config, dataset) for config in configs]
        data = [prepare(dataset, configs[0], device)]
        data += [prepare(dataset, config, device, beside=data[0]) for config in configs[1:]]

        def stacked(kind: str) -> Tensors:
            named = [dict(getattr(model, kind)()) for model in models]
            return {name: torch.stack([one[name].detach() for one in named]).to(device) for name in named[0]}

        parameters, buffers = stacked("named_parameters"), stacked("named_buffers")
        return cls(
            configs,
            dataset,
            data,
            models[0].to(device),
            parameters,
            buffers,
            _dropout_rates(models, device),
            [{} for _ in configs],
        )

    def train(self) -> Iterator[int]:
        """Train to the end; give the number of steps done after each, which on a GPU may still be running."""
        step = _Step(self)
        evaluate_at = evaluation_steps(step.config)
        for number, rows in enumerate(batches(step.y.shape[1], step.config, step.keys)):
            step(number, rows)
            if number + 1 in evaluate_at:
                self._add_points(number + 1, step)
            yield number + 1
        self.alive = step.alive.tolist()

    def model_of(self, member: int) -> nn.Module:
        """The model of one member."""
        model = initial_model(self.configs[member], self.dataset).to(self.data[0].train.x.device)
        model.load_state_dict({name: tensor[member] for name, tensor in self._tensors.items()})
        return model

    def records(self) -> list[RunRecord]:
        final, norms, functions = self._final_metrics(), self._gradient_norms(), self._learned_functions()
        return [
            RunRecord(
                config=config,
                metrics=finite_only(final[member]) | {"diverged": float(not self.alive[member])},
                curve=self.curves[member],
                gradient_norms={name: rounded(of[member][of[member].isfinite()]) for name, of in norms.items()},
                function=functions[member],
            )
            for member, config in enumerate(self.configs)
        ]

    def _add_points(self, number: int, step: _Step) -> None:
        means, alive = step.take_means(), step.alive.tolist()
        found = _by_member(means | self._metrics("evaluated", CURVE_POINTS))
        for curve, values, lives in zip(self.curves, found, alive, strict=True):
            if lives:
                add_point(curve, {"step": number} | finite_only(values))

    def _final_metrics(self) -> list[dict[str, float]]:
        found = self._metrics("evaluated")
        found |= {f"train_{name}": value for name, value in self._metrics("train").items()}
        found["squared_weight_norm"] = torch.func.vmap(squared_weight_norm)(self.parameters)
        return _by_member(found)

    def _metrics(self, part: str, at_most: int | None = None) -> Tensors:
        x, y, dim = self._part(part, at_most)
        evaluate = torch.func.vmap(self._evaluator.metrics, (0, 0, dim, dim), chunk_size=self._chunk(x.shape[int(dim == 0)]))
        with FastTwice():
            found: Tensors = evaluate(self._tensors, self._scales, x, y)
        return found

    def _gradient_norms(self) -> Tensors:
        def norms(part: str) -> Tensor:
            x, _, dim = self._part(part, NORM_POINTS)
            chunk = self._chunk(50 * self.dataset.num_outputs)
            with FastTwice():
                found: Tensor = torch.func.vmap(self._evaluator.gradient_norms, (0, 0, dim), chunk_size=chunk)(
                    self._tensors, self._scales, x
                )
            return found

        return {"train": norms("train"), self.configs[0].evaluate_on: norms("evaluated")}

    def _learned_functions(self) -> Sequence[dict[str, list[float]] | None]:
        columns = [function_columns(c, self.dataset.task, d) for c, d in zip(self.configs, self.data, strict=True)]
        if columns[0] is None:
            return [None] * len(columns)
        x = columns[0]["x"]
        predict = torch.func.vmap(self._evaluator.predictions, (0, 0, None))
        found = predict(self._tensors, self._scales, x.unsqueeze(1)).flatten(1)
        whole = [None if own is None else own | {"y": y} for own, y in zip(columns, found, strict=True)]
        return [
            {name: rounded(column) for name, column in own.items()}
            if own and all(column.isfinite().all() for column in own.values())
            else None
            for own in whole
        ]

    def _part(self, part: str, at_most: int | None) -> tuple[Tensor, Tensor, int | None]:
        """Examples of the training subsets, which are each member's own, or of the evaluated split, which they share."""
        parts = [getattr(data, part) for data in self.data]
        size, device = len(parts[0]), parts[0].x.device
        rows = some(size, at_most or size, device)
        if part == "evaluated":
            return parts[0].x[rows], parts[0].y[rows], None
        return torch.stack([p.x[rows] for p in parts]), torch.stack([p.y[rows] for p in parts]), 0

    def _chunk(self, examples: int) -> int:
        """How many members to evaluate at once."""
        return max(1, EVALUATED_AT_ONCE // min(examples, 1000))

    @property
    def _tensors(self) -> Tensors:
        return self.parameters | self.buffers

    @property
    def _scales(self) -> Scales:
        return Scales(*(torch.stack(values) for values in zip(*map(Scales.of, self.data), strict=True)))

    @property
    def _evaluator(self) -> Evaluator:
        return Evaluator(self.configs[0], self.dataset.task, self.model, self.data[0].train.x.device)


class _Step:
    """One training step of all members, as a program for each set of penalties that act."""

    def __init__(self, session: _Session) -> None:
        self.session = session
        self.config = session.configs[0]
        self.optimizer = Optimizer(self.config.optimizer)
        self.objective = objective_of(self.config, session.dataset.task)
        self.objective.engine = _transformed(self.objective.engine)
        device, members = session.data[0].train.x.device, len(session.configs)

        def zeros() -> Tensor:
            return torch.zeros(members, dtype=dtype_of(self.config), device=device)

        self.x = torch.stack([data.train.x for data in session.data])
        self.y = torch.stack([targets(data, session.dataset.task) for data in session.data])
        self.keys = torch.tensor([key_of(config) for config in session.configs], device=device)
        self.moments = {name: self.optimizer.start(p) for name, p in session.parameters.items()}
        self.alive = torch.ones(members, dtype=torch.bool, device=device)
        self.sums = {name: zeros() for name in ("train_loss", *self._names())}
        self.counts = dict.fromkeys(self.sums, 0)
        self.number = torch.zeros((), dtype=torch.long, device=device)
        self.rows = torch.zeros(members, min(self.config.batch_size, self.x.shape[1]), dtype=torch.long, device=device)
        self.learning_rates = zeros()
        self.weights = {name: zeros() for name in self._names()}
        self.programs: dict[tuple[str, ...], Program] = {}
        self._last: tuple[Any, ...] = ()

    def __call__(self, number: int, rows: Tensor) -> None:
        active = self._set_knobs(number)
        self.number.fill_(number)
        self.rows.copy_(rows)
        if active not in self.programs:
            self.programs[active] = self._program(active)
        self.programs[active]()
        for name in ("train_loss", *active):
            self.counts[name] += 1

    def take_means(self) -> Tensors:
        """Loss and penalties of each member, averaged over the steps since the last call."""
        means = {name: total / self.counts[name] for name, total in self.sums.items() if self.counts[name]}
        for name, total in self.sums.items():
            total.zero_()
            self.counts[name] = 0
        return means

    def _names(self) -> list[str]:
        return [job.name for job in self.objective.jobs(0)]

    def _set_knobs(self, number: int) -> tuple[str, ...]:
        """Learning rates and weights at this step, copied to the device when they change; the penalties that act."""
        weights = {
            job.name: [p.weight * p.schedule.factor(number) for p in (c.penalties[place] for c in self.session.configs)]
            for place, job in enumerate(self.objective.jobs(0))
        }
        rates = [c.learning_rate * learning_rate_factor(c, number) for c in self.session.configs]
        if self._last != (weights, rates):
            self._last = (weights, rates)
            self.learning_rates.copy_(torch.tensor(rates, dtype=torch.float64))
            for name, values in weights.items():
                self.weights[name].copy_(torch.tensor(values, dtype=torch.float64))
        return tuple(name for name, values in weights.items() if any(values))

    def _program(self, active: tuple[str, ...]) -> Program:
        names = list(self.session.parameters)
        state = [
            *self.session.parameters.values(),
            *self.session.buffers.values(),
            *(moment for name in names for moment in self.moments[name]),
            self.alive,
            *(self.sums[name] for name in ("train_loss", *active)),
        ]
        inputs = [self.rows, self.number, self.learning_rates, *(self.weights[name] for name in active), self.keys]
        return Program(lambda state, inputs: self._advance(active, state, inputs), state, inputs)

    def _advance(self, active: tuple[str, ...], state: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """Gradients of all members, then the optimizer; nothing changes for members whose loss is not finite."""
        session, left = self.session, iter(state)
        parameters = {name: next(left) for name in session.parameters}
        buffers = {name: next(left) for name in session.buffers}
        moments = {name: [next(left) for _ in self.moments[name]] for name in parameters}
        alive, sums = next(left), list(left)
        rows, number, rates, *weights, keys = inputs
        gradients, totals, values, new_buffers = self._gradients(active, parameters, buffers, rows, number, weights, keys)
        alive.logical_and_(totals.isfinite())
        kept = {name: torch.where(beside(alive, g), g, 0) for name, g in gradients.items()}
        self.optimizer.step(parameters, kept, moments, torch.where(alive, rates, 0), number + 1)
        for name, buffer in buffers.items():
            buffer.copy_(torch.where(beside(alive, buffer), new_buffers[name], buffer))
        for total, value in zip(sums, values, strict=True):
            total.add_(torch.where(alive, value, 0).to(total.dtype))

    def _gradients(
        self,
        active: tuple[str, ...],
        parameters: Tensors,
        buffers: Tensors,
        rows: Tensor,
        number: Tensor,
        weights: Sequence[Tensor],
        keys: Tensor,
    ) -> tuple[Tensors, Tensor, tuple[Tensor, ...], Tensors]:
        whole = _Whole(self.session.model, self.objective, active)
        members = torch.arange(len(keys), device=keys.device)[:, None]
        scales = self.session._scales
        x = standardised(self.x[members, rows], scales.mean, scales.std)

        def total(
            parameters: Tensors, buffers: Tensors, x: Tensor, y: Tensor, key: Tensor, weights: Sequence[Tensor], rate: Any
        ) -> Any:
            tensors = parameters | {name: buffer.clone() for name, buffer in buffers.items()}
            draws = Draws(key).at("step", number)
            with _rate(self.session.model, rate):
                named = {f"model.{name}": tensor for name, tensor in tensors.items()}
                return torch.func.functional_call(whole, named, (x, y, draws, weights))

        rates = self.session.rates
        dims = (0, 0, 0, 0, 0, 0, None if rates is None else 0)
        self.session.model.train()
        with FastTwice(), self.session._evaluator.autocast():
            of_all = torch.func.vmap(torch.func.grad_and_value(total, has_aux=True), dims)
            found = of_all(parameters, buffers, x, self.y[members, rows], keys, tuple(weights), rates)
        gradients, (totals, (values, new_buffers)) = found
        return gradients, totals, values, new_buffers


class _Whole(nn.Module):
    """The objective as a module around the model, so that ``functional_call`` can put tensors in the place of its own."""

    def __init__(self, model: nn.Module, objective: Any, active: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.objective, self.active = model, objective, active

    def forward(self, x: Tensor, y: Tensor, draws: Draws, weights: Sequence[Tensor]) -> tuple[Tensor, Any]:
        penalties = {job.name: job.penalty for job in self.objective.jobs(0)}
        jobs = [Job(name, penalties[name], weight) for name, weight in zip(self.active, weights, strict=True)]
        terms = self.objective.evaluate(self.model, x, y, jobs, source=KeyedSource(draws))
        values = (terms.loss, *(terms.penalties[name] for name in self.active))
        return terms.total, (values, dict(self.model.named_buffers()))


def _transformed(engine: Engine) -> Engine:
    return replace(engine, transformed=True)  # type: ignore[type-var]


def _dropout_rates(models: list[nn.Module], device: torch.device) -> Tensor | None:
    """The rate of each member's dropout layers, where they differ between members."""
    rates = [[layer.p for layer in model.modules() if isinstance(layer, nn.Dropout)] for model in models]
    if all(own == rates[0] for own in rates):
        return None
    dtype = next(models[0].parameters()).dtype
    return torch.tensor([own[0] for own in rates], dtype=dtype, device=device)


@contextmanager
def _rate(model: nn.Module, rate: Tensor | None) -> Iterator[None]:
    """Dropout at this rate for the while."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Dropout)] if rate is not None else []
    before = [layer.p for layer in layers]
    for layer in layers:
        layer.p = rate  # type: ignore[assignment]
    try:
        yield
    finally:
        for layer, p in zip(layers, before, strict=True):
            layer.p = p


def _by_member(columns: Tensors) -> list[dict[str, float]]:
    """From one tensor a name to one dict a member."""
    lists = {name: column.tolist() for name, column in columns.items()}
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
