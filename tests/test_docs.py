"""The code in README and docs runs, and prints what it says it prints."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradreg as gr
from gradreg.study.plan import kind_of

ROOT = Path(__file__).parent.parent


def blocks(path: str, language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / path).read_text(), re.MULTILINE | re.DOTALL)
    return [text for found, text in fenced if found == language]


def test_readme_snippet_prints_what_the_readme_shows(capsys: pytest.CaptureFixture[str]) -> None:
    exec(blocks("README.md", "python")[0], {})
    (shown,) = [block for block in blocks("README.md", "") if block.startswith("error on")]
    found = capsys.readouterr().out
    number = r"\d+\.\d+"
    assert re.sub(number, "", found) == re.sub(number, "", shown)
    numbers = [[float(n) for n in re.findall(number, text)] for text in (found, shown)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0.1)  # other processors round otherwise, over 1000 steps


def test_readme_says_what_the_snippet_gives_without_penalty(capsys: pytest.CaptureFixture[str]) -> None:
    exec(blocks("README.md", "python")[0].replace("weight=0.003", "weight=0"), {})
    shown = float(re.search(r"\((\d\.\d+) with `weight=0`", (ROOT / "README.md").read_text())[1])
    assert float(capsys.readouterr().out.split()[-1]) == pytest.approx(shown, rel=0.1)


def test_readme_table_is_that_of_the_records() -> None:
    result = json.loads((ROOT / "results" / "compare_digits.json").read_text())
    (table,) = [block for block in blocks("README.md", "") if block.startswith("arm")]
    for arm in result["arms"]:
        line = next(line for line in table.splitlines() if line.startswith(arm["arm"] + " "))
        values = np.array(arm["summary"]["values"])
        assert f"{100 * values.mean():.2f} ({100 * values.std(ddof=1):.2f})" in line
        if arm["difference"]:
            assert f"{100 * arm['difference']['mean']:+.2f}" in line
    assert result["verdict"] in " ".join(table.split())


def test_own_model_of_the_guide_to_compare(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(blocks("docs/compare.md", "python")[0])
    assert gr.models.build(f"{tmp_path / 'mine.py'}:net", (1, 8, 8), 10)(torch.rand(2, 1, 8, 8)).shape == (2, 10)


def test_a_study_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    exec(blocks("docs/compare.md", "python")[1].replace("num_steps=100", "num_steps=5"), {})
    assert "over 5 paired runs" in capsys.readouterr().out
    assert Path("runs/mine/report/index.html").is_file()


def test_the_guides_penalty_in_a_comparison(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(blocks("docs/guide.md", "python")[0])
    kind = kind_of(f"{tmp_path / 'mine.py'}:Margin")
    assert kind_of(f"{tmp_path / 'mine.py'}:Margin") is kind
    assert issubclass(kind, gr.GradientPenalty)


def test_readme_one_liners() -> None:
    model, x, y = nn.Linear(3, 2), torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=1))
    exec(
        blocks("README.md", "python")[1],
        {"gr": gr, "F": F, "objective": objective, "model": model, "x": x, "y": y, "more_x": x},
    )


def test_guides_own_penalty() -> None:
    names: dict = {}
    exec(blocks("docs/guide.md", "python")[0], names)
    model, x, y = nn.Linear(3, 4), torch.randn(5, 3), torch.tensor([0, 1, 2, 3, 0])
    found = gr.Objective(F.cross_entropy, names["Margin"](weight=1))(model, x, y).penalties["margin"]
    top = model(x).topk(2, dim=1).indices
    expected = (model.weight[top[:, 0]] - model.weight[top[:, 1]]).square().sum(1).mean()
    torch.testing.assert_close(found, expected)


def test_readme_names_every_penalty() -> None:
    text = (ROOT / "README.md").read_text()
    for thing in vars(gr).values():
        if isinstance(thing, type) and issubclass(thing, gr.Penalty) and thing not in (gr.Penalty, gr.GradientPenalty):
            assert f"`{thing.__name__}`" in text


def document_of(folder: str) -> ModuleType:
    sys.path.insert(0, str(ROOT / folder))  # as for a script that is run
    spec = importlib.util.spec_from_file_location("document", ROOT / folder / "document.py")
    document = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(document)
    return document


def test_reproduction_page_is_that_of_the_results() -> None:
    document = document_of("results")
    page = (ROOT / "docs" / "reproduction.md").read_text()
    assert f"<!-- generated -->\n{document.generated()}\n<!-- /generated -->" in page
    assert f"<!-- reproduction -->\n{document.summary()}\n<!-- /reproduction -->" in (ROOT / "README.md").read_text()
    best = (ROOT / "docs" / "best.md").read_text()
    assert f"<!-- generated -->\n{document.best_found()}\n<!-- /generated -->" in best
    for name in re.findall(r"images/\w+.png", page + best):
        assert (ROOT / "docs" / name).is_file()


def test_benchmark_page_is_that_of_the_results() -> None:
    document = document_of("benchmarks")
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert f"<!-- generated -->\n{document.generated()}\n<!-- /generated -->" in page
    assert f"<!-- goals -->\n{document.goals()}\n<!-- /goals -->" in page
    assert f"<!-- speed -->\n{document.speed()}\n<!-- /speed -->" in (ROOT / "README.md").read_text()


def test_code_of_the_engines_page_runs() -> None:
    for block in blocks("docs/engines.md", "python"):
        exec(block, {})
