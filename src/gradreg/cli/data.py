"""``gradreg data``: which datasets there are, what is in one, and getting it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradreg.cli.options import load_data
from gradreg.data import Dataset, available, default_sizes, find_data_dir
from gradreg.data import prepare as prepare_dataset

app = typer.Typer(no_args_is_help=True, help="List, inspect and download datasets.")

DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the named datasets. (default: $GRADREG_DATA_DIR, or ./data, or ~/.cache/gradreg)"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


OWN_DATA = (
    "Get a named one with [bold]gradreg data prepare NAME[/bold]. Your own data: the path of a .npz file, a .csv file or a "
    "folder of pictures with a subfolder a class; or hf:owner/name."
)


@app.command("list")
def list_datasets(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the datasets that have a name."""
    infos = available(data_dir)
    if as_json:
        typer.echo(json.dumps([asdict(info) for info in infos]))
        return
    table = Table("name", "what it is", "kind", "ready")
    for info in infos:
        table.add_row(info.name, info.description, info.kind, "yes" if info.ready else "no")
    Console().print(table, OWN_DATA, highlight=False)


@app.command()
def info(
    data: Annotated[str, typer.Argument(help="A name of the list, or the path of your own data.", show_default=False)],
    data_dir: DataDir = None,
    label: Annotated[str | None, typer.Option(help="The column to predict, for a table.")] = None,
    image_size: Annotated[int | None, typer.Option(help="The side to resize pictures to.", min=1)] = None,
    task: Annotated[str | None, typer.Option(help="classification, or regression: what your own labels mean.")] = None,
    as_json: AsJson = False,
) -> None:
    """Load a dataset and say what is in it."""
    dataset = load_data(data, data_dir, label, image_size, task)
    facts = _facts(dataset)
    if as_json:
        typer.echo(json.dumps(facts | ({"columns": dataset.columns} if dataset.columns else {})))
        return
    table = Table(show_header=False)
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), escape(_shown(value)))
    Console().print(table)


@app.command()
def prepare(
    names: Annotated[list[str], typer.Argument(help="Datasets of the list, such as mnist cifar10.", show_default=False)],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Download datasets, check them and keep them as arrays; what is there already is left as it is."""
    folder = find_data_dir(data_dir)
    paths = {name: str(prepare_dataset(name, folder, progress=not as_json)) for name in names}
    if as_json:
        typer.echo(json.dumps(paths))
        return
    for name, path in paths.items():
        Console().print(f"{name} is ready: {escape(path)}", highlight=False, soft_wrap=True)


def _facts(dataset: Dataset) -> dict[str, Any]:
    train_size, validation_size = default_sizes(dataset)
    facts = {
        "name": dataset.name,
        "task": dataset.task,
        "training_examples": len(dataset.x_train),
        "test_examples": len(dataset.x_test),
        "input_shape": list(dataset.input_shape),
        "default_train_size": train_size,
        "default_validation_size": validation_size,
        "fingerprint": dataset.fingerprint,
    }
    if of_categories := {name: len(categories) for name, categories in dataset.columns.items() if categories}:
        facts["columns_of_categories"] = of_categories
    if dataset.task == "regression":
        return facts | {"outputs": dataset.num_outputs}
    counts = np.bincount(dataset.y_train, minlength=dataset.num_outputs)
    return facts | {"training_examples_by_class": dict(zip(dataset.class_names, counts.tolist(), strict=True))}


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {count}" for name, count in value.items())
    return " x ".join(map(str, value)) if isinstance(value, list) else str(value)
