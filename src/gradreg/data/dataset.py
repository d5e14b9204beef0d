"""A dataset in memory: what every source of examples delivers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Task = Literal["classification", "regression"]
Array = NDArray[Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Training and test examples as arrays, in their original order.

    Attributes:
        name: how the user called it.
        x_train, x_test: images as uint8 ``[n, height, width]`` or ``[n, height, width, channels]``, or features as
            float32 ``[n, features]``.
        y_train, y_test: classes 0 to K - 1 as int64 ``[n]``, or regression targets as float32 ``[n, outputs]``.
        task: classification or regression.
        class_names: the names of the classes, in order; their indices where the source has no names.
        columns: those of a table in the order of the features, each with the categories that an indicator stands for, or
            with none where it holds numbers.
        standardise: whether inputs and regression targets are standardised for training (errors are reported in their own
            unit).
        group_size: rows of the training data come in groups of this many, one after the other, that are drawn together.
        numpy_seeds: training rows and initial weights are what numpy's old generator draws from a seed, as in the code of
            the paper's authors.
    """

    name: str
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    task: Task = "classification"
    class_names: tuple[str, ...] = ()
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    standardise: bool = True
    group_size: int = 1
    numpy_seeds: bool = False

    @property
    def is_image(self) -> bool:
        return self.x_train.dtype == np.uint8

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example as the model gets it: ``(channels, height, width)`` or ``(features,)``."""
        shape = self.x_train.shape[1:]
        if not self.is_image:
            return shape
        return (1, *shape) if len(shape) == 2 else (shape[2], shape[0], shape[1])

    @property
    def num_outputs(self) -> int:
        """Classes, or numbers to predict."""
        return len(self.class_names) if self.task == "classification" else int(self.y_train.shape[1])

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the arrays, so that a record knows which data it was made from."""
        digest = hashlib.sha256()
        for array in (self.x_train, self.y_train, self.x_test, self.y_test):
            digest.update(repr((array.dtype.str, array.shape)).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]
