"""A comparison as data: the arms, the weights to try, and the runs that follow from them."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from gradreg.penalties import PENALTIES, Penalty, WeightDecay
from gradreg.penalties.own import own_penalty
from gradreg.training import RunConfig, RunRecord

BASELINE = "baseline"
#: Seeds of tuning runs start here, so that no final run trains on a subset that chose its weight.
FIRST_TUNING_SEED = 1000
#: Differences below this share of the values are the rounding of single precision, not an effect.
ROUNDING = 2e-7

#: The grids of the paper's appendix B, {1, 3} x 10^k; DoubleBack's cut at its lower end, so that all arms try equally many.
_SMALL = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
_LARGE = (1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0, 10.0, 30.0, 100.0)


def default_weights(penalty: str) -> tuple[float, ...]:
    """The weights to try for the penalty of that name.

    >>> default_weights("double_back")[-1]
    100.0
    """
    return _LARGE if penalty == "double_back" else _SMALL


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One column of the comparison: a kind of penalty and the weights to try for it; none for the baseline."""

    kind: type[Penalty] | None = None
    weights: tuple[float, ...] = ()

    @property
    def label(self) -> str:
        return BASELINE if self.kind is None else self.kind.__name__

    def penalties(self, weight: float | None) -> tuple[Penalty, ...]:
        return () if self.kind is None or weight is None else (self.kind(weight=weight),)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A baseline and arms that each add one penalty to it.

    Attributes:
        base: the baseline's config; what the arms share.
        arms: the baseline first.
        num_runs: final runs of each arm, with seeds 0, 1, 2, ... shared by all arms.
        num_tuning_runs: validation runs for each weight.
        learning_rates, weight_decays: for the baseline, if it is to be tuned as well; the best pair then holds for all arms.
        search: try every weight of the grid, or as many that optuna proposes in its range.
    """

    base: RunConfig
    arms: tuple[Arm, ...]
    num_runs: int = 10
    num_tuning_runs: int = 3
    learning_rates: tuple[float, ...] = ()
    weight_decays: tuple[float, ...] = ()
    search: Literal["grid", "optuna"] = "grid"

    def __post_init__(self) -> None:
        labels = [arm.label for arm in self.arms]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"two arms are called {label}: give one of the classes another name.")

    @property
    def key(self) -> str:
        """A short hash of the whole plan."""
        arms = [[arm.label, list(arm.weights)] for arm in self.arms]
        numbers = [self.num_runs, self.num_tuning_runs, self.learning_rates, self.weight_decays, self.search]
        return hashlib.sha256(json.dumps([self.base.to_data(), arms, numbers]).encode()).hexdigest()[:6]

    def baseline_candidates(self) -> list[RunConfig]:
        """The baseline under every learning rate and weight decay to try; itself alone if there are none."""
        rates, decays = self.learning_rates or (self.base.learning_rate,), self.weight_decays or (None,)
        return [_with(self.base, rate, decay) for rate in rates for decay in decays]

    def tuning_configs(self, config: RunConfig) -> list[RunConfig]:
        """The validation runs of one candidate."""
        seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + self.num_tuning_runs)
        return [replace(config, seed=seed, evaluate_on="validation") for seed in seeds]

    def final_configs(self, config: RunConfig) -> list[RunConfig]:
        """The test runs of one arm."""
        return [replace(config, seed=seed, evaluate_on="test") for seed in range(self.num_runs)]

    def num_runs_in_all(self) -> int:
        candidates = len(self.baseline_candidates())
        candidates += sum(len(arm.weights) for arm in self.arms if len(arm.weights) > 1)
        return candidates * self.num_tuning_runs + len(self.arms) * self.num_runs


def with_penalty(base: RunConfig, arm: Arm, weight: float | None) -> RunConfig:
    """The arm at one weight: the base's config with the penalty added.

    A penalty that the base already has, weight decay in an arm that tunes it, is replaced.
    """
    added = arm.penalties(weight)
    kept = tuple(penalty for penalty in base.penalties if type(penalty) not in {type(new) for new in added})
    return replace(base, arm=arm.label, penalties=kept + added)


def _with(base: RunConfig, learning_rate: float, weight_decay: float | None) -> RunConfig:
    if weight_decay is None:
        return replace(base, learning_rate=learning_rate)
    others = tuple(penalty for penalty in base.penalties if not isinstance(penalty, WeightDecay))
    return replace(base, learning_rate=learning_rate, penalties=(*others, WeightDecay(weight=weight_decay)))


def kind_of(name: str) -> type[Penalty]:
    """The penalty of that name: one of gradreg's, or one's own as ``file.py:Class`` or ``package.module:Class``."""
    if ":" in name:
        return own_penalty(name)
    if name not in PENALTIES:
        raise ValueError(
            f"penalty {name!r} is unknown: choose from {', '.join(PENALTIES)} (gradreg list explains them), or give your "
            "own as file.py:Class."
        )
    return PENALTIES[name]


def arms_of(names: list[str], weights: Mapping[str, tuple[float, ...]]) -> tuple[Arm, ...]:
    """The baseline, and an arm for each named penalty."""
    tuned = [Arm(kind=kind_of(name), weights=weights.get(name) or default_weights(name)) for name in names]
    return (Arm(), *tuned)


def score(metrics: Mapping[str, Any]) -> float:
    """What tuning maximises: accuracy, or the negative mean squared error. The worst possible for a run that diverged."""
    if metrics.get("diverged"):
        return -math.inf
    if "accuracy" in metrics:
        return float(metrics["accuracy"])
    return -float(metrics["mse"]) if "mse" in metrics else -math.inf


def mean_score(records: Iterable[RunRecord]) -> float:
    """The mean over the validation runs of one candidate."""
    return statistics.fmean(score(record.metrics) for record in records)
