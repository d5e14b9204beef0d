"""The page: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gradreg.report.drawing import as_svg, inline
from gradreg.report.facts import facts
from gradreg.report.figures import draw_all, save_all
from gradreg.report.slider import slider_data
from gradreg.report.tables import as_csv, as_latex, cells, format_weight, headers
from gradreg.study.records import RunRecord
from gradreg.study.statistics import Comparison, arm_order, arm_weight, compare_arms, diverged
from gradreg.study.verdict import verdict

HEADINGS = {
    "accuracy_by_arm": "Every run, and the difference to the baseline",
    "metric_by_weight": "How the weight was chosen",
    "learned_functions": "Learned functions",
    "training_curves": "Training curves",
    "gradient_norms": "Gradient norms",
}


def render(records: Iterable[RunRecord], *, title: str, baseline: str = "baseline") -> str:
    """The page as text: verdict, table, figures, and how it was done."""
    records = list(records)
    comparison = compare_arms(records, baseline)
    return _fill(title, records, comparison, {n: as_svg(figure) for n, figure in draw_all(records, comparison).items()})


def write_report(records: Iterable[RunRecord], folder: Path, *, title: str, baseline: str = "baseline") -> Path:
    """Write ``index.html``, ``table.csv``, ``table.tex`` and ``figures/*``; returns the path of the page."""
    records = list(records)
    comparison = compare_arms(records, baseline)
    figures = draw_all(records, comparison)
    svgs = {name: as_svg(figure) for name, figure in figures.items()}
    save_all(figures, svgs, folder / "figures")
    (folder / "table.csv").write_text(as_csv(comparison), encoding="utf-8")
    (folder / "table.tex").write_text(as_latex(comparison), encoding="utf-8")
    page = folder / "index.html"
    page.write_text(_fill(title, records, comparison, svgs), encoding="utf-8", errors="replace")
    return page


def _options_whole(text: str) -> Markup:
    """Not broken after a hyphen."""
    parts = re.split(r"(--[a-z-]+)", text)
    return Markup("").join(Markup('<span class="whole">{}</span>').format(p) if p.startswith("--") else p for p in parts)


def _fill(title: str, records: Sequence[RunRecord], comparison: Comparison, svgs: dict[str, str]) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["options_whole"] = _options_whole
    return environment.get_template("page.html.j2").render(
        title=title,
        verdict=verdict(comparison),
        headers=headers(comparison),
        rows=[cells(row, comparison) for row in comparison.rows],
        best=comparison.best.arm if comparison.best else None,
        downloads={"table.csv": _data_uri(as_csv(comparison), "csv"), "table.tex": _data_uri(as_latex(comparison), "plain")},
        facts=facts(records, comparison),
        figures=[_inline(name, svg) for name, svg in svgs.items()],
        slider=slider_data(records, comparison),
        runs=_runs(records, comparison),
    )


def _inline(name: str, svg: str) -> dict[str, Any]:
    # matplotlib has escaped the user's names in the drawing; the template escapes everything else.
    safe = Markup(inline(svg, name, HEADINGS[name]))  # noqa: S704
    return {"name": name, "heading": HEADINGS[name], "svg": safe}


def _runs(records: Sequence[RunRecord], comparison: Comparison) -> list[list[str]]:
    """Every run, final ones first, as the cells of a table."""
    order = {arm: index for index, arm in enumerate(arm_order(records, comparison.baseline))}
    ordered = sorted(
        records,
        key=lambda r: (r.config.evaluate_on, order[r.config.arm], arm_weight(r.config) or 0.0, r.config.seed),
    )
    return [_run(record, comparison) for record in ordered]


def _run(record: RunRecord, comparison: Comparison) -> list[str]:
    config, metric, scale = record.config, comparison.metric, 100 if comparison.metric == "accuracy" else 1
    weight = "" if config.arm == comparison.baseline else format_weight(arm_weight(config))
    scores = [record.metrics.get(name) for name in (metric, f"train_{metric}")]
    shown = ["" if score is None else f"{scale * score:.4g}" for score in scores]
    seconds = record.provenance.get("train_s")
    result = "diverged" if diverged(record, metric) else shown[0]
    time = "" if seconds is None else f"{seconds:.1f}"
    return [config.arm, weight, config.evaluate_on, str(config.seed), result, shown[1], time, config.key]


def _data_uri(text: str, kind: str) -> str:
    return f"data:text/{kind};base64,{base64.b64encode(text.encode()).decode()}"
