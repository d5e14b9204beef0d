"""Other functions in the place of PyTorch's, inside any model and for a while."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode


class Swap(TorchFunctionMode):
    """While active, calls of some of PyTorch's functions go to others. Those that are inside are asked first."""

    @abstractmethod
    def replacement(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any] | None:
        """What to call instead of the function; None for the function itself."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = (*args, *(kwargs or {}).values())
        return (self.replacement(func, given) or func)(*args, **kwargs or {})
