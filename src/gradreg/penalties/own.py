"""Penalties of the user's own in configs and records: by name, and known again where their code is as it was."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass, make_dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
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
    file = _file_of(kind)
    in_main = kind.__module__ in ("__main__", "__mp_main__")
    # In a notebook or console there is no file, and a function may make several classes in one place.
    code = b"" if file and "<locals>" not in kind.__qualname__ else _code_of(kind)
    source = hashlib.sha256((Path(file).read_bytes() if file else b"") + code).hexdigest()[:16]
    return Origin(f"{file if in_main and file else kind.__module__}:{kind.__qualname__}", source)


def _file_of(kind: type[Penalty]) -> str:
    try:
        file = inspect.getsourcefile(kind) or ""
    except (TypeError, OSError):  # typed in a console
        return ""
    return file if Path(file).is_file() else ""


def _code_of(kind: type[Penalty]) -> bytes:
    """What its functions do and what its attributes are, whatever line they were written in."""
    parts: list[tuple[object, ...]] = []
    for name, value in sorted(vars(kind).items()):
        function = getattr(value, "__func__", value)
        if isinstance(function, FunctionType):
            around = [cell.cell_contents for cell in function.__closure__ or ()]
            parts.append((name, _code(function.__code__), function.__defaults__, function.__kwdefaults__, around))
        elif not name.startswith("__"):
            parts.append((name, value))
    return re.sub(r" at 0x[0-9a-f]+", "", repr(parts)).encode()


def _code(code: CodeType) -> tuple[object, ...]:
    constants = [_code(one) if isinstance(one, CodeType) else one for one in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, constants


def as_recorded(name: str, origin: Origin, options: tuple[str, ...]) -> type[Penalty]:
    """The class as it was when it was recorded, if it is at hand; else one that stands for it and computes nothing."""
    return _at_hand(origin) or _stand_in(name, origin, options)


def to_be_computed(name: str, origin: Origin) -> type[Penalty]:
    """The class as it was when it was recorded, imported if need be."""
    found = _at_hand(origin)
    if found is None:
        try:
            found = own_penalty(origin.kind)
        except ValueError as error:
            raise ValueError(_not_here(name, origin)) from error
    if origin_of(found) != origin:
        raise ValueError(_not_here(name, origin))
    return found


def _at_hand(origin: Origin) -> type[Penalty] | None:
    every = _all_of(Penalty)  # type: ignore[type-abstract]
    own = (kind for kind in every if is_own(kind) and not hasattr(kind, "recorded_origin"))
    return next((kind for kind in own if origin_of(kind) == origin), None)


def _all_of(kind: type[Penalty]) -> Iterator[type[Penalty]]:
    for one in kind.__subclasses__():
        yield one
        yield from _all_of(one)


@cache
def _stand_in(name: str, origin: Origin, options: tuple[str, ...]) -> type[Penalty]:
    def call(_: Penalty, __: Probe) -> Tensor:
        raise ValueError(_not_here(name, origin))

    parts: dict[str, Any] = {"name": name, "recorded_origin": origin, "__call__": call}
    own = [(option, Any) for option in options if option not in ("weight", "schedule")]
    title = origin.kind.rpartition(":")[2].rpartition(".")[2]
    return make_dataclass(title, own, bases=(Penalty,), namespace=parts, frozen=True, kw_only=True, repr=False)


def _not_here(name: str, origin: Origin) -> str:
    return (
        f"penalty {name!r} is not as it was recorded: {origin.kind} is not there, or was changed since. (A class of a "
        "notebook or console, or one that a function makes, is in one process only: put it into a file, or use one worker.)"
    )
