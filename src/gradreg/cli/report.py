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

#: Narrower, the table would lose columns: then its lines run on instead.
TABLE_WIDTH = 80


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a comparison, as gradreg compare names it.")],
    as_json: Json = False,
) -> None:
    """Make table, verdict and report of a comparison anew from its records.

    Copy the records of several machines into one folder to report on them together.
    """
    show(StudyFolder(folder), as_json)


def show(folder: StudyFolder, as_json: bool, notice: str = "") -> None:
    """Write the report of a study and print its table and verdict."""
    title, records = folder.load()
    comparison = compare_arms(records)
    page = write_report(records, folder.folder / "report", title=title)
    if as_json:
        typer.echo(json.dumps(as_data(comparison) | {"notice": notice, "report": str(page)}, indent=1))
        return
    console = Console()
    Console(width=max(console.width, TABLE_WIDTH)).print(as_rich_table(comparison))
    console.print(f"\n{verdict(comparison)}", highlight=False, markup=False)
    if notice:
        console.print(notice, style="yellow")
    console.print(f"\nReport: {page}", highlight=False, markup=False, soft_wrap=True)
