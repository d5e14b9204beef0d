"""Random numbers by key: their distribution, their independence, and that nothing but the key decides them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn

import gradreg as gr
from gradreg.draws import Draws, _unit
from gradreg.engines.dropout import DrawnDropout

N = 200_000


def test_distributions() -> None:
    draws = Draws.of_seed(3)
    assert stats.kstest(draws.uniform(N).numpy(), "uniform").pvalue > 0.01
    assert stats.kstest(draws.normal(N).numpy(), "norm").pvalue > 0.01
    assert stats.chisquare(draws.integers(7, N).bincount().numpy()).pvalue > 0.01
    assert draws.uniform(N).min() > 0
    assert draws.uniform(N).max() < 1


def test_the_ends_are_excluded() -> None:
    lowest, below_half, highest = _unit(torch.tensor([0, 2**23 - 1, 2**24 - 1]), 0).tolist()
    assert (lowest, below_half, highest) == (2**-25, 0.5 - 2**-25, 1 - 2**-24)
    assert _unit(torch.tensor([-1]), 40) < 1


def test_every_bit_is_fair() -> None:
    bits = Draws.of_seed(0).bits(N)
    ones = torch.stack([(bits >> place & 1).double().mean() for place in range(64)])
    assert ((ones - 0.5).abs() < 5 * 0.5 / N**0.5).all()


@pytest.mark.parametrize("make", [lambda n: Draws.of_seed(n), lambda n: Draws.of_seed(0).at(n)], ids=["seeds", "steps"])
def test_sources_are_independent(make) -> None:
    """Correlations of 200 sources have the spread that independent ones would have."""
    sources = torch.stack([make(number).normal(500) for number in range(200)])
    correlations = torch.corrcoef(sources)[torch.triu(torch.ones(200, 200), 1).bool()]
    assert correlations.std() * 500**0.5 == pytest.approx(1, abs=0.03)
    assert correlations.abs().max() * 500**0.5 < 5.5


def test_neighbours_in_one_draw_are_independent() -> None:
    numbers = Draws.of_seed(1).normal(N)
    for lag in (1, 2, 64):
        assert abs(torch.corrcoef(torch.stack([numbers[:-lag], numbers[lag:]]))[0, 1]) < 4 / N**0.5


def test_key_as_a_tensor_and_vectorised_over_members() -> None:
    seeds = [5, -3, 2**40]
    alone = torch.stack([Draws.of_seed(seed).at("mask", 7).normal(4) for seed in seeds])
    keys = torch.tensor([Draws.of_seed(seed).key for seed in seeds])
    together = torch.func.vmap(lambda key, step: Draws(key).at("mask", step).normal(4), (0, None))(keys, torch.tensor(7))
    assert torch.equal(alone, together)


def test_permutation() -> None:
    assert torch.equal(Draws.of_seed(0).permutation(100).sort().values, torch.arange(100))
    firsts = torch.stack([Draws.of_seed(seed).permutation(5)[0] for seed in range(2000)])
    assert stats.chisquare(firsts.bincount().numpy()).pvalue > 0.01


# ---- dropout ----


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Dropout, (400, 50)), (nn.Dropout1d, (400, 50, 3)), (nn.Dropout2d, (400, 50, 2, 2))]
)
def test_dropout_has_the_rate_and_keeps_the_mean(layer, shape) -> None:
    with DrawnDropout(Draws.of_seed(0)):
        y = layer(0.25)(torch.ones(shape))
    assert y.unique().tolist() == pytest.approx([0, 4 / 3])
    assert (y == 0).float().mean() == pytest.approx(0.25, abs=0.015)
    per_channel = y.flatten(2) if y.ndim > 2 else y.unsqueeze(2)
    assert (per_channel == per_channel[..., :1]).all()


def test_dropout_in_evaluation_mode_and_at_the_ends() -> None:
    x = torch.randn(5)
    with DrawnDropout(Draws.of_seed(0)):
        assert torch.equal(nn.Dropout(0.5).eval()(x), x)
        assert torch.equal(F.dropout(x, 0.0), x)
        assert torch.equal(F.dropout(x, 1.0), torch.zeros(5))


def test_two_layers_have_different_masks_and_two_passes_the_same() -> None:
    x = torch.ones(1000)

    def one_pass() -> torch.Tensor:
        with DrawnDropout(Draws.of_seed(0)):
            return torch.stack([F.dropout(x), F.dropout(x)])

    assert not torch.equal(*one_pass())
    assert torch.equal(one_pass(), one_pass())


def test_objective_with_draws_leaves_the_global_state_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 3))
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    penalties = gr.SpectReg(weight=1, forward="fresh"), gr.DoubleBack(weight=1, fraction=0.5), gr.ConfidencePenalty(weight=1)
    objective = gr.Objective(F.cross_entropy, *penalties)
    before = torch.get_rng_state()
    totals = {objective(model, x, y, generator=Draws.of_seed(seed)).total.item() for seed in (0, 0, 1)}
    assert torch.equal(torch.get_rng_state(), before)
    assert len(totals) == 2


def test_one_penalty_does_not_change_the_draws_of_another() -> None:
    model = nn.Linear(3, 4)
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    alone = gr.Objective(F.cross_entropy, gr.SpectReg(weight=1))(model, x, y, generator=Draws.of_seed(0))
    beside = gr.Objective(F.cross_entropy, gr.RandomOneHot(weight=1), gr.SpectReg(weight=1))(
        model, x, y, generator=Draws.of_seed(0)
    )
    assert alone.penalties["spect_reg"] == beside.penalties["spect_reg"]
