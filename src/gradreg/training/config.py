"""The configuration of one run: everything its result depends on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from typing import Any, Literal

from gradreg.penalties import PENALTIES, Penalty
from gradreg.penalties.as_data import from_data, to_data


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training, as data. The same config gives the same result, bit for bit on the same machine.

    Attributes:
        data: name or path of the dataset, as the user gave it.
        fingerprint: hash of its arrays.
        model: ``lenet``, ``lenet_bn``, ``lenet_wide``, ``resnet``, ``resnet18``, ``mlp``, or one's own
            ``package.module:function`` or ``file.py:function``.
        model_source: hash of the file that one's own model is written in.
        penalties: the gradreg penalties added to the loss; weight decay is one of them.
        arm: the column this run belongs to, for instance ``SpectReg``.
        seed: decides the training subset, the initial weights, the order of batches, dropout masks and projections.
        train_size: examples to train on, drawn by the seed from the pool that validation leaves.
        validation_size: examples set aside from the training data, the same for every seed.
        balanced: draw equally many of each class.
        evaluate_on: ``validation`` for tuning, ``test`` for results.
        optimizer: ``adam`` or ``sgd`` (Nesterov momentum 0.9).
        learning_rate: at the start.
        drops: the shares of the steps after which the learning rate is divided by 10; the paper's unless given.
        num_steps: batches to train for.
        batch_size: examples in a batch.
        shuffle: put the examples in a new order each time that all have been seen; else they come in the order of the draw.
        augment: move images by up to four pixels and mirror them, at random, for training.
        dropout: the rate of models that have it; None for their default.
        precision: ``fp32``, ``tf32``, ``bf16`` (autocast) or ``fp64``.
        engine: how the penalties are differentiated. Engines that are exact give the same result to rounding.
        num_evaluations: points of the curve.
    """

    data: str
    fingerprint: str
    model: str
    model_source: str = ""
    penalties: tuple[Penalty, ...] = ()
    arm: str = "baseline"
    seed: int = 0
    train_size: int
    validation_size: int
    balanced: bool = False
    evaluate_on: Literal["validation", "test"] = "test"
    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 0.001
    drops: tuple[float, ...] = (0.5, 0.75)
    num_steps: int = 1000
    batch_size: int = 50
    shuffle: bool = True
    augment: bool = False
    dropout: float | None = None
    precision: Literal["fp32", "tf32", "bf16", "fp64"] = "fp32"
    engine: str = "double_backward"
    num_evaluations: int = 20

    def to_data(self) -> dict[str, Any]:
        """As JSON-ready values."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        return plain | {"drops": [*self.drops], "penalties": [to_data(penalty) for penalty in self.penalties]}

    @classmethod
    def from_data(cls, data: dict[str, Any], *, to_run: bool = False) -> RunConfig:
        """As it was; with ``to_run`` penalties of the user's own are imported, and an error if they are not there."""
        tuples = {"drops": tuple(data["drops"])} if "drops" in data else {}
        penalties = tuple(from_data(one, PENALTIES, to_run=to_run) for one in data["penalties"])
        return cls(**data | tuples | {"penalties": penalties})

    @property
    def key(self) -> str:
        """The name of its record: a hash of all that decides the result, and so not of the arm's label."""
        text = json.dumps(self.to_data() | {"arm": ""}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
