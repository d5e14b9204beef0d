"""Which runs to train together, and how."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from gradreg.data import Dataset
from gradreg.engines.program import TraceError
from gradreg.penalties import GradientPenalty
from gradreg.training.config import RunConfig
from gradreg.training.fleet import Fleet, shape_of
from gradreg.training.record import RunRecord
from gradreg.training.run import run

#: Members of a fleet at most, by kind of device: from there on more gain nothing, and a fleet that is stopped loses more.
LARGEST = {"cpu": 32, "cuda": 256}
#: Below this a fleet is not split among workers: each has to be traced.
SMALLEST = 10
#: Models whose layers are wide enough to keep a device busy alone.
LARGE = ("resnet", "resnet18")


def in_fleets(configs: Sequence[RunConfig], device: str, num_workers: int = 1) -> Iterator[list[RunConfig]]:
    """Split runs into fleets of one shape: none larger than pays on the device, and enough for all workers.

    >>> one = RunConfig(data="digits", fingerprint="", model="mlp", train_size=100, validation_size=0)
    >>> from dataclasses import replace
    >>> [len(fleet) for fleet in in_fleets([replace(one, seed=seed) for seed in range(50)], "cpu", num_workers=2)]
    [25, 25]
    """
    groups: dict[RunConfig, list[RunConfig]] = {}
    for config in configs:
        groups.setdefault(shape_of(config), []).append(config)
    for members in sorted(groups.values(), key=_cost, reverse=True):
        largest = 1 if members[0].model in LARGE else LARGEST.get(torch.device(device).type, 32)
        share = max(SMALLEST, math.ceil(len(members) / num_workers))
        size = _even(len(members), min(largest, share))
        yield from (members[start : start + size] for start in range(0, len(members), size))


def _cost(members: list[RunConfig]) -> int:
    """Roughly, to begin with what takes longest: whole Jacobians cost a multiple of one gradient."""
    whole = any(isinstance(p, GradientPenalty) and p.rows_are_one_jacobian for p in members[0].penalties)
    return len(members) * (5 if whole else 1)


def _even(total: int, at_most: int) -> int:
    """The size of equal parts, as few as ``at_most`` allows."""
    return math.ceil(total / math.ceil(total / at_most))


def train_together(configs: list[RunConfig], dataset: Dataset, device: str) -> Iterator[RunRecord]:
    """The records of these runs: of one fleet, of halves of it where memory does not suffice, or of one after the other
    where the model cannot be vectorised.
    """
    if len(configs) == 1:
        yield run(configs[0], dataset, device=device).record
        return
    try:
        yield from (member.record for member in Fleet(configs, dataset, device=device).train())
        return
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        size = math.ceil(len(configs) / 2)
    except TraceError:
        size = 1
    for start in range(0, len(configs), size):
        yield from train_together(configs[start : start + size], dataset, device)
