"""Standardisation, fitted on the training subset, for arrays and for tensors on any device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from gradreg.data.dataset import Array, Dataset

ArrayOrTensor = TypeVar("ArrayOrTensor", Array, Tensor)

#: Images to count at once: what keeps the memory of fitting a large dataset small.
CHUNK = 1000


@dataclass(frozen=True, eq=False)
class Scaler:
    """Takes data as a :class:`~gradreg.data.Dataset` holds them to what a model gets: centred, with unit variance.

    Attributes:
        mean, std: float32 arrays that broadcast against a batch in the model's layout: ``[1, channels, 1, 1]`` for images
            (of pixels divided by 255), ``[1, features]`` for features and regression targets. Constant features have std 1.

    >>> scaler = Scaler.fit(np.array([[0.0, 1.0], [4.0, 1.0]]))
    >>> scaler.apply(np.array([[2.0, 2.0]]))
    array([[0., 1.]], dtype=float32)
    """

    mean: Array
    std: Array

    @classmethod
    def fit(cls, x: Array) -> Scaler:
        """Mean and standard deviation of uint8 images by channel, or of ``[n, features]`` by feature."""
        mean, variance = _image_moments(x) if x.dtype == np.uint8 else (x.mean(0, np.float64), x.var(0, np.float64))
        shape = (1, -1, 1, 1) if x.dtype == np.uint8 else (1, -1)
        std = np.sqrt(variance).astype(np.float32)
        return cls(mean.astype(np.float32).reshape(shape), np.where(std > 0, std, np.float32(1)).reshape(shape))

    @classmethod
    def of(cls, dataset: Dataset, values: Array) -> Scaler:
        """Fitted to inputs or regression targets of the dataset; changes nothing where these are to be left as they are."""
        return cls.fit(values) if dataset.standardise else cls(np.zeros((1, 1), np.float32), np.ones((1, 1), np.float32))

    def apply(self, x: ArrayOrTensor) -> ArrayOrTensor:
        """As float32, ``[n, channels, height, width]`` or ``[n, features]``; tensors stay on their device."""
        mean, std = self._like(x)
        return (_as_model_input(x) - mean) / std

    def undo(self, x: ArrayOrTensor) -> ArrayOrTensor:
        """Back to the original unit; the layout stays the model's."""
        mean, std = self._like(x)
        return x * std + mean

    def _like(self, x: ArrayOrTensor) -> tuple[ArrayOrTensor, ArrayOrTensor]:
        if isinstance(x, Tensor):
            return torch.as_tensor(self.mean, device=x.device), torch.as_tensor(self.std, device=x.device)
        return self.mean, self.std


def _as_model_input(x: ArrayOrTensor) -> ArrayOrTensor:
    if isinstance(x, Tensor):
        return _channels_first(x).float() / 255 if x.dtype == torch.uint8 else x.float()
    return _channels_first(x).astype(np.float32) / 255 if x.dtype == np.uint8 else x.astype(np.float32)


def _channels_first(images: ArrayOrTensor) -> ArrayOrTensor:
    if images.ndim == 3:
        return images[:, None]
    return images.movedim(-1, 1) if isinstance(images, Tensor) else np.moveaxis(images, -1, 1)


def _image_moments(images: Array) -> tuple[Array, Array]:
    """Mean and variance of each channel, exactly, from how often each of the 256 values occurs."""
    channels = images.shape[3] if images.ndim == 4 else 1
    counts = np.zeros((channels, 256), np.int64)
    for start in range(0, len(images), CHUNK):
        for channel, pixels in enumerate(images[start : start + CHUNK].reshape(-1, channels).T):
            counts[channel] += np.bincount(pixels, minlength=256)
    values = np.arange(256) / 255
    share = counts / counts.sum(1, keepdims=True)
    mean = share @ values
    return mean, (share * (values - mean[:, None]) ** 2).sum(1)
