"""``gradreg report``: the report of recorded runs, made anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gradreg.cli.options import Json
from gradreg.report import as_data, as_rich_table, write_report
from gradreg.study.compare import StudyFolder
from gradreg.study.statistics import compare_arms
from gradreg.study.verdict import verdict


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a comparison, as gradreg compare names it.")],
    as_json: Json = False,
) -> None:
    """Make table, verdict and report of a comparison anew from its records.

    Copy the records of several machines into one folder to report on them together.
    """
    title, records = StudyFolder(folder).load()
    comparison = compare_arms(records)
    page = write_report(records, folder / "report", title=title)
    if as_json:
        typer.echo(json.dumps(as_data(comparison) | {"verdict": verdict(comparison), "report": str(page)}, indent=1))
        return
    console = Console()
    console.print(as_rich_table(comparison))
    console.print(f"\n{verdict(comparison)}\n\nReport: {page}", highlight=False, markup=False, soft_wrap=True)
