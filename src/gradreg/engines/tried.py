"""What was tried on a model already, so that it is not tried in every step."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

_TRIED: WeakKeyDictionary[Callable[..., Any], set[Hashable]] = WeakKeyDictionary()


def tried_on(model: Callable[..., Any]) -> set[Hashable]:
    """What was tried, to be added to. A model that is neither hashable nor weakly referable is tried every time."""
    try:
        return _TRIED.setdefault(getattr(model, "__self__", model), set())  # a bound method is a new object each time
    except TypeError:
        return set()


def way_of(model: Callable[..., Any]) -> Hashable:
    """What may change the way through a model from step to step: the mode of each module, and what of it is trained."""
    if not isinstance(model, nn.Module):
        return None
    return tuple(m.training for m in model.modules()), tuple(p.requires_grad for p in model.parameters())
