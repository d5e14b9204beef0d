"""Every penalty on every problem against its definition, by finite differences in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from problems import BATCH, CLASSIFICATION, NAMES, Problem, problem
from reference import Function, cross_entropy, softmax, squared_norms, summed_jacobian

import gradreg as gr


def values_of(p: Problem, penalty: gr.Penalty) -> np.ndarray:
    """The penalty's value for each example, through the objective, by giving each example alone the weight."""
    seen: list[torch.Tensor] = []

    class Recording(type(penalty)):  # type: ignore[misc]
        def __call__(self, probe: gr.Probe) -> torch.Tensor:
            seen.append(super().__call__(probe))
            return seen[-1]

    recording = object.__new__(Recording)
    recording.__dict__.update(penalty.__dict__)
    torch.manual_seed(0)
    terms = gr.Objective(p.loss, recording)(p.model, p.x, p.y, generator=torch.Generator().manual_seed(5))
    np.testing.assert_allclose(terms.penalties[penalty.name].item(), seen[0].mean().item(), rtol=1e-12)
    assert seen[0].shape == (len(p.x),)
    return seen[0].detach().numpy()


def assert_is_squared_gradient_of(p: Problem, penalty: gr.Penalty, function: Function) -> None:
    expected = squared_norms(summed_jacobian(lambda x: function(p.logits(x)), p.x))
    np.testing.assert_allclose(values_of(p, penalty), expected, rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_double_back_of_cross_entropy(name: str) -> None:
    p = problem(name)
    assert_is_squared_gradient_of(p, gr.DoubleBack(weight=1), lambda z: cross_entropy(z, p.y))


def test_double_back_of_squared_error() -> None:
    p = problem("regression")
    assert_is_squared_gradient_of(p, gr.DoubleBack(weight=1), lambda z: (z - p.y) ** 2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk_size", [None, 1, 3])
def test_frob_reg(name: str, chunk_size: int | None) -> None:
    assert_is_squared_gradient_of(problem(name), gr.FrobReg(weight=1, chunk_size=chunk_size), lambda z: z)


@pytest.mark.parametrize("name", CLASSIFICATION)
@pytest.mark.parametrize("chunk_size", [None, 3])
def test_jac_reg(name: str, chunk_size: int | None) -> None:
    assert_is_squared_gradient_of(problem(name), gr.JacReg(weight=1, chunk_size=chunk_size), softmax)


@pytest.mark.parametrize("shape", [(4, 5), (4, 3, 2), (4, 2)])
def test_jac_reg_needs_a_row_fewer_than_classes(shape: tuple[int, ...]) -> None:
    """At each place of the output; but for the L1 norm, which is another one in another basis."""
    probe = gr.Probe(logits=torch.randn(shape))
    places = probe.num_outputs // shape[1]
    assert len(gr.JacReg(weight=1).cotangents(probe)) == (shape[1] - 1) * places
    assert len(gr.JacReg(weight=1, norm="l1").cotangents(probe)) == probe.num_outputs


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("classes", [10, 1000])
def test_jac_reg_in_half_precision(dtype: torch.dtype, classes: int) -> None:
    """Of the logits by themselves, whose Jacobian is that of the softmax."""
    logits = torch.randn(3, classes, generator=torch.Generator().manual_seed(0), requires_grad=True)
    half = logits.detach().to(dtype).requires_grad_()
    expected = gr.functional.jac_reg(logits, logits)
    torch.testing.assert_close(gr.functional.jac_reg(half, half), expected, rtol=0.03, atol=0)


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_one_hot(name: str) -> None:
    p = problem(name)
    assert_is_squared_gradient_of(p, gr.OneHot(weight=1), lambda z: z[torch.arange(BATCH), p.y])


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_top_k(name: str) -> None:
    assert_is_squared_gradient_of(problem(name), gr.TopK(weight=1, k=2), lambda z: z.sort(1).values[:, -2:].sum(1))


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_softmax_projection(name: str) -> None:
    assert_is_squared_gradient_of(problem(name), gr.SoftmaxProjection(weight=1), lambda z: (softmax(z) * z).sum(1))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("per_example", [False, True])
def test_spect_reg_with_the_gaussian_it_drew(name: str, per_example: bool) -> None:
    p = problem(name)
    m = p.logits(p.x).shape[1]
    draws = BATCH if per_example else 1
    r = torch.randn(1, draws, m, generator=torch.Generator().manual_seed(5)).double()[0]
    assert_is_squared_gradient_of(p, gr.SpectReg(weight=1, per_example=per_example), lambda z: (z * r).sum(1))


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_random_one_hot_with_the_class_it_drew(name: str) -> None:
    p = problem(name)
    m = p.logits(p.x).shape[1]
    k = torch.randint(m, (BATCH,), generator=torch.Generator().manual_seed(5))
    assert_is_squared_gradient_of(p, gr.RandomOneHot(weight=1), lambda z: m**0.5 * z[torch.arange(BATCH), k])


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_confidence_penalty_is_the_negative_entropy(name: str) -> None:
    p = problem(name)
    probabilities = softmax(p.logits(p.x).detach()).numpy()
    expected = (probabilities * np.log(probabilities)).sum(1)
    np.testing.assert_allclose(values_of(p, gr.ConfidencePenalty(weight=1)), expected, rtol=1e-10)
    as_sum = values_of(p, gr.ConfidencePenalty(weight=1, reduction="sum"))
    np.testing.assert_allclose(as_sum.mean(), expected.sum(), rtol=1e-10)


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_label_smoothing_equals_pytorchs(name: str) -> None:
    p = problem(name)
    torch.manual_seed(0)
    terms = gr.Objective(p.loss, gr.LabelSmoothing(weight=0.2))(p.model, p.x, p.y)
    expected = torch.nn.functional.cross_entropy(p.logits(p.x), p.y, label_smoothing=0.2)
    torch.testing.assert_close(terms.total, expected)


def test_weight_decay_counts_matrices_and_filters_only() -> None:
    p = problem("conv_batch_norm")
    matrices = [p.model[0].weight, p.model[5].weight]
    expected = sum(0.5 * float((w.detach().numpy() ** 2).sum()) for w in matrices)
    terms = gr.Objective(p.loss, gr.WeightDecay(weight=0.1))(p.model, p.x, p.y)
    assert terms.penalties["weight_decay"].item() == pytest.approx(expected)
    assert terms.total.item() == pytest.approx(terms.loss.item() + 0.1 * expected)


def test_weight_decay_is_that_of_sgd() -> None:
    p = problem("linear")
    (gradient,) = torch.autograd.grad(
        gr.Objective(p.loss, gr.WeightDecay(weight=0.1))(p.model, p.x, p.y).total, p.model.weight
    )
    (plain,) = torch.autograd.grad(p.loss(p.model(p.x), p.y), p.model.weight)
    torch.testing.assert_close(gradient, plain + 0.1 * p.model.weight)


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        ("squared_l2", lambda u: (u**2).sum((0, 2))),
        ("l2", lambda u: np.sqrt((u**2).sum((0, 2)))),
        ("l1", lambda u: np.abs(u).sum((0, 2))),
        (gr.TargetSlope(0.3, "parabola"), lambda u: (np.sqrt((u**2).sum((0, 2))) / 0.3 - 1) ** 2),
        (gr.TargetSlope(0.3, "gentle"), lambda u: np.maximum(0, np.sqrt((u**2).sum((0, 2))) / 0.3 - 1) ** 2),
        (gr.TargetSlope(0.3, "steep"), lambda u: np.maximum(1, np.sqrt((u**2).sum((0, 2))) / 0.3) ** 2),
    ],
)
@pytest.mark.parametrize("penalty", [gr.DoubleBack, gr.FrobReg, gr.JacReg])
def test_norms(penalty, norm, expected) -> None:
    p = problem("mlp")
    function = {gr.DoubleBack: lambda z: cross_entropy(z, p.y), gr.FrobReg: lambda z: z, gr.JacReg: softmax}[penalty]
    jacobian = summed_jacobian(lambda x: function(p.logits(x)), p.x)
    np.testing.assert_allclose(values_of(p, penalty(weight=1, norm=norm)), expected(jacobian), rtol=2e-6)


def test_norm_of_several_projections_is_the_mean_of_their_norms() -> None:
    p = problem("mlp")
    r = torch.randn(5, 1, 4, generator=torch.Generator().manual_seed(5)).double()
    jacobians = [summed_jacobian(lambda x, row=row: (p.logits(x) * row).sum(1), p.x) for row in r]
    expected = np.mean([np.sqrt(squared_norms(j)) for j in jacobians], axis=0)
    for chunk_size in (None, 2):
        penalty = gr.SpectReg(weight=1, num_projections=5, norm="l2", chunk_size=chunk_size)
        np.testing.assert_allclose(values_of(p, penalty), expected, rtol=2e-6)
