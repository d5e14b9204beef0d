"""``wrt``, batch-norm semantics, norms at zero, chunks and memory."""

from __future__ import annotations

import copy
import gc
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradreg as gr
from gradreg import functional as G


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# wrt


@pytest.mark.parametrize("make", [gr.DoubleBack, gr.FrobReg, gr.JacReg, gr.SpectReg])
def test_hidden_gradients_are_those_of_the_rest_of_the_network(make) -> None:
    body, head = nn.Sequential(nn.Linear(3, 6), nn.Tanh()), nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    x, y = torch.randn(8, 3), torch.randint(4, (8,))
    whole = nn.ModuleDict({"body": body, "head": head})
    whole.forward = lambda v: head(body(v))
    by_name = gr.Objective(F.cross_entropy, make(weight=1, wrt="body"))(whole, x, y, generator=seeded())
    by_input = gr.Objective(F.cross_entropy, make(weight=1))(head, body(x).detach(), y, generator=seeded())
    torch.testing.assert_close(by_name.penalties[make.name], by_input.penalties[make.name])
    torch.testing.assert_close(by_name.loss, by_input.loss)


class TextModel(nn.Module):
    def __init__(self, *, trainable: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6).requires_grad_(trainable)
        self.lstm = nn.LSTM(6, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0].mean(1))


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("wrt", ["embedding", "lstm"])
def test_text_through_the_embedding_or_a_recurrent_layer(trainable: bool, wrt: str) -> None:
    model, tokens, y = TextModel(trainable=trainable), torch.randint(11, (4, 7)), torch.tensor([0, 1, 2, 0])
    terms = gr.Objective(F.cross_entropy, gr.SpectReg(weight=1, wrt=wrt))(model, tokens, y, generator=seeded())
    terms.total.backward()
    assert (model.embedding.weight.grad is not None) == trainable
    if wrt == "lstm":  # the gradient by the mean-pooled states is W^T r / 7 at each of the 7 positions
        r = torch.randn(1, 1, 3, generator=seeded())[0, 0]
        torch.testing.assert_close(terms.penalties["spect_reg"], (r @ model.head.weight).square().sum() / 7)


def test_a_module_called_twice_counts_at_both_places() -> None:
    layer = nn.Linear(4, 4)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x))

    terms = gr.Objective(F.mse_loss, gr.FrobReg(weight=1, wrt="layer"))(Twice(), torch.randn(3, 4), torch.randn(3, 4))
    torch.testing.assert_close(terms.penalties["frob_reg"], layer.weight.square().sum() + 4)  # d out / d out is the identity


# inputs and outputs of other shapes


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Linear(4, 2)

    def forward(self, left: Tensor, right: Tensor, ids: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        return scale * (self.a(left) + self.b(right))


@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_several_inputs_with_passengers(kind: str) -> None:
    model, y = TwoInputs(), torch.tensor([0, 1, 0])
    left, right, ids = torch.randn(3, 3), torch.randn(3, 4), torch.arange(3)
    x = (left, right, ids) if kind == "tuple" else {"left": left, "right": right, "ids": ids, "scale": 2.0}
    scale = 1.0 if kind == "tuple" else 4.0
    a, b = (layer.weight.square().sum() * scale for layer in (model.a, model.b))
    names = ("0", "1") if kind == "tuple" else ("left", "right")
    for settings in ({}, {"fraction": 0.5}, {"forward": "fresh"}):
        for wrt, expected in {"input": a + b, f"input.{names[0]}": a, f"input.{names[1]}": b}.items():
            terms = gr.Objective(F.cross_entropy, gr.FrobReg(weight=1, wrt=wrt, **settings))(model, x, y)
            torch.testing.assert_close(terms.penalties["frob_reg"], expected)


def test_outputs_like_hugging_faces() -> None:
    from types import SimpleNamespace

    layer, x, y = nn.Linear(3, 2), torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    terms = gr.Objective(F.cross_entropy, gr.FrobReg(weight=1))(lambda v: SimpleNamespace(logits=layer(v)), x, y)
    torch.testing.assert_close(terms.penalties["frob_reg"], layer.weight.square().sum())


def per_position_loss(logits: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction=reduction)


@pytest.mark.parametrize("classes_last", [True, False])
def test_outputs_at_several_positions(classes_last: bool) -> None:
    """One position at a time, a sequence labeller is many classifiers: its Jacobian is all of theirs."""
    layer, x, y = nn.Linear(3, 4), torch.randn(2, 5, 3), torch.randint(4, (2, 5))
    flat_x, flat_y = x.flatten(0, 1).requires_grad_(), y.flatten()
    logits = layer(flat_x)

    def expected(values: Tensor) -> Tensor:
        return values.reshape(2, 5).sum(1).mean()

    def model(v: Tensor) -> Tensor:
        return layer(v) if classes_last else layer(v).transpose(1, 2)

    loss, class_dim = (per_position_loss, -1) if classes_last else (F.cross_entropy, 1)
    penalties = [
        gr.FrobReg(weight=1),
        gr.JacReg(weight=1),
        gr.OneHot(weight=1),
        gr.TopK(weight=1),
        gr.SoftmaxProjection(weight=1),
    ]
    penalties += [
        gr.DoubleBack(weight=1),
        gr.ConfidencePenalty(weight=1),
        gr.LabelSmoothing(weight=1),
        gr.SpectReg(weight=1),
    ]
    found = gr.Objective(loss, *penalties, class_dim=class_dim)(model, x, y).penalties
    torch.testing.assert_close(found["frob_reg"], expected(G.frob_reg(logits, flat_x)))
    torch.testing.assert_close(found["jac_reg"], expected(G.jac_reg(logits, flat_x)))
    torch.testing.assert_close(found["one_hot"], expected(G.one_hot(logits, flat_x, flat_y)))
    torch.testing.assert_close(found["top_k"], expected(G.top_k(logits, flat_x)))
    torch.testing.assert_close(found["softmax_projection"], expected(G.softmax_projection(logits, flat_x)))
    mean_loss = F.cross_entropy(logits, flat_y, reduction="none") / 5  # an example's loss is the mean over its positions
    torch.testing.assert_close(found["double_back"], expected(G.double_back(mean_loss, flat_x)))
    torch.testing.assert_close(found["confidence_penalty"], G.confidence_penalty(logits).mean())
    torch.testing.assert_close(found["label_smoothing"], G.label_smoothing(logits, flat_y).mean())


def test_regression_without_an_output_dimension() -> None:
    weight = torch.randn(3, requires_grad=True)
    for make in (gr.FrobReg, gr.DoubleBack, gr.SpectReg, gr.RandomOneHot):
        terms = gr.Objective(F.mse_loss, make(weight=1))(lambda v: v @ weight, torch.randn(4, 3), torch.randn(4))
        terms.total.backward()
    torch.testing.assert_close(terms.penalties["random_one_hot"], weight.square().sum())


def test_one_feature_without_its_own_dimension() -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    terms = gr.Objective(F.mse_loss, gr.FrobReg(weight=1))(lambda v: v**2, x, torch.zeros(3))
    torch.testing.assert_close(terms.penalties["frob_reg"], (4 * x**2).mean())


class NotVectorisable(torch.autograd.Function):
    """Differentiable twice, but without a rule for vmap."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        assert bool(gradient.isfinite().all())  # reading a value is what vmap cannot do
        return gradient * ctx.saved_tensors[0].exp()


def test_rows_one_after_the_other_where_they_cannot_be_vectorised() -> None:
    layer, x, y = nn.Linear(3, 4), torch.randn(5, 3), torch.tensor([0, 1, 2, 3, 0])
    for make in (gr.FrobReg, gr.JacReg):
        objective = gr.Objective(F.cross_entropy, make(weight=1))
        by_row = objective(lambda v: NotVectorisable.apply(layer(v)), x, y)
        at_once = objective(lambda v: layer(v).exp(), x, y)
        torch.testing.assert_close(by_row.total, at_once.total)
        gradients = [torch.autograd.grad(terms.total, layer.weight)[0] for terms in (by_row, at_once)]
        torch.testing.assert_close(*gradients)


def test_channels_last() -> None:
    model = gr.models.resnet(widths=(4,), blocks_per_level=1)
    x, y = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    objective = gr.Objective(F.cross_entropy, gr.FrobReg(weight=1))
    expected = objective(model, x, y).total
    found = objective(model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last), y).total
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


# batch norm


def batch_norm_network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))


def with_statistics(model: nn.Sequential, x: Tensor) -> nn.Sequential:
    """A copy in evaluation mode whose running statistics are those of the batch."""
    other = copy.deepcopy(model).eval()
    with torch.no_grad():
        hidden = model[0](x)
        other[1].running_mean.copy_(hidden.mean(0))
        other[1].running_var.copy_(hidden.var(0, unbiased=False))
    return other


@pytest.mark.parametrize("make", [gr.DoubleBack, gr.FrobReg, gr.SpectReg])
def test_frozen_statistics_are_the_batchs_as_constants(make) -> None:
    model, x, y = batch_norm_network(), torch.randn(8, 3), torch.randint(2, (8,))
    reference = with_statistics(model, x)
    found = gr.Objective(F.cross_entropy, make(weight=1, batch_norm="frozen"))(model, x, y, generator=seeded())
    expected = gr.Objective(F.cross_entropy, make(weight=1))(reference, x, y, generator=seeded())
    torch.testing.assert_close(found.penalties[make.name], expected.penalties[make.name])
    for name in ("0.weight", "1.weight", "3.weight"):
        gradients = [
            torch.autograd.grad(t.penalties[make.name], m.get_parameter(name), retain_graph=True)[0]
            for t, m in ((found, model), (expected, reference))
        ]
        torch.testing.assert_close(*gradients)


def test_running_statistics_are_those_of_evaluation_mode() -> None:
    model, x, y = batch_norm_network(), torch.randn(8, 3), torch.randint(2, (8,))
    model(torch.randn(100, 3) * 2 + 1)
    model[1].momentum = 0.0  # else the loss's own pass moves them first
    found = gr.Objective(F.cross_entropy, gr.DoubleBack(weight=1, batch_norm="running"))(model, x, y)
    expected = gr.Objective(F.cross_entropy, gr.DoubleBack(weight=1))(copy.deepcopy(model).eval(), x, y)
    torch.testing.assert_close(found.penalties["double_back"], expected.penalties["double_back"])


def test_in_training_mode_a_shared_and_a_private_projection_are_different_penalties() -> None:
    """Batch norm centres: what is common to all examples has no gradient (the shared r of a network that ends in it)."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()
    x, y = torch.randn(16, 3).double(), torch.randint(4, (16,))
    shared, private, frozen = (
        gr.Objective(F.cross_entropy, gr.SpectReg(weight=1, **settings))(model, x, y).penalties["spect_reg"].item()
        for settings in ({}, {"per_example": True}, {"batch_norm": "frozen"})
    )
    assert shared < 1e-20
    assert private > 0.1
    assert frozen > 0.1


@pytest.mark.parametrize("mode", ["train", "frozen"])
def test_batch_norm_without_running_statistics(mode: str) -> None:
    model = gr.models.resnet(widths=(4,), blocks_per_level=1)
    x, y = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    penalty = gr.SpectReg(weight=1, batch_norm=mode, forward="fresh")
    gr.Objective(F.cross_entropy, penalty)(model, x, y).total.backward()
    assert model.bn.running_mean is None


# norms


@pytest.mark.parametrize("norm", ["squared_l2", "l2", "l1", gr.TargetSlope(1.0, "parabola"), gr.TargetSlope(1.0, "steep")])
def test_no_nan_where_the_gradient_is_zero(norm) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    nn.init.constant_(model[0].bias, -100.0)  # every unit is dead
    for make in (gr.DoubleBack, gr.FrobReg, gr.SpectReg, gr.JacReg):
        gr.Objective(F.cross_entropy, make(weight=1, norm=norm))(
            model, torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        ).total.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("make", [gr.OneHot, gr.LabelSmoothing])
def test_examples_whose_label_is_ignored_count_as_zero(make) -> None:
    model, x, y = nn.Linear(3, 4), torch.randn(5, 3), torch.tensor([1, -100, 0, 3, -100])
    known, objective = y >= 0, gr.Objective(F.cross_entropy, make(weight=1))
    found = objective(model, x, y).penalties[make.name]
    torch.testing.assert_close(found, 3 / 5 * objective(model, x[known], y[known]).penalties[make.name])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gradients_are_summed_in_single(dtype: torch.dtype) -> None:
    x = torch.ones(1, 1000, dtype=dtype, requires_grad=True)
    value = G.frob_reg((300 * x).sum(1, keepdim=True), x)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(9e7, rel=0.01)


def test_autocast() -> None:
    model, x, y = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(8, 8), torch.randint(4, (8,))
    for make in (gr.DoubleBack, gr.SpectReg, gr.FrobReg, gr.JacReg):
        objective = gr.Objective(F.cross_entropy, make(weight=1))
        exact = objective(model, x, y, generator=seeded()).penalties[make.name]
        with torch.autocast("cpu", torch.bfloat16):
            terms = objective(model, x, y, generator=seeded())
        terms.total.backward()
        torch.testing.assert_close(terms.penalties[make.name], exact, rtol=0.1, atol=1e-3)


@pytest.mark.parametrize("mode", ["train", "frozen", "running"])
def test_autocast_with_batch_norm(mode: str) -> None:
    model, x, y = batch_norm_network(), torch.randn(8, 3), torch.randint(2, (8,))
    with torch.autocast("cpu", torch.bfloat16):
        gr.Objective(F.cross_entropy, gr.SpectReg(weight=1, batch_norm=mode))(model, x, y).total.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


class Packed(NamedTuple):
    values: Tensor
    lengths: Tensor


def test_a_named_tuple_is_one_argument() -> None:
    layer = nn.Linear(3, 2)

    def model(packed: Packed) -> Tensor:
        return layer(packed.values)

    x = Packed(torch.randn(4, 3), torch.arange(4))
    gr.Objective(F.cross_entropy, gr.WeightDecay(weight=0))(model, x, torch.zeros(4).long())


# memory


def test_no_memory_growth_over_200_steps() -> None:
    model, x, y = batch_norm_network(), torch.randn(8, 3), torch.randint(2, (8,))
    penalties = [gr.SpectReg(weight=0.1), gr.FrobReg(weight=0.1, chunk_size=1), gr.DoubleBack(weight=1, forward="fresh")]
    objective = gr.Objective(F.cross_entropy, *penalties)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def live_tensors() -> int:
        gc.collect()
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    def train(num_steps: int) -> None:
        for _ in range(num_steps):
            optimizer.zero_grad()
            objective(model, x, y, unlabeled=x).total.backward()
            optimizer.step()

    train(5)
    before = live_tensors()
    gc.disable()  # nothing may wait for the cycle collector either
    try:
        train(200)
        without_collector = sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())
    finally:
        gc.enable()
    assert without_collector <= before + 5
    assert live_tensors() <= before


def saved_bytes(chunk_size: int | None) -> int:
    """How much a step keeps for its backward pass."""
    model = nn.Sequential(nn.Linear(20, 50), nn.Tanh(), nn.Linear(50, 100))
    x, y = torch.randn(16, 20), torch.randint(100, (16,))
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        terms = gr.Objective(F.cross_entropy, gr.FrobReg(weight=1, chunk_size=chunk_size))(model, x, y)
    terms.total.backward()
    return sum(kept.values())


@pytest.mark.parametrize("chunk_size", [None, 7, 15])
def test_more_rows_than_go_through_one_backward_pass(chunk_size: int | None) -> None:
    model = nn.Linear(4, 23).double()
    x, y = torch.randn(3, 4).double(), torch.randint(23, (3,))
    terms = gr.Objective(F.cross_entropy, gr.FrobReg(weight=1, chunk_size=chunk_size))(model, x, y)
    torch.testing.assert_close(terms.penalties["frob_reg"], model.weight.square().sum())
    model.zero_grad()
    (terms.total - terms.loss).backward()
    torch.testing.assert_close(model.weight.grad, 2 * model.weight.detach())


def test_chunks_keep_far_less_for_the_backward_pass() -> None:
    assert saved_bytes(chunk_size=5) < saved_bytes(chunk_size=None) / 5
