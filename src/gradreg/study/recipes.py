"""Recipes of training that are searched equally hard on validation data, and then tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch.quasirandom import SobolEngine

from gradreg.study.plan import FIRST_TUNING_SEED, mean_score
from gradreg.study.search import Execute
from gradreg.training import RunConfig, RunRecord


@dataclass(frozen=True)
class Range:
    """Numbers between two ends, evenly spread on a logarithmic scale.

    >>> Range(0.01, 1.0).at(0.5)
    0.1
    """

    low: float
    high: float

    def at(self, place: float) -> float:
        """The number at this place between 0 and 1, in three digits."""
        return float(f"{self.low * (self.high / self.low) ** place:.3g}")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A way to train with some numbers left open.

    Attributes:
        name: what it is called.
        base: the config; the weights of its penalties are placeholders.
        ranges: of ``learning_rate``, ``dropout``, or the weight of the penalty of that name.
    """

    name: str
    base: RunConfig
    ranges: Mapping[str, Range]

    def __post_init__(self) -> None:
        known = {"learning_rate", "dropout", *(penalty.name for penalty in self.base.penalties)}
        for name in self.ranges:
            if name not in known:
                raise ValueError(
                    f"recipe {self.name!r}: {name!r} cannot be searched: choose from {', '.join(sorted(known))}."
                )

    def candidates(self, number: int) -> list[RunConfig]:
        """Points of a scrambled Sobol sequence, always the same."""
        sequence = SobolEngine(len(self.ranges), scramble=True, seed=0)  # type: ignore[no-untyped-call]
        places = sequence.draw(number).tolist()
        return [self._with({n: r.at(p) for (n, r), p in zip(self.ranges.items(), row, strict=True)}) for row in places]

    def _with(self, chosen: Mapping[str, float]) -> RunConfig:
        own = {name: value for name, value in chosen.items() if name in ("learning_rate", "dropout")}
        penalties = tuple(replace(p, weight=chosen.get(p.name, p.weight)) for p in self.base.penalties)
        return replace(self.base, arm=self.name, penalties=penalties, **own)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How hard every recipe is searched.

    Attributes:
        num_candidates: configs of a recipe that are run once on validation data.
        num_finalists: the best of them, which are run more often.
        num_tuning_runs: validation runs of a finalist, with the first.
        num_runs: test runs of the best finalist.
    """

    num_candidates: int = 48
    num_finalists: int = 8
    num_tuning_runs: int = 5
    num_runs: int = 10


@dataclass(frozen=True, kw_only=True)
class Found:
    """What came of one recipe: the config that was chosen, the validation runs of all candidates, and its test runs."""

    recipe: Recipe
    config: RunConfig
    tuning: Sequence[RunRecord]
    final: Sequence[RunRecord]


def search(recipes: Sequence[Recipe], execute: Execute, budget: Budget | None = None) -> list[Found]:
    """Search all recipes side by side, on validation data and with seeds of their own, and test what was best."""
    budget = budget or Budget()
    candidates = [recipe.candidates(budget.num_candidates) for recipe in recipes]
    first = _scored(candidates, 1, execute)
    finalists = [_best(one, budget.num_finalists) for one in first]
    second = _scored(finalists, budget.num_tuning_runs, execute)
    chosen = [_best(one, 1)[0] for one in second]
    seeds = range(budget.num_runs)
    finals = execute([replace(config, seed=seed, evaluate_on="test") for config in chosen for seed in seeds])
    tests = _parts(finals, budget.num_runs)
    return [
        Found(recipe=recipe, config=config, tuning=_all(one, two), final=final)
        for recipe, config, one, two, final in zip(recipes, chosen, first, second, tests, strict=True)
    ]


#: Each candidate with its validation runs.
_Scored = list[tuple[RunConfig, list[RunRecord]]]


def _scored(candidates: Sequence[Sequence[RunConfig]], num_runs: int, execute: Execute) -> list[_Scored]:
    """All recipes in one go, so that runs of one shape train together."""
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + num_runs)
    flat = [config for of_one in candidates for config in of_one]
    records = execute([replace(config, seed=seed, evaluate_on="validation") for config in flat for seed in seeds])
    runs = iter(_parts(records, num_runs))
    return [[(config, next(runs)) for config in of_one] for of_one in candidates]


def _best(scored: _Scored, number: int) -> list[RunConfig]:
    return [config for config, runs in sorted(scored, key=lambda one: mean_score(one[1]), reverse=True)[:number]]


def _all(first: _Scored, second: _Scored) -> list[RunRecord]:
    runs = [record for _, records in (*first, *second) for record in records]
    return list({record.config.key: record for record in runs}.values())


def _parts(records: list[RunRecord], size: int) -> list[list[RunRecord]]:
    return [records[start : start + size] for start in range(0, len(records), size)]
