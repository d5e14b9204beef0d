"""The reproduction as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gradreg.papers.experiment import Experiment
from gradreg.papers.judge import claims_tested, judge
from gradreg.report.drawing import as_svg, inline
from gradreg.report.reproduction import CLAIM_HEADERS, Records, cell_table, claim_cells, headline
from gradreg.report.reproduction_figures import CAPTIONS, HEADINGS, draw


def write_page(experiments: Mapping[str, Experiment], records: Mapping[str, Records], path: Path, *, title: str) -> Path:
    """Write the page: every cell and claim, disagreements first, and the figures."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    text = environment.get_template("reproduction.html.j2").render(
        title=title,
        headline=headline(list(experiments.values()), records),
        claim_headers=CLAIM_HEADERS,
        figures=[
            {
                "name": name,
                "heading": HEADINGS[name],
                "caption": CAPTIONS[name],
                "svg": Markup(inline(as_svg(figure), name, HEADINGS[name])),  # noqa: S704
            }
            for name, figure in draw(experiments, records).items()
        ],
        experiments=[_section(experiment, records[name]) for name, experiment in experiments.items()],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _section(experiment: Experiment, records: Records) -> dict[str, Any]:
    judged = judge(experiment, records)
    headers, rows = cell_table(judged)
    return {
        "where": experiment.where,
        "title": experiment.title,
        "headers": headers,
        "cells": rows,
        "claims": [claim_cells(one) for one in claims_tested(experiment, judged)],
        "deviations": experiment.deviations,
    }
