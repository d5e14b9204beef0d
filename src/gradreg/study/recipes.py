"""Recipes of training that are searched equally hard on validation data, and then tested."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch.quasirandom import SobolEngine

from gradreg.study.plan import FIRST_TUNING_SEED, mean_score
from gradreg.study.search import Execute
from gradreg.training import RunConfig, RunRecord

#: A rate that is searched near another stays below this.
MOST_DROPOUT = 0.95


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

    def around(self, number: float) -> Range:
        """A third as wide on the logarithmic scale, with this number in the middle.

        >>> Range(1.0, 64.0).around(8.0).at(1.0)
        16.0
        """
        half = (self.high / self.low) ** (1 / 6)
        return Range(number / half, number * half)


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

    def around(self, config: RunConfig) -> Recipe:
        """The same, to be searched near this candidate."""
        weights = {penalty.name: penalty.weight for penalty in config.penalties}
        numbers = {"learning_rate": config.learning_rate, "dropout": config.dropout or 0.0} | weights
        near = {name: one.around(numbers[name]) for name, one in self.ranges.items()}
        if "dropout" in near:
            near["dropout"] = replace(near["dropout"], high=min(near["dropout"].high, MOST_DROPOUT))
        return replace(self, ranges=near)

    def _with(self, chosen: Mapping[str, float]) -> RunConfig:
        own = {name: value for name, value in chosen.items() if name in ("learning_rate", "dropout")}
        penalties = tuple(replace(p, weight=chosen.get(p.name, p.weight)) for p in self.base.penalties)
        return replace(self.base, arm=self.name, penalties=penalties, **own)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How hard every recipe is searched.

    Attributes:
        num_candidates: configs of a recipe that are run once on validation data.
        num_refined: further ones, near the best of those after as many runs as a finalist has.
        num_finalists: the best of all, which are run more often.
        num_tuning_runs: validation runs of a finalist, with the first.
        num_runs: test runs of the best finalist.
        longer: how many times the steps of a candidate finalists and tests are trained for.
    """

    num_candidates: int = 48
    num_refined: int = 0
    num_finalists: int = 8
    num_tuning_runs: int = 5
    num_runs: int = 10
    longer: int = 1


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
    first = _candidates(recipes, execute, budget)
    finalists = [_longer(_best(one, budget.num_finalists), budget.longer) for one in first]
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


def _candidates(recipes: Sequence[Recipe], execute: Execute, budget: Budget) -> list[_Scored]:
    """All that are tried: from the whole ranges, and then near the best of those, which more runs make sure of."""
    first = _scored([recipe.candidates(budget.num_candidates) for recipe in recipes], 1, execute)
    if not budget.num_refined:
        return first
    again = _scored([_best(one, budget.num_finalists) for one in first], budget.num_tuning_runs, execute)
    near = [recipe.around(_best(one, 1)[0]) for recipe, one in zip(recipes, again, strict=True)]
    refined = _scored([recipe.candidates(budget.num_refined) for recipe in near], 1, execute)
    return [_joined(*parts) for parts in zip(first, again, refined, strict=True)]


def _scored(candidates: Sequence[Sequence[RunConfig]], num_runs: int, execute: Execute) -> list[_Scored]:
    """All recipes in one go, so that runs of one shape train together."""
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + num_runs)
    flat = [config for of_one in candidates for config in of_one]
    records = execute([replace(config, seed=seed, evaluate_on="validation") for config in flat for seed in seeds])
    runs = iter(_parts(records, num_runs))
    return [[(config, next(runs)) for config in of_one] for of_one in candidates]


def _best(scored: _Scored, number: int) -> list[RunConfig]:
    return [config for config, _ in sorted(scored, key=lambda one: mean_score(one[1]), reverse=True)[:number]]


def _longer(configs: Sequence[RunConfig], times: int) -> list[RunConfig]:
    return [replace(config, num_steps=times * config.num_steps) for config in configs]


def _joined(*parts: _Scored) -> _Scored:
    """Each candidate once, with all that was run of it."""
    runs: dict[str, tuple[RunConfig, dict[str, RunRecord]]] = {}
    for config, records in itertools.chain(*parts):
        runs.setdefault(config.key, (config, {}))[1].update({record.config.key: record for record in records})
    return [(config, list(of_config.values())) for config, of_config in runs.values()]


def _all(first: _Scored, second: _Scored) -> list[RunRecord]:
    runs = [record for _, records in (*first, *second) for record in records]
    return list({record.config.key: record for record in runs}.values())


def _parts(records: list[RunRecord], size: int) -> list[list[RunRecord]]:
    return [records[start : start + size] for start in range(0, len(records), size)]
