"""Tensors that are put back to what they were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor


@contextmanager
def unchanged(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Put these back at the end, whatever was written to them by what is only tried.

    >>> import torch
    >>> mean = torch.zeros(2)
    >>> with unchanged([mean]):
    ...     _ = mean.add_(1)
    >>> mean
    tensor([0., 0.])
    """
    before = [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)
