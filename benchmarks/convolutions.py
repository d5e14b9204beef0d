"""The convolutions of the CIFAR ResNet, by how cuDNN chooses its kernels: ``python benchmarks/convolutions.py``.

Each way has a process of its own, since cuDNN keeps what it chose first. Writes one CSV file to ``--out``.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor

from gradreg.bench.tables import file_name
from gradreg.engines.twice.alone import PRODUCTS
from gradreg.engines.twice.geometry import Geometry

BATCH, STEPS = 128, 20
#: Channels in and out, side of the image, stride, and how often the network has it.
LAYERS = [
    (3, 48, 32, 1, 1),
    (48, 48, 32, 1, 6),
    (48, 96, 32, 2, 1),
    (96, 96, 16, 1, 5),
    (96, 192, 16, 2, 1),
    (192, 192, 8, 1, 5),
]
NAMES = {"y": "output", "x": "input", "w": "weight"}


def microseconds(run: Callable[[], Tensor]) -> float:
    """Of one call, in a captured graph of several; the best of three rounds."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(STEPS):
            run()
    times = []
    for _ in range(3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end) / STEPS)
    return min(times)


def timed(tried: bool) -> list[list[object]]:
    """Every layer and each of its three products."""
    torch.backends.cudnn.benchmark = tried
    return list(_rows("tried" if tried else "guessed"))


def _rows(choice: str) -> Iterator[list[object]]:
    for channels, filters, side, stride, number in LAYERS:
        g = Geometry((BATCH, channels, side, side), (filters, channels, 3, 3), (stride,) * 2, (1, 1), (1, 1), 1)
        shapes = {"y": (BATCH, filters, *g.output_size), "x": g.x_shape, "w": g.w_shape}
        made = {
            name: torch.randn(shape, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
            for name, shape in shapes.items()
        }
        for name, others in {"y": "xw", "x": "yw", "w": "yx"}.items():
            operands = [made[other] for other in others]
            us = microseconds(lambda name=name, operands=operands, g=g: PRODUCTS[name](*operands, g))
            yield [choice, f"{channels} to {filters}, {side} x {side} / {stride}", number, NAMES[name], round(us, 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    path = parser.parse_args().out / file_name("cuda", "convolutions", "bf16")
    path.parent.mkdir(parents=True, exist_ok=True)
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool, path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["kernel", "layer", "layers", "product", "us"])
        for rows in pool.imap(timed, [False, True], chunksize=1):
            writer.writerows(rows)


if __name__ == "__main__":
    main()
