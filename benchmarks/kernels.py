"""Where the time of a compiled step goes, by kind of kernel: ``python benchmarks/kernels.py resnet spect_reg frob_reg``.

Writes one CSV file to ``--out``. A step replays one CUDA graph, so what is between kernels is not counted. cuDNN tries its
kernels, as in the other tables.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from gradreg.bench.cases import case_of
from gradreg.bench.methods import Run, prepare
from gradreg.bench.tables import file_name
from gradreg.bench.timing import fastest_kernels
from gradreg.training.run import matmul_precision

STEPS = 5
#: Kinds of kernels by how their names begin; all others are convolutions and matrix products of libraries.
KINDS = {
    "triton_poi": "element by element",
    "triton_red": "sums",
    "triton_per": "sums",
    "Mem": "copies",
    "void at::": "copies",
}


def kernels(run: Run) -> dict[str, tuple[float, float]]:
    """Milliseconds and number of kernels of one step, by kind."""
    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(STEPS):
            run()
        torch.cuda.synchronize()
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in found.events():
        if event.device_type == DeviceType.CUDA:
            kind = next((kind for start, kind in KINDS.items() if event.name.startswith(start)), "convolutions and products")
            totals[kind][0] += event.device_time_total / 1e3 / STEPS
            totals[kind][1] += 1 / STEPS
    return {kind: (ms, number) for kind, (ms, number) in totals.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("penalties", nargs="+")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    case = case_of(given.model, batch_size=None, num_classes=None, precision="bf16")
    path = given.out / file_name("cuda", f"kernels_{given.model}", "bf16")
    path.parent.mkdir(parents=True, exist_ok=True)
    with matmul_precision("bf16"), fastest_kernels(), path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "penalty", "kind", "ms", "kernels"])
        for penalty in given.penalties:
            method = "plain compiled" if penalty == "plain" else "compiled"
            for kind, (ms, number) in kernels(prepare(method, penalty, case, torch.device("cuda"))).items():
                writer.writerow([case.name, penalty, kind, round(ms, 3), round(number)])
                print(case.name, penalty, kind, round(ms, 3), round(number), flush=True)


if __name__ == "__main__":
    main()
