"""Fewer operations, the same numbers: of made-up graphs with what could go wrong, and of whole training steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

import gradreg.engines.program as program
from gradreg.data import load
from gradreg.engines.simplify import simplify
from gradreg.penalties import ConfidencePenalty, DoubleBack, JacReg, Penalty, SpectReg, WeightDecay
from gradreg.training import Fleet, RunConfig


def simplified(function: Callable[..., Any], *args: Any) -> GraphModule:
    graph = program.trace(function, *args)
    simplify(graph)
    return graph


def operations(graph: GraphModule) -> Counter[str]:
    return Counter(str(node.target) for node in graph.graph.nodes if node.op == "call_function")


def test_views_of_one_look_are_made_once() -> None:
    def function(x: Tensor) -> Tensor:
        there_and_back = x.transpose(0, 1).transpose(0, 1)
        return there_and_back.view(2, 3).expand(2, 3).detach() @ x.transpose(0, 1) + (x.transpose(0, 1).t() @ x.t())

    graph = simplified(function, torch.randn(2, 3))
    assert operations(graph).total() == 4  # one transpose, two products, one sum
    x = torch.randn(2, 3)
    assert torch.equal(graph(x), function(x))


def test_views_that_begin_elsewhere_are_told_apart() -> None:
    def function(x: Tensor) -> Tensor:
        return x[0].view(3) + 2 * x[1].view(3) + 4 * x[:, :1].squeeze(1)[:1]

    x = torch.randn(2, 3)
    assert torch.equal(simplified(function, torch.randn(2, 3))(x), function(x))


def test_scaling_by_one_is_left_out() -> None:
    graph = simplified(lambda x: (x.pow(1.0) * 3).sum(), torch.randn(4))
    assert not any("pow" in name for name in operations(graph))


@pytest.mark.parametrize("write_to", ["source", "copy", "view of the source"])
def test_a_copy_that_is_needed_stays(write_to: str) -> None:
    def function(x: Tensor) -> Tensor:
        copy = x.pow(1.0)
        shown = copy.view(2, 2)
        {"source": x, "copy": copy, "view of the source": x.view(2, 2)[0]}[write_to].add_(1)
        return x.sum() + 10 * shown.sum()

    first, second = torch.arange(4.0), torch.arange(4.0)
    graph = simplified(function, torch.zeros(4))
    assert torch.equal(graph(first), function(second))
    assert torch.equal(first, second)


def test_a_copy_is_left_out_where_its_source_changes_only_afterwards() -> None:
    def function(x: Tensor) -> Tensor:
        read = x.pow(1.0).sum()
        x.add_(1)
        return read

    graph = simplified(function, torch.zeros(4))
    assert not any("pow" in name for name in operations(graph))
    assert graph(torch.ones(4)) == 4


def test_constants_are_made_once() -> None:
    graph = simplified(lambda x: x * torch.arange(4), torch.randn(4))
    assert operations(graph).total() == 1
    assert torch.equal(graph(torch.ones(4)), torch.arange(4.0))


def test_what_is_written_to_is_made_each_time() -> None:
    def function(x: Tensor) -> Tensor:
        total = torch.zeros(4)
        total.view(2, 2).add_(x)
        return total

    graph = simplified(function, torch.ones(2, 2))
    assert [float(graph(torch.ones(2, 2)).sum()) for _ in range(3)] == [4.0] * 3


def test_random_numbers_are_drawn_each_time() -> None:
    graph = simplified(lambda x: x + torch.rand(4), torch.zeros(4))
    assert not torch.equal(graph(torch.zeros(4)), graph(torch.zeros(4)))


def test_large_constants_are_not_kept() -> None:
    graph = simplified(lambda x: x + torch.zeros(100_000), torch.zeros(1))
    assert not list(graph.buffers())


@pytest.mark.parametrize(
    "penalty", [SpectReg(weight=0.1), DoubleBack(weight=3.0), JacReg(weight=0.1), ConfidencePenalty(weight=0.1)]
)
def test_a_fleet_trains_the_same_bit_for_bit(penalty: Penalty, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load("digits")
    one = RunConfig(
        data="digits",
        fingerprint=digits.fingerprint,
        model="mlp",
        penalties=(WeightDecay(weight=5e-4), penalty),
        train_size=60,
        validation_size=0,
        num_steps=8,
        dropout=0.3,
        num_evaluations=1,
    )

    def weights() -> list[Tensor]:
        members = Fleet([replace(one, seed=seed) for seed in range(2)], digits).train()
        return [parameter for member in members for parameter in member.model.parameters()]

    found, seen = weights(), list[object]()
    monkeypatch.setattr(program, "simplify", seen.append)
    assert all(map(torch.equal, found, weights()))
    assert seen
