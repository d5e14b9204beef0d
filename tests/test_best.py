"""The search for the best accuracy goes on where it was stopped, and says what is missing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "results"))  # as for a script that is run
import best

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
        record = RunRecord(config=config, metrics={"accuracy": int(config.key, 16) / 16**16})
        best.keep("cifar10", [record], self.folder)
        return record


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


def test_what_was_not_tested_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        searched(Trainer(tmp_path, left=6 * 3 + 6 * 2 * 2 + 5))  # the last test of the second recipe is missing
    lines = best.page("cifar10", tmp_path).splitlines()[2:]
    assert [line.count("not run yet") for line in lines] == [0, 0, 1, 1, 1, 1]
    assert best.final("cifar10", tmp_path)[0].config.num_steps == 2 * best.STEPS["cifar10"]
