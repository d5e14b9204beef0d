"""Some of the MNIST runs again, each alone, on the CPU and in single precision: do fleets on a GPU give the same?

``python results/on_the_cpu.py`` takes some 45 minutes on two cores, most of them for FrobReg and JacReg, and adds what is
missing to ``results/varga2018/on_the_cpu.csv``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lines import add_missing

from gradreg.data import load
from gradreg.papers.varga2018 import experiments
from gradreg.papers.varga2018.claims import MNIST
from gradreg.training import run

#: Arms of tables 3 and 6, and seeds.
RUNS = [("Baseline", seed) for seed in range(4)] + [(arm, seed) for seed in range(2) for arm in ("SpectReg", "DoubleBack")]
RUNS += [("FrobReg", 0), ("JacReg", 0)]
OUT = Path(__file__).parent / "varga2018" / "on_the_cpu.csv"


def accuracy(job: tuple[str, int]) -> tuple[float, float]:
    """Of one run, and the squared norm of its weights."""
    arm, seed = job
    mnist = load("mnist", data_dir=Path("data"))
    place = ("table6", MNIST) if arm in ("FrobReg", "JacReg") else ("table3", "No CP")
    config = experiments()[place[0]].cell(place[1], arm).config
    config = replace(config, seed=seed, precision="fp32", fingerprint=mnist.fingerprint, num_evaluations=1)
    metrics = run(config, mnist).record.metrics
    return round(metrics["accuracy"], 4), round(metrics["squared_weight_norm"], 2)


def main() -> None:
    add_missing(OUT, ("arm", "seed", "accuracy", "squared_weight_norm"), RUNS, accuracy)


if __name__ == "__main__":
    main()
