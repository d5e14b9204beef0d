"""The report: what it says is what the records hold, whatever they are called."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from gradreg.penalties import ConfidencePenalty, DoubleBack, JacReg, SpectReg, WeightDecay
from gradreg.report import as_csv, as_data, as_latex, as_rich_table, as_text, render, save_figures, write_report
from gradreg.report.drawing import shown
from gradreg.report.figures.accuracy_by_arm import accuracy_by_arm
from gradreg.study.records import RunRecord
from gradreg.study.statistics import compare_arms
from gradreg.study.verdict import verdict
from gradreg.training.config import RunConfig

ARMS = {
    "baseline": None,
    "SpectReg": SpectReg,
    "DoubleBack": DoubleBack,
    "JacReg": JacReg,
    "ConfidencePenalty": ConfidencePenalty,
}
GAIN = {"baseline": 0.0, "SpectReg": 1.0, "DoubleBack": 0.6, "JacReg": 0.8, "ConfidencePenalty": 0.1}
WEIGHTS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
NASTY = "<script>alert(1)</script>"


def a_record(
    arm: str,
    weight: float,
    seed: int,
    *,
    evaluate_on: str = "test",
    regression: bool = False,
    label: str | None = None,
    data: str = "digits",
) -> RunRecord:
    """A run as training would have recorded it, of an arm whose best weight is 0.01."""
    luck = np.random.default_rng(seed)
    noise = np.random.default_rng([seed, sum(arm.encode()), round(1e6 * weight)])
    kind = ARMS[arm]
    fit = GAIN[arm] * np.exp(-0.3 * np.log10(max(weight, 1e-5) / 0.01) ** 2)
    config = RunConfig(
        data="sin" if regression else data,
        fingerprint="0123456789abcdef",
        model="mlp",
        penalties=(WeightDecay(weight=0.0005), *((kind(weight=weight),) if kind else ())),
        arm=label or arm,
        seed=seed,
        train_size=20 if regression else 100,
        validation_size=100,
        evaluate_on=evaluate_on,
    )
    final = (
        {"mse": 0.1 * np.exp(luck.normal(0, 0.3) + noise.normal(0, 0.1) - fit)}
        if regression
        else {"accuracy": 0.905 + luck.normal(0, 0.01) + noise.normal(0, 0.004) + 0.01 * fit}
    )
    name, value = next(iter(final.items()))
    step = np.arange(1, 21) * 50
    rise = 1 - np.exp(-step / 150)
    curve = value * rise if name == "accuracy" else value + np.exp(-step / 100)
    return RunRecord(
        config=config,
        metrics={name: value, f"train_{name}": 0.999 if name == "accuracy" else 0.01, "diverged": 0.0},
        curve={
            "step": step.tolist(),
            "train_loss": (2.3 * np.exp(-step / (150 + 50 * fit)) * noise.lognormal(0, 0.1, 20) + 0.001).tolist(),
            name: curve.tolist(),
        },
        gradient_norms={
            split: (base * noise.lognormal(-0.8 * fit, 0.6, 200)).tolist() for split, base in (("train", 2), ("test", 3))
        },
        function=a_function(luck, noise, float(fit)) if regression else None,
        provenance={"gradreg": "0.1.0", "torch": "2.6.0", "device": "cpu (x86_64)", "num_threads": 1, "train_s": 1.25},
    )


def a_function(luck: np.random.Generator, noise: np.random.Generator, fit: float) -> dict[str, list[float]]:
    x, train_x = np.linspace(-4, 4, 161), np.sort(luck.uniform(-4, 4, 20))
    ripple = 0.5 * np.exp(-1.5 * fit) * np.sin(5 * x + noise.uniform(0, 6))
    return {
        "x": x.tolist(),
        "y": (np.sin(x) + ripple).tolist(),
        "target": np.sin(x).tolist(),
        "train_x": train_x.tolist(),
        "train_y": (np.sin(train_x) + luck.normal(0, 0.2, 20)).tolist(),
    }


def a_study(
    *, arms: Sequence[str] = tuple(ARMS), runs: int = 4, weights: Sequence[float] = WEIGHTS, regression: bool = False
) -> list[RunRecord]:
    """Tuning runs at every weight and final runs at 0.01, as `gradreg compare` would leave them."""
    tuning = [
        a_record(arm, weight, seed, evaluate_on="validation", regression=regression)
        for arm in arms
        if arm != "baseline"
        for weight in weights
        for seed in range(1000, 1002)
    ]
    return tuning + [a_record(arm, 0.01, seed, regression=regression) for arm in arms for seed in range(runs)]


@pytest.fixture(scope="module")
def study() -> list[RunRecord]:
    return a_study()


@pytest.fixture(scope="module")
def regression() -> list[RunRecord]:
    return a_study(arms=("baseline", "SpectReg", "JacReg"), regression=True)


@pytest.fixture(scope="module")
def digits_page(study: list[RunRecord]) -> str:
    return render(study, title="digits")


@pytest.fixture(scope="module")
def page(regression: list[RunRecord]) -> str:
    return render(regression, title="sin")


@pytest.fixture(scope="module")
def nasty_page() -> str:
    """Names as an attacker, or a careless user, would choose them."""
    records = [
        a_record(arm, 0.01, seed, label=NASTY if arm == "SpectReg" else None, data="a & b</script><b>")
        for arm in ("baseline", "SpectReg")
        for seed in range(3)
    ]
    return render(records, title=f"{NASTY} & co")


class Outline(HTMLParser):
    """Tags, addresses and ids of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset", "action")]
        self.ids += [value or "" for name, value in attrs if name == "id"]


def test_the_page_opens_with_the_verdict_and_shows_every_figure(digits_page: str, study: list[RunRecord]) -> None:
    page, comparison = re.sub('<span class="whole">(--[a-z-]+)</span>', r"\1", digits_page), compare_arms(study)
    assert page.index(verdict(comparison).replace("'", "&#39;").replace("<", "&lt;")) < page.index("<table")
    for name in ("accuracy_by_arm", "metric_by_weight", "training_curves", "gradient_norms"):
        assert f'<figure id="{name}">' in page
    assert "learned_functions" not in Outline(page).ids
    assert '<section id="slider"' not in page


def test_the_page_says_how_it_was_done(digits_page: str, study: list[RunRecord]) -> None:
    for fact in ("mlp", "100, drawn at random", "adam, learning rate 0.001", "seeds 0-3", "5 weights an arm", "torch 2.6.0"):
        assert fact in digits_page
    assert f"All {len(study)} runs" in digits_page


def test_the_page_of_regression_has_its_functions(page: str, regression: list[RunRecord]) -> None:
    embedded = re.search(r'<script type="application/json" id="functions">(.*?)</script>', page, re.S)
    assert embedded is not None
    arms = json.loads(embedded[1])["arms"]
    assert [arm["name"] for arm in arms] == ["baseline", "SpectReg", "JacReg"]
    assert [stop["weight"] for stop in arms[1]["stops"]] == list(WEIGHTS)
    tuned = next(r for r in regression if r.config.arm == "SpectReg" and r.config.evaluate_on == "validation")
    assert tuned.function is not None
    np.testing.assert_allclose(arms[1]["stops"][0]["runs"][0]["y"], tuned.function["y"], rtol=1e-3)
    assert '<figure id="learned_functions">' in page


def test_the_page_needs_no_network(page: str, nasty_page: str) -> None:
    for one in (page, nasty_page):
        assert all(address.startswith(("#", "data:text/")) for address in Outline(one).addresses)
        assert not re.search(r"@import|url\((?!#)", one)


def test_ids_are_unique(page: str) -> None:
    ids = Outline(page).ids
    assert len(ids) == len(set(ids))


def test_names_are_escaped(nasty_page: str) -> None:
    assert NASTY not in nasty_page
    assert "<b>" not in nasty_page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in nasty_page
    assert "a &amp; b&lt;/script&gt;&lt;b&gt;" in nasty_page
    assert Outline(nasty_page).tags.count("script") == 1


def test_names_are_escaped_within_json() -> None:
    label = f"{NASTY}<!--"
    records = [
        a_record(arm, 0.01, seed, regression=True, label=label if arm == "SpectReg" else None)
        for arm in ("baseline", "SpectReg")
        for seed in range(2)
    ]
    page = render(records, title="sin")
    assert Outline(page).tags.count("script") == 2
    embedded = re.search(r'id="functions">(.*?)</script>', page, re.S)
    assert embedded is not None
    assert json.loads(embedded[1])["arms"][1]["name"] == label


def test_csv_parses_back(study: list[RunRecord]) -> None:
    comparison = compare_arms(study)
    lines = list(csv.DictReader(as_csv(comparison).splitlines()))
    assert [line["arm"] for line in lines] == list(ARMS)
    for line, row in zip(lines, comparison.rows, strict=True):
        assert row.summary is not None
        assert float(line["mean"]) == row.summary.mean
        assert float(line["difference"] or 0) == (row.difference.mean if row.difference else 0)


def test_latex_is_escaped_and_marks_the_best() -> None:
    records = [
        a_record(arm, 0.01, s, label=None if arm == "baseline" else "50%_{x}&$~^\\")
        for arm in ("baseline", "SpectReg")
        for s in (0, 1)
    ]
    latex = as_latex(compare_arms(records))
    assert r"50\%\_\{x\}\&\$\textasciitilde{}\textasciicircum{}\textbackslash{} & 0.01" in latex
    assert latex.count(r"\textbf{") == 1
    assert all(line.count(" & ") == 4 for line in latex.splitlines() if line.endswith(r"\\"))


def test_terminal_table_shows_markup_as_it_is() -> None:
    records = [
        a_record(arm, 0.01, s, label=None if arm == "baseline" else "[red]x[/]")
        for arm in ("baseline", "SpectReg")
        for s in (0, 1)
    ]
    text = as_text(compare_arms(records))
    assert "[red]x[/]" in text
    assert as_rich_table(compare_arms(records)).row_count == 2
    assert re.search(r"baseline +\d\d\.\d\d \(\d\.\d\d\)\n", text)
    assert "over 2 runs" in text


def test_terminal_table_fits_a_narrow_terminal(study: list[RunRecord], regression: list[RunRecord]) -> None:
    for records in (study, regression):
        text = as_text(compare_arms(records), width=80)
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text
        assert "SpectReg" in text


def test_data_is_json(study: list[RunRecord]) -> None:
    data = json.loads(json.dumps(as_data(compare_arms(study)), allow_nan=False))
    assert [row["arm"] for row in data["arms"]] == list(ARMS)
    assert data["arms"][0]["difference"] is None
    assert data["arms"][1]["difference"]["n"] == 4


def test_report_is_written_whole_and_figures_are_deterministic(tmp_path: Path) -> None:
    records = a_study(arms=("baseline", "SpectReg"), runs=2, weights=(0.01, 0.1), regression=True)
    page = write_report(records, tmp_path / "new" / "report", title="sin")
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in page.parent.iterdir()) == ["figures", "index.html", "table.csv", "table.tex"]
    again = save_figures(records, tmp_path / "again")
    names = ("accuracy_by_arm", "metric_by_weight", "learned_functions", "training_curves", "gradient_norms")
    assert [path.name for path in again] == [f"{name}.{kind}" for name in names for kind in ("svg", "pdf")]
    assert all(path.read_bytes() == (page.parent / "figures" / path.name).read_bytes() for path in again)


def bare(record: RunRecord, metrics: dict[str, float]) -> RunRecord:
    return RunRecord(config=record.config, metrics=metrics)


@pytest.mark.parametrize("metrics", [{"accuracy": 0.5}, {"diverged": 1.0}, {"mse": 0.0}])
def test_the_least_that_records_may_hold(metrics: dict[str, float]) -> None:
    """One run an arm, or none that finished; no curves, norms or provenance."""
    records = [bare(a_record(arm, 0.01, 0), metrics) for arm in ("baseline", "SpectReg")]
    assert 'class="verdict">No ' in render(records, title="least")


def test_labels_are_not_interpreted() -> None:
    assert shown("$x$") == r"\$x\$"
    assert not shown("_hidden").startswith("_")
    assert shown("word " * 30).count("\n") == 1


QUIET = (
    "--disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync"
)


def headless(page: Path, profile: Path) -> str:
    """The page as Chromium has it after its scripts ran."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine: the page is not opened in a browser")
    options = ["--headless", "--no-sandbox", *QUIET.split(), f"--user-data-dir={profile}"]
    command = [chromium, *options, "--dump-dom", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_page_runs_in_a_browser(page: str, tmp_path: Path) -> None:
    file = tmp_path / "index.html"
    file.write_text(page, encoding="utf-8")
    opened = headless(file, tmp_path / "profile")
    assert re.search(r'<html[^>]*data-ready="yes"', opened)
    assert "data-error" not in opened.split(">", 2)[1]
    assert '<section id="slider">' in opened
    assert "weight 0.01, the chosen weight; mean squared error on validation" in opened
    assert opened.count('class="point"') == 20
    assert 'class="target" d="' in opened or re.search(r'd="M[^"]+" class="target"', opened)


def test_options_are_not_broken_at_their_hyphens() -> None:
    few = render(a_study(runs=2), title="few")
    assert '(<span class="whole">--runs</span>)' in few


def test_no_axis_goes_beyond_all_of_them() -> None:
    perfect = [replace(one, metrics=one.metrics | {"accuracy": 1.0 - 0.001 * (one.config.seed % 2)}) for one in a_study()]
    figure = accuracy_by_arm(compare_arms(perfect))
    assert figure.axes[0].get_xlim()[1] < 100.1
