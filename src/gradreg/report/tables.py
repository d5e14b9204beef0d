"""The table of a comparison: for the terminal, for spreadsheets, for papers and for programs."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradreg.study.statistics import SIGNIFICANCE, Comparison, Difference, MetricName, Row, Summary
from gradreg.study.verdict import p_text, verdict

CSV_COLUMNS = (
    *("arm", "weight", "metric", "n", "mean", "std", "difference", "low", "high"),
    *("p_value", "p_corrected", "pairs", "paired", "diverged"),
)
LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
} | {character: rf"\{character}" for character in "&%$#_{}"}


def format_cell(summary: Summary | None, metric: MetricName) -> str:
    """Mean (standard deviation), as the paper prints it: accuracy in per cent.

    >>> format_cell(Summary.of([0.9728, 0.9750]), "accuracy")
    '97.39 (0.16)'
    """
    if summary is None:
        return "diverged"
    mean = _number(summary.mean, metric)
    return mean if summary.std is None else f"{mean} ({_number(summary.std, metric)})"


def format_difference(difference: Difference | None, metric: MetricName) -> str:
    """The difference with its sign; in percentage points for accuracy."""
    return "" if difference is None else _signed(difference.mean, metric)


def format_interval(difference: Difference | None, metric: MetricName) -> str:
    """The two ends of the confidence interval."""
    return "" if difference is None else f"{_signed(difference.low, metric)} to {_signed(difference.high, metric)}"


def format_p(difference: Difference | None) -> str:
    """The corrected p-value, with a star where it is significant."""
    return "" if difference is None else p_text(difference.p_corrected)[2:].removeprefix("= ") + "*" * difference.significant


def format_weight(weight: float | None) -> str:
    """The weight, or nothing.

    >>> format_weight(0.003), format_weight(None)
    ('0.003', '')
    """
    return "" if weight is None else f"{weight:g}"


def headers(comparison: Comparison) -> list[str]:
    """The names of the columns that :func:`cells` fills."""
    metric = "accuracy, %" if comparison.metric == "accuracy" else "mean squared error"
    p = f"p ({comparison.correction.capitalize()})"
    diverged = ["diverged"] if any(row.diverged for row in comparison.rows) else []
    return ["arm", "weight", metric, "runs", "difference", "95 % interval", p, *diverged]


def cells(row: Row, comparison: Comparison) -> list[str]:
    """A row as it is shown in the terminal and on the page."""
    shown = [
        row.arm,
        format_weight(row.weight),
        format_cell(row.summary, comparison.metric),
        str(len(row.seeds)),
        format_difference(row.difference, comparison.metric),
        format_interval(row.difference, comparison.metric),
        format_p(row.difference),
        str(row.diverged or ""),
    ]
    return shown[: len(headers(comparison))]


def as_rich_table(comparison: Comparison) -> Table:
    """For the terminal; the best arm in bold. Common to all arms, the number of runs goes below, for want of width."""
    counts = {len(row.seeds) for row in comparison.rows}
    same = f" over {counts.pop()} runs" if len(counts) == 1 else ""
    hidden = headers(comparison).index("runs") if same else None
    caption = f"mean (standard deviation){same}, * for p < {SIGNIFICANCE}"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), caption=caption, caption_justify="left")
    for header in _without(hidden, headers(comparison)):
        numeric = header != "arm"
        name = "squared error" if header == "mean squared error" else header
        table.add_column(
            name, justify="right" if numeric else "left", no_wrap=numeric, min_width=0 if numeric else 8, overflow="fold"
        )
    for row in comparison.rows:
        texts = [Text(cell) for cell in _without(hidden, cells(row, comparison))]
        table.add_row(*texts, style="bold" if row is comparison.best else "")
    return table


def _without(index: int | None, values: list[str]) -> list[str]:
    return [value for position, value in enumerate(values) if position != index]


def as_text(comparison: Comparison, width: int = 120) -> str:
    """The terminal's table without colours."""
    buffer = io.StringIO()
    Console(file=buffer, width=width, color_system=None, force_terminal=False).print(as_rich_table(comparison))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def as_csv(comparison: Comparison) -> str:
    """A line an arm, in full precision and the unit of the records: accuracy is a fraction."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_flat(row, comparison) for row in comparison.rows)
    return buffer.getvalue()


def as_latex(comparison: Comparison) -> str:
    """A ``tabular`` for the package booktabs; the best arm in bold."""
    body = [" & ".join(_latex_cells(row, comparison)) + r" \\" for row in comparison.rows]
    columns = [*headers(comparison)[:3], headers(comparison)[4], headers(comparison)[6]]
    head = " & ".join(escape_latex(header) for header in columns) + r" \\"
    return "\n".join(
        [r"\begin{tabular}{lrrrr}", r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""]
    )


def as_data(comparison: Comparison) -> dict[str, Any]:
    """For ``--json``: everything, in the unit of the records."""
    return {
        "verdict": verdict(comparison),
        "metric": comparison.metric,
        "higher_is_better": comparison.higher_is_better,
        "baseline": comparison.baseline,
        "correction": comparison.correction,
        "arms": [asdict(row) for row in comparison.rows],
    }


def escape_latex(text: str) -> str:
    r"""The text with what LaTeX would interpret escaped.

    >>> escape_latex("50 % & more")
    '50 \\% \\& more'
    """
    return "".join(LATEX_SPECIAL.get(character, character) for character in text)


def _latex_cells(row: Row, comparison: Comparison) -> list[str]:
    arm, weight, value, _, difference, _, p = cells(row, comparison)[:7]
    plain = [escape_latex(cell) for cell in (arm, weight, value)]
    if row is comparison.best:
        plain = [plain[0], plain[1], rf"\textbf{{{plain[2]}}}"]
    return [*plain, f"${difference}$" if difference else "", escape_latex(p)]


def _flat(row: Row, comparison: Comparison) -> dict[str, Any]:
    summary = {"mean": row.summary.mean, "std": row.summary.std} if row.summary else {}
    difference = asdict(row.difference) if row.difference else {}
    tested = {name: difference[name] for name in ("low", "high", "p_value", "p_corrected", "paired") if difference}
    named = {"difference": difference["mean"], "pairs": difference["n"] if difference["paired"] else 0} if difference else {}
    about = {
        "arm": row.arm,
        "weight": row.weight,
        "metric": comparison.metric,
        "n": len(row.seeds),
        "diverged": row.diverged,
    }
    return about | summary | named | tested


def _number(value: float, metric: MetricName) -> str:
    return f"{100 * value:.2f}" if metric == "accuracy" else f"{value:#.3g}".rstrip(".")


def _signed(value: float, metric: MetricName) -> str:
    text = _number(abs(value), metric)
    return text if float(text) == 0 else f"{'+' if value > 0 else '-'}{text}"
