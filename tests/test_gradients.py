"""The derivative of every penalty by the parameters, against float64 finite differences."""

from __future__ import annotations

import pytest
import torch
from problems import NAMES, Problem, problem

import gradreg as gr
from gradreg.engines import Engine, recorded
from gradreg.penalties import probe

ANY_OUTPUT = [
    gr.DoubleBack(weight=1),
    gr.FrobReg(weight=1),
    gr.FrobReg(weight=1, chunk_size=1),
    gr.SpectReg(weight=1),
    gr.SpectReg(weight=1, projection="orthogonal", per_example=True),
    gr.SpectReg(weight=1, num_projections=4, chunk_size=3),
    gr.RandomOneHot(weight=1),
    gr.WeightDecay(weight=1),
]
CLASSES = [
    gr.JacReg(weight=1),
    gr.JacReg(weight=1, chunk_size=3),
    gr.OneHot(weight=1),
    gr.TopK(weight=1, k=2),
    gr.SoftmaxProjection(weight=1),
    gr.ConfidencePenalty(weight=1),
    gr.LabelSmoothing(weight=1),
]
OPTIONS = [
    gr.SpectReg(weight=1, norm="l1"),
    gr.SpectReg(weight=1, norm="l2"),
    gr.JacReg(weight=1, norm="l2", chunk_size=2),
    gr.DoubleBack(weight=1, norm=gr.TargetSlope(0.1)),
    gr.SpectReg(weight=1, forward="fresh"),
    gr.DoubleBack(weight=1, fraction=0.7),
    gr.DoubleBack(weight=1, wrt="0"),
    gr.SpectReg(weight=1, wrt="3", num_projections=2),
]


def penalty_value(p: Problem, penalty: gr.Penalty, engine: str | Engine = "double_backward") -> torch.Tensor:
    torch.manual_seed(0)
    objective = gr.Objective(p.loss, penalty, engine=engine)
    return objective(p.model, p.x, p.y, generator=torch.Generator().manual_seed(5)).penalties[penalty.name]


def assert_gradient_is_right(
    p: Problem, penalty: gr.Penalty, engine: str | Engine = "double_backward", *, step: float = 1e-5, rel: float = 1e-5
) -> None:
    """Compare directional derivatives along five random directions, for all parameters at once."""
    parameters = list(p.model.parameters())
    gradients = torch.autograd.grad(penalty_value(p, penalty, engine), parameters, materialize_grads=True, allow_unused=True)
    start = [parameter.detach().clone() for parameter in parameters]
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        direction = [torch.randn(w.shape, generator=generator, dtype=w.dtype) for w in start]
        along = []
        for sign in (1, -1):
            _move(parameters, start, direction, sign * step)
            along.append(penalty_value(p, penalty).item())
        _move(parameters, start, direction, 0)
        expected = (along[0] - along[1]) / (2 * step)
        found = sum(float((g * d).sum()) for g, d in zip(gradients, direction, strict=True))
        assert found == pytest.approx(expected, rel=rel, abs=rel / 1000)


@torch.no_grad()
def _move(parameters, start, direction, step: float) -> None:
    for parameter, at, along in zip(parameters, start, direction, strict=True):
        parameter.copy_(at + step * along)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("penalty", ANY_OUTPUT, ids=repr)
def test_any_output(name: str, penalty: gr.Penalty) -> None:
    assert_gradient_is_right(problem(name), penalty)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "regression"])
@pytest.mark.parametrize("penalty", CLASSES, ids=repr)
def test_classes(name: str, penalty: gr.Penalty) -> None:
    assert_gradient_is_right(problem(name), penalty)


@pytest.mark.parametrize("penalty", OPTIONS, ids=repr)
def test_options(penalty: gr.Penalty) -> None:
    assert_gradient_is_right(problem("conv_batch_norm"), penalty)


def test_the_total_is_the_loss_plus_weighted_penalties_in_its_gradient_too() -> None:
    p = problem("conv_dropout")
    penalties = [gr.SpectReg(weight=0.3), gr.DoubleBack(weight=2)]
    torch.manual_seed(0)
    terms = gr.Objective(p.loss, *penalties)(p.model, p.x, p.y, generator=torch.Generator().manual_seed(5))
    weights = list(p.model.parameters())
    together = torch.autograd.grad(terms.total, weights, retain_graph=True)
    parts = [torch.autograd.grad(terms.loss, weights, retain_graph=True)]
    parts += [
        [
            penalty.weight * g
            for g in torch.autograd.grad(
                terms.penalties[penalty.name], weights, retain_graph=True, materialize_grads=True, allow_unused=True
            )
        ]
        for penalty in penalties
    ]
    for found, *expected in zip(together, *parts, strict=True):
        torch.testing.assert_close(found, sum(expected))


def test_gradcheck_of_the_functions() -> None:
    w = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 2])
    for function in (
        lambda w, x: gr.functional.frob_reg((x @ w.T).tanh(), x),
        lambda w, x: gr.functional.jac_reg((x @ w.T).tanh(), x),
        lambda w, x: gr.functional.one_hot((x @ w.T).tanh(), x, y),
        lambda w, x: gr.functional.softmax_projection((x @ w.T).tanh(), x),
        lambda w, x: gr.functional.spect_reg((x @ w.T).tanh(), x, generator=torch.Generator().manual_seed(0)),
        lambda w, x: gr.functional.double_back((x @ w.T).tanh().square().sum(1), x),
    ):
        assert torch.autograd.gradcheck(function, (w, x))


@pytest.mark.parametrize("engine", ["double_backward", "compiled", "linearized"])
@pytest.mark.parametrize("kind", [gr.FrobReg, gr.JacReg])
def test_rows_of_large_inputs_go_one_by_one(kind: type, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same value and the same gradients, whichever way."""
    p = problem("conv_batch_norm")

    def found() -> list[torch.Tensor]:
        value = penalty_value(p, kind(weight=1), engine)
        p.model.zero_grad()
        gr.Objective(p.loss, kind(weight=1), engine=engine)(p.model, p.x, p.y).total.backward()
        return [value.detach(), *(parameter.grad.clone() for parameter in p.model.parameters())]

    together = found()
    parts = []
    split = probe.split_rows
    for module in (probe, recorded):
        monkeypatch.setattr(module, "split_rows", lambda *given: parts.append(split(*given)) or parts[-1])
    monkeypatch.setattr(probe, "SMALL", 0)
    for expected, one_by_one in zip(together, found(), strict=True):
        torch.testing.assert_close(one_by_one, expected)
    assert {len(row) for part in parts for row in part} == {1}
