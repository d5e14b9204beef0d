"""One training step of all members of a fleet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gradreg.draws import Draws
from gradreg.engines import inside_transforms
from gradreg.engines.around import call_with
from gradreg.engines.program import Program
from gradreg.engines.twice import FastTwice
from gradreg.objective import Job, Terms
from gradreg.sources import KeyedSource, Source
from gradreg.training.augment import moved_and_mirrored
from gradreg.training.evaluator import Tensors
from gradreg.training.members import Members
from gradreg.training.optimizers import Optimizer, beside
from gradreg.training.resident import dtype_of, standardised
from gradreg.training.schedule import batches, key_of, learning_rate_factor
from gradreg.training.session import objective_of, targets


class FleetStep:
    """One training step of all members, as a program for each set of penalties that act."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self.config = members.configs[0]
        self.optimizer = Optimizer(self.config.optimizer)
        self.objective = objective_of(self.config, members.dataset.task)
        self.objective.engine = inside_transforms(self.objective.engine)
        self.jobs = {job.name: job for job in self.objective.jobs(0)}
        device, number = members.device, len(members.configs)

        def zeros() -> Tensor:
            return torch.zeros(number, dtype=dtype_of(self.config), device=device)

        self.x = torch.cat([data.train.x for data in members.data])
        self.y = torch.cat([targets(data, members.dataset.task) for data in members.data])
        self.scales = members.scales
        self.sizes = [len(data.train) for data in members.data]
        starts = itertools.accumulate(self.sizes[:-1], initial=0)
        self.starts = torch.tensor([*starts], device=device)[:, None]
        self.keys = torch.tensor([key_of(config) for config in members.configs], device=device)
        self.moments = {name: self.optimizer.start(p) for name, p in members.parameters.items()}
        self.sums = {name: zeros() for name in ("train_loss", *self.jobs)}
        self.counts = dict.fromkeys(self.sums, 0)
        self.number = torch.zeros((), dtype=torch.long, device=device)
        batch_size = min(self.config.batch_size, self.sizes[0])
        self.batch_x, self.batch_y = (t.new_zeros((number, batch_size, *t.shape[1:])) for t in (self.x, self.y))
        self.learning_rates = zeros()
        self.weights = {name: zeros() for name in self.jobs}
        self.programs: dict[tuple[str, ...], Program] = {}
        self._last: tuple[Any, ...] = ()

    def __call__(self, number: int, rows: Tensor) -> None:
        active = self._set_knobs(number)
        self.number.fill_(number)
        # Outside the program, so that one compiled for some sizes of subsets serves for all.
        self.batch_x.copy_(self.x[self.starts + rows])
        self.batch_y.copy_(self.y[self.starts + rows])
        if active not in self.programs:
            self.programs[active] = self._program(active)
        self.programs[active]()
        for name in ("train_loss", *active):
            self.counts[name] += 1

    def batches(self) -> Iterator[Tensor]:
        """Row numbers of each member's batch in its own subset, ``[members, batch]``."""
        groups = {size: [m for m, own in enumerate(self.sizes) if own == size] for size in dict.fromkeys(self.sizes)}
        order = torch.tensor([*itertools.chain(*groups.values())], device=self.keys.device).argsort()
        parts = [batches(size, self.config, self.keys[members]) for size, members in groups.items()]
        return (torch.cat(rows)[order] for rows in zip(*parts, strict=True))

    def take_means(self) -> Tensors:
        """Loss and penalties of each member, averaged over the steps since the last call."""
        means = {name: total / self.counts[name] for name, total in self.sums.items() if self.counts[name]}
        for name, total in self.sums.items():
            total.zero_()
            self.counts[name] = 0
        return means

    def _set_knobs(self, number: int) -> tuple[str, ...]:
        """Learning rates and weights at this step, copied to the device when they change; the penalties that act."""
        weights = {
            job.name: [p.weight * p.schedule.factor(number) for p in (c.penalties[place] for c in self.members.configs)]
            for place, job in enumerate(self.jobs.values())
        }
        rates = [c.learning_rate * learning_rate_factor(c, number) for c in self.members.configs]
        if self._last != (weights, rates):
            self._last = (weights, rates)
            self.learning_rates.copy_(torch.tensor(rates, dtype=torch.float64))
            for name, values in weights.items():
                self.weights[name].copy_(torch.tensor(values, dtype=torch.float64))
        return tuple(name for name, values in weights.items() if any(values))

    def _program(self, active: tuple[str, ...]) -> Program:
        names = list(self.members.parameters)
        state = [
            *self.members.parameters.values(),
            *self.members.buffers.values(),
            *(moment for name in names for moment in self.moments[name]),
            self.members.alive,
            *(self.sums[name] for name in ("train_loss", *active)),
        ]
        inputs = [
            self.batch_x,
            self.batch_y,
            self.number,
            self.learning_rates,
            *(self.weights[name] for name in active),
            self.keys,
        ]
        first_moments = {id(self.moments[name][0]) for name in names}
        judged = [place for place, tensor in enumerate(state) if id(tensor) in first_moments]
        return Program(lambda state, inputs: self._advance(active, state, inputs), state, inputs, judged=[judged])

    def _advance(self, active: tuple[str, ...], state: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """Gradients of all members, then the optimizer; nothing changes for members whose loss is not finite."""
        left = iter(state)
        parameters = {name: next(left) for name in self.members.parameters}
        buffers = {name: next(left) for name in self.members.buffers}
        moments = {name: [next(left) for _ in self.moments[name]] for name in parameters}
        alive, sums = next(left), list(left)
        x, y, number, rates, *weights, keys = inputs
        gradients, totals, values, new_buffers = self._gradients(active, parameters, buffers, x, y, number, weights, keys)
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
        x: Tensor,
        y: Tensor,
        number: Tensor,
        weights: Sequence[Tensor],
        keys: Tensor,
    ) -> tuple[Tensors, Tensor, tuple[Tensor, ...], Tensors]:
        members = self.members
        x = standardised(x, self.scales.mean, self.scales.std)

        def total(
            parameters: Tensors, others: Tensors, x: Tensor, y: Tensor, key: Tensor, weights: Sequence[Tensor], rate: Any
        ) -> Any:
            tensors = parameters | {name: tensor.clone() for name, tensor in others.items()}
            jobs = [self.jobs[name]._replace(weight=weight) for name, weight in zip(active, weights, strict=True)]
            draws = Draws(key).at("step", number)
            x = moved_and_mirrored(x, draws.at("augment")) if self.config.augment else x
            with _rate(members.model, rate), members.evaluator.autocast():
                terms, buffers = call_with(members.model, tensors, self._terms, x, y, jobs, KeyedSource(draws))
            return terms.total, ((terms.loss, *(terms.penalties[name] for name in active)), buffers)

        dims = (0, 0, 0, 0, 0, 0, None if members.rates is None else 0)
        members.model.train()
        with FastTwice():
            of_all = torch.func.vmap(torch.func.grad_and_value(total, has_aux=True), dims)
            others = members.fixed | buffers
            found = of_all(parameters, others, x, y, keys, tuple(weights), members.rates)
        gradients, (totals, (values, new_buffers)) = found
        return gradients, totals, values, new_buffers

    def _terms(self, model: nn.Module, x: Tensor, y: Tensor, jobs: Sequence[Job], source: Source) -> Terms:
        return self.objective.evaluate(model, x, y, jobs, source=source)


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
