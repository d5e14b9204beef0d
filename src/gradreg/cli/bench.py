"""``gradreg bench``."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import torch
import typer

from gradreg.bench import METHODS, Row, bench_case, bench_fleet
from gradreg.bench.cases import CASES, case_of
from gradreg.bench.methods import ENGINES, PENALTIES
from gradreg.bench.tables import file_name, table
from gradreg.bench.timing import noise
from gradreg.cli.options import Device, default_device
from gradreg.data import load
from gradreg.training import RunConfig
from gradreg.training.provenance import provenance
from gradreg.training.run import matmul_precision


def bench(
    model: Annotated[list[str] | None, typer.Option(help=f"Models to time: {', '.join(CASES)}. Default: all.")] = None,
    method: Annotated[list[str] | None, typer.Option(help=f"Ways to take a step: {', '.join(METHODS)}.")] = None,
    penalty: Annotated[list[str] | None, typer.Option(help=f"Penalties: {', '.join(PENALTIES)}.")] = None,
    batch_size: Annotated[list[int] | None, typer.Option(help="Examples in a batch. Default: the paper's.", min=1)] = None,
    num_classes: Annotated[list[int] | None, typer.Option(help="Length of the output. Default: the paper's.", min=2)] = None,
    precision: Annotated[str, typer.Option(help="fp32, tf32 or bf16.")] = "fp32",
    fleet: Annotated[list[int] | None, typer.Option(help="Sizes of fleets to time, instead of single steps.", min=1)] = None,
    device: Device = None,
    steps: Annotated[int, typer.Option(help="Steps in each of five rounds.", min=1)] = 20,
    out: Annotated[Path, typer.Option(help="Folder for the CSV file.")] = Path("benchmarks/results"),
) -> None:
    """Time plain, textbook and every engine side by side, on random data; or fleets by their size."""
    where = default_device(device)
    _check("--precision", [precision], ("fp32", "tf32", "bf16"))
    _check("--method", method, METHODS)
    _check("--penalty", penalty, PENALTIES)
    rows: list[Row] = []
    with matmul_precision(precision):
        for name in model or (["mlp", "lenet"] if fleet else list(CASES)):
            if fleet:
                rows += fleets(name, fleet, ["", *(penalty or ["spect_reg"])], where, precision, steps)
                continue
            for size, classes in itertools.product(batch_size or (None,), num_classes or (None,)):
                case = case_of(name, batch_size=size, num_classes=classes, precision=precision)
                rows += bench_case(case, _pairs(method, penalty), where, num_steps=steps, say=typer.echo)
    save(rows, out / file_name(where, _theme(fleet, batch_size, num_classes), precision))
    typer.echo(table(rows))


def _check(option: str, given: list[str] | None, known: Iterable[str]) -> None:
    for value in given or []:
        if value not in known:
            raise ValueError(f"{option} {value!r} is unknown: choose {', '.join(known)}.")


def _theme(fleet: object, batch_sizes: list[int] | None, classes: list[int] | None) -> str:
    if fleet:
        return "fleet"
    swept = [name for name, values in (("batch_size", batch_sizes), ("classes", classes)) if len(values or []) > 1]
    return "_by_".join(["engines", *swept])


def _pairs(methods: list[str] | None, penalties: list[str] | None) -> list[tuple[str, str]]:
    """The methods, each with its penalty: the plain ones with none, the textbook's with SpectReg, engines with each."""
    chosen = methods or list(METHODS)
    plain = [(name, "") for name in chosen if name.startswith("plain")]
    textbook = [(name, "spect_reg") for name in chosen if name == "textbook"]
    others = [name for name in chosen if name in ENGINES]
    return plain + textbook + [(name, penalty) for penalty in penalties or ["spect_reg"] for name in others]


def fleets(name: str, sizes: list[int], penalties: list[str], device: str, precision: str, steps: int) -> list[Row]:
    """Fleets, and beside them the plain step and the textbook's, one run at a time."""
    case = case_of(name, batch_size=None, num_classes=None, precision=precision)
    alone = [("plain", ""), ("textbook", "spect_reg")]
    rows = bench_case(case, alone, device, num_steps=max(20, steps), say=typer.echo)
    dataset = load("digits") if name == "mlp" else noise(case.input_shape)
    config = RunConfig(
        data=dataset.name,
        fingerprint=dataset.fingerprint,
        model=name,
        train_size=200,
        validation_size=100,
        batch_size=case.batch_size,
        precision=precision,  # type: ignore[arg-type]
    )
    return rows + bench_fleet(dataset, config, sizes, penalties, device, num_steps=1 + 5 * steps, say=typer.echo)


def save(rows: list[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {key: provenance(torch.device("cpu"))[key] for key in ("gradreg", "git", "torch", "finished")}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0].to_data(), *about])
        writer.writeheader()
        writer.writerows(row.to_data() | about for row in rows)
