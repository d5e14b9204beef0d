"""The search for the best accuracy goes on where it was stopped, and says what is missing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "results"))  # as for a script that is run
import best

from gradreg.papers.experiment import arm_id
from gradreg.study.recipes import Budget, search
from gradreg.training import RunConfig, RunRecord

SMALL = Budget(num_candidates=3, num_finalists=2, num_tuning_runs=2, num_runs=3, longer=2)


class StoppedError(Exception):
    pass


class Trainer:
    """Gives each run an accuracy of its own, and is stopped after so many of them."""

    def __init__(self, folder: Path, left: int = 1000) -> None:
        self.folder, self.left, self.made = folder, left, []

    def __call__(self, configs: Sequence[RunConfig]) -> list[RunRecord]:
        return [self.run(config) for config in configs]

    def run(self, config: RunConfig) -> RunRecord:
        if self.left == 0:
            raise StoppedError
        self.left -= 1
        self.made.append(config.key)
        record = RunRecord(config=config, metrics={"accuracy": self.accuracy(config)})
        best.keep("cifar10", [record], self.folder)
        return record

    def accuracy(self, config: RunConfig) -> float:
        """Like those of half precision: many are equal, up to the last digits."""
        of_config, wobble = int(config.key[:8], 16) % 2, int(config.key[8:], 16) / 16**8
        return 0.5 + 0.01 * of_config + 1e-9 * wobble


def searched(trainer: Trainer) -> list[RunConfig]:
    execute = best.only_missing("cifar10", trainer, trainer.folder)
    return [one.config for one in search(best.recipes("cifar10"), execute, SMALL)]


@pytest.mark.parametrize("after", [4, 25, 50])
def test_a_search_that_was_stopped_goes_on(after: int, tmp_path: Path) -> None:
    """While it searches, repeats and tests."""
    whole = Trainer(tmp_path / "whole")
    expected = searched(whole)
    stopped, again = Trainer(tmp_path / "parts", left=after), Trainer(tmp_path / "parts")
    with pytest.raises(StoppedError):
        searched(stopped)
    assert searched(again) == expected
    assert sorted([*stopped.made, *again.made]) == sorted(whole.made)
    assert best.page("cifar10", again.folder) == best.page("cifar10", whole.folder)


def test_a_search_that_is_complete_asks_for_nothing(tmp_path: Path) -> None:
    first, again = Trainer(tmp_path), Trainer(tmp_path)
    assert searched(first) == searched(again)
    assert again.made == []


def test_a_gain_is_seed_by_seed(tmp_path: Path) -> None:
    """Whichever seeds are there."""
    searched(Trainer(tmp_path))
    tests = best.load_runs("cifar10", "test", tmp_path)
    (tmp_path / "cifar10.json").unlink()
    spread = {0: 0.50, 1: 0.60, 2: 0.55, 3: 0.70, 4: 0.40}
    names = {"SpectReg": 0.01, "DoubleBack": 0.02}
    kept = [
        replace(record, config=replace(record.config, seed=seed), metrics={"accuracy": accuracy + names[name]})
        for record in tests
        if record.config.seed == 0 and (name := best._named(record).config.arm) in names
        for seed, accuracy in spread.items()
        if seed != {"SpectReg": 0, "DoubleBack": 4}[name]
    ]
    best.keep("cifar10", kept, tmp_path)
    assert best.gain("cifar10", "DoubleBack", "SpectReg", tmp_path).startswith("+1.00 [+1.00, +1.00]")
    assert best.page("cifar10", tmp_path).count("not run yet") == 6  # all are compared with the baseline


def test_the_page_names_what_was_tested(tmp_path: Path) -> None:
    """Also where candidates of the first round have as many runs as finalists."""
    budget = replace(SMALL, num_refined=4, longer=1)
    execute = best.only_missing("cifar10", Trainer(tmp_path), tmp_path)
    found = search(best.recipes("cifar10"), execute, budget)
    named = {name: runs[0].config for name, runs in best.chosen("cifar10", tmp_path).items()}
    for one in found:
        assert arm_id(replace(named[one.recipe.name], evaluate_on="test")) == arm_id(one.final[0].config)
    assert "not run yet" not in best.page("cifar10", tmp_path)


def test_what_was_not_tested_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        searched(Trainer(tmp_path, left=6 * 3 + 6 * 2 * 2 + 5))  # the last test of the second recipe is missing
    lines = best.page("cifar10", tmp_path).splitlines()[2:]
    assert [line.count("not run yet") for line in lines] == [0, 0, 1, 1, 1, 1]
    assert best.final("cifar10", tmp_path)[0].config.num_steps == 2 * best.STEPS["cifar10"]


def test_what_was_tested_before_stays_in_sight(tmp_path: Path) -> None:
    searched(Trainer(tmp_path))
    assert best.earlier("cifar10", tmp_path) == ""
    now = [one for one in best.final("cifar10", tmp_path) if one.config.arm == best.ranked("cifar10", tmp_path)[0][0].arm]
    accuracy = sum(record.metrics["accuracy"] for record in now) / len(now)
    before = [replace(one, config=replace(one.config, num_steps=7), metrics={"accuracy": accuracy - 0.01}) for one in now]
    best.keep("cifar10", before, tmp_path)
    *_, line = best.earlier("cifar10", tmp_path).splitlines()
    assert f"| 7     | {100 * accuracy - 1:.2f}" in line
    assert "+1.00" in line
