"""Penalties as JSON-ready data, and back: what configs and records hold."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from gradreg.penalties.base import Penalty
from gradreg.penalties.norm import TargetSlope
from gradreg.penalties.schedule import Schedule


def to_data(penalty: Penalty) -> dict[str, Any]:
    """``{"name": ..., option: value}`` with all options, so that a later change of a default does not change old records.

    >>> from gradreg.penalties import ConfidencePenalty
    >>> to_data(ConfidencePenalty(weight=1))
    {'name': 'confidence_penalty', 'weight': 1.0, 'schedule': {'warmup_steps': 0, 'every': 1}, 'reduction': 'mean'}
    """
    values = {f.name: getattr(penalty, f.name) for f in fields(penalty)} | {"weight": float(penalty.weight)}
    return {"name": penalty.name} | {
        name: asdict(value) if isinstance(value, (TargetSlope, Schedule)) else value for name, value in values.items()
    }


def from_data(data: dict[str, Any], kinds: dict[str, type[Penalty]]) -> Penalty:
    """The penalty that :func:`to_data` wrote; ``kinds`` gives the classes by name."""
    options = {name: value for name, value in data.items() if name != "name"}
    if isinstance(options.get("norm"), dict):
        options["norm"] = TargetSlope(**options["norm"])
    if "schedule" in options:
        options["schedule"] = Schedule(**options["schedule"])
    if data["name"] not in kinds:
        raise ValueError(f"penalty {data['name']!r} is unknown: choose one of {', '.join(kinds)}.")
    return kinds[data["name"]](**options)
