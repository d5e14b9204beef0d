"""Examples that live on the device, as small as they came, and are standardised batch by batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gradreg.data import Dataset, Scaler, Split, split
from gradreg.data.dataset import Array
from gradreg.training.config import RunConfig


@dataclass(frozen=True)
class Resident:
    """Inputs and targets of one split on the device.

    Attributes:
        x: uint8 images ``[n, channels, height, width]`` or float32 features ``[n, features]``.
        y: classes, or regression targets in their own unit.
        mean, std: the statistics of the training subset, shaped to broadcast over a batch.
    """

    x: Tensor
    y: Tensor
    mean: Tensor
    std: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def inputs(self, rows: Tensor | slice) -> Tensor:
        """The standardised inputs at these rows."""
        return standardised(self.x[rows], self.mean, self.std)


def standardised(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Pixels of bytes to between 0 and 1, then mean 0 and variance 1, in the precision of the statistics."""
    pixels = x.to(mean.dtype) / 255 if x.dtype == torch.uint8 else x.to(mean.dtype)
    return (pixels - mean) / std


@dataclass(frozen=True)
class RunData:
    """The data of one run: the training subset, what it is evaluated on, and the scale of regression targets."""

    train: Resident
    evaluated: Resident
    target_mean: Tensor
    target_std: Tensor

    def scale_targets(self, y: Tensor) -> Tensor:
        return (y - self.target_mean) / self.target_std


def split_of(dataset: Dataset, config: RunConfig) -> Split:
    """Which examples the config trains on, and which it validates on."""
    return split(
        dataset,
        train_size=config.train_size,
        validation_size=config.validation_size,
        seed=config.seed,
        balanced=config.balanced,
    )


def prepare(dataset: Dataset, config: RunConfig, device: torch.device, *, beside: RunData | None = None) -> RunData:
    """The splits that the config asks for, on the device, standardised with the statistics of the training subset.

    What is evaluated is the same for every seed: it is shared with the run ``beside`` this one.
    """
    parts = split_of(dataset, config)
    scaler = Scaler.of(dataset, dataset.x_train[parts.train])
    dtype = dtype_of(config)
    mean, std = (torch.as_tensor(values, dtype=dtype, device=device) for values in (scaler.mean, scaler.std))

    def resident(x: Array, y: Array) -> Resident:
        return Resident(_on_device(x, dataset.is_image, device), torch.as_tensor(y, device=device), mean, std)

    train = resident(dataset.x_train[parts.train], dataset.y_train[parts.train])
    if beside is not None:
        evaluated = replace(beside.evaluated, mean=mean, std=std)
    elif config.evaluate_on == "validation":
        evaluated = resident(dataset.x_train[parts.validation], dataset.y_train[parts.validation])
    else:
        evaluated = resident(dataset.x_test, dataset.y_test)
    scale = _target_scale(dataset, dataset.y_train[parts.train])
    return RunData(train, evaluated, *(torch.as_tensor(values, dtype=dtype, device=device) for values in scale))


def dtype_of(config: RunConfig) -> torch.dtype:
    return torch.float64 if config.precision == "fp64" else torch.float32


def _on_device(x: Array, is_image: bool, device: torch.device) -> Tensor:
    if is_image:
        x = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
    return torch.as_tensor(np.ascontiguousarray(x), device=device)


def _target_scale(dataset: Dataset, y: Array) -> tuple[Array | float, Array | float]:
    if dataset.task == "classification":
        return 0.0, 1.0
    scaler = Scaler.of(dataset, y)
    return scaler.mean, scaler.std
