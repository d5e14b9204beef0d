"""Is the difference real? Means, intervals and corrected p-values of the arms of a study."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import stdtr, stdtrit  # type: ignore[import-untyped,unused-ignore]

from gradreg.penalties import PENALTIES, WeightDecay
from gradreg.study.plan import ROUNDING
from gradreg.study.records import RunRecord
from gradreg.training.config import RunConfig

CONFIDENCE = 0.95
#: Corrected p-values below this are called significant.
SIGNIFICANCE = 0.05
#: Pairs, or runs an arm, that a test needs: two differences of accuracies are often equal by chance, and p is 0 then.
FEWEST = 3

MetricName = Literal["accuracy", "mse"]
Correction = Literal["holm", "bonferroni"]


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation (of the sample, ddof 1; None for a single value) of an arm's runs.

    >>> Summary.of([1.0, 2.0, 3.0])
    Summary(mean=2.0, std=1.0, n=3, values=(1.0, 2.0, 3.0))
    """

    mean: float
    std: float | None
    n: int
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        std = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(mean=float(np.mean(values)), std=std, n=len(values), values=tuple(values))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the mean; the mean itself for a single value."""
        margin = 0.0 if self.std is None else t_quantile(self.n - 1) * self.std / math.sqrt(self.n)
        return self.mean - margin, self.mean + margin


@dataclass(frozen=True, kw_only=True)
class Difference:
    """An arm's mean minus the baseline's, with its 95 % confidence interval.

    Attributes:
        mean: the difference.
        low: lower end of the interval, not corrected for the number of arms.
        high: its upper end.
        p_value: two-sided, of the hypothesis that the difference is 0.
        p_corrected: the same, corrected for the number of arms tested.
        n: pairs, or the arm's runs where they are not paired.
        paired: whether the runs were compared seed by seed.
    """

    mean: float
    low: float
    high: float
    p_value: float
    p_corrected: float
    n: int
    paired: bool

    @property
    def significant(self) -> bool:
        return self.p_corrected < SIGNIFICANCE


@dataclass(frozen=True, kw_only=True)
class Row:
    """One arm of a comparison.

    Attributes:
        arm: its label.
        seeds: of the runs that finished, in the order of ``summary.values``.
        summary: of those runs; None if all diverged.
        difference: to the baseline; None for the baseline itself, and where there are too few runs for a test.
        weight: of the arm's penalty, as chosen on validation; None for the baseline.
        diverged: how many runs diverged. They are in neither the summary nor the difference.
    """

    arm: str
    seeds: tuple[int, ...]
    summary: Summary | None
    difference: Difference | None
    weight: float | None
    diverged: int


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All arms against the baseline, on test. The baseline is the first row."""

    metric: MetricName
    baseline: str
    correction: Correction
    rows: tuple[Row, ...]

    @property
    def higher_is_better(self) -> bool:
        return self.metric == "accuracy"

    @property
    def baseline_row(self) -> Row:
        return self.rows[0]

    @property
    def penalised(self) -> tuple[Row, ...]:
        return self.rows[1:]

    @property
    def best(self) -> Row | None:
        """The row of the best mean; None if all runs diverged."""
        sign = 1 if self.higher_is_better else -1
        finished = [(sign * row.summary.mean, row) for row in self.rows if row.summary]
        return max(finished, key=lambda pair: pair[0])[1] if finished else None


def t_quantile(freedom: float) -> float:
    """How many standard errors the 95 % interval reaches to either side.

    >>> round(t_quantile(9), 3)
    2.262
    """
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def welch(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Mean of a minus mean of b, of unequal variances, with the degrees of freedom of Welch and Satterthwaite."""
    squared_errors = np.var(a, ddof=1) / len(a), np.var(b, ddof=1) / len(b)
    total = sum(squared_errors)
    shares = [float(one / total) if total else 0.5 for one in squared_errors]
    freedom = 1 / (shares[0] ** 2 / (len(a) - 1) + shares[1] ** 2 / (len(b) - 1))
    scale = float(np.abs([*a, *b]).max())
    tested = _t_test(float(np.mean(a) - np.mean(b)), math.sqrt(total), freedom, scale)
    return replace(tested, n=len(a))


def paired(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Mean of the differences of a to b, run by run: what the runs of a pair share cancels."""
    differences = np.subtract(a, b)
    error = float(np.std(differences, ddof=1)) / math.sqrt(len(differences))
    tested = _t_test(float(differences.mean()), error, len(differences) - 1, float(np.abs([*a, *b]).max()))
    return replace(tested, n=len(differences), paired=True)


def _t_test(mean: float, error: float, freedom: float, scale: float) -> Difference:
    mean, error = (0.0 if abs(x) <= ROUNDING * scale else x for x in (mean, error))
    margin = t_quantile(freedom) * error
    p_value = 2 * float(stdtr(freedom, -abs(mean) / error)) if error else float(mean == 0)
    return Difference(
        mean=mean, low=mean - margin, high=mean + margin, p_value=p_value, p_corrected=p_value, n=0, paired=False
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected for their number, step by step: the smallest times m, the next times m - 1, never decreasing.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, least = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = least
    return corrected


def bonferroni(p_values: Sequence[float]) -> list[float]:
    """Each times their number.

    >>> bonferroni([0.01, 0.5])
    [0.02, 1.0]
    """
    return [min(1.0, len(p_values) * p) for p in p_values]


def compare_arms(records: Iterable[RunRecord], baseline: str = "baseline", *, correction: Correction = "holm") -> Comparison:
    """Every arm against the baseline on test: paired where at least three seeds are shared, else Welch's test."""
    finals = [record for record in records if record.config.evaluate_on == "test"]
    _check_one_task(finals)
    metric = metric_of(finals)
    arms = {arm: [record for record in finals if record.config.arm == arm] for arm in arm_order(finals, baseline)}
    _check_arms(arms, baseline)
    scores = {arm: _scores(runs, metric) for arm, runs in arms.items()}
    differences = _corrected(
        {arm: _difference(scores[arm], scores[baseline]) for arm in arms if arm != baseline},
        {"holm": holm, "bonferroni": bonferroni}[correction],
    )
    rows = tuple(_row(arm, runs, scores[arm], differences.get(arm), baseline) for arm, runs in arms.items())
    return Comparison(metric=metric, baseline=baseline, correction=correction, rows=rows)


def metric_of(records: Sequence[RunRecord]) -> MetricName:
    """Accuracy for classification, mean squared error for regression; diverged runs may have it in their curve only."""
    names = {name for record in records for name in (*record.metrics, *record.curve)}
    return "mse" if "mse" in names and "accuracy" not in names else "accuracy"


def arm_order(records: Iterable[RunRecord], baseline: str) -> list[str]:
    """The baseline, then penalties in the order of gradreg's list, then other labels by name."""
    known = [kind.__name__ for kind in PENALTIES.values()]
    rank = {baseline: -1} | {name: known.index(name) for name in known if name != baseline}
    return sorted({record.config.arm for record in records}, key=lambda arm: (rank.get(arm, len(known)), arm))


def arm_weight(config: RunConfig) -> float | None:
    """The weight of the penalty the arm is named after, or else of its only penalty that is no weight decay."""
    namesakes = [p for p in config.penalties if type(p).__name__ == config.arm]
    others = [p for p in config.penalties if not isinstance(p, WeightDecay)]
    found = namesakes or others
    return found[0].weight if len(found) == 1 else None


def diverged(record: RunRecord, metric: str) -> bool:
    """Whether the run gave no result."""
    return bool(record.metrics.get("diverged")) or not math.isfinite(record.metrics.get(metric, math.nan))


def _row(arm: str, runs: Sequence[RunRecord], scores: dict[int, float], difference: Difference | None, baseline: str) -> Row:
    return Row(
        arm=arm,
        seeds=tuple(scores),
        summary=Summary.of(list(scores.values())) if scores else None,
        difference=difference,
        weight=None if arm == baseline else arm_weight(runs[0].config),
        diverged=len({run.config.seed for run in runs} - set(scores)),
    )


def _scores(runs: Iterable[RunRecord], metric: str) -> dict[int, float]:
    by_seed = sorted((run.config.seed, run.metrics[metric]) for run in runs if not diverged(run, metric))
    return dict(by_seed)


def _difference(arm: dict[int, float], baseline: dict[int, float]) -> Difference | None:
    shared = [seed for seed in arm if seed in baseline]
    if len(shared) >= FEWEST:
        return paired([arm[seed] for seed in shared], [baseline[seed] for seed in shared])
    if min(len(arm), len(baseline)) >= FEWEST:
        return welch(list(arm.values()), list(baseline.values()))
    return None


def _corrected(
    differences: dict[str, Difference | None], correct: Callable[[Sequence[float]], list[float]]
) -> dict[str, Difference]:
    tested = {arm: difference for arm, difference in differences.items() if difference}
    p_corrected = correct([difference.p_value for difference in tested.values()])
    return {arm: replace(d, p_corrected=p) for (arm, d), p in zip(tested.items(), p_corrected, strict=True)}


def _check_arms(arms: dict[str, list[RunRecord]], baseline: str) -> None:
    if baseline not in arms:
        raise ValueError(
            f"No test run of the baseline {baseline!r} is among the arms {', '.join(arms)}: "
            "there is nothing to compare with. Run `gradreg compare`, or name one of these arms as the baseline."
        )
    for arm, runs in arms.items():
        if len({replace(run.config, seed=0).key for run in runs}) > 1:
            raise ValueError(
                f"The test runs of arm {arm!r} have several configurations, for instance weights "
                f"{sorted({arm_weight(run.config) or 0.0 for run in runs})}: their mean would mean nothing. "
                "Pass the records of one study at a time."
            )


def _check_one_task(finals: Sequence[RunRecord]) -> None:
    if not finals:
        raise ValueError("No test run is among the records, so there is nothing to compare. Finish `gradreg compare` first.")
    tasks = {(r.config.data, r.config.fingerprint, r.config.model, r.config.train_size) for r in finals}
    if len(tasks) > 1:
        described = "; ".join(f"{model} on {size} of {data}" for data, _, model, size in sorted(tasks))
        raise ValueError(f"The records are of several tasks ({described}): pass those of one at a time.")
