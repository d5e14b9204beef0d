"""Penalties of the user's own in configs and records: by name, and known again where their code is as it was."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass, make_dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from gradreg import own_code
from gradreg.penalties.base import Penalty
from gradreg.penalties.probe import Probe


class Origin(NamedTuple):
    """Where a penalty was written: ``file.py:Class`` or ``package.module:Class``, and a hash of that."""

    kind: str
    source: str


#: Of classes that were imported by name.
_IMPORTED: dict[Origin, type[Penalty]] = {}


def own_penalty(kind: str) -> type[Penalty]:
    """The class of that name, ``file.py:Class`` or ``package.module:Class``; the same one until its code changes."""
    origin = Origin(kind, own_code.fingerprint(kind))
    if origin not in _IMPORTED:
        with own_code.neighbours(kind):
            _IMPORTED[origin] = _checked(kind, own_code.found(kind))
    return _IMPORTED[origin]


def _checked(kind: str, found: object) -> type[Penalty]:
    if not (isinstance(found, type) and issubclass(found, Penalty) and is_dataclass(found)):
        raise ValueError(f"{kind} is no penalty: give a dataclass that extends gradreg.Penalty or gradreg.GradientPenalty.")
    try:
        found(weight=1.0)
    except TypeError as error:
        raise ValueError(f"{kind} cannot be made from a weight alone ({error}): give its other options defaults.") from error
    return found


def is_own(kind: type[Penalty]) -> bool:
    return kind.__module__.partition(".")[0] != "gradreg" or hasattr(kind, "recorded_origin")


@cache
def origin_of(kind: type[Penalty]) -> Origin:
    """Where this class was written, as far as can be known."""
    recorded: Origin | None = getattr(kind, "recorded_origin", None)
    imported = next((origin for origin, one in _IMPORTED.items() if one is kind), recorded)
    if imported is not None:
        return imported
    in_main = kind.__module__ in ("__main__", "__mp_main__")
    try:
        file = inspect.getsourcefile(kind) or ""
    except (TypeError, OSError):  # typed in a console
        file = ""
    source = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if Path(file).is_file() else ""
    return Origin(f"{file if in_main and file else kind.__module__}:{kind.__qualname__}", source)


def known_again(name: str, origin: Origin, options: tuple[str, ...]) -> type[Penalty]:
    """The class as it was when it was recorded, if it is here; else one that stands for it, to be read and not computed."""
    for kind in _all_of(Penalty):  # type: ignore[type-abstract]
        if is_own(kind) and origin_of(kind) == origin:
            return kind
    try:
        here = own_penalty(origin.kind)
    except ValueError:
        here = None
    return here if here is not None and origin_of(here) == origin else _stand_in(name, origin, options)


def _all_of(kind: type[Penalty]) -> Iterator[type[Penalty]]:
    for one in kind.__subclasses__():
        yield one
        yield from _all_of(one)


@cache
def _stand_in(name: str, origin: Origin, options: tuple[str, ...]) -> type[Penalty]:
    def call(_: Penalty, __: Probe) -> Tensor:
        raise ValueError(f"penalty {name!r} is not as it was recorded: {origin.kind} is not there, or was changed since.")

    parts: dict[str, Any] = {"name": name, "recorded_origin": origin, "__call__": call}
    own = [(option, Any) for option in options if option not in ("weight", "schedule")]
    title = origin.kind.rpartition(":")[2]
    return make_dataclass(title, own, bases=(Penalty,), namespace=parts, frozen=True, kw_only=True, repr=False)
