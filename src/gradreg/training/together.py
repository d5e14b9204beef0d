"""Which runs to train together, and how."""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch.nn.modules.conv import _ConvNd

from gradreg.data import Dataset
from gradreg.engines import DifferentiationError
from gradreg.engines.forward_pass import random_state_of
from gradreg.engines.program import TraceError
from gradreg.penalties import GradientPenalty
from gradreg.training.config import RunConfig
from gradreg.training.fleet import Fleet, shape_of
from gradreg.training.lanes import Codes, Lanes
from gradreg.training.record import RunRecord
from gradreg.training.run import initial_model, run

#: Members of a fleet at most, by kind of device: from there on more gain nothing, and a fleet that is stopped loses more.
LARGEST = {"cpu": 32, "cuda": 256}
#: Below this a fleet is not split among workers: each has to be traced.
SMALLEST = 10
#: Parameters from which on a network keeps a GPU busy alone.
LARGE = 1_000_000
#: Training steps from which on compiling them is worth its minute: with a penalty one takes some 30 ms less.
STEPS_FOR_LANES = 3000


def in_fleets(
    configs: Sequence[RunConfig], dataset: Dataset, device: str, num_workers: int = 1
) -> Iterator[list[RunConfig]]:
    """Split runs into fleets of one shape: none larger than pays on the device, and enough for all workers.

    >>> from dataclasses import replace
    >>> from gradreg.data import load
    >>> one = RunConfig(data="digits", fingerprint="", model="mlp", train_size=100, validation_size=0)
    >>> [len(fleet) for fleet in in_fleets([replace(one, seed=seed) for seed in range(50)], load("digits"), "cpu", 2)]
    [25, 25]
    """
    groups: dict[RunConfig, list[RunConfig]] = {}
    for config in configs:
        groups.setdefault(shape_of(config), []).append(config)
    kind = torch.device(device).type
    for members in sorted(groups.values(), key=_cost, reverse=True):
        pays = len(members) > 1 and (_pays(members[0], dataset, kind) or lanes_pay(members, kind))
        largest = LARGEST.get(kind, 32) if pays else 1
        if kind == "cpu":
            largest = min(largest, max(SMALLEST, math.ceil(len(members) / num_workers)))
        size = _even(len(members), largest)
        yield from (members[start : start + size] for start in range(0, len(members), size))


def in_lanes(configs: Sequence[RunConfig], dataset: Dataset, device: str) -> bool:
    """Whether these runs, too large for a fleet, share a GPU in lanes."""
    kind = torch.device(device).type
    return lanes_pay(configs, kind) and not _pays(configs[0], dataset, kind)


def lanes_pay(configs: Sequence[RunConfig], kind: str) -> bool:
    """Whether there are enough steps to take on a GPU to make up for compiling them."""
    return kind == "cuda" and sum(config.num_steps for config in configs) >= STEPS_FOR_LANES


def _pays(config: RunConfig, dataset: Dataset, kind: str) -> bool:
    """Whether members of this shape are faster together: not if one alone keeps the device busy."""
    with random_state_of(0, torch.device("cpu")):
        model = initial_model(config, dataset)
    if kind == "cpu":
        return not any(isinstance(module, _ConvNd) for module in model.modules())
    return sum(parameter.numel() for parameter in model.parameters()) < LARGE


def _cost(members: list[RunConfig]) -> int:
    """Roughly, to begin with what takes longest: whole Jacobians cost a multiple of one gradient."""
    whole = any(isinstance(p, GradientPenalty) and p.rows_are_one_jacobian for p in members[0].penalties)
    return len(members) * (5 if whole else 1)


def _even(total: int, at_most: int) -> int:
    """The size of equal parts, as few as ``at_most`` allows."""
    return math.ceil(total / math.ceil(total / at_most))


def train_together(
    configs: list[RunConfig],
    dataset: Dataset,
    device: str,
    snapshots: Path | None = None,
    codes: Codes | None = None,
) -> Iterator[RunRecord]:
    """The records of these runs: of one fleet, or of halves of it where memory does not suffice; in lanes if the network
    is large; one after the other where it cannot be traced. All but fleets go on from their snapshots, and lanes with what
    others compiled for the same data.
    """
    small = len(configs) > 1 and _pays(configs[0], dataset, torch.device(device).type)
    if not small and not lanes_pay(configs, torch.device(device).type):
        yield from (run(config, dataset, device=device, snapshots=snapshots).record for config in configs)
        return
    done: set[str] = set()
    try:
        lanes = partial(_in_lanes, snapshots=snapshots, codes=codes)
        for record in (_in_a_fleet if small else lanes)(configs, dataset, device):
            done.add(record.config.key)
            yield record
        return
    except torch.OutOfMemoryError:
        size = math.ceil(len(configs) / 2) if small else 1
    except RuntimeError as error:  # an operation that cannot be vectorised; whatever else it is, a run alone says, too
        if not small and not isinstance(error, TraceError | DifferentiationError):
            raise
        if len(configs) > 1:
            warnings.warn(f"{configs[0].model}: runs are trained one by one ({error}).", stacklevel=2)
        size = 1
    _free_memory()
    left = [config for config in configs if config.key not in done]
    if len(configs) == 1:
        yield from (run(config, dataset, device=device, snapshots=snapshots).record for config in left)
        return
    for start in range(0, len(left), size):
        yield from train_together(left[start : start + size], dataset, device, snapshots, codes)


def _in_a_fleet(configs: list[RunConfig], dataset: Dataset, device: str) -> Iterator[RunRecord]:
    yield from (member.record for member in Fleet(configs, dataset, device=device).train())


def _free_memory() -> None:
    """Give back what a failed attempt held. As long as its exception is handled, the traceback holds it."""
    gc.collect()
    torch.cuda.empty_cache()


def _in_lanes(
    configs: list[RunConfig], dataset: Dataset, device: str, *, snapshots: Path | None, codes: Codes | None
) -> Iterator[RunRecord]:
    """Rates of dropout are part of a captured step."""
    for rate in dict.fromkeys(config.dropout for config in configs):
        members = [config for config in configs if config.dropout == rate]
        lanes = Lanes(members, dataset, device=device, snapshots=snapshots, codes=codes)
        yield from (trained.record for trained in lanes.train())
