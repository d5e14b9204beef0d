"""How the study was done, read from its records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gradreg.study.records import RunRecord
from gradreg.study.statistics import Comparison, arm_weight


def facts(records: Sequence[RunRecord], comparison: Comparison) -> dict[str, str]:
    """What a reader needs to repeat or to doubt it: a value for each heading."""
    finals = [record for record in records if record.config.evaluate_on == "test"]
    found = {
        "Dataset": _dataset(finals),
        "Training examples": _training_examples(finals),
        "Model": _distinct(record.config.model for record in finals),
        "Optimizer": _distinct(_optimizer(record) for record in finals),
        "Shared penalties": _shared_penalties(finals, comparison),
        "Tuning": _tuning([record for record in records if record.config.evaluate_on == "validation"], comparison),
        "Final runs": _final_runs(comparison),
        "Statistics": _statistics(comparison),
    }
    return {name: value for name, value in (found | _machine(records)).items() if value}


def _dataset(finals: Sequence[RunRecord]) -> str:
    config = finals[0].config
    return f"{config.data} (fingerprint {config.fingerprint[:12]})"


def _training_examples(finals: Sequence[RunRecord]) -> str:
    config = finals[0].config
    drawn = "equally many of each class" if config.balanced else "at random"
    held_out = f"; {config.validation_size} others are set aside for validation" if config.validation_size else ""
    return f"{config.train_size}, drawn {drawn} by the seed{held_out}"


def _optimizer(record: RunRecord) -> str:
    config = record.config
    dropout = "" if config.dropout is None else f", dropout {config.dropout:g}"
    return (
        f"{config.optimizer}, learning rate {config.learning_rate:g} (divided by 10 at 50 % and 75 % of the steps), "
        f"{config.num_steps} steps of {config.batch_size} examples{dropout}, {config.precision}"
    )


def _shared_penalties(finals: Sequence[RunRecord], comparison: Comparison) -> str:
    baseline = next(record.config for record in finals if record.config.arm == comparison.baseline)
    return ", ".join(repr(penalty) for penalty in baseline.penalties)


def _tuning(tuning: Sequence[RunRecord], comparison: Comparison) -> str:
    if not tuning:
        return "none: the weights were given"
    per_arm = _distinct(_tried(r for r in tuning if r.config.arm == row.arm) for row in comparison.penalised)
    seeds = sorted({record.config.seed for record in tuning})
    return (
        f"{per_arm} weights an arm, each with {len(seeds)} runs on validation data (seeds {_ranges(seeds)}); "
        "the best mean decides. Test data took no part."
    )


def _tried(runs: Iterable[RunRecord]) -> int:
    return len({arm_weight(run.config) for run in runs})


def _final_runs(comparison: Comparison) -> str:
    seeds = sorted({seed for row in comparison.rows for seed in row.seeds})
    counts = _distinct(len(row.seeds) for row in comparison.rows)
    paired = any(row.difference.paired for row in comparison.rows if row.difference)
    same = "; the same seed gives every arm the same training examples and initial weights" if paired else ""
    return f"{counts} an arm on test data, seeds {_ranges(seeds)}{same}"


def _statistics(comparison: Comparison) -> str:
    tests = {row.difference.paired for row in comparison.rows if row.difference}
    kinds = " and ".join(name for paired, name in ((True, "paired t-test"), (False, "Welch's t-test")) if paired in tests)
    if not kinds:
        return ""
    tested = sum(row.difference is not None for row in comparison.rows)
    name = comparison.correction.capitalize()
    corrected = f"; p-values after {name}'s correction for {tested} comparisons, intervals without it" if tested > 1 else ""
    return f"{kinds} against {comparison.baseline}, two-sided{corrected}"


def _machine(records: Sequence[RunRecord]) -> dict[str, str]:
    def values(name: str) -> str:
        return _distinct(r.provenance[name] for r in records if r.provenance.get(name) is not None)

    versions = ", ".join(f"{name} {values(name)}" for name in ("gradreg", "torch", "numpy", "python") if values(name))
    threads = f", threads a run: {values('num_threads')}" if values("num_threads") else ""
    return {
        "Versions": versions + (f", git {values('git')}" if values("git") else ""),
        "Device": values("device") + threads if values("device") else "",
        "Time": _time(records),
    }


def _time(records: Sequence[RunRecord]) -> str:
    seconds = sum(record.provenance.get(name, 0.0) for record in records for name in ("train_s", "evaluate_s"))
    finished = max((str(record.provenance.get("finished", "")) for record in records), default="")
    ended = f"; the last ended {finished}" if finished else ""
    return f"{_duration(seconds)} for {len(records)} runs{ended}" if seconds else ""


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def _distinct(values: Iterable[Any]) -> str:
    return " or ".join(dict.fromkeys(str(value) for value in values))


def _ranges(seeds: Sequence[int]) -> str:
    """Runs of consecutive numbers shortened.

    >>> _ranges([0, 1, 2, 7])
    '0-2, 7'
    """
    groups: list[list[int]] = []
    for seed in seeds:
        if groups and seed == groups[-1][-1] + 1:
            groups[-1].append(seed)
        else:
            groups.append([seed])
    return ", ".join(str(group[0]) if len(group) == 1 else f"{group[0]}-{group[-1]}" for group in groups)
