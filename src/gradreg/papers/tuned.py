"""The same experiments with weights of our own choice, by validation data.

One weight of each cell is chosen: of its first penalty that is no weight decay. All else stays as the paper has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gradreg.papers.experiment import Cell, Experiment, arm_id
from gradreg.penalties import WeightDecay
from gradreg.study.plan import FIRST_TUNING_SEED, default_weights, mean_score
from gradreg.training import RunConfig, RunRecord

#: Validation runs for each weight.
NUM_RUNS = 3


def tuning_of(experiment: Experiment) -> Experiment:
    """The validation runs: every cell with a penalty at each weight of the grid, a row a cell and a column a weight."""
    cells = [
        Cell(row=" / ".join(cell.place), column=f"{config.penalties[_place(config)].weight:g}", config=config)
        for cell in _distinct(experiment)
        for config in candidates(cell)
    ]
    title = f"Weights tried on validation data: {experiment.title}"
    return Experiment(
        id=f"{experiment.id}_tuning", title=title, where=experiment.where, cells=tuple(cells), num_runs=NUM_RUNS
    )


def can_be_tuned(experiment: Experiment) -> bool:
    """Not where the weight is what rows or columns are about, so that its cells would all become one.

    Nor where no data are set aside to choose it on.
    """
    arms = {arm_id(cell.config) for cell in experiment.cells if _tunable(cell.config)}
    return 0 < len(arms) == len(_distinct(experiment))


def candidates(cell: Cell) -> list[RunConfig]:
    """The cell's config at each weight of the grid, on validation data; none without a penalty to tune."""
    if not _tunable(cell.config):
        return []
    place = _place(cell.config)
    penalty = cell.config.penalties[place]
    base = replace(cell.config, seed=FIRST_TUNING_SEED, evaluate_on="validation")
    return [
        replace(base, penalties=(*base.penalties[:place], replace(penalty, weight=weight), *base.penalties[place + 1 :]))
        for weight in default_weights(penalty.name)
    ]


def tuned(experiment: Experiment, records: Iterable[RunRecord]) -> Experiment:
    """The experiment with the weights that were best in these validation runs; cells that were not tuned are left out."""
    by_arm: dict[str, list[RunRecord]] = {}
    for record in records:
        by_arm.setdefault(arm_id(record.config), []).append(record)

    def best(cell: Cell) -> Cell | None:
        tried = [config for config in candidates(cell) if arm_id(config) in by_arm]
        if not tried:
            return None if _tunable(cell.config) else cell
        chosen = max(tried, key=lambda config: mean_score(by_arm[arm_id(config)]))
        return replace(cell, config=replace(chosen, seed=0, evaluate_on=cell.config.evaluate_on))

    cells = tuple(found for cell in experiment.cells if (found := best(cell)) is not None)
    places = {cell.place for cell in cells}
    claims = tuple(claim for claim in experiment.claims if {claim.better, claim.worse} <= places)
    return replace(experiment, title=f"{experiment.title}, weights tuned on validation data", cells=cells, claims=claims)


def _tunable(config: RunConfig) -> bool:
    return config.validation_size > 0 and any(not isinstance(penalty, WeightDecay) for penalty in config.penalties)


def _place(config: RunConfig) -> int:
    return next(place for place, penalty in enumerate(config.penalties) if not isinstance(penalty, WeightDecay))


def _distinct(experiment: Experiment) -> list[Cell]:
    """One cell for each arm up to the weight that is tuned."""
    found: dict[str, Cell] = {}
    for cell in experiment.cells:
        if tried := candidates(cell):
            found.setdefault(arm_id(tried[0]), cell)
    return list(found.values())
