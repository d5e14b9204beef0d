"""The answer in a sentence or two."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence, Set

from gradreg.study.plan import ROUNDING
from gradreg.study.statistics import Comparison, Difference, Row

METRIC_NAMES = {"accuracy": "accuracy", "mse": "the mean squared error"}
CORRECTIONS = {"holm": "Holm's", "bonferroni": "Bonferroni's"}


def verdict(comparison: Comparison) -> str:
    """What the comparison found, as a person would say it, and how sure that is."""
    return " ".join([*_finding(comparison), *_divergence(comparison)])


def p_text(p_value: float) -> str:
    """A p-value as it is printed.

    >>> p_text(0.0042), p_text(0.27), p_text(1e-9)
    ('p = 0.004', 'p = 0.27', 'p < 0.001')
    """
    if p_value < 0.001:
        return "p < 0.001"
    return f"p = {p_value:.2f}" if p_value >= 0.1 else f"p = {p_value:.3f}"


def _finding(comparison: Comparison) -> list[str]:
    tested = {row.arm: row.difference for row in comparison.penalised if row.difference}
    if comparison.baseline_row.summary is None:
        return ["No verdict: no run of the baseline finished."]
    if not comparison.penalised:
        return ["Only the baseline was run: there is nothing to compare it with."]
    if not any(row.summary for row in comparison.penalised):
        return ["No verdict: no run with a penalty finished. Try smaller weights or a smaller learning rate."]
    if not tested:
        return _untested(comparison)
    return _significant(comparison, tested) or _insignificant(comparison, tested)


def _untested(comparison: Comparison) -> list[str]:
    rows = [row for row in comparison.penalised if row.summary]
    best = max(rows, key=lambda row: _gain(comparison, _gap(comparison, row)))
    return [
        "No test is possible with fewer than three finished runs an arm.",
        f"{_place(comparison, best, _gap(comparison, best))}, which may be chance: use more runs (--runs), better ten.",
    ]


def _significant(comparison: Comparison, tested: dict[str, Difference]) -> list[str]:
    found = {arm: difference for arm, difference in tested.items() if difference.significant}
    ranked = sorted(found, key=lambda arm: -_gain(comparison, found[arm].mean))
    better = [arm for arm in ranked if _gain(comparison, found[arm].mean) > 0]
    worse = [arm for arm in reversed(ranked) if arm not in better]
    nobody = [f"No penalty improves {METRIC_NAMES[comparison.metric]}."] if worse and not better else []
    changes = [sentence for arms in (better, worse) for sentence in _changes(comparison, found, arms)]
    return nobody + changes + _the_rest(found, [arm for arm in tested if arm not in found])


def _changes(comparison: Comparison, found: dict[str, Difference], arms: Sequence[str]) -> list[str]:
    """The first arm in full, the others by their size."""
    others = [f"{arm} ({_amount(comparison, abs(found[arm].mean), found[arm])})" for arm in arms[1:]]
    also = [f"So {'does' if len(others) == 1 else 'do'} {joined(others)}."] if others else []
    return [f"{arm} {_change(comparison, arm, found[arm])}." for arm in arms[:1]] + also


def _the_rest(found: dict[str, Difference], rest: Sequence[str]) -> list[str]:
    if not found or not rest:
        return []
    subject = f"{rest[0]} shows" if len(rest) == 1 else "The other penalties show"
    return [f"{subject} no significant difference."]


def _insignificant(comparison: Comparison, tested: dict[str, Difference]) -> list[str]:
    arm = max(tested, key=lambda arm: _gain(comparison, tested[arm].mean))
    difference = tested[arm]
    row = next(row for row in comparison.rows if row.arm == arm)
    place = _place(comparison, row, difference.mean, f"the best arm, {arm}," if len(tested) > 1 else None)
    interval = f"a 95 % interval of {_interval(comparison, difference.low, difference.high)}"
    certainty = f"{interval} over {_runs(difference)} ({_corrected_p(comparison, difference)})"
    advice = ["More runs (--runs) would narrow it."] if difference.low < difference.high else []
    return [f"No significant difference: {place}, with {certainty}.", *advice]


def _divergence(comparison: Comparison) -> list[str]:
    return [
        f"{row.diverged} of the {row.diverged + len(row.seeds)} runs of {row.arm} diverged; they are not counted."
        for row in comparison.rows
        if row.diverged
    ]


def _change(comparison: Comparison, arm: str, difference: Difference) -> str:
    """For instance: improves accuracy by 1.0 points (95 % interval 0.4 to 1.6, p = 0.004 ..., 10 paired runs)."""
    low, high = sorted(math.copysign(end, end * difference.mean) for end in (difference.low, difference.high))
    rises = "improves" if comparison.higher_is_better else "raises"
    verb = rises if difference.mean > 0 else "lowers"
    size = _amount(comparison, abs(difference.mean), difference)
    ratio = _ratio(comparison, arm)
    result = f", to {ratio} the baseline's" if ratio else ""
    return (
        f"{verb} {METRIC_NAMES[comparison.metric]} by {size}{result} "
        f"(95 % interval {_interval(comparison, low, high)}, {_corrected_p(comparison, difference)}, {_runs(difference)})"
    )


def _place(comparison: Comparison, row: Row, gap: float, name: str | None = None) -> str:
    """For instance: JacReg is 0.3 points above the baseline."""
    name = name or row.arm
    if gap == 0:
        return f"{name} equals the baseline"
    side, size = "above" if gap > 0 else "below", _amount(comparison, abs(gap), row.difference)
    if comparison.metric == "accuracy":
        return f"{name} is {size} {side} the baseline"
    ratio = _ratio(comparison, row.arm)
    return f"{name} has a mean squared error {size} {side} the baseline's{f' ({ratio} it)' if ratio else ''}"


def _gap(comparison: Comparison, row: Row) -> float:
    assert row.summary is not None
    assert comparison.baseline_row.summary is not None
    baseline = comparison.baseline_row.summary.mean
    gap = row.summary.mean - baseline
    return 0.0 if abs(gap) <= ROUNDING * abs(baseline) else gap


def _gain(comparison: Comparison, gap: float) -> float:
    return gap if comparison.higher_is_better else -gap


def _ratio(comparison: Comparison, arm: str) -> str | None:
    """Errors have no natural unit: their ratio says more than their difference. Of the same runs as that."""
    if comparison.metric == "accuracy":
        return None
    row = next(row for row in comparison.rows if row.arm == arm)
    paired = row.difference is not None and row.difference.paired
    seeds = {*row.seeds} & {*comparison.baseline_row.seeds} if paired else {*row.seeds, *comparison.baseline_row.seeds}
    of_arm, of_baseline = (_mean_over(seeds, one) for one in (row, comparison.baseline_row))
    return f"{of_arm / of_baseline:.2f} times" if of_baseline else None


def _mean_over(seeds: Set[int], row: Row) -> float:
    assert row.summary is not None
    return statistics.fmean(value for seed, value in zip(row.seeds, row.summary.values, strict=True) if seed in seeds)


def _amount(comparison: Comparison, value: float, difference: Difference | None) -> str:
    if comparison.metric == "mse":
        return f"{value:#.3g}"
    narrow = difference is not None and difference.high - difference.low < 0.002
    return f"{100 * value:.{2 if narrow or value < 0.0005 else 1}f} points"


def _interval(comparison: Comparison, low: float, high: float) -> str:
    if comparison.metric == "mse":
        return f"{low:#.3g} to {high:#.3g}"
    digits = 2 if high - low < 0.002 else 1
    return f"{_unsigned_zero(100 * low, digits)} to {_unsigned_zero(100 * high, digits)}"


def _unsigned_zero(value: float, digits: int) -> str:
    return f"{round(value, digits) + 0.0:.{digits}f}"


def _corrected_p(comparison: Comparison, difference: Difference) -> str:
    tested = sum(row.difference is not None for row in comparison.penalised)
    correction = f" after {CORRECTIONS[comparison.correction]} correction" if tested > 1 else ""
    return p_text(difference.p_corrected) + correction


def _runs(difference: Difference) -> str:
    return f"{difference.n} {'paired' if difference.paired else 'unpaired'} runs"


def joined(names: Sequence[str]) -> str:
    """A list as it is said.

    >>> joined(["A", "B", "C"])
    'A, B and C'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
