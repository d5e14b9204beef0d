"""Attention in plain operations, against PyTorch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradreg as gr
from gradreg.draws import Draws
from gradreg.engines.attention import attention
from gradreg.engines.dropout import DrawnDropout

BOOLEAN = torch.ones(5, 7, dtype=torch.bool).tril(2)
NOTHING_FOR_ONE = BOOLEAN.clone().index_fill_(0, torch.tensor([3]), False)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 0.3},
        {"attn_mask": BOOLEAN},
        {"attn_mask": NOTHING_FOR_ONE},
        {"attn_mask": torch.linspace(-1, 1, 35).view(5, 7).double()},
        {"is_causal": True},
        {"enable_gqa": True},
    ],
    ids=lambda options: ", ".join(options) or "plain",
)
def test_same_as_pytorchs(options) -> None:
    torch.manual_seed(0)
    heads = 2 if "enable_gqa" in options else 4
    q, k, v = torch.randn(2, 4, 5, 6), torch.randn(2, heads, 7, 6), torch.randn(2, heads, 7, 3)
    q, k, v = (t.double().requires_grad_() for t in (q, k, v))
    found, expected = (f(q, k, v, **options) for f in (attention, F.scaled_dot_product_attention))
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad(y.square().sum(), (q, k, v)) for y in (found, expected))
    torch.testing.assert_close(ours, theirs)


def test_a_mask_beside_is_causal_is_told_as_pytorch_does() -> None:
    q = torch.randn(1, 2, 5, 4)
    with pytest.raises(ValueError, match="only one may be: put both in the mask"):
        attention(q, q, q, torch.ones(5, 5, dtype=torch.bool), is_causal=True)


def test_dropout_of_attention_is_drawn_by_key() -> None:
    """Masks of two passes are the same, have the rate, and the global random state is left alone."""
    q = torch.randn(2, 3, 50, 8)
    one = torch.eye(50).expand(2, 3, 50, 50)  # shows the probabilities
    before = torch.get_rng_state()
    with DrawnDropout(Draws.of_seed(0)):
        first, second = (F.scaled_dot_product_attention(q, q, one, dropout_p=0.25) for _ in range(2))
    with DrawnDropout(Draws.of_seed(0)):
        again = F.scaled_dot_product_attention(q, q, one, None, 0.25)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert (first == 0).float().mean() == pytest.approx(0.25, abs=0.01)
    kept = first != 0
    expected = F.scaled_dot_product_attention(q, q, one)[kept] / 0.75
    torch.testing.assert_close(first[kept], expected)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("penalty", [gr.SpectReg(weight=0.1), gr.FrobReg(weight=0.1)], ids=repr)
def test_compiled_transformer(penalty: gr.Penalty, half: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(16 * 6, 5))
    x, y = torch.randn(8, 6, 16), torch.randint(5, (8,))

    def gradient(engine: str, half: bool) -> Tensor:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            terms = gr.Objective(F.cross_entropy, penalty, engine=engine)(model, x, y, generator=Draws.of_seed(0))
        terms.total.backward()
        return torch.cat([p.grad.flatten().clone() for p in model.parameters()])

    exact = gradient("double_backward", half=False)
    assert (gradient("compiled", half) - exact).norm() < (0.05 if half else 1e-5) * exact.norm()


def test_compiled_transformer_with_dropout() -> None:
    """Dropout of the probabilities too is drawn by key, so that both engines have the same masks."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.3, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(16 * 6, 5)).double()
    x, y = torch.randn(8, 6, 16).double(), torch.randint(5, (8,))

    def gradient(engine: str, seed: int) -> Tensor:
        model.zero_grad()
        objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=0.1), engine=engine)
        objective(model, x, y, generator=Draws.of_seed(seed)).total.backward()
        return torch.cat([p.grad.flatten().clone() for p in model.parameters()])

    torch.testing.assert_close(gradient("compiled", 0), gradient("double_backward", 0))
    assert not torch.allclose(gradient("compiled", 0), gradient("compiled", 1))
