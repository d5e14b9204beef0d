"""``gradreg list``: what there is to choose from."""

from __future__ import annotations

import inspect
import json

import typer
from rich.console import Console
from rich.table import Table

from gradreg.cli.options import RUN_ENGINES, Json
from gradreg.engines import ENGINES
from gradreg.models import MODELS
from gradreg.papers.varga2018 import experiments
from gradreg.penalties import PENALTIES
from gradreg.study.plan import default_weights


def show(as_json: Json = False) -> None:
    """List the penalties with the weights that are tried for them, the experiments of the paper, models and engines."""
    penalties = {name: (inspect.getdoc(kind) or "").splitlines()[0] for name, kind in PENALTIES.items()}
    titles = {name: f"{experiment.where}: {experiment.title}" for name, experiment in experiments().items()}
    if as_json:
        found = {"penalties": penalties, "experiments": titles, "models": MODELS, "engines": [*ENGINES]}
        typer.echo(json.dumps(found, indent=1))
        return
    table = Table("penalty", "what it does", "weights tried")
    for name, text in penalties.items():
        tried = default_weights(name)
        table.add_row(name, text, f"{tried[0]:g} to {tried[-1]:g}")
    console = Console()
    console.print(table)
    of_the_paper = Table("experiment", "in the paper (gradreg reproduce)")
    for name, text in titles.items():
        of_the_paper.add_row(name, text)
    console.print(of_the_paper)
    console.print(
        f"models: {', '.join(MODELS)}, or your own package.module:function or file.py:function\n"
        f"engines: {', '.join(ENGINES)}; of a run, with --engine: {', '.join(RUN_ENGINES)}",
        markup=False,
    )
