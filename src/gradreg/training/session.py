"""The loop of one run, and what it measures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradreg.data.dataset import Task
from gradreg.draws import Draws
from gradreg.objective import Objective, Terms
from gradreg.step import backward
from gradreg.training.augment import moved_and_mirrored
from gradreg.training.config import RunConfig
from gradreg.training.evaluator import Evaluator, Scales
from gradreg.training.metrics import finite_only, squared_weight_norm
from gradreg.training.resident import Resident, RunData
from gradreg.training.schedule import batches, evaluation_steps, key_of, learning_rate_factor, some

#: At most so many points of a split for the curve, for gradient norms, and for the learned function.
CURVE_POINTS, NORM_POINTS, FUNCTION_POINTS = 500, 200, 300


class TakeStep(Protocol):
    """Takes one training step."""

    def __call__(self, x: Tensor, y: Tensor, generator: Draws, *, step: int) -> Terms | None:
        """What the step gave; None, and nothing changed, if it sees that that is not finite."""
        ...


@dataclass
class Session:
    """A model in training on its data."""

    config: RunConfig
    task: Task
    data: RunData
    model: nn.Module
    take_step: TakeStep
    curve: dict[str, list[float]] = field(default_factory=dict)
    diverged: bool = False
    step: int = 0
    resumed_at: list[dict[str, Any]] = field(default_factory=list)
    _since_last: list[dict[str, Tensor]] = field(default_factory=list)

    def train(self) -> Iterator[int]:
        """Train to the end, or until a value is not finite; give the number of steps done at each point of the curve."""
        evaluate_at = evaluation_steps(self.config)
        return (step for step in self.steps() if step in evaluate_at)

    def steps(self) -> Iterator[int]:
        """The same, but give the number of steps after each of them."""
        y = targets(self.data, self.task)
        key, evaluate_at = key_of(self.config), evaluation_steps(self.config)
        self.model.train()
        of_each_step = batches(len(y), self.config, torch.tensor([key], device=y.device))
        for step, rows in islice(enumerate(of_each_step), self.step, None):
            with self._evaluator.autocast():
                draws = Draws(key).at("step", step)
                terms = self.take_step(self._inputs(rows[0], draws), y[rows[0]], draws, step=step)
            self.diverged = terms is None
            if terms is None:
                return
            self._since_last.append(
                {"train_loss": terms.loss.detach()} | {n: v.detach() for n, v in terms.penalties.items()}
            )
            self.step = step + 1
            if self.step in evaluate_at:
                self._add_point()
            if self.diverged:
                return
            yield self.step

    def _inputs(self, rows: Tensor, draws: Draws) -> Tensor:
        x = self.data.train.inputs(rows)
        return moved_and_mirrored(x, draws.at("augment")) if self.config.augment else x

    def final_metrics(self) -> dict[str, float]:
        """All metrics of the evaluated split, and those of the training subset under ``train_``."""
        found = self._metrics(self.data.evaluated)
        found |= {f"train_{name}": value for name, value in self._metrics(self.data.train).items()}
        found["squared_weight_norm"] = squared_weight_norm(dict(self.model.named_parameters())).item()
        return finite_only(found) | {"diverged": float(self.diverged)}

    def gradient_norms(self) -> dict[str, list[float]]:
        """Norms of the Jacobian at some points of the training subset, half way between them, and of the evaluated split."""
        parts = {"train": self.data.train, self.config.evaluate_on: self.data.evaluated}
        points = {name: part.x[some(len(part), NORM_POINTS, part.x.device)] for name, part in parts.items()}
        points["between"] = half_way(points["train"])
        norms = {name: self._evaluator.gradient_norms(self._tensors, self._scales, x) for name, x in points.items()}
        return {name: rounded(values[values.isfinite()]) for name, values in norms.items()}

    def learned_function(self) -> dict[str, list[float]] | None:
        """For regression from one number to one: the prediction over the range of the data, and the training set."""
        columns = function_columns(self.config, self.task, self.data)
        if columns is None:
            return None
        columns["y"] = self._evaluator.predictions(self._tensors, self._scales, columns["x"].unsqueeze(1)).flatten()
        if not all(column.isfinite().all() for column in columns.values()):
            return None
        return {name: rounded(column) for name, column in columns.items()}

    @property
    def _evaluator(self) -> Evaluator:
        return Evaluator(self.config, self.task, self.model, self.data.train.x.device)

    @property
    def _tensors(self) -> dict[str, Tensor]:
        return dict(self.model.named_parameters()) | dict(self.model.named_buffers())

    @property
    def _scales(self) -> Scales:
        return Scales.of(self.data)

    def _metrics(self, part: Resident, at_most: int | None = None) -> dict[str, float]:
        rows = slice(None) if at_most is None else some(len(part), at_most, part.x.device)
        found = self._evaluator.metrics(self._tensors, self._scales, part.x[rows], part.y[rows])
        return {name: value.item() for name, value in found.items()}

    def _add_point(self) -> None:
        names = {name for values in self._since_last for name in values}
        point = {n: torch.stack([values[n] for values in self._since_last if n in values]).mean().item() for n in names}
        self._since_last.clear()
        self.diverged = not all(map(math.isfinite, point.values()))
        if self.diverged:
            return
        add_point(self.curve, {"step": self.step} | point | finite_only(self._metrics(self.data.evaluated, CURVE_POINTS)))


def half_way(x: Tensor) -> Tensor:
    """The points in the middle between each example and the one before."""
    pixels = x.float() / 255 if x.dtype == torch.uint8 else x
    return (pixels + pixels.roll(1, 0)) / 2


def add_point(curve: dict[str, list[float]], point: dict[str, float]) -> None:
    """Lengthen all lists by one: what this point does not have, or had not been there before, is not a number."""
    length = len(curve.get("step", ()))
    for name in sorted({*curve, *point}):
        curve.setdefault(name, [math.nan] * length).append(round(point.get(name, math.nan), 6))


def rounded(values: Tensor) -> list[float]:
    return [round(value, 5) for value in values.tolist()]


def objective_of(config: RunConfig, task: Task) -> Objective:
    """The loss of the task and the penalties of the config. Whoever trains sees to values that are not finite."""
    loss = F.cross_entropy if task == "classification" else F.mse_loss
    return Objective(loss, *config.penalties, engine=config.engine, check_finite=False)


def targets(data: RunData, task: Task) -> Tensor:
    """What to train on: classes, or numbers of mean 0 and variance 1."""
    return data.train.y if task == "classification" else data.scale_targets(data.train.y)


def function_columns(config: RunConfig, task: Task, data: RunData) -> dict[str, Tensor] | None:
    """Where to look at a function from one number to one; None for other data.

    On test data at the test points, with their targets; while tuning on an even grid, without.
    """
    train, evaluated = data.train, data.evaluated
    if task != "regression" or train.x[0].numel() != 1 or train.y[0].numel() != 1:
        return None
    columns = {"train_x": train.x.flatten(), "train_y": train.y.flatten()}
    if config.evaluate_on == "test":
        rows = evaluated.x.flatten().argsort()[some(len(evaluated), FUNCTION_POINTS, train.x.device)]
        return columns | {"x": evaluated.x[rows].flatten(), "target": evaluated.y[rows].flatten()}
    low, high = evaluated.x.aminmax()
    return columns | {"x": torch.linspace(float(low), float(high), FUNCTION_POINTS, device=low.device)}


class EagerStep:
    """Objective, backward pass and optimizer, one operation after the other."""

    def __init__(self, config: RunConfig, task: Task, model: nn.Module) -> None:
        self.config, self.model = config, model
        self.objective, self.optimizer = objective_of(config, task), make_optimizer(config, model)

    def __call__(self, x: Tensor, y: Tensor, generator: Draws, *, step: int) -> Terms | None:
        set_learning_rate(self.optimizer, self.config, step)
        terms = self.objective(self.model, x, y, generator=generator, step=step)
        if not terms.total.isfinite():
            return None
        with torch.autocast(x.device.type, enabled=False):
            backward(terms.total, self.objective, self.model, self.optimizer)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return terms


def make_optimizer(config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
    if config.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=config.learning_rate, fused=True)
    return torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=0.9, nesterov=True, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, config: RunConfig, step: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = config.learning_rate * learning_rate_factor(config, step)
