"""Penalties as JSON-ready data, and back: what configs and records hold."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from gradreg.penalties.base import Penalty
from gradreg.penalties.norm import TargetSlope
from gradreg.penalties.schedule import Schedule


def to_data(penalty: Penalty) -> dict[str, Any]:
    """``{"name": ..., option: value}``, without the options that are at their default.

    >>> from gradreg.penalties import SpectReg
    >>> to_data(SpectReg(weight=0.03, norm=TargetSlope(1.0)))
    {'name': 'spect_reg', 'weight': 0.03, 'norm': {'target': 1.0, 'shape': 'gentle'}}
    """
    given = {f.name: value for f in fields(penalty) if (value := getattr(penalty, f.name)) != f.default}
    return {"name": penalty.name} | {
        name: asdict(value) if isinstance(value, (TargetSlope, Schedule)) else value for name, value in given.items()
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
