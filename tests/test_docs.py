"""The code in README and docs runs, and prints what it says it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradreg as gr

ROOT = Path(__file__).parent.parent


def blocks(path: str, language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / path).read_text(), re.MULTILINE | re.DOTALL)
    return [text for found, text in fenced if found == language]


def test_readme_snippet_prints_what_the_readme_shows(capsys: pytest.CaptureFixture[str]) -> None:
    exec(blocks("README.md", "python")[0], {})
    shown = next(block for block in blocks("README.md", "") if "SpectReg" in block)
    found = capsys.readouterr().out
    without_numbers = [re.sub(r"\d\.\d{4}$", "", text, flags=re.MULTILINE) for text in (found, shown)]
    assert without_numbers[0] == without_numbers[1]
    numbers = [[float(n) for n in re.findall(r"\d\.\d{4}$", text, re.MULTILINE)] for text in (found, shown)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0.3)  # other processors round otherwise, over 1000 steps


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
