"""Benchmarks: plain, textbook and every engine side by side in one run."""

from gradreg.bench.cases import CASES, Case
from gradreg.bench.methods import METHODS
from gradreg.bench.timing import Row, bench_case, bench_fleet

__all__ = ["CASES", "METHODS", "Case", "Row", "bench_case", "bench_fleet"]
