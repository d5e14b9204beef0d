"""Every equation of the paper's section 2, as a test."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradreg as gr
from gradreg import functional as G
from gradreg.sources import GeneratorSource

D, M = 6, 4


def tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def smooth_logits(x: Tensor) -> Tensor:
    return torch.tanh(x @ tensor(D, 8, seed=1)) @ tensor(8, M, seed=2)


def jacobian(function, x: Tensor) -> Tensor:
    """``[batch, outputs, features]``, one example and one row at a time."""
    return torch.stack([torch.autograd.functional.jacobian(lambda v: function(v[None])[0], row) for row in x])


# 2.2 "for this network, FrobReg is identical to L2 weight decay and SpectReg is an estimator for weight decay"


def test_frob_reg_of_a_linear_layer_is_weight_decay() -> None:
    layer, x = nn.Linear(D, M).double(), tensor(5, D).requires_grad_()
    torch.testing.assert_close(G.frob_reg(layer(x), x), layer.weight.square().sum().expand(5))
    torch.testing.assert_close(G.frob_reg(layer(x), x).mean(), 2 * G.weight_decay(layer.parameters()))


def test_spect_reg_of_a_linear_layer_estimates_weight_decay() -> None:
    layer, x = nn.Linear(D, M).double(), tensor(1, D).requires_grad_()
    assert_mean_is(layer.weight.square().sum(), lambda g: G.spect_reg(layer(x), x, num_projections=4000, generator=g))


# 2.2 "for a dense ReLU network the product of layer-wise weight norms is an upper bound for the FrobReg loss term",
# and by the inequality of arithmetic and geometric means so is a function of the total weight norm


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(5))
def test_product_of_weight_norms_bounds_frob_reg(depth: int, seed: int) -> None:
    torch.manual_seed(seed)
    layers = [nn.Linear(D, D) for _ in range(depth)]
    network = nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1]).double()
    x = tensor(20, D, seed=seed).requires_grad_()
    norms = torch.stack([layer.weight.square().sum() for layer in layers])
    penalty = G.frob_reg(network(x), x)
    assert (penalty <= norms.prod() * (1 + 1e-12)).all()
    assert norms.prod() <= norms.mean() ** depth * (1 + 1e-12)


# 2.3, equation 1: the Jacobian of the softmax, and J_f = J_softmax J_g


def test_softmax_jacobian_identity() -> None:
    x = tensor(3, D)
    logits_jacobian = jacobian(smooth_logits, x)
    p = smooth_logits(x).softmax(1)
    outer = p[:, :, None].expand(3, M, M)
    softmax_jacobian = outer * (torch.eye(M) - outer).mT
    torch.testing.assert_close(jacobian(lambda v: v.softmax(1), smooth_logits(x)), softmax_jacobian)
    composed = softmax_jacobian @ logits_jacobian
    torch.testing.assert_close(jacobian(lambda v: smooth_logits(v).softmax(1), x), composed)
    x.requires_grad_()
    torch.testing.assert_close(G.jac_reg(smooth_logits(x), x), composed.square().sum((1, 2)))


# 2.3 "as p tends to a one-hot vector, J_softmax tends to the zero matrix ... JacReg disappears, while FrobReg and
# SpectReg does not"


def test_jac_reg_vanishes_as_the_prediction_becomes_one_hot_and_frob_reg_does_not() -> None:
    weight, x = tensor(D, M), tensor(4, D).requires_grad_()
    jac, frob, spect = [], [], []
    for scale in (1.0, 10.0, 100.0):
        logits = scale * (x @ weight)
        jac.append(G.jac_reg(logits, x).max().item())
        frob.append(G.frob_reg(logits, x).min().item())
        spect.append(G.spect_reg(logits, x, generator=torch.Generator().manual_seed(0)).min().item())
    assert logits.softmax(1).max(1).values.min() > 1 - 1e-12
    assert jac[2] < 1e-12 < jac[0]
    assert frob[2] == pytest.approx(1e4 * frob[0])
    assert spect[2] == pytest.approx(1e4 * spect[0])


# 2.3, probabilities against loss: the true row of J_f, times -1 / p_t


def test_double_back_is_one_row_of_the_probabilities_jacobian() -> None:
    x, y = tensor(3, D).requires_grad_(), torch.tensor([0, 3, 1])
    rows = jacobian(lambda v: smooth_logits(v).softmax(1), x.detach())[torch.arange(3), y]
    p_true = smooth_logits(x).softmax(1)[torch.arange(3), y]
    expected = (rows / p_true[:, None]).square().sum(1)
    loss = F.cross_entropy(smooth_logits(x), y, reduction="none")
    torch.testing.assert_close(G.double_back(loss, x), expected)


# 2.3, the last equation: J_loss = (p - y)^T J_g


def test_double_back_projects_the_logits_jacobian_on_the_error() -> None:
    x, y = tensor(3, D).requires_grad_(), torch.tensor([0, 3, 1])
    error = smooth_logits(x).softmax(1) - F.one_hot(y, M)
    expected = torch.einsum("bm,bmd->bd", error, jacobian(smooth_logits, x.detach())).square().sum(1)
    loss = F.cross_entropy(smooth_logits(x), y, reduction="none")
    torch.testing.assert_close(G.double_back(loss, x), expected)
    # and it vanishes as the network fits the labels
    confident = F.cross_entropy(1e3 * F.one_hot(y, M) + smooth_logits(x), y, reduction="none")
    assert G.double_back(confident, x).max() < 1e-12


# 2.4 "|| d <g(x), w> / dx || = || (dg/dx)^T w ||"


def test_gradient_of_the_projection_is_projection_of_the_jacobian() -> None:
    x = tensor(3, D).requires_grad_()
    w = torch.randn(1, 1, M, generator=torch.Generator().manual_seed(3))[0, 0].double()
    expected = torch.einsum("m,bmd->bd", w, jacobian(smooth_logits, x.detach())).square().sum(1)
    found = G.spect_reg(smooth_logits(x), x, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(found, expected)


# 2.4, Claim 1: "if R has covariance I, E || r J ||^2 = || J ||_F^2"


def assert_mean_is(expected: Tensor, draw, repeats: int = 40, z: float = 4.0) -> None:
    """The mean of independent draws is within z standard errors of what is expected (fixed seeds: no flakiness)."""
    samples = torch.stack([draw(torch.Generator().manual_seed(seed)).detach().squeeze() for seed in range(repeats)])
    standard_error = samples.std(0) / math.sqrt(repeats)
    assert ((samples.mean(0) - expected).abs() <= z * standard_error + 1e-12).all()
    assert (standard_error < 0.05 * expected).all(), "too noisy to tell anything"


PROJECTIONS = ["gaussian", "sphere", "rademacher", "orthogonal"]


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("per_example", [False, True])
def test_every_projection_is_unbiased_for_the_squared_frobenius_norm(projection: str, per_example: bool) -> None:
    x = tensor(3, D).requires_grad_()
    expected = jacobian(smooth_logits, x.detach()).square().sum((1, 2))
    num = 3 if projection == "orthogonal" else 300

    def draw(generator: torch.Generator) -> Tensor:
        return G.spect_reg(
            smooth_logits(x), x, projection=projection, num_projections=num, per_example=per_example, generator=generator
        )

    assert_mean_is(expected, draw, repeats=300 if projection == "orthogonal" else 40)


def test_random_one_hot_is_unbiased_too() -> None:
    x = tensor(3, D).requires_grad_()
    expected = jacobian(smooth_logits, x.detach()).square().sum((1, 2))
    assert_mean_is(expected, lambda g: G.random_one_hot(smooth_logits(x), x, generator=g), repeats=3000)


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_the_projections_have_identity_covariance(projection: str) -> None:
    probe = gr.Probe(logits=torch.zeros(20_000, M), source=GeneratorSource(torch.Generator().manual_seed(0)))
    r = gr.SpectReg(weight=1, projection=projection, per_example=True).cotangents(probe)[0]
    torch.testing.assert_close(r.T @ r / len(r), torch.eye(M), atol=0.05, rtol=0)
    torch.testing.assert_close(r.mean(0), torch.zeros(M), atol=0.05, rtol=0)


def test_all_orthogonal_directions_are_exact() -> None:
    x = tensor(3, D).requires_grad_()
    for per_example in (False, True):
        found = G.spect_reg(smooth_logits(x), x, projection="orthogonal", num_projections=M, per_example=per_example)
        torch.testing.assert_close(found, G.frob_reg(smooth_logits(x), x))


# 2.1 "when the projector is normalized onto the unit sphere, the norm of the projection can be interpreted as a lower
# bound to the spectral norm": our sphere has radius sqrt(m), so the paper's value is ours divided by m


def test_unit_sphere_projection_bounds_the_spectral_norm_from_below() -> None:
    x = tensor(3, D).requires_grad_()
    spectral = torch.linalg.matrix_norm(jacobian(smooth_logits, x.detach()), ord=2)
    for seed in range(50):
        value = G.spect_reg(smooth_logits(x), x, projection="sphere", generator=torch.Generator().manual_seed(seed))
        assert ((value / M).sqrt() <= spectral * (1 + 1e-12)).all()
