"""Published and measured side by side: do they agree, and do the claims hold?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.special import stdtr, stdtrit  # type: ignore[import-untyped,unused-ignore]

from gradreg.papers.experiment import Cell, Claim, Experiment, Published, arm_id
from gradreg.study.statistics import CONFIDENCE, SIGNIFICANCE, Summary
from gradreg.training import RunRecord

Verdict = Literal["agrees", "differs", "one run", "not run", "not published"]
#: A cell agrees if the difference is at most so many of its standard errors.
STANDARD_ERRORS = 2
Outcome = Literal["holds", "not significant", "reversed", "differs after all", "not run"]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A cell beside what was measured, in the unit that is printed.

    Attributes:
        cell: what was published.
        ours: of the runs that finished; None without any.
        difference: ours minus the published mean.
        margin: half the width of its 95 % confidence interval.
        standard_error: of the difference.
        diverged: runs that are left out.
    """

    cell: Cell
    ours: Summary | None
    difference: float | None = None
    margin: float | None = None
    standard_error: float | None = None
    diverged: int = 0

    @property
    def verdict(self) -> Verdict:
        if self.ours is None:
            return "not run"
        if self.cell.published is None:
            return "not published"
        if self.difference is None or self.standard_error is None:
            return "one run"  # which has no spread to judge by
        return "agrees" if abs(self.difference) <= STANDARD_ERRORS * self.standard_error else "differs"


@dataclass(frozen=True, kw_only=True)
class Tested:
    """A claim, and what our runs say of it.

    Attributes:
        difference: of the means, positive where it goes the paper's way.
        p_value: of Welch's test, two-sided, corrected for the number of comparisons; None without runs.
    """

    claim: Claim
    difference: float | None
    p_value: float | None

    @property
    def outcome(self) -> Outcome:
        if self.difference is None or self.p_value is None:
            return "not run"
        significant = self.p_value < SIGNIFICANCE
        if self.claim.equal:
            return "differs after all" if significant else "holds"
        if not significant:
            return "not significant"
        return "holds" if self.difference > 0 else "reversed"


def judge(experiment: Experiment, records: Iterable[RunRecord]) -> list[Judged]:
    """Every cell of the experiment beside the runs among these that belong to it."""
    by_arm: dict[str, list[RunRecord]] = {}
    for record in records:
        by_arm.setdefault(arm_id(record.config), []).append(record)
    return [_judged(cell, by_arm.get(arm_id(cell.config), [])) for cell in experiment.cells]


def claims_tested(experiment: Experiment, judged: Sequence[Judged]) -> list[Tested]:
    """Every claim of the experiment against our runs."""
    found = {one.cell.place: one for one in judged}
    return [_tested(claim, found[claim.better], found[claim.worse]) for claim in experiment.claims]


def _judged(cell: Cell, records: Sequence[RunRecord]) -> Judged:
    name, factor = cell.metric.name, cell.metric.factor
    good = [record.metrics for record in records if name in record.metrics and not record.metrics.get("diverged")]
    diverged = len(records) - len(good)
    if not good:
        return Judged(cell=cell, ours=None, diverged=diverged)
    ours = Summary.of([factor * metrics[name] for metrics in good])
    if cell.published is None or ours.std is None:
        return Judged(cell=cell, ours=ours, diverged=diverged)
    error, freedom = _error(cell.published, ours)
    return Judged(
        cell=cell,
        ours=ours,
        difference=ours.mean - cell.published.mean,
        margin=error * float(stdtrit(freedom, (1 + CONFIDENCE) / 2)),
        standard_error=error,
        diverged=diverged,
    )


def _error(published: Published, ours: Summary) -> tuple[float, float]:
    """Standard error of the difference and its degrees of freedom, after Welch.

    Without a published deviation the number is taken for a single run like ours.
    """
    assert ours.std is not None
    own = ours.std**2 / ours.n
    if published.std is None:
        return math.sqrt(own + ours.std**2), ours.n - 1
    return _welch(published.std**2 / published.num_runs, published.num_runs, own, ours.n)


def _welch(first: float, first_n: int, second: float, second_n: int) -> tuple[float, float]:
    """From the squared standard errors of two means to that of their difference, and its degrees of freedom."""
    total = first + second
    if total == 0:
        return 0.0, first_n + second_n - 2
    return math.sqrt(total), total**2 / (first**2 / (first_n - 1) + second**2 / (second_n - 1))


def _tested(claim: Claim, better: Judged, worse: Judged) -> Tested:
    one, other = better.ours, worse.ours
    if one is None or other is None or one.std is None or other.std is None:
        return Tested(claim=claim, difference=None, p_value=None)
    difference = (one.mean - other.mean) * (1 if better.cell.metric.higher_is_better else -1)
    error, freedom = _welch(one.std**2 / one.n, one.n, other.std**2 / other.n, other.n)
    p_value = 2 * float(stdtr(freedom, -abs(difference) / error)) if error else float(difference == 0)
    return Tested(claim=claim, difference=difference, p_value=min(1.0, p_value * claim.comparisons))
