"""``gradreg bench``."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

import torch
import typer

from gradreg.bench import METHODS, Row, bench_case, bench_fleet
from gradreg.bench.cases import CASES, case_of
from gradreg.bench.methods import PENALTIES
from gradreg.bench.tables import file_name, table
from gradreg.bench.timing import random_images
from gradreg.data import load
from gradreg.training import RunConfig
from gradreg.training.provenance import provenance
from gradreg.training.run import matmul_precision


def bench(
    model: Annotated[list[str] | None, typer.Option(help=f"Models to time: {', '.join(CASES)}. Default: all.")] = None,
    method: Annotated[list[str] | None, typer.Option(help=f"Ways to take a step: {', '.join(METHODS)}.")] = None,
    penalty: Annotated[list[str] | None, typer.Option(help=f"Penalties: {', '.join(PENALTIES)}.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples in a batch. Default: the paper's.", min=1)] = None,
    num_classes: Annotated[int | None, typer.Option(help="Length of the output. Default: the paper's.", min=2)] = None,
    precision: Annotated[str, typer.Option(help="fp32, tf32 or bf16.")] = "fp32",
    fleet: Annotated[list[int] | None, typer.Option(help="Sizes of fleets to time, instead of single steps.", min=1)] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: a GPU if there is one.")] = None,
    steps: Annotated[int, typer.Option(help="Steps in each of five rounds.", min=1)] = 20,
    out: Annotated[Path, typer.Option(help="Folder for the CSV file.")] = Path("benchmarks/results"),
) -> None:
    """Time plain, textbook and every engine side by side, on random data; or fleets by their size."""
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    rows: list[Row] = []
    with matmul_precision(precision):
        for name in model or (["mlp", "lenet"] if fleet else list(CASES)):
            if fleet:
                rows += fleets(name, fleet, where, precision, steps)
            else:
                case = case_of(name, batch_size=batch_size, num_classes=num_classes, precision=precision)
                rows += bench_case(case, _pairs(method, penalty), where, num_steps=steps, say=typer.echo)
            save(rows, out / file_name(where, "fleet" if fleet else "engines", precision))
    typer.echo(table(rows))


def _pairs(methods: list[str] | None, penalties: list[str] | None) -> list[tuple[str, str]]:
    chosen = methods or list(METHODS)
    plain = [(name, "") for name in chosen if name.startswith("plain")]
    textbook = [(name, "spect_reg") for name in chosen if name == "textbook"]
    others = [name for name in chosen if name != "textbook" and not name.startswith("plain")]
    return plain + textbook + [(name, penalty) for penalty in penalties or ["spect_reg"] for name in others]


def fleets(name: str, sizes: list[int], device: str, precision: str, steps: int) -> list[Row]:
    """Fleets, and beside them the plain step and the textbook's, one run at a time."""
    case = case_of(name, batch_size=None, num_classes=None, precision=precision)
    alone = [("plain", ""), ("textbook", "spect_reg")]
    rows = bench_case(case, alone, device, num_steps=max(20, steps), say=typer.echo)
    dataset = load("digits") if name == "mlp" else random_images()
    config = RunConfig(
        data=dataset.name,
        fingerprint=dataset.fingerprint,
        model=name,
        train_size=100,
        validation_size=100,
        precision=precision,  # type: ignore[arg-type]
    )
    return rows + bench_fleet(dataset, config, sizes, device, num_steps=1 + 5 * steps, say=typer.echo)


def save(rows: list[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {key: provenance(torch.device("cpu"))[key] for key in ("gradreg", "git", "torch", "finished")}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0].to_data(), *about])
        writer.writeheader()
        writer.writerows(row.to_data() | about for row in rows)
