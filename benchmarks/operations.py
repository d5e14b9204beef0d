"""Where the time of a step on the CPU goes, by kind of operation: ``python benchmarks/operations.py lenet``.

Writes one CSV file to ``--out``: a plain step, the textbook's with SpectReg, and that of ``double_backward``.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from gradreg.bench.cases import Case, case_of
from gradreg.bench.methods import Run, prepare
from gradreg.bench.tables import file_name

STEPS = 100
METHODS = {"plain": "", "textbook": "spect_reg", "double_backward": "spect_reg"}


def kind_of(event: Any, num_channels: int) -> str:
    """What an operation does; of gradients of convolutions, whether they are the first layer's."""
    if event.key == "aten::convolution_backward":
        of_input = event.input_shapes[1]
        return "gradients of the first convolution" if of_input[1] == num_channels else "gradients of the other convolutions"
    if "convolution" in event.key:
        return "convolutions"
    return "pooling" if "max_pool" in event.key else "all else"


def operations(run: Run, case: Case) -> dict[str, tuple[float, float]]:
    """Milliseconds and calls of one step, by kind."""
    for _ in range(STEPS // 5):
        run()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        for _ in range(STEPS):
            run()
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in found.key_averages(group_by_input_shape=True):
        kind = kind_of(event, case.input_shape[0])
        totals[kind][0] += event.self_cpu_time_total / 1e3 / STEPS
        totals[kind][1] += event.count / STEPS
    return {kind: (ms, calls) for kind, (ms, calls) in sorted(totals.items(), key=lambda entry: -entry[1][0])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    case = case_of(given.model, batch_size=None, num_classes=None, precision="fp32")
    path = given.out / file_name("cpu", f"operations_{given.model}", "fp32")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "method", "kind", "ms", "calls"])
        for method, penalty in METHODS.items():
            for kind, (ms, calls) in operations(prepare(method, penalty, case, torch.device("cpu")), case).items():
                writer.writerow([case.name, method, kind, round(ms, 3), round(calls)])


if __name__ == "__main__":
    main()
