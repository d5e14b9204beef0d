"""Seconds of ``gradreg compare`` as it comes, from nothing: ``python benchmarks/compare.py``; writes a CSV to ``--out``."""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gradreg.bench.tables import file_name
from gradreg.study.execute import default_workers

TRIES = 3


def seconds() -> tuple[float, int]:
    """Of one comparison in an empty folder, and its number of runs."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "gradreg", "compare"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        taken = time.perf_counter() - started
        return taken, sum("config" in json.loads(path.read_text()) for path in Path(folder).rglob("records/*.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    path = parser.parse_args().out / file_name("cpu", "compare", "fp32")
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["cores", "runs", "seconds", "load before"])
        for _ in range(TRIES):
            load = os.getloadavg()[0]
            taken, runs = seconds()
            writer.writerow([default_workers("cpu"), runs, round(taken, 1), round(load, 1)])


if __name__ == "__main__":
    main()
