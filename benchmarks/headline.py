"""The figures of docs/benchmarks.md: run on one GPU as ``python benchmarks/headline.py resnet lenet_fleet ...``.

Each part writes one CSV file to ``--out`` when it is done.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import torch

from gradreg.bench import Row, bench_case
from gradreg.bench.cases import case_of
from gradreg.bench.tables import file_name, table
from gradreg.cli.bench import fleets, save
from gradreg.training.run import matmul_precision

PLAIN = [("plain", ""), ("plain compiled", ""), ("textbook", "spect_reg")]
#: Method and penalty of each line, by part: a model, or what MODELS names.
PARTS = {
    "resnet": [
        *PLAIN,
        ("compiled", "spect_reg"),
        ("compiled", "double_back"),
        ("compiled forward by difference", "spect_reg"),
        ("compiled", "spect_reg every second step"),
    ],
    "resnet_frob": [
        ("plain compiled", ""),
        ("compiled", "frob_reg"),
        ("compiled", "frob_reg in chunks of 2"),
        ("compiled", "frob_reg row by row"),
    ],
    "lenet": [
        *PLAIN,
        ("double_backward", "spect_reg"),
        ("compiled", "spect_reg"),
        ("compiled forward by difference", "spect_reg"),
    ],
    "resnet18": [*PLAIN, ("compiled", "spect_reg"), ("compiled forward by difference", "spect_reg")],
    "transformer": [
        *PLAIN,
        ("compiled", "spect_reg"),
        ("compiled finite_difference", "spect_reg"),
        ("compiled forward by difference", "spect_reg"),
    ],
    "resnet_by_batch_size": [("plain compiled", ""), ("textbook", "spect_reg"), ("compiled", "spect_reg")],
    "lenet_by_classes": [("plain compiled", ""), *(("compiled", name) for name in ("spect_reg", "frob_reg", "jac_reg"))],
}
MODELS = {"resnet_frob": "resnet", "resnet_by_batch_size": "resnet", "lenet_by_classes": "lenet"}
#: Batch sizes and numbers of classes of a part, where they are not the model's own.
BATCH_SIZES = {"resnet_by_batch_size": [32, 128, 512]}
CLASSES = {"lenet_by_classes": [2, 10, 50]}
PRECISION = {"lenet": "tf32", "lenet_by_classes": "tf32", "lenet_fleet": "tf32", "lenet_fleet_bf16": "bf16"}
#: Model, sizes and penalties of each fleet.
FLEETS = {
    "lenet_fleet": ("lenet", [16, 64, 256], ["", "spect_reg"]),
    "lenet_fleet_bf16": ("lenet", [256], ["", "spect_reg"]),
    "resnet_fleet": ("resnet", [1, 2, 4], ["spect_reg"]),
}


def run(part: str, device: str) -> list[Row]:
    precision = PRECISION.get(part, "bf16")
    with matmul_precision(precision):
        if part in FLEETS:
            model, sizes, penalties = FLEETS[part]
            return fleets(model, sizes, penalties, device, precision, steps=20)
        model, rows = MODELS.get(part, part), []
        for size, classes in itertools.product(BATCH_SIZES.get(part, [None]), CLASSES.get(part, [None])):
            case = case_of(model, batch_size=size, num_classes=classes, precision=precision)
            rows += bench_case(case, PARTS[part], device, say=lambda text: print(text, flush=True))
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=[*PARTS, *FLEETS])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for part in given.parts:
        rows = run(part, device)
        save(rows, given.out / file_name(device, part.removesuffix("_bf16"), PRECISION.get(part, "bf16")))
        print(table(rows), flush=True)


if __name__ == "__main__":
    main()
