"""What one run gave."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from gradreg.training.config import RunConfig

#: Of records as files; others are not read.
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What one run gave.

    Attributes:
        config: all that decided the result.
        metrics: numbers by name. Of the evaluated split: ``accuracy`` and ``top5`` (fractions), ``loss``, ``mse``; and
            ``train_accuracy``, ``train_loss``, ``train_mse``, ``squared_weight_norm``. ``diverged`` is 1 for a run that
            stopped on a loss or penalty that was not finite.
        curve: lists of equal length by name: ``step``, ``train_loss``, ``loss`` and ``accuracy`` or ``mse`` of the evaluated
            split, and the unweighted value of each penalty by its name; NaN (in files null) where a point has none, as when
            a penalty with a schedule did not act since the point before.
        gradient_norms: Frobenius norms of the logits' Jacobian at some points, lists by split: ``train``, ``test``
            (``validation`` while tuning), and ``between``, half way between training points.
        function: for regression from one number to one, the learned function: ``x``, ``y`` and, at test points, ``target``;
            and the training set, ``train_x``, ``train_y``. Otherwise None.
        provenance: versions, device, number of threads, git revision, time of the end, seconds of training and evaluation;
            and ``resumed_at``, where a run was interrupted: the step that it went on from, and by what it was begun.
    """

    config: RunConfig
    metrics: dict[str, float]
    curve: dict[str, list[float]] = field(default_factory=dict)
    gradient_norms: dict[str, list[float]] = field(default_factory=dict)
    function: dict[str, list[float]] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    def to_data(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "config": self.config.to_data(),
            "metrics": self.metrics,
            "curve": {name: [None if math.isnan(v) else v for v in values] for name, values in self.curve.items()},
            "gradient_norms": self.gradient_norms,
            "function": self.function,
            "provenance": self.provenance,
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> RunRecord:
        if data["schema"] != SCHEMA:
            raise ValueError(f"its schema is {data['schema']!r}, and this version reads {SCHEMA}")
        parts = {name: value for name, value in data.items() if name not in ("schema", "config", "curve")}
        curve = {name: [math.nan if v is None else v for v in values] for name, values in data["curve"].items()}
        return cls(config=RunConfig.from_data(data["config"]), curve=curve, **parts)
