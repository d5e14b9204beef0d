"""Which weights to try: all of a grid, or those that optuna proposes within its range."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from gradreg.study.plan import Arm, Plan, mean_score, with_penalty
from gradreg.study.records import RunRecord
from gradreg.training import RunConfig

#: Gives the records of the configs, in their order.
Execute = Callable[[Sequence[RunConfig]], list[RunRecord]]
#: The configs tried for each arm, by its label.
Candidates = dict[str, list[RunConfig]]

#: Weights that optuna proposes at a time: enough to fill a machine, few enough to learn from.
ROUND = 3


def grid(plan: Plan, base: RunConfig) -> Candidates:
    """Every weight of every arm; the baseline has one config alone."""
    return {arm.label: [with_penalty(base, arm, weight) for weight in arm.weights or (None,)] for arm in plan.arms}


def propose(plan: Plan, base: RunConfig, execute: Execute) -> Candidates:
    """As many weights for each arm as its grid has, proposed by optuna between the smallest and the largest of it."""
    candidates: Candidates = {arm.label: [with_penalty(base, arm, None)] for arm in plan.arms if not arm.weights}
    searches = {arm: _search() for arm in plan.arms if arm.weights}
    for _ in range(0, max((len(arm.weights) for arm in searches), default=0), ROUND):
        asked = [(arm, study, study.ask()) for arm, study in searches.items() for _ in range(_left(arm, candidates))]
        configs = [with_penalty(base, arm, _weight(arm, trial)) for arm, _, trial in asked]
        execute([run for config in configs for run in plan.tuning_configs(config)])  # all at once, to fill the machine
        for (arm, study, trial), config in zip(asked, configs, strict=True):
            study.tell(trial, mean_score(execute(plan.tuning_configs(config))))
            candidates.setdefault(arm.label, []).append(config)
    return candidates


def _left(arm: Arm, candidates: Candidates) -> int:
    return min(ROUND, len(arm.weights) - len(candidates.get(arm.label, [])))


def _search() -> Any:
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise ValueError("the search with optuna needs it: pip install 'gradreg[optuna]', or search the grid.") from error
    logging.getLogger("optuna").setLevel(logging.WARNING)
    return optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=2 * ROUND))


def _weight(arm: Arm, trial: Any) -> float:
    return float(f"{trial.suggest_float('weight', min(arm.weights), max(arm.weights), log=True):.3g}")
