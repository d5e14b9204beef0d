"""Statistics against scipy, against numbers worked out by hand, and at the edges where formulas divide by zero."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scipy import stats

from gradreg.penalties import JacReg, LabelSmoothing, Penalty, SpectReg, WeightDecay
from gradreg.study.records import RunRecord
from gradreg.study.statistics import (
    Comparison,
    Summary,
    arm_weight,
    bonferroni,
    compare_arms,
    holm,
    paired,
    welch,
)
from gradreg.study.verdict import verdict
from gradreg.training.config import RunConfig

BASELINE = (0.900, 0.910, 0.905, 0.920, 0.895, 0.915)


def a_config(
    arm: str = "baseline", seed: int = 0, *penalties: Penalty, model: str = "mlp", split: str = "test"
) -> RunConfig:
    return RunConfig(
        data="digits",
        fingerprint="f",
        model=model,
        penalties=penalties,
        arm=arm,
        seed=seed,
        train_size=100,
        validation_size=100,
        evaluate_on=split,
    )


def a_record(arm: str, seed: int, value: float | None, metric: str = "accuracy", split: str = "test") -> RunRecord:
    penalties = () if arm == "baseline" else (SpectReg(weight=0.01),)
    metrics = {"diverged": 1.0} if value is None else {metric: value, "diverged": 0.0}
    return RunRecord(config=a_config(arm, seed, *penalties, split=split), metrics=metrics, curve={metric: [], "step": []})


def a_comparison(arms: Mapping[str, Sequence[float | None]], metric: str = "accuracy", first_seed: int = 0) -> Comparison:
    """Arms of runs with seeds 0, 1, ...; those of penalties begin at first_seed."""
    return compare_arms(
        a_record(arm, seed + (0 if arm == "baseline" else first_seed), value, metric)
        for arm, values in arms.items()
        for seed, value in enumerate(values)
    )


def shifted(by: float, wobble: float = 0.001) -> list[float]:
    """The baseline moved, not by exactly the same in every run."""
    return [value + by + wobble * (-1) ** index for index, value in enumerate(BASELINE)]


def test_summary_uses_the_samples_standard_deviation() -> None:
    summary = Summary.of([1.0, 2.0, 3.0, 4.0])
    assert (summary.mean, summary.n, summary.values) == (2.5, 4, (1.0, 2.0, 3.0, 4.0))
    assert summary.std == pytest.approx(math.sqrt(5 / 3))
    assert summary.interval == pytest.approx(stats.t.interval(0.95, 3, 2.5, math.sqrt(5 / 3) / 2))


def test_one_value_has_no_standard_deviation() -> None:
    assert Summary.of([0.5]).std is None
    assert Summary.of([0.5]).interval == (0.5, 0.5)


@pytest.mark.parametrize("seed", range(5))
def test_paired_is_scipys(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0.3, 1, 8), rng.normal(0, 1, 8)
    ours, theirs = paired(a.tolist(), b.tolist()), stats.ttest_rel(a, b)
    assert ours.p_value == pytest.approx(theirs.pvalue)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval(0.95)))
    assert (ours.mean, ours.n, ours.paired) == (pytest.approx(a.mean() - b.mean()), 8, True)


@pytest.mark.parametrize("seed", range(5))
def test_welch_is_scipys(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0.3, 1, 8), rng.normal(0, 5, 12)
    ours, theirs = welch(a.tolist(), b.tolist()), stats.ttest_ind(a, b, equal_var=False)
    assert ours.p_value == pytest.approx(theirs.pvalue)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval(0.95)))
    assert (ours.n, ours.paired) == (8, False)


def test_paired_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, standard error 1/sqrt 3, t = 2 sqrt 3 with 2 degrees of freedom."""
    difference = paired([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    t = 2 * math.sqrt(3)
    assert difference.mean == 2
    assert difference.p_value == pytest.approx(1 - t / math.sqrt(2 + t**2))  # the t distribution's closed form for 2
    assert difference.high - difference.low == pytest.approx(2 * 4.302653 / math.sqrt(3))


@pytest.mark.parametrize("test", [paired, welch])
@pytest.mark.parametrize(("gap", "p_value"), [(0.0, 1.0), (0.25, 0.0)])
def test_without_variance_equal_means_are_certain(test: object, gap: float, p_value: float) -> None:
    difference = test([0.5 + gap] * 3, [0.5] * 3)  # type: ignore[operator]
    assert (difference.mean, difference.low, difference.high, difference.p_value) == (gap, gap, gap, p_value)


def test_rounding_is_no_effect() -> None:
    """0.1 + 0.2 is not 0.3 in floating point, and three times 0.1 has another mean than ten times."""
    assert paired([0.1 + 0.2] * 3, [0.3] * 3).p_value == 1
    assert welch([0.1] * 3, [0.1] * 10).p_value == 1


def test_holm_by_hand() -> None:
    """Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1 is 0.04, 0.06, 0.06, 0.04; never decreasing."""
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_is_never_above_bonferroni() -> None:
    p_values = np.random.default_rng(0).uniform(0, 0.3, 20).tolist()
    assert all(p <= h <= b for p, h, b in zip(p_values, holm(p_values), bonferroni(p_values), strict=True))


def test_pairing_sees_what_spread_over_subsets_hides() -> None:
    same_seeds = a_comparison({"baseline": BASELINE, "SpectReg": shifted(0.004)}).rows[1].difference
    other_seeds = a_comparison({"baseline": BASELINE, "SpectReg": shifted(0.004)}, first_seed=100).rows[1].difference
    assert same_seeds is not None
    assert other_seeds is not None
    assert (same_seeds.paired, other_seeds.paired) == (True, False)
    assert same_seeds.p_value < 0.001 < 0.1 < other_seeds.p_value


def test_only_common_seeds_are_paired() -> None:
    comparison = a_comparison({"baseline": BASELINE, "SpectReg": shifted(0.004)}, first_seed=2)
    difference = comparison.rows[1].difference
    assert difference is not None
    assert (difference.n, difference.paired) == (4, True)
    assert difference.mean == pytest.approx(np.mean(shifted(0.004)[:4]) - np.mean(BASELINE[2:]))


@pytest.mark.parametrize("first_seed", [0, 100], ids=["paired", "unpaired"])
def test_two_runs_are_too_few_for_a_test(first_seed: int) -> None:
    """On 100 test examples two runs often differ by the same number of them: no spread, and p = 0."""
    tested = [
        a_comparison({"baseline": [0.90, 0.92, 0.91][:runs], "SpectReg": [0.91, 0.93, 0.93][:runs]}, first_seed=first_seed)
        for runs in (2, 3)
    ]
    assert [comparison.rows[1].difference is not None for comparison in tested] == [False, True]


def test_comparison_reads_test_runs_alone_and_orders_arms() -> None:
    records = [a_record(arm, seed, 0.9) for arm in ("mine", "JacReg", "SpectReg", "baseline") for seed in (1, 0)]
    comparison = compare_arms([*records, a_record("SpectReg", 7, 0.1, split="validation")])
    assert [row.arm for row in comparison.rows] == ["baseline", "SpectReg", "JacReg", "mine"]
    assert [row.seeds for row in comparison.rows] == [(0, 1)] * 4
    assert [row.weight for row in comparison.rows] == [None, 0.01, 0.01, 0.01]


def test_p_values_are_corrected_for_the_arms_tested() -> None:
    arms = {"baseline": BASELINE, "SpectReg": shifted(0.01), "JacReg": shifted(0.002), "DoubleBack": [None] * 6}
    plain = [row.difference.p_value for row in a_comparison(arms).rows if row.difference]
    corrected = [row.difference.p_corrected for row in a_comparison(arms).rows if row.difference]
    assert corrected == holm(plain)
    assert len(plain) == 2


def test_diverged_runs_are_counted_and_left_out() -> None:
    row = a_comparison({"baseline": BASELINE, "SpectReg": [None, *shifted(0.01)[1:]]}).rows[1]
    assert (row.diverged, row.seeds) == (1, (1, 2, 3, 4, 5))
    assert row.difference is not None
    assert row.difference.n == 5


@pytest.mark.parametrize(
    ("arm", "penalties", "weight"),
    [
        ("SpectReg", (WeightDecay(weight=1), SpectReg(weight=2)), 2),
        ("WeightDecay", (WeightDecay(weight=1), SpectReg(weight=2)), 1),
        ("mine", (WeightDecay(weight=1), SpectReg(weight=2)), 2),
        ("mine", (JacReg(weight=1), LabelSmoothing(weight=0.5)), None),
        ("baseline", (), None),
    ],
)
def test_weight_of_an_arm(arm: str, penalties: tuple[Penalty, ...], weight: float | None) -> None:
    assert arm_weight(a_config(arm, 0, *penalties)) == weight


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="No test run is among"):
        compare_arms([])
    with pytest.raises(ValueError, match="No test run of the baseline 'baseline' is among the arms SpectReg"):
        compare_arms([a_record("SpectReg", 0, 0.9)])
    other_model = RunRecord(config=a_config(model="lenet"), metrics={"accuracy": 0.9})
    with pytest.raises(ValueError, match="several tasks \\(lenet on 100 of digits; mlp on 100 of digits\\)"):
        compare_arms([a_record("baseline", 0, 0.9), other_model])
    other_weight = RunRecord(config=a_config("SpectReg", 0, SpectReg(weight=0.3)), metrics={"accuracy": 0.9})
    with pytest.raises(ValueError, match="several configurations, for instance weights \\[0.01, 0.3\\]"):
        compare_arms([a_record("baseline", 0, 0.9), a_record("SpectReg", 0, 0.9), other_weight])


def test_verdict_of_an_improvement() -> None:
    said = verdict(a_comparison({"baseline": BASELINE, "SpectReg": shifted(0.01), "JacReg": shifted(0, 0.01)}))
    assert said == (
        "SpectReg improves accuracy by 1.0 points (95 % interval 0.9 to 1.1, p < 0.001 after Holm's correction, "
        "6 paired runs). JacReg shows no significant difference."
    )


def test_verdict_of_several_improvements_and_a_loss() -> None:
    arms = {"SpectReg": 0.01, "JacReg": 0.006, "DoubleBack": -0.02}
    said = verdict(a_comparison({"baseline": BASELINE} | {arm: shifted(by) for arm, by in arms.items()}))
    assert said.startswith("SpectReg improves accuracy by 1.0 points (")
    assert "). So does JacReg (0.6 points). DoubleBack lowers accuracy by 2.0 points (95 % interval 1.9 to 2.1," in said


def test_verdict_of_a_loss_alone() -> None:
    said = verdict(a_comparison({"baseline": BASELINE, "SpectReg": shifted(-0.02)}))
    assert said == (
        "No penalty improves accuracy. "
        "SpectReg lowers accuracy by 2.0 points (95 % interval 1.9 to 2.1, p < 0.001, 6 paired runs)."
    )


def test_verdict_of_no_difference() -> None:
    said = verdict(a_comparison({"baseline": BASELINE, "SpectReg": shifted(0.003, 0.01), "JacReg": shifted(-0.01, 0.03)}))
    assert said == (
        "No significant difference: the best arm, SpectReg, is 0.3 points above the baseline, with a 95 % interval of "
        "-0.8 to 1.4 over 6 paired runs (p = 0.98 after Holm's correction). More runs (--runs) would narrow it."
    )


def test_verdict_of_equal_runs() -> None:
    said = verdict(a_comparison({"baseline": BASELINE, "SpectReg": BASELINE}))
    assert "SpectReg equals the baseline" in said
    assert "More runs" not in said, "which would narrow nothing"


@pytest.mark.parametrize("runs", [2, 6])
def test_verdict_of_runs_that_are_equal_in_single_precision(runs: int) -> None:
    rounded = [float(np.float32(value)) for value in BASELINE[:runs]]
    said = verdict(a_comparison({"baseline": BASELINE[:runs], "SpectReg": rounded}))
    assert "SpectReg equals the baseline" in said


def test_verdict_of_regression_gives_the_ratio() -> None:
    errors = [10 * value for value in BASELINE]
    about_half = [error * (0.50 + 0.02 * (index % 2)) for index, error in enumerate(errors)]
    better = verdict(a_comparison({"baseline": errors, "SpectReg": about_half}, "mse"))
    assert better.startswith(
        "SpectReg lowers the mean squared error by 4.45, to 0.51 times the baseline's (95 % interval 4."
    )
    worse = verdict(a_comparison({"baseline": errors, "SpectReg": [2 * e for e in errors]}, "mse"))
    assert "SpectReg raises the mean squared error by 9.07, to 2.00 times the baseline's" in worse
    unsure = verdict(
        a_comparison({"baseline": errors, "SpectReg": [e + (-1) ** i - 0.1 for i, e in enumerate(errors)]}, "mse")
    )
    assert "SpectReg has a mean squared error 0.100 below the baseline's (0.99 times it), with a 95 %" in unsure


def test_the_ratio_is_of_the_runs_that_are_compared() -> None:
    """The arm is worse on every seed that both finished, and diverged on the baseline's worst."""
    errors = [0.1, 0.2, 0.3, 0.4, 10.0]
    worse = [1.5 * error for error in errors[:4]]
    said = verdict(a_comparison({"baseline": errors, "SpectReg": [*worse, None]}, "mse"))
    assert "above the baseline's (1.50 times it)" in said or "to 1.50 times the baseline's" in said


@pytest.mark.parametrize("runs", [1, 2])
def test_verdict_of_few_runs_says_that_no_test_is_possible(runs: int) -> None:
    said = verdict(a_comparison({"baseline": [0.90] * runs, "SpectReg": [0.91] * runs, "JacReg": [0.92] * runs}))
    assert said.startswith("No test is possible with fewer than three finished runs an arm. JacReg is 2.0 points above")


def test_verdict_of_diverged_runs() -> None:
    nothing = [None] * 6
    assert verdict(a_comparison({"baseline": BASELINE, "SpectReg": nothing})).startswith("No verdict: no run with a penalty")
    assert verdict(a_comparison({"baseline": nothing, "SpectReg": BASELINE})).startswith(
        "No verdict: no run of the baseline"
    )
    some = verdict(a_comparison({"baseline": BASELINE, "SpectReg": [None, *shifted(0.01)[1:]]}))
    assert some.endswith("1 of the 6 runs of SpectReg diverged; they are not counted.")


def test_verdict_of_the_baseline_alone() -> None:
    assert verdict(a_comparison({"baseline": BASELINE})).startswith("Only the baseline was run")
