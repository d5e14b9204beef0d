"""The comparison: tune on validation, choose, run on test."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradreg.study.plan import ROUNDING, Arm, Plan, mean_score
from gradreg.study.records import RunRecord, Store
from gradreg.study.search import Execute, grid, propose
from gradreg.training import RunConfig


@dataclass(frozen=True)
class Outcome:
    """What a comparison gave.

    Attributes:
        records: of all its runs, tuning first.
        chosen: the final config of each arm, but for the seed, by its label.
        at_edge: arms whose best weight, and no other, is the smallest or largest that was tried.
        undecided: arms of which several weights are the best.
    """

    records: list[RunRecord]
    chosen: dict[str, RunConfig]
    at_edge: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()


def tune(plan: Plan, execute: Execute) -> Outcome:
    """Choose the baseline's settings, where they are to be tuned, then each arm's weight, on validation data alone."""
    base_candidates = plan.baseline_candidates()
    records = _run_all(plan, base_candidates if len(base_candidates) > 1 else [], execute)
    base = _best(plan, base_candidates, execute)[0]
    candidates = grid(plan, base) if plan.search == "grid" else propose(plan, base, execute)
    tried = [config for options in candidates.values() if len(options) > 1 for config in options]
    records += _run_all(plan, [base, *tried], execute)  # the base too, to see what the weights are compared with
    best = {arm.label: _best(plan, candidates[arm.label], execute) for arm in plan.arms}
    chosen = {label: configs[0] for label, configs in best.items()}
    undecided = tuple(label for label, configs in best.items() if len(configs) > 1)
    at_edge = (arm.label for arm in plan.arms if arm.label not in undecided and _at_edge(arm, chosen[arm.label]))
    return Outcome(records, chosen, tuple(at_edge), undecided)


def compare(plan: Plan, execute: Execute) -> Outcome:
    """Tune, then run every arm on test with the same seeds."""
    outcome = tune(plan, execute)
    final = [run for config in outcome.chosen.values() for run in plan.final_configs(config)]
    return replace(outcome, records=outcome.records + execute(final))


def _run_all(plan: Plan, options: list[RunConfig], execute: Execute) -> list[RunRecord]:
    """The validation runs of all options at once, to fill the machine."""
    return execute([run for config in options for run in plan.tuning_configs(config)])


def _best(plan: Plan, options: list[RunConfig], execute: Execute) -> list[RunConfig]:
    """The configs with the best mean score over their validation runs, which are recorded already; several if they tie."""
    if len(options) == 1:
        return options
    scores = [mean_score(execute(plan.tuning_configs(config))) for config in options]
    return [
        config for config, score in zip(options, scores, strict=True) if math.isclose(score, max(scores), rel_tol=ROUNDING)
    ]


def _at_edge(arm: Arm, chosen: RunConfig) -> bool:
    """Whether the best weight is the smallest or the largest of at least three."""
    return len(arm.weights) > 2 and chosen.penalties[-1].weight in (min(arm.weights), max(arm.weights))


@dataclass(frozen=True)
class StudyFolder:
    """Where a study lives: its records, the list of those it is made of, and its report."""

    folder: Path

    @property
    def store(self) -> Store:
        return Store(self.folder / "records")

    def save(self, outcome: Outcome, title: str) -> None:
        """Write down which records make up the study, and as which arm, for later reports."""
        runs = sorted({(record.config.arm, record.config.key) for record in outcome.records})
        unfinished = self.folder / f"study.{os.getpid()}.tmp"
        unfinished.write_text(json.dumps({"title": title, "runs": runs}, indent=1))
        unfinished.replace(self.folder / "study.json")

    def load(self, *, with_further_seeds: bool = False) -> tuple[str, list[RunRecord]]:
        """The title and the records that the study is made of; all in the folder where there is no list of them.

        Args:
            with_further_seeds: also those that differ from one of them in the seed alone, as another machine made them.
        """
        study = self._index()
        found = {record.config.key: record for record in self.store.all()}
        if not found:
            raise ValueError(f"no records in {self.store.folder}: run gradreg compare first, or give its folder.")
        runs = study.get("runs") or [(record.config.arm, key) for key, record in found.items()]
        self._check_complete({key for _, key in runs}, found.keys())
        if with_further_seeds:
            runs = [*runs, *_further_seeds(runs, found)]
        return str(study.get("title", self.folder.name)), [_labelled(found[key], arm) for arm, key in runs]

    def _index(self) -> dict[str, Any]:
        path = self.folder / "study.json"
        try:
            index: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}): remove it, and all records beside it count.") from error
        return index

    def _check_complete(self, named: Set[str], found: Set[str]) -> None:
        if missing := len(named - found):
            raise ValueError(
                f"{missing} of the {len(named)} runs that {self.folder / 'study.json'} names have no record of this version "
                f"in {self.store.folder}: bring the files back, or run the same gradreg compare again, which trains what is "
                "missing."
            )


def _further_seeds(runs: Sequence[tuple[str, str]], found: Mapping[str, RunRecord]) -> Iterator[tuple[str, str]]:
    """Those of the others that differ from one of the runs in the seed alone, for every arm that it belongs to."""
    named, arms = {key for _, key in runs}, dict.fromkeys((_but_for_seed(found[key]), arm) for arm, key in runs)
    for key, record in found.items():
        if key not in named:
            yield from ((arm, key) for like, arm in arms if like == _but_for_seed(record))


def _but_for_seed(record: RunRecord) -> str:
    return replace(record.config, seed=0).key


def _labelled(record: RunRecord, arm: str) -> RunRecord:
    return replace(record, config=replace(record.config, arm=arm))
