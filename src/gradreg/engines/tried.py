"""What was tried on a model already, so that it is not tried in every step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

_TRIED: WeakKeyDictionary[object, set[Hashable]] = WeakKeyDictionary()


class Trial:
    """One thing to try on a model, by each ``wrt``: once for each of the ways that a step may take through it.

    A way is the mode of every module, and what of the model is trained. A method of a module, which is a new object each
    time, is known by the module and its name. A function that is written in the step is tried in each: it may hold another
    model than the last.
    """

    def __init__(self, what: str, model: Callable[..., Any]) -> None:
        bound = getattr(model, "__self__", None)
        module = bound if isinstance(bound, nn.Module) else model
        self._way: Hashable = (what, getattr(model, "__name__", ""), _way_through(module))
        try:
            self._tried = _TRIED.setdefault(module, set())
        except TypeError:  # neither hashable nor weakly referable: tried every time
            self._tried = set()

    def untried(self, wrt: Collection[str]) -> list[str]:
        return [name for name in wrt if (name, self._way) not in self._tried]

    def passed(self, name: str) -> None:
        self._tried.add((name, self._way))


def _way_through(model: object) -> Hashable:
    if not isinstance(model, nn.Module):
        return None
    return tuple(m.training for m in model.modules()), tuple(p.requires_grad for p in model.parameters())
