"""Penalties as JSON-ready data, and back: what configs and records hold."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from gradreg.penalties.base import Penalty
from gradreg.penalties.norm import TargetSlope
from gradreg.penalties.own import Origin, as_recorded, is_own, origin_of, to_be_computed
from gradreg.penalties.schedule import Schedule


def to_data(penalty: Penalty) -> dict[str, Any]:
    """``{"name": ..., option: value}`` with all options, so that a later change of a default does not change old records.

    >>> from gradreg.penalties import ConfidencePenalty
    >>> to_data(ConfidencePenalty(weight=1))
    {'name': 'confidence_penalty', 'weight': 1.0, 'schedule': {'warmup_steps': 0, 'every': 1}, 'reduction': 'mean'}

    One of the user's own also has ``origin``: where it was written, and a hash of that, so that a changed one is another.
    """
    origin = {"origin": [*origin_of(type(penalty))]} if is_own(type(penalty)) else {}
    values = {f.name: getattr(penalty, f.name) for f in fields(penalty)} | {"weight": float(penalty.weight)}
    return {"name": penalty.name} | origin | {name: _plain(penalty, name, value) for name, value in values.items()}


def _plain(penalty: Penalty, name: str, value: Any) -> Any:
    if isinstance(value, (TargetSlope, Schedule)):
        return asdict(value)
    if not isinstance(value, (bool, int, float, str, tuple, list, type(None))):
        raise TypeError(
            f"{type(penalty).__name__}: {name}={value!r} cannot be written to a record. Make it a number or a word, and "
            "look up inside the penalty what it stands for."
        )
    return value


def from_data(data: dict[str, Any], kinds: dict[str, type[Penalty]], *, to_run: bool = False) -> Penalty:
    """The penalty that :func:`to_data` wrote; ``kinds`` gives the classes by name.

    One of the user's own is imported if it is to be run; else its code is not asked for, and something may stand for it.
    """
    options = {name: value for name, value in data.items() if name not in ("name", "origin")}
    if isinstance(options.get("norm"), dict):
        options["norm"] = TargetSlope(**options["norm"])
    if "schedule" in options:
        options["schedule"] = Schedule(**options["schedule"])
    if "origin" in data:
        name, origin = data["name"], Origin(*data["origin"])
        kind = to_be_computed(name, origin) if to_run else as_recorded(name, origin, tuple(options))
        return kind(**options)
    if data["name"] not in kinds:
        raise ValueError(f"penalty {data['name']!r} is unknown: choose one of {', '.join(kinds)}.")
    return kinds[data["name"]](**options)
