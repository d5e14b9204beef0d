"""Dropout whose masks are drawn by key, whatever the model, without touching PyTorch's random state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gradreg.draws import Draws
from gradreg.engines.attention import attention
from gradreg.engines.swap import Swap

#: Dimensions without a batch, for those that take inputs without one; whole channels are kept or dropped together.
_BY_CHANNEL = {F.dropout1d: 2, F.dropout2d: None, F.dropout3d: 4}


def is_recomputed() -> bool:
    """Whether what is done now will be done again in the backward pass, as ``torch.utils.checkpoint`` does.

    Then no mode and no hook is active any more. PyTorch's own random state is put back there, so its own masks are the
    same again.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None and hooks[0].__module__ == checkpoint.__module__


class DrawnDropout(Swap):
    """While active, every call of dropout takes its mask from ``draws``, at the number of that call.

    But for what is recomputed in the backward pass (activation checkpointing), which keeps PyTorch's masks.

    The rate may be a tensor, as for the members of a fleet.

    >>> with DrawnDropout(Draws.of_seed(0)):
    ...     once = F.dropout(torch.ones(5), 0.5)
    >>> with DrawnDropout(Draws.of_seed(0)):
    ...     bool((F.dropout(torch.ones(5), 0.5) == once).all())
    True
    """

    def __init__(self, draws: Draws) -> None:
        super().__init__()
        self.draws = draws
        self._calls = 0

    def replacement(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        if is_recomputed():
            return None
        if function is F.scaled_dot_product_attention:
            rate = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
            return partial(attention, dropout=self._dropout) if rate else None
        if function in _BY_CHANNEL:
            return partial(self._dropout_of_channels, _BY_CHANNEL[function])
        return self._dropout if function is F.dropout else None

    def _dropout_of_channels(
        self,
        without_batch: int | None,
        input: Tensor,  # noqa: A002
        p: float | Tensor = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        size = 1 if input.ndim == without_batch else 2
        return self._dropout(input, p, training, inplace, [*input.shape[:size], *[1] * (input.ndim - size)])

    def _dropout(
        self,
        input: Tensor,  # noqa: A002
        p: float | Tensor = 0.5,
        training: bool = True,
        inplace: bool = False,
        shape: Sequence[int] | None = None,
    ) -> Tensor:
        if not training or (not isinstance(p, Tensor) and p == 0):
            return input
        shape = input.shape if shape is None else shape
        kept = self.draws.at(self._calls).uniform(*shape, device=input.device) >= p
        self._calls += 1
        scale = torch.where(kept, 1 / torch.as_tensor(1 - p, dtype=input.dtype, device=input.device), 0)
        return input.mul_(scale) if inplace else input * scale


def plain_dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
    """``F.dropout`` with the mask of an ordinary pass also in forward mode.

    On the CPU PyTorch fills the mask in the order of memory, and inside its transforms in another one.
    """
    if not training or not 0 < p < 1 or input.device.type != "cpu":
        return F.dropout(input, p, training, inplace)
    noise = _bernoulli_like(input, 1 - p).div_(1 - p)
    return input.mul_(noise) if inplace else input * noise


def plain_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:  # noqa: A002
    """``F.alpha_dropout``, likewise."""
    if not training or not 0 < p < 1:
        return F.alpha_dropout(input, p, training, inplace)
    low = -1.7580993408473766  # of SELU: minus its alpha times its scale
    scale = ((1 - p) * (1 + p * low**2)) ** -0.5
    kept = _bernoulli_like(input, 1 - p)
    noise, shift = kept * scale, (kept - 1).mul_(-low * scale).sub_(low * scale * p)
    return input.mul_(noise).add_(shift) if inplace else input * noise + shift


def _bernoulli_like(tensor: Tensor, p: float) -> Tensor:
    strides = torch.empty_like(tensor).stride()
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).bernoulli_(p)
