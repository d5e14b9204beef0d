"""Published and measured side by side: as text, as markdown, as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradreg.papers.experiment import Experiment, Published
from gradreg.papers.judge import Judged, Tested, claims_tested, judge
from gradreg.study.statistics import Summary
from gradreg.training import RunRecord

Records = Sequence[RunRecord]
HEADERS = ("", "", "published", "ours", "n", "difference [95 %]", "verdict")
CLAIM_HEADERS = ("claim", "difference", "p (Welch)", "outcome")
ORDER = {"differs": 0, "agrees": 1, "one run": 2, "not published": 3, "not run": 4}


def as_text(experiment: Experiment, records: Records) -> str:
    """Title, table, claims and deviations, for a terminal."""
    return "\n".join([f"{experiment.where}: {experiment.title}", "", *body(experiment, records)])


def as_data(experiment: Experiment, records: Records) -> dict[str, Any]:
    """The same as JSON-ready values."""
    judged = judge(experiment, records)
    return {
        "id": experiment.id,
        "title": experiment.title,
        "cells": [_cell_data(one) for one in judged],
        "claims": [
            {"text": one.claim.text, "outcome": one.outcome, "difference": one.difference, "p_value": one.p_value}
            for one in claims_tested(experiment, judged)
        ],
        "deviations": list(experiment.deviations),
    }


def headline(experiments: Sequence[Experiment], records: Mapping[str, Records]) -> str:
    """How many published cells were run, and how many agree. The same runs count in every table that prints them."""
    judged = {e.id: judge(e, records[e.id]) for e in experiments}
    cells = [one for of_one in judged.values() for one in of_one if one.cell.published is not None]
    run = [one for one in cells if one.verdict != "not run"]
    tested = [one for e in experiments for one in claims_tested(e, judged[e.id]) if one.outcome != "not run"]
    agree, outcomes = sum(one.verdict == "agrees" for one in run), [one.outcome for one in tested]
    single = sum(one.verdict == "one run" for one in run)
    unjudged = f" ({single} of one run, which has no spread to judge by)" if single else ""
    counted = f"{len(run)} of {len(cells)} published cells run{unjudged}, {agree} agree within two standard errors; "
    against = outcomes.count("reversed") + outcomes.count("differs after all")
    return (
        f"{counted if cells else ''}{outcomes.count('holds')} of {len(tested)} tests of the paper's claims come out "
        f"its way, {against} significantly the other way."
    )


def body(experiment: Experiment, records: Records) -> list[str]:
    """Table, claims and deviations as lines of markdown."""
    judged = judge(experiment, records)
    lines = [*table(*cell_table(judged)), *_about_wide_intervals(judged)]
    if tested := claims_tested(experiment, judged):
        lines += ["", *table(CLAIM_HEADERS, [claim_cells(one) for one in tested])]
    if experiment.deviations:
        lines += ["", "Deviations:", "", *(f"- {text}" for text in experiment.deviations)]
    return lines


def _about_wide_intervals(judged: Sequence[Judged]) -> list[str]:
    """Two standard errors are less than half an interval, by much where runs are few."""
    wide = [one for one in judged if one.verdict == "differs" and abs(one.difference or 0.0) <= (one.margin or 0.0)]
    text = (
        f"“differs” is more than two standard errors. For so few runs the interval is wider: {len(wide)} of those that "
        f"differ {'has' if len(wide) == 1 else 'have'} zero in it, and may do so by chance."
    )
    return ["", text] if wide else []


def cell_table(judged: Sequence[Judged]) -> tuple[Sequence[str], list[list[str]]]:
    """Headers and rows: a line a cell, disagreements first; where nothing was published, a line for all of one row."""
    if any(one.cell.published is not None for one in judged):
        return HEADERS, [cells(one) for one in in_order(judged)]
    found = {one.cell.place: one for one in judged}
    rows, columns = (list(dict.fromkeys(place[side] for place in found)) for side in (0, 1))
    numbers = {one.ours.n for one in judged if one.ours is not None}
    all_alike = f"n = {numbers.pop()}" if len(numbers) == 1 else ""

    def text(row: str, column: str) -> str:
        one = found.get((row, column))
        if one is None or one.ours is None:
            return ""
        number = "" if all_alike else f", n = {one.ours.n}"
        return _mean_and_std(one.ours, one.cell.metric.digits) + number

    units = [_unit({one.cell.metric.unit for one in judged if one.cell.column == column}) for column in columns]
    headers = [column + unit for column, unit in zip(columns, units, strict=True)]
    return [all_alike, *headers], [[row, *(text(row, column) for column in columns)] for row in rows]


def _unit(units: set[str]) -> str:
    """What stands behind a name: nothing for per cent, or for cells of several units."""
    return "" if len(units) > 1 or units == {"%"} else f" ({min(units)})"


def in_order(judged: Iterable[Judged]) -> list[Judged]:
    """Disagreements first."""
    return sorted(judged, key=lambda one: ORDER[one.verdict])


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A markdown table whose columns stand below each other."""
    widths = [max(len(line[place]) for line in (headers, *rows)) for place in range(len(headers))]

    def line(values: Sequence[str]) -> str:
        return "| " + " | ".join(value.ljust(width) for value, width in zip(values, widths, strict=True)) + " |"

    return [line(headers), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, rows)]


def cells(judged: Judged) -> list[str]:
    """One line of the table."""
    cell, digits = judged.cell, judged.cell.metric.digits
    number = "" if judged.ours is None else str(judged.ours.n)
    number += f" (+{judged.diverged} diverged)" if judged.diverged else ""
    published, ours = _mean_and_std(cell.published, digits), _mean_and_std(judged.ours, digits)
    return [
        cell.row,
        cell.column + _unit({cell.metric.unit}),
        published,
        ours,
        number,
        _difference(judged, digits),
        judged.verdict,
    ]


def _difference(judged: Judged, digits: int) -> str:
    if judged.difference is None or judged.margin is None:
        return ""
    low, high = judged.difference - judged.margin, judged.difference + judged.margin
    rounded = round(judged.difference, digits) + 0.0  # zero has no minus, and an end of the interval keeps its own
    return f"{rounded:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


def _mean_and_std(numbers: Published | Summary | None, digits: int) -> str:
    if numbers is None:
        return ""
    return f"{numbers.mean:.{digits}f}" + ("" if numbers.std is None else f" ({numbers.std:.{digits}f})")


def claim_cells(tested: Tested) -> list[str]:
    """One line of the table of claims."""
    if tested.difference is None or tested.p_value is None:
        return [tested.claim.text, "", "", tested.outcome]
    p_value = "< 0.0001" if tested.p_value < 0.0001 else f"{tested.p_value:.4f}"
    return [tested.claim.text, f"{tested.difference:+.3g}", p_value, tested.outcome]


def _cell_data(judged: Judged) -> dict[str, Any]:
    published, ours = judged.cell.published, judged.ours
    return {
        "row": judged.cell.row,
        "column": judged.cell.column,
        "metric": judged.cell.metric.name,
        "published": None if published is None else {"mean": published.mean, "std": published.std},
        "ours": None if ours is None else {"mean": ours.mean, "std": ours.std, "n": ours.n},
        "difference": judged.difference,
        "margin": judged.margin,
        "diverged": judged.diverged,
        "verdict": judged.verdict,
    }
