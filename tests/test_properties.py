"""What must hold for any network and any batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import gradreg as gr
from gradreg import functional as G

sizes = st.integers(1, 5)
seeds = st.integers(0, 2**31)
scales = st.floats(0.01, 100)
relaxed = settings(max_examples=30, deadline=None)


def network(seed: int, features: int, classes: int, batch: int):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    first, second = draw(features, 7), draw(7, classes)
    x = draw(batch, features).requires_grad_()
    y = torch.randint(classes, (batch,), generator=generator)
    return (lambda v: (v @ first).tanh() @ second), x, y


@relaxed
@given(seeds, sizes, st.integers(2, 6), sizes)
def test_jac_reg_is_at_most_a_quarter_of_frob_reg(seed: int, features: int, classes: int, batch: int) -> None:
    """The largest singular value of the softmax's Jacobian is at most 1/2."""
    g, x, _ = network(seed, features, classes, batch)
    assert (G.jac_reg(g(x), x) <= G.frob_reg(g(x), x) / 4 + 1e-12).all()


@relaxed
@given(seeds, sizes, st.integers(2, 6), sizes, scales)
def test_scaling_the_output_scales_the_penalty_by_its_square(seed, features, classes, batch, scale) -> None:
    g, x, y = network(seed, features, classes, batch)
    for penalty in (
        lambda z: G.frob_reg(z, x),
        lambda z: G.spect_reg(z, x, generator=torch.Generator().manual_seed(seed)),
        lambda z: G.one_hot(z, x, y),
        lambda z: G.top_k(z, x),
    ):
        torch.testing.assert_close(penalty(scale * g(x)), scale**2 * penalty(g(x)))


@relaxed
@given(seeds, sizes, st.integers(2, 6), st.integers(2, 6))
def test_the_value_of_an_example_does_not_depend_on_its_company(seed, features, classes, batch) -> None:
    g, x, y = network(seed, features, classes, batch)
    order = torch.randperm(batch, generator=torch.Generator().manual_seed(seed))
    part = x.detach()[order][:-1].requires_grad_()
    for penalty in (
        lambda x, y: G.frob_reg(g(x), x),
        lambda x, y: G.jac_reg(g(x), x),
        lambda x, y: G.double_back(F.cross_entropy(g(x), y, reduction="none"), x),
        lambda x, y: G.spect_reg(g(x), x, generator=torch.Generator().manual_seed(seed)),
        lambda x, y: G.softmax_projection(g(x), x),
    ):
        torch.testing.assert_close(penalty(part, y[order][:-1]), penalty(x, y)[order][:-1])


@relaxed
@given(seeds, sizes, st.integers(2, 6), sizes)
def test_rotating_the_input_changes_nothing(seed: int, features: int, classes: int, batch: int) -> None:
    g, x, _ = network(seed, features, classes, batch)
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(features, features, generator=generator, dtype=torch.float64)).Q
    rotated = (x.detach() @ rotation).requires_grad_()
    torch.testing.assert_close(G.frob_reg(g(rotated @ rotation.T), rotated), G.frob_reg(g(x), x))


@relaxed
@given(seeds, sizes, st.integers(2, 6), sizes)
def test_adding_a_constant_to_all_logits_leaves_what_lies_behind_the_softmax(seed, features, classes, batch) -> None:
    g, x, y = network(seed, features, classes, batch)
    shifted = g(x) + x.sum(1, keepdim=True)
    torch.testing.assert_close(G.jac_reg(shifted, x), G.jac_reg(g(x), x))
    torch.testing.assert_close(G.confidence_penalty(shifted), G.confidence_penalty(g(x)))
    losses = [F.cross_entropy(z, y, reduction="none") for z in (shifted, g(x))]
    torch.testing.assert_close(G.double_back(losses[0], x), G.double_back(losses[1], x))


@relaxed
@given(st.integers(0, 40), st.integers(1, 7), st.integers(0, 10))
def test_lazy_application_keeps_the_sum_over_a_cycle(start: int, every: int, warmup: int) -> None:
    lazy = gr.Schedule(every=every)
    assert sum(lazy.factor(step) for step in range(start, start + every)) == every
    ramp = [gr.Schedule(warmup_steps=warmup).factor(step) for step in range(warmup + 5)]
    assert ramp == sorted(ramp)
    assert ramp[warmup:] == [1.0] * 5
    assert not warmup or ramp[0] == 0.0


@relaxed
@given(seeds, st.integers(1, 6), st.integers(1, 8))
def test_chunks_change_neither_value_nor_gradient(seed: int, classes: int, chunk_size: int) -> None:
    w = torch.randn(3, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, requires_grad=True)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, requires_grad=True)
    whole, chunked = (G.frob_reg((x @ w).tanh(), x, chunk_size=size) for size in (None, chunk_size))
    torch.testing.assert_close(chunked, whole)
    torch.testing.assert_close(torch.autograd.grad(chunked.sum(), w)[0], torch.autograd.grad(whole.sum(), w)[0])
