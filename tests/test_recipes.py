"""The search of recipes: equally hard, on validation data, and tested once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import pytest

from gradreg.penalties import DoubleBack, WeightDecay
from gradreg.study import recipes as recipes_module
from gradreg.study.plan import FIRST_TUNING_SEED
from gradreg.study.recipes import Budget, Range, Recipe, search
from gradreg.training import RunConfig, RunRecord

BASE = RunConfig(
    data="digits",
    fingerprint="",
    model="mlp",
    train_size=100,
    validation_size=100,
    penalties=(WeightDecay(weight=1.0), DoubleBack(weight=1.0)),
)
RANGES = {"learning_rate": Range(1e-4, 1e-2), "dropout": Range(0.05, 0.7), "double_back": Range(1e-2, 1e2)}


class Trainer:
    """Runs whose accuracy is best at DoubleBack 1, the more so the nearer; notes what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[list[RunConfig]] = []

    def __call__(self, configs: Iterable[RunConfig]) -> list[RunRecord]:
        self.calls.append(list(configs))
        return [RunRecord(config=config, metrics=self.metrics(config)) for config in self.calls[-1]]

    def metrics(self, config: RunConfig) -> dict[str, float]:
        weight = next((p.weight for p in config.penalties if p.name == "double_back"), 100.0)
        lucky = 0.5 if weight > 30 and config.seed == FIRST_TUNING_SEED else 0.0  # a candidate that a second run unmasks
        return {"accuracy": 1 - abs(math.log10(weight)) / 4 + lucky}


def recipes() -> list[Recipe]:
    plain = Recipe(
        name="plain",
        base=RunConfig(data="digits", fingerprint="", model="mlp", train_size=100, validation_size=100),
        ranges={"learning_rate": Range(1e-4, 1e-2)},
    )
    return [plain, Recipe(name="double", base=BASE, ranges=RANGES)]


def test_candidates_fill_their_ranges_and_are_always_the_same() -> None:
    recipe = Recipe(name="double", base=BASE, ranges=RANGES)
    configs = recipe.candidates(32)
    assert configs == recipe.candidates(32)
    assert len({config.key for config in configs}) == 32
    rates = [config.learning_rate for config in configs]
    assert min(rates) >= 1e-4
    assert max(rates) <= 1e-2
    assert sum(rate < 1e-3 for rate in rates) == 16  # half below the middle of the logarithms
    assert {config.penalties[0].weight for config in configs} == {1.0}  # not among the ranges
    assert {config.arm for config in configs} == {"double"}


def test_the_best_is_found_in_spite_of_a_lucky_run() -> None:
    found = search(recipes(), Trainer(), Budget(num_candidates=64, num_finalists=24, num_tuning_runs=4, num_runs=3))
    assert [one.recipe.name for one in found] == ["plain", "double"]
    assert found[1].config.penalties[1].weight == pytest.approx(1, rel=0.2)
    assert [record.config.seed for record in found[1].final] == [0, 1, 2]


def test_all_recipes_are_searched_equally_hard_and_tested_at_the_end() -> None:
    trainer, budget = Trainer(), Budget(num_candidates=8, num_finalists=2, num_tuning_runs=3, num_runs=4)
    found = search(recipes(), trainer, budget)
    *tuning, final = trainer.calls
    assert all(config.evaluate_on == "validation" for call in tuning for config in call)
    assert all(config.evaluate_on == "test" for config in final)
    assert not {config.seed for call in tuning for config in call} & {config.seed for config in final}
    assert [len(call) for call in trainer.calls] == [2 * 8, 2 * 2 * 3, 2 * 4]
    assert {len(one.tuning) for one in found} == {8 + 2 * 2}  # the first run of a finalist counts once


def test_a_second_search_is_near_the_best_of_the_first() -> None:
    """Which the lucky run of a candidate far away, better than all, does not decide."""
    trainer, budget = Trainer(), Budget(num_candidates=16, num_refined=4, num_finalists=4, num_tuning_runs=3, num_runs=1)
    found = search(recipes(), trainer, budget)
    first, _, near = ([c for c in call if c.arm == "double"] for call in trainer.calls[:3])
    weight = {one.key: one.penalties[1].weight for one in (*first, *near)}
    assert weight[max(first, key=lambda one: trainer.metrics(one)["accuracy"]).key] > 30
    best = min((weight[one.key] for one in first), key=lambda w: abs(math.log10(w)))
    third = 10 ** (4 / 3)  # of the four decades that the range has
    assert len(near) == 4
    assert all(best / third**0.5 <= weight[one.key] <= best * third**0.5 for one in near)
    assert max(weight[one.key] for one in near) / min(weight[one.key] for one in near) > third**0.5  # and it is used
    assert found[1].config.penalties[1].weight in weight.values()
    assert {record.config.key for record in found[1].tuning} == {
        one.key for call in trainer.calls[:-1] for one in call if one.arm == "double"
    }


def test_what_is_promising_is_trained_for_longer() -> None:
    trainer = Trainer()
    search(recipes(), trainer, Budget(num_candidates=4, num_finalists=2, num_tuning_runs=2, num_runs=3, longer=3))
    assert [{config.num_steps for config in call} for call in trainer.calls] == [{1000}, {3000}, {3000}]
    assert [len(call) for call in trainer.calls] == [2 * 4, 2 * 2 * 2, 2 * 3]


def test_dropout_stays_a_rate_near_its_upper_end() -> None:
    recipe = Recipe(name="high", base=BASE, ranges={"dropout": Range(0.2, 0.9)})
    near = recipe.around(replace(BASE, dropout=0.88))
    assert all(0.5 < config.dropout < 1 for config in near.candidates(16))


def test_a_candidate_that_comes_again_keeps_its_runs() -> None:
    def scored(candidates: list[tuple[RunConfig, list[int]]]) -> list[tuple[RunConfig, list[RunRecord]]]:
        return [
            (one, [RunRecord(config=replace(one, seed=seed), metrics={"accuracy": 0.5}) for seed in seeds])
            for one, seeds in candidates
        ]

    other = replace(BASE, learning_rate=0.1)
    joined = recipes_module._joined(scored([(BASE, [0]), (other, [0])]), scored([(BASE, [0, 1, 2])]), scored([(BASE, [0])]))
    assert [(config, [r.config.seed for r in runs]) for config, runs in joined] == [(BASE, [0, 1, 2]), (other, [0])]


def test_a_range_of_nothing_is_told() -> None:
    with pytest.raises(ValueError, match="'spect_reg' cannot be searched: choose from double_back, dropout"):
        Recipe(name="double", base=BASE, ranges={"spect_reg": Range(1, 2)})
