"""Runs an hour on all cores of a CPU: fleets as a study trains them, one a core, against the textbook's loop.

``python benchmarks/cores.py`` times the perceptron of the digits with SpectReg; writes a CSV to ``--out``.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import torch

from gradreg.bench.cases import case_of
from gradreg.bench.methods import PENALTIES
from gradreg.bench.tables import file_name
from gradreg.bench.timing import bench_case
from gradreg.data import load
from gradreg.study.execute import _keep_freed_memory, default_workers
from gradreg.training import Fleet, RunConfig

MEMBERS, STEPS, TRIES = 16, 400, 3


def fleet_step(seed: int) -> float:
    """Seconds of a step of one fleet, median of five rounds."""
    _keep_freed_memory()
    data = load("digits")
    one = RunConfig(
        data="digits",
        fingerprint=data.fingerprint,
        model="mlp",
        train_size=100,
        validation_size=300,
        num_steps=1 + STEPS,
        penalties=(PENALTIES["spect_reg"],),
    )
    members = [replace(one, seed=seed + number) for number in range(MEMBERS)]
    return statistics.median(Fleet(members, data).time_steps()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    cores, case = default_workers("cpu"), case_of("mlp", batch_size=None, num_classes=None, precision="fp32")
    rows = []
    for _ in range(TRIES):
        alone = bench_case(case, [("textbook", "spect_reg")], "cpu", num_steps=200, say=lambda _: None)[0].ms
        with ProcessPoolExecutor(cores, get_context("spawn")) as pool:
            seconds = list(pool.map(fleet_step, range(0, MEMBERS * cores, MEMBERS)))
        together = 1e3 / sum(MEMBERS / second for second in seconds)
        rows.append(
            (MEMBERS, cores, torch.get_num_threads(), round(alone, 4), round(together, 4), round(alone / together, 2))
        )
        print(*rows[-1], flush=True)
    with (given.out / file_name("cpu", "cores", "fp32")).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["members", "fleets", "threads of the textbook", "textbook ms", "fleets ms a run", "x faster"])
        writer.writerows(rows)


if __name__ == "__main__":
    main()
