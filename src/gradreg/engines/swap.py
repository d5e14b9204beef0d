"""Other functions in the place of PyTorch's, inside any model and for a while."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch.nn.functional as F
from torch.overrides import TorchFunctionMode


class Swap(TorchFunctionMode):
    """While active, calls of some of PyTorch's functions go to others. Those that are inside are asked first."""

    @abstractmethod
    def replacement(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        """What to call instead of the function with these arguments; None for the function itself."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _OPENED:
            with self:
                return _OPENED[func](*args, **kwargs)
        return (self.replacement(func, args, kwargs) or func)(*args, **kwargs)


def _opened(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without its first lines, which hand it over to a mode as one whole: the calls in it are seen instead."""
    seen = {"has_torch_function": lambda _: False}
    return FunctionType(function.__code__, function.__globals__ | seen, function.__name__, function.__defaults__)


_OPENED = {F.multi_head_attention_forward: _opened(F.multi_head_attention_forward)}
