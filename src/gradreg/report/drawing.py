"""What all figures share: colours, labels, and how they become files or part of a page."""

from __future__ import annotations

import html
import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from gradreg.study.statistics import Comparison

INK = "#222222"
FAINT = "#888888"
#: Okabe and Ito's colours that tell apart for the colour-blind and show on white and on black.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)))

#: Beyond this ratio of large to small, values are drawn on a logarithmic axis.
WIDE = 20.0
#: The smallest value a logarithmic axis shows.
TINY = 1e-8

LOOK = {
    "font.size": 10,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
    "grid.color": FAINT,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "gradreg",
    "pdf.fonttype": 42,
}


@dataclass(frozen=True)
class ArmStyle:
    """How an arm looks in every figure."""

    colour: str
    dash: Any


def arm_styles(comparison: Comparison) -> dict[str, ArmStyle]:
    """Grey for the baseline, a colour for every other arm; dashed once the colours are used up."""
    styles = {comparison.baseline: ArmStyle(FAINT, "-")}
    for index, row in enumerate(comparison.penalised):
        styles[row.arm] = ArmStyle(COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)])
    return styles


@contextmanager
def house_style() -> Iterator[None]:
    """Colours and fonts for what is drawn within; names in scripts that our font lacks are left to the viewer's."""
    with mpl.rc_context(LOOK), warnings.catch_warnings():  # type: ignore[arg-type,unused-ignore]
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def shown(name: str, width: int = 22, lines: int = 2) -> str:
    r"""A user's name as a label: wrapped, shortened, and free of what matplotlib would interpret.

    >>> print(shown("cost in $"))
    cost in \$
    """
    wrapped = textwrap.wrap(name, width) or [""]
    kept = wrapped[:lines] if len(wrapped) <= lines else [*wrapped[: lines - 1], wrapped[lines - 1][: width - 1] + "…"]
    text = "\n".join(kept).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def panels(figure: Figure, count: int) -> list[Axes]:
    """So many axes on a grid of at most three columns, with a common vertical axis."""
    columns = 2 if count in (2, 4) else min(3, count)
    rows = -(-count // columns)
    figure.set_size_inches(2.6 * max(columns, 2) + 0.6, 2.3 * rows + 0.7)
    figure.set_layout_engine("constrained", h_pad=0.1, w_pad=0.1)
    every = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for unused in every[count:]:
        unused.remove()
    return every[:count]


def label_panels(figure: Figure, every: Sequence[Axes], x: str, y: str) -> None:
    """The horizontal label below the lowest panels, the vertical one once for all."""
    columns = every[0].get_subplotspec().get_gridspec().ncols  # type: ignore[union-attr]
    for axes in every[-columns:]:
        axes.set_xlabel(x)
    figure.supylabel(y, fontsize=10)


def few_ticks(axes: Axes, count: int) -> None:
    """So many ticks at most on the horizontal axis."""
    axes.xaxis.set_major_locator(MaxNLocator(count))


def log_if_wide(axes: Axes, direction: Literal["x", "y"], values: NDArray[Any]) -> bool:
    """A logarithmic axis where the values span orders of magnitude; returns whether they do."""
    wide = values.size > 0 and values.min() > 0 and np.quantile(values, 0.95) > WIDE * np.quantile(values, 0.05)
    if wide:
        plain_log(axes, direction)
    return bool(wide)


def plain_log(axes: Axes, direction: Literal["x", "y"]) -> None:
    """A logarithmic axis with plain numbers at 1, 3, 10, ..."""
    axes.set(**{f"{direction}scale": "log"})
    axis = axes.xaxis if direction == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def legend_below(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend of as many columns as its labels leave room for."""
    longest = max(len(line) for label in labels for line in label.split("\n"))
    characters = 13 * figure.get_size_inches()[0]
    columns = max(1, min(len(labels), int(characters / (longest + 6))))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def settle(figure: Figure) -> Figure:
    """Lay the figure out once, rather than for every file it is written to."""
    with house_style():
        figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def as_svg(figure: Figure) -> str:
    """The figure as a transparent SVG document: text stays text, and the same figure gives the same bytes."""
    buffer = io.StringIO()
    with house_style():
        figure.savefig(buffer, format="svg", metadata=NO_METADATA, transparent=True)
    return buffer.getvalue()


def on_white(svg: str) -> str:
    """The drawing on paper."""
    return re.sub(r"<svg[^>]*>", r'\g<0>\n <rect width="100%" height="100%" fill="#ffffff"/>', svg, count=1)


def inline(svg: str, prefix: str, description: str) -> str:
    """The drawing as part of an HTML page: as wide as its box, in the page's text colour, with ids of its own."""
    body = svg[svg.index("<svg") :]
    width = float(re.search(r'width="([\d.]+)pt"', body)[1]) / 72  # type: ignore[index]
    body = re.sub(r' (width|height)="[\d.]+pt"', "", body, count=2)
    used = set(re.findall(r"#([\w-]+)", body))
    body = re.sub(r' id="([\w-]+)"', lambda match: match[0] if match[1] in used else "", body)
    body = re.sub(r'(id="|"#|url\(#)(?=[\w-])', rf"\g<1>{prefix}-", body).replace(INK, "currentColor")
    size = f"min-width:{70 * width:.0f}px;max-width:{125 * width:.0f}px"  # letters of 10 to 17 pixels
    return body.replace("<svg", f'<svg role="img" aria-label="{html.escape(description)}" style="{size}"', 1)


def save(figure: Figure, svg: str, stem: Path) -> list[Path]:
    """Write ``stem.svg``, the figure as it is drawn already, and ``stem.pdf``."""
    drawn, pdf = (stem.with_suffix(suffix) for suffix in (".svg", ".pdf"))
    drawn.write_text(on_white(svg), encoding="utf-8")
    with house_style():
        figure.savefig(pdf, metadata={"CreationDate": None})
    return [drawn, pdf]
