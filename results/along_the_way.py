"""How much better is the best point of a run than its end? Baselines of small MNIST, tested on all images along the way.

``python results/along_the_way.py`` takes some 15 minutes on two cores and writes ``results/varga2018/along_the_way.csv``.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from gradreg.data import load
from gradreg.papers.varga2018 import experiments
from gradreg.training import run, session

NUM_RUNS, NUM_POINTS = 10, 50
OUT = Path(__file__).parent / "varga2018" / "along_the_way.csv"


def accuracies(seed: int) -> tuple[int, float, float, int]:
    """Of one baseline: at the end, the best, and after how many steps that was."""
    session.CURVE_POINTS = 10_000  # all of them
    mnist = load("mnist", data_dir=Path("data"))
    config = experiments()["table3"].cell("No CP", "Baseline").config
    config = replace(config, seed=seed, precision="fp32", fingerprint=mnist.fingerprint, num_evaluations=NUM_POINTS)
    curve = run(config, mnist).record.curve
    best = max(range(len(curve["step"])), key=lambda place: curve["accuracy"][place])
    return seed, round(curve["accuracy"][-1], 4), round(curve["accuracy"][best], 4), int(curve["step"][best])


def main() -> None:
    with get_context("spawn").Pool() as pool, OUT.open("w", newline="") as file:
        csv.writer(file).writerow(["seed", "at_the_end", "best", "after_steps"])
        for row in pool.imap(accuracies, range(NUM_RUNS)):
            csv.writer(file).writerow(row)
            file.flush()


if __name__ == "__main__":
    main()
