"""Many runs in one vectorised step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradreg.data import Dataset
from gradreg.engines.forward_pass import random_state_of
from gradreg.training.config import RunConfig
from gradreg.training.fleet_step import FleetStep
from gradreg.training.members import Members
from gradreg.training.provenance import provenance
from gradreg.training.run import Trained, numerics, stream
from gradreg.training.schedule import evaluation_steps


def shape_of(config: RunConfig) -> RunConfig:
    """What the members of a fleet must share: all but seed, arm, size of the subset, weights, learning and dropout rate.

    A weight of zero is not like others: the penalty is not computed then.
    """
    penalties = tuple(replace(penalty, weight=float(penalty.weight > 0)) for penalty in config.penalties)
    rate = config.dropout
    # One rate for all layers, and one architecture for all rates.
    if config.model in ("lenet", "lenet_wide", "mlp") and rate:
        rate = 0.5
    size = min(config.train_size, config.batch_size)
    return replace(config, seed=0, arm="", train_size=size, learning_rate=0.0, penalties=penalties, dropout=rate)


class Fleet:
    """Trains the runs of these configs together, each as it would be alone: same subset, weights, masks and projections.

    Args:
        configs: the members, which may differ in seed (and so in the training subset), size of the subset, learning rate,
            dropout's rate, and the weights of their penalties, weight decay among them.
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
                "in seed, train_size, learning_rate, dropout and penalties' weights alone, and a weight of 0, which is off, "
                "is not like others. Group them with gradreg.training.shape_of."
            )
        self.configs, self.dataset, self.device = list(configs), dataset, torch.device(device)

    def train(self) -> list[Trained]:
        """Train all members to the end. Those that diverge are frozen where they are, and the others go on."""
        started = time.perf_counter()
        first = self.configs[0]
        with random_state_of(stream(first.seed, "dropout"), self.device), numerics(first.precision):
            members = Members.start(self.configs, self.dataset, self.device)
            self._train(members)
            trained = time.perf_counter()
            records, models = members.records(), [members.model_of(number) for number in range(len(self.configs))]
        seconds = {
            "fleet": len(self.configs),
            "train_s": round((trained - started) / len(self.configs), 3),
            "evaluate_s": round((time.perf_counter() - trained) / len(self.configs), 3),
        }
        about = provenance(self.device) | seconds
        return [Trained(replace(record, provenance=about), model) for record, model in zip(records, models, strict=True)]

    def _train(self, members: Members) -> None:
        step = FleetStep(members)
        evaluate_at = evaluation_steps(step.config)
        for number, rows in enumerate(step.batches()):
            step(number, rows)
            if number + 1 in evaluate_at:
                members.add_points(number + 1, step.take_means())

    def time_steps(self, num_rounds: int = 5) -> tuple[float, list[float]]:
        """Seconds of the first step, with tracing and compilation, and of a step in each of several rounds of the rest."""
        first = self.configs[0]
        with random_state_of(stream(first.seed, "dropout"), self.device), numerics(first.precision):
            step = FleetStep(Members.start(self.configs, self.dataset, self.device))
            rows = list(step.batches())
            first_step = _seconds(step, [(0, rows[0])], self.device)
            size = (len(rows) - 1) // num_rounds
            rounds = [[(i, rows[i]) for i in range(start, start + size)] for start in range(1, 1 + size * num_rounds, size)]
            return first_step, [_seconds(step, work, self.device) / size for work in rounds]


def _seconds(step: FleetStep, work: list[tuple[int, Tensor]], device: torch.device) -> float:
    started = time.perf_counter()
    for number, rows in work:
        step(number, rows)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started
