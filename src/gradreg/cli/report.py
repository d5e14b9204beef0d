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
from gradreg.study.statistics import Comparison, compare_arms
from gradreg.study.verdict import verdict
from gradreg.training import RunRecord

#: Narrower, the table would lose columns: then its lines run on instead.
TABLE_WIDTH = 80


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a comparison, as gradreg compare names it.")],
    as_json: Json = False,
) -> None:
    """Make table, verdict and report of a comparison anew from its records.

    Copy the records of several machines into one folder to report on them together: runs of the same arms with other seeds
    are counted in.
    """
    study = StudyFolder(folder)
    title, records = study.load(with_further_seeds=True)
    show(compare_arms(records), _written(study, title, records), as_json)


def show_study(study: StudyFolder, as_json: bool, notice: str) -> Comparison:
    """Write the report of a study that was just run, and print it."""
    title, records = study.load()
    comparison = compare_arms(records)
    show(comparison, _written(study, title, records), as_json, notice)
    return comparison


def show(comparison: Comparison, page: str | None, as_json: bool, notice: str = "") -> None:
    """Print table and verdict, and where the page is."""
    if as_json:
        typer.echo(json.dumps(as_data(comparison) | {"notice": notice, "report": page}, indent=1))
        return
    console = Console()
    Console(width=max(console.width, TABLE_WIDTH)).print(as_rich_table(comparison))
    console.print(f"\n{verdict(comparison)}", highlight=False, markup=False)
    if notice:
        console.print(notice, style="yellow")
    if page is not None:
        console.print(f"\nReport: {page}", highlight=False, markup=False, soft_wrap=True)


def _written(study: StudyFolder, title: str, records: list[RunRecord]) -> str | None:
    """Where the page is; None where it cannot be written, and then the table is still printed."""
    folder = study.folder / "report"
    try:
        return str(write_report(records, folder, title=title))
    except OSError as error:
        typer.echo(f"warning: the page cannot be written to {folder} ({error.strerror}).", err=True)
        return None
