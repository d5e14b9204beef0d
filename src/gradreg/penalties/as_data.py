"""Penalties as JSON-ready data, and back: what configs and records hold."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from gradreg.penalties.base import Penalty
from gradreg.penalties.norm import TargetSlope
from gradreg.penalties.own import Origin, is_own, known_again, origin_of
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
    return (
        {"name": penalty.name}
        | origin
        | {name: asdict(value) if isinstance(value, (TargetSlope, Schedule)) else value for name, value in values.items()}
    )


def from_data(data: dict[str, Any], kinds: dict[str, type[Penalty]]) -> Penalty:
    """The penalty that :func:`to_data` wrote; ``kinds`` gives the classes by name."""
    options = {name: value for name, value in data.items() if name not in ("name", "origin")}
    if isinstance(options.get("norm"), dict):
        options["norm"] = TargetSlope(**options["norm"])
    if "schedule" in options:
        options["schedule"] = Schedule(**options["schedule"])
    if "origin" in data:
        return known_again(data["name"], Origin(*data["origin"]), tuple(options))(**options)
    if data["name"] not in kinds:
        raise ValueError(f"penalty {data['name']!r} is unknown: choose one of {', '.join(kinds)}.")
    return kinds[data["name"]](**options)
