"""The commands, put together."""

from __future__ import annotations

import typer

from gradreg import __version__
from gradreg.cli import bench, data, listing, report, reproduce, study, train

app = typer.Typer(
    name="gradreg",
    help="Gradient regularization for PyTorch: is it worth it on your data?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("compare", help=study.COMPARE_HELP)(study.study)
app.command("tune", help=study.TUNE_HELP)(study.study)
app.command("train")(train.train)
app.command("report")(report.report)
app.command("reproduce")(reproduce.reproduce)
app.command("bench")(bench.bench)
app.command("list")(listing.show)
app.add_typer(data.app, name="data")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """Gradient regularization for PyTorch: is it worth it on your data?"""
