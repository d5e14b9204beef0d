"""Standardisation: the statistics of the training subset."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradreg.data.dataset import Array, Dataset

#: Images to count at once: what keeps the memory of fitting a large dataset small.
CHUNK = 1000


@dataclass(frozen=True, eq=False)
class Scaler:
    """What takes data to the scale a model is trained in: ``(x - mean) / std``, for images after division by 255.

    Attributes:
        mean, std: float32 arrays that broadcast against a batch in the model's layout: ``[1, channels, 1, 1]`` for images
            (of pixels divided by 255), ``[1, features]`` for features and regression targets. Constant features have std 1.

    >>> Scaler.fit(np.array([[0.0, 1.0], [4.0, 1.0]])).std
    array([[2., 1.]], dtype=float32)
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
