"""Dropout whose masks are drawn by key, whatever the model, without touching PyTorch's random state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradreg.draws import Draws

#: How many leading dimensions of the input have a mask of their own: all, or all but those of a channel.
_SPATIAL = {F.dropout: 0, F.dropout1d: 1, F.dropout2d: 2, F.dropout3d: 3}


class DrawnDropout(TorchFunctionMode):
    """While active, every call of dropout takes its mask from ``draws``, at the number of that call.

    Args:
        draws: where the masks come from.
        rate: if given, the rate of every layer that is not off, such as the rate of one member of a fleet.

    >>> with DrawnDropout(Draws.of_seed(0)):
    ...     once = F.dropout(torch.ones(5), 0.5)
    >>> with DrawnDropout(Draws.of_seed(0)):
    ...     bool((F.dropout(torch.ones(5), 0.5) == once).all())
    True
    """

    def __init__(self, draws: Draws, rate: Tensor | None = None) -> None:
        super().__init__()
        self.draws = draws
        self.rate = rate
        self._calls = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func not in _SPATIAL:
            return func(*args, **kwargs or {})
        return self._dropout(_SPATIAL[func], *args, **kwargs or {})

    def _dropout(self, spatial: int, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
        if not training or p == 0:
            return input
        rate = p if self.rate is None else self.rate
        shape = [*input.shape[: input.ndim - spatial], *[1] * spatial]
        kept = self.draws.at(self._calls).uniform(*shape, device=input.device) >= rate
        self._calls += 1
        scale = torch.where(kept, 1 / torch.as_tensor(1 - rate, dtype=input.dtype, device=input.device), 0)
        return input.mul_(scale) if inplace else input * scale
