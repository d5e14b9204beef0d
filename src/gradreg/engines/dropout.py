"""Dropout whose masks are drawn by key, whatever the model, without touching PyTorch's random state."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradreg.draws import Draws
from gradreg.engines.attention import attention
from gradreg.engines.swap import Swap

#: How many of the last dimensions, those of a channel, are kept or dropped together.
_SPATIAL = {F.dropout: 0, F.dropout1d: 1, F.dropout2d: 2, F.dropout3d: 3}


class DrawnDropout(Swap):
    """While active, every call of dropout takes its mask from ``draws``, at the number of that call.

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
        if function is F.scaled_dot_product_attention:
            rate = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
            return partial(attention, dropout=partial(self._dropout, 0)) if rate else None
        return partial(self._dropout, _SPATIAL[function]) if function in _SPATIAL else None

    def _dropout(
        self,
        spatial: int,
        input: Tensor,  # noqa: A002
        p: float | Tensor = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        if not training or (not isinstance(p, Tensor) and p == 0):
            return input
        shape = [*input.shape[: input.ndim - spatial], *[1] * spatial]
        kept = self.draws.at(self._calls).uniform(*shape, device=input.device) >= p
        self._calls += 1
        scale = torch.where(kept, 1 / torch.as_tensor(1 - p, dtype=input.dtype, device=input.device), 0)
        return input.mul_(scale) if inplace else input * scale
