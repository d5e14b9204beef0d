"""How much better is the best point of a run than its end? Runs of table 3, tested on all test images along the way.

``python results/along_the_way.py`` takes half an hour on two cores; it adds what is missing to
``results/varga2018/along_the_way.csv``.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from gradreg.data import load
from gradreg.papers.varga2018 import experiments
from gradreg.training import run, session

NUM_POINTS = 50
RUNS = [("Baseline", seed) for seed in range(6)] + [(arm, seed) for seed in range(2) for arm in ("SpectReg", "DoubleBack")]
OUT = Path(__file__).parent / "varga2018" / "along_the_way.csv"
HEADER = ("arm", "seed", "at_the_end", "best", "after_steps")


def accuracies(job: tuple[str, int]) -> tuple[str, int, float, float, int]:
    """Of one run: at the end, the best, and after how many steps that was."""
    arm, seed = job
    session.CURVE_POINTS = 10_000  # all of them
    mnist = load("mnist", data_dir=Path("data"))
    config = experiments()["table3"].cell("No CP", arm).config
    config = replace(config, seed=seed, precision="fp32", fingerprint=mnist.fingerprint, num_evaluations=NUM_POINTS)
    curve = run(config, mnist).record.curve
    best = max(range(len(curve["step"])), key=lambda place: curve["accuracy"][place])
    return arm, seed, round(curve["accuracy"][-1], 4), round(curve["accuracy"][best], 4), int(curve["step"][best])


def main() -> None:
    known = set()
    if OUT.is_file():
        with OUT.open(newline="") as file:
            known = {(row["arm"], int(row["seed"])) for row in csv.DictReader(file)}
    with get_context("spawn").Pool() as pool, OUT.open("a", newline="") as file:
        if not known:
            csv.writer(file).writerow(HEADER)
        for row in pool.imap_unordered(accuracies, [job for job in RUNS if job not in known]):
            csv.writer(file).writerow(row)
            file.flush()


if __name__ == "__main__":
    main()
