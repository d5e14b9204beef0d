"""The loop of one run, and what it measures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from gradreg.data.dataset import Task
from gradreg.objective import Objective
from gradreg.training import metrics
from gradreg.training.config import RunConfig
from gradreg.training.resident import Resident, RunData

#: At most so many points of a split for the curve, for gradient norms, and for the learned function.
CURVE_POINTS, NORM_POINTS, FUNCTION_POINTS = 1000, 200, 300


@dataclass
class Session:
    """A model in training on its data."""

    config: RunConfig
    task: Task
    data: RunData
    model: nn.Module
    curve: dict[str, list[float]] = field(default_factory=dict)
    diverged: bool = False
    _since_last: list[dict[str, Tensor]] = field(default_factory=list)

    def train(self, generator: Generator) -> Iterator[int]:
        """Train to the end, or until a value is not finite; give the number of steps done at each point of the curve."""
        objective = Objective(F.cross_entropy if self.task == "classification" else F.mse_loss, *self.config.penalties)
        optimizer = make_optimizer(self.config, self.model)
        y = self.data.train.y if self.task == "classification" else self.data.scale_targets(self.data.train.y)
        evaluate_at = evaluation_steps(self.config)
        self.model.train()
        for step, rows in enumerate(batches(len(y), self.config, generator)):
            set_learning_rate(optimizer, self.config, step)
            rows = rows.to(y.device)
            try:
                with self._autocast():
                    terms = objective(self.model, self.data.train.inputs(rows), y[rows], generator=generator, step=step)
            except FloatingPointError:
                self.diverged = True
            if self.diverged:
                return
            terms.total.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            self._since_last.append(
                {"train_loss": terms.loss.detach()} | {n: v.detach() for n, v in terms.penalties.items()}
            )
            if step + 1 in evaluate_at:
                self._add_point(step + 1)
                yield step + 1

    def final_metrics(self) -> dict[str, float]:
        """All metrics of the evaluated split, and those of the training subset under ``train_``."""
        found = self._evaluate(self.data.evaluated)
        found |= {f"train_{name}": value for name, value in self._evaluate(self.data.train).items()}
        norm = metrics.squared_weight_norm(self.model)
        found |= {"squared_weight_norm": norm} if math.isfinite(norm) else {}
        return found | {"diverged": float(self.diverged)}

    def gradient_norms(self) -> dict[str, list[float]]:
        """Norms of the Jacobian at some points of the training subset and of the evaluated split."""
        parts = {"train": self.data.train, self.config.evaluate_on: self.data.evaluated}
        return {
            name: [round(norm, 5) for norm in metrics.gradient_norms(self.model, part.inputs(some(part, NORM_POINTS)), 50)]
            for name, part in parts.items()
        }

    def learned_function(self) -> dict[str, list[float]] | None:
        """For regression from one number to one: the prediction over the range of the data, and the training set.

        On test data at the test points, with their targets; while tuning on an even grid, without.
        """
        train, evaluated = self.data.train, self.data.evaluated
        if self.task != "regression" or train.x[0].numel() != 1 or train.y[0].numel() != 1:
            return None
        columns = {"train_x": train.x.flatten(), "train_y": train.y.flatten()}
        if self.config.evaluate_on == "test":
            rows = evaluated.x.flatten().argsort()[some(evaluated, FUNCTION_POINTS)]
            columns |= {"x": evaluated.x[rows].flatten(), "target": evaluated.y[rows].flatten()}
        else:
            low, high = evaluated.x.aminmax()
            columns["x"] = torch.linspace(float(low), float(high), FUNCTION_POINTS, device=low.device)
        points = replace(evaluated, x=columns["x"].unsqueeze(1))
        columns["y"] = self._predict(points, slice(None)).flatten()
        if not all(column.isfinite().all() for column in columns.values()):
            return None
        return {name: [round(value, 5) for value in column.tolist()] for name, column in columns.items()}

    def _autocast(self) -> AbstractContextManager[object]:
        if self.config.precision != "bf16":
            return nullcontext()
        return torch.autocast(self.data.train.x.device.type, torch.bfloat16)

    def _predict(self, part: Resident, rows: Tensor | slice) -> Tensor:
        with self._autocast():
            return self.data.unscale(metrics.predict(self.model, part.inputs(rows), self.config.batch_size))

    def _evaluate(self, part: Resident, rows: Tensor | slice = slice(None)) -> dict[str, float]:
        measure = metrics.classification_metrics if self.task == "classification" else metrics.regression_metrics
        return measure(self._predict(part, rows), part.y[rows])

    def _add_point(self, step: int) -> None:
        names = {name for values in self._since_last for name in values}
        point = {n: torch.stack([values[n] for values in self._since_last if n in values]).mean().item() for n in names}
        self._since_last.clear()
        self.diverged = not math.isfinite(point["train_loss"])
        if self.diverged:
            return
        point |= {"step": step} | self._evaluate(self.data.evaluated, some(self.data.evaluated, CURVE_POINTS))
        for name, value in sorted(point.items()):
            self.curve.setdefault(name, []).append(round(value, 6))


def some(part: Resident, at_most: int) -> Tensor:
    """Rows spread evenly over the split."""
    return torch.linspace(0, len(part) - 1, min(len(part), at_most), device=part.x.device).round().long()


def evaluation_steps(config: RunConfig) -> set[int]:
    """After which steps the curve has its points; the last step always."""
    count = min(config.num_evaluations, config.num_steps)
    return {round(config.num_steps * (point + 1) / count) for point in range(count)}


def batches(num_examples: int, config: RunConfig, generator: Generator) -> Iterator[Tensor]:
    """Row numbers of each batch: shuffled anew when all have been seen, and running on across that border."""
    size = min(config.batch_size, num_examples)
    rows = torch.empty(0, dtype=torch.long)
    for _ in range(config.num_steps):
        if len(rows) < size:
            rows = torch.cat([rows, torch.randperm(num_examples, generator=generator)])
        yield rows[:size]
        rows = rows[size:]


def make_optimizer(config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
    if config.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=config.learning_rate, fused=True)
    return torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=0.9, nesterov=True, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, config: RunConfig, step: int) -> None:
    """Divided by 10 at 50 % and again at 75 % of the steps, as the paper."""
    drops = (step >= 0.5 * config.num_steps) + (step >= 0.75 * config.num_steps)
    for group in optimizer.param_groups:
        group["lr"] = config.learning_rate * 0.1**drops
