"""Many runs: configs in, records out, statistics from records."""

from gradreg.study.compare import Outcome, StudyFolder, compare, tune
from gradreg.study.execute import Executor
from gradreg.study.plan import Arm, Plan
from gradreg.study.records import Store
from gradreg.study.statistics import Comparison, compare_arms
from gradreg.study.verdict import verdict

__all__ = [
    "Arm",
    "Comparison",
    "Executor",
    "Outcome",
    "Plan",
    "Store",
    "StudyFolder",
    "compare",
    "compare_arms",
    "tune",
    "verdict",
]
