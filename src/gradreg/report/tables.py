"""The table of a comparison: for the terminal, for spreadsheets, for papers and for programs."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import asdict
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradreg.study.statistics import SIGNIFICANCE, Comparison, Difference, Row, Summary
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


class Unit(NamedTuple):
    """How the metric is shown: multiplied by a factor, with two digits after the point."""

    factor: float
    name: str

    @classmethod
    def of(cls, comparison: Comparison) -> Unit:
        """Per cent for accuracy; for the mean squared error the power of ten that the smallest of them has."""
        if comparison.metric == "accuracy":
            return cls(100, "accuracy, %")
        means = [row.summary.mean for row in comparison.rows if row.summary and row.summary.mean > 0]
        power = math.floor(math.log10(min(means, default=1.0)))
        return cls(10.0**-power, f"MSE, 1e{power}" if power else "MSE")

    def number(self, value: float) -> str:
        return f"{self.factor * value:.2f}"

    def signed(self, value: float) -> str:
        text = self.number(abs(value))
        return text if float(text) == 0 else f"{'+' if value > 0 else '-'}{text}"


def format_cell(summary: Summary | None, unit: Unit) -> str:
    """Mean (standard deviation), as the paper prints it.

    >>> format_cell(Summary.of([0.9728, 0.9750]), Unit(100, "accuracy, %"))
    '97.39 (0.16)'
    """
    if summary is None:
        return "diverged"
    mean = unit.number(summary.mean)
    return mean if summary.std is None else f"{mean} ({unit.number(summary.std)})"


def format_interval(difference: Difference, unit: Unit) -> str:
    """The two ends of the confidence interval."""
    return f"{unit.signed(difference.low)} to {unit.signed(difference.high)}"


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
    p = f"p ({comparison.correction.capitalize()})"
    diverged = ["diverged"] if any(row.diverged for row in comparison.rows) else []
    return ["arm", "weight", Unit.of(comparison).name, "runs", "difference", "95 % interval", p, *diverged]


def cells(row: Row, comparison: Comparison) -> list[str]:
    """A row as it is shown in the terminal and on the page."""
    unit, difference = Unit.of(comparison), row.difference
    shown = [
        row.arm,
        format_weight(row.weight),
        format_cell(row.summary, unit),
        str(len(row.seeds)),
        unit.signed(difference.mean) if difference else "",
        format_interval(difference, unit) if difference else "",
        format_p(difference),
        str(row.diverged or ""),
    ]
    return shown[: len(headers(comparison))]


def as_rich_table(comparison: Comparison) -> Table:
    """For the terminal; the best arm in bold. Common to all arms, the number of runs goes below, for want of width."""
    counts = {len(row.seeds) for row in comparison.rows}
    same = f" over {counts.pop()} runs" if len(counts) == 1 else ""
    hidden = headers(comparison).index("runs") if same else None
    caption = f"mean (standard deviation){same}; p for all arms together; * p < {SIGNIFICANCE}"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), caption=caption, caption_justify="left")
    for header in _without(hidden, headers(comparison)):
        numeric = header != "arm"
        table.add_column(
            header, justify="right" if numeric else "left", no_wrap=numeric, min_width=0 if numeric else 8, overflow="fold"
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
