"""Measuring a model on its data, as functions of its tensors: for one run, or vectorised for a fleet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradreg.data.dataset import Task
from gradreg.engines.inputs import logits_of
from gradreg.engines.twice import FastTwice
from gradreg.training import metrics
from gradreg.training.config import RunConfig
from gradreg.training.metrics import Call
from gradreg.training.resident import RunData, standardised

#: Parameters and buffers by name.
Tensors = dict[str, Tensor]
#: Points at which the Jacobian is taken at once.
JACOBIAN_BATCH = 50


class Scales(NamedTuple):
    """From inputs as they come to those of the model, and from its outputs to the unit of the targets."""

    mean: Tensor
    std: Tensor
    target_mean: Tensor
    target_std: Tensor

    @classmethod
    def of(cls, data: RunData) -> Scales:
        return cls(data.train.mean, data.train.std, data.target_mean, data.target_std)


@dataclass(frozen=True)
class Evaluator:
    """How the models of one shape are evaluated."""

    config: RunConfig
    task: Task
    model: nn.Module
    device: torch.device

    def metrics(self, tensors: Tensors, scales: Scales, x: Tensor, y: Tensor) -> Tensors:
        """Accuracy and loss, or squared error, on these examples."""
        measure = metrics.classification_metrics if self.task == "classification" else metrics.regression_metrics
        return measure(self.predictions(tensors, scales, x), y)

    def predictions(self, tensors: Tensors, scales: Scales, x: Tensor) -> Tensor:
        """In the unit of the targets."""
        batch_size = metrics.evaluation_batch(self.model, self.config.batch_size)
        with torch.no_grad(), self.autocast(), evaluating(self.model):
            outputs = metrics.predict(self._call(tensors), standardised(x, scales.mean, scales.std), batch_size)
        return outputs * scales.target_std + scales.target_mean

    def gradient_norms(self, tensors: Tensors, scales: Scales, x: Tensor) -> Tensor:
        """Frobenius norm of the outputs' Jacobian by the standardised inputs."""
        # Without no_grad the graph by the parameters grows from point to point. FastTwice, since cuDNN's batch norm cannot
        # be vectorised where channels come last.
        with torch.no_grad(), evaluating(self.model), FastTwice():
            return metrics.gradient_norms(self._call(tensors), standardised(x, scales.mean, scales.std), JACOBIAN_BATCH)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16")

    def _call(self, tensors: Tensors) -> Call:
        return lambda x: logits_of(torch.func.functional_call(self.model, tensors, (x,)))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In evaluation mode for the while."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
