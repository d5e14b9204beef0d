"""Several runs of one large network on one GPU: in lanes, as a study trains them, by the number of lanes.

``python benchmarks/lanes.py 1 2 3 4`` times runs of the CIFAR ResNet with SpectReg in bfloat16; writes a CSV to ``--out``.
"""

from __future__ import annotations

import argparse
import csv
import time
from dataclasses import replace
from pathlib import Path

import torch

from gradreg.bench.tables import file_name
from gradreg.bench.timing import noise
from gradreg.penalties import SpectReg
from gradreg.training import RunConfig
from gradreg.training.lanes import Lane
from gradreg.training.run import numerics

WARM_UP, STEPS = 5, 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="+", type=int)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    device, data = torch.device("cuda"), noise((3, 32, 32))
    one = RunConfig(
        data=data.name,
        fingerprint=data.fingerprint,
        model="resnet",
        train_size=256,
        validation_size=0,
        num_steps=100_000,
        batch_size=128,
        optimizer="sgd",
        learning_rate=1e-5,
        penalties=(SpectReg(weight=0.003),),
        precision="bf16",
        num_evaluations=1,
    )
    rows = []
    with numerics("bf16"):
        lanes = [Lane(one, data, device) for _ in range(max(given.numbers))]
        running = [(lane, lane.train(replace(one, seed=seed))) for seed, lane in enumerate(lanes)]
        for number in given.numbers:
            for steps in (WARM_UP, STEPS):
                torch.cuda.synchronize()
                started = time.perf_counter()
                for _ in range(steps):
                    for lane, run in running[:number]:
                        with lane.on_its_stream():
                            next(run)
                torch.cuda.synchronize()
            ms = 1e3 * (time.perf_counter() - started) / STEPS / number
            rows.append((number, round(ms, 3)))
            print(f"{number} lanes: {ms:.3f} ms a step and run", flush=True)
    path = given.out / file_name("cuda", "lanes", "bf16")
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("runs", "ms_per_step_and_run"), *rows])


if __name__ == "__main__":
    main()
