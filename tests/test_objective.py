"""What the objective promises beside the formulas: composition, reproducibility, and no side effects."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from problems import NAMES, problem
from torch import Tensor, nn

import gradreg as gr

ALL_GRADIENT = [
    gr.DoubleBack,
    gr.FrobReg,
    gr.JacReg,
    gr.SpectReg,
    gr.OneHot,
    gr.RandomOneHot,
    gr.TopK,
    gr.SoftmaxProjection,
]
ALL = [*ALL_GRADIENT, gr.ConfidencePenalty, gr.LabelSmoothing, gr.WeightDecay]
SETTINGS = [{}, {"forward": "fresh"}, {"batch_norm": "frozen"}, {"batch_norm": "running"}, {"fraction": 0.5}]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(48, 4))


def batch(size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 1, 6, 6), torch.randint(4, (size,))


# weight zero


@pytest.mark.parametrize("name", NAMES)
def test_weight_zero_is_the_plain_loss_bit_for_bit(name: str) -> None:
    p = problem(name)
    objective = gr.Objective(p.loss, gr.SpectReg(weight=0), gr.DoubleBack(weight=0.0), gr.WeightDecay(weight=0))
    torch.manual_seed(0)
    terms = objective(p.model, p.x, p.y)
    expected = p.loss(p.logits(p.x), p.y)
    assert torch.equal(terms.total, expected)
    assert terms.total is terms.loss
    assert terms.penalties == {}
    for found, plain in zip(
        torch.autograd.grad(terms.total, [*p.model.parameters()]),
        torch.autograd.grad(expected, [*p.model.parameters()]),
        strict=True,
    ):
        assert torch.equal(found, plain)


def test_weight_zero_costs_nothing() -> None:
    """The model is called once, on the caller's own tensor, and the engine never."""

    class NoEngine:
        name = "none"

        def evaluate(self, *args, **kwargs):
            raise AssertionError("evaluated")

    model, (x, y), calls = nn.Linear(3, 2), (torch.randn(4, 3), torch.tensor([0, 1, 0, 1])), []

    def counted(inputs):
        calls.append(inputs)
        return model(inputs)

    gr.Objective(F.cross_entropy, gr.FrobReg(weight=0), engine=NoEngine())(counted, x, y)
    assert len(calls) == 1
    assert calls[0] is x


def test_the_loss_is_the_plain_loss_bit_for_bit_under_any_penalty() -> None:
    model, (x, y) = network(), batch()
    for make in ALL:
        torch.manual_seed(3)
        expected = F.cross_entropy(model(x), y)
        torch.manual_seed(3)
        assert torch.equal(gr.Objective(F.cross_entropy, make(weight=0.1))(model, x, y).loss, expected), make


# side effects


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
@pytest.mark.parametrize("make", ALL_GRADIENT)
def test_leaves_everything_as_an_ordinary_step_would(make, settings) -> None:
    model, (x, y) = network(), batch()
    plain = copy.deepcopy(model)
    torch.manual_seed(1)
    plain_loss = F.cross_entropy(plain(x), y)
    state_after_plain_step = torch.get_rng_state()

    objective = gr.Objective(F.cross_entropy, make(weight=0.1, **settings))
    torch.manual_seed(1)
    x_before = x.clone()
    terms = objective(model, x, y, generator=seeded())
    assert torch.equal(torch.get_rng_state(), state_after_plain_step)
    assert torch.equal(terms.loss, plain_loss)
    terms.total.backward()

    assert torch.equal(x, x_before)
    assert not x.requires_grad
    assert x.grad is None
    for name, buffer in plain.named_buffers():
        assert torch.equal(buffer, model.get_buffer(name)), f"{name} was updated otherwise than by one step"
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks or "forward" in vars(module) for module in model.modules())
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_gradients_reach_what_the_inputs_were_computed_from() -> None:
    encoder, head, (x, y) = nn.Linear(3, 3), nn.Linear(3, 2), (torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))
    hidden = encoder(x).tanh()
    gr.Objective(F.cross_entropy, gr.DoubleBack(weight=1))(head, hidden, y).total.backward()
    with_penalty = encoder.weight.grad.clone()
    encoder.zero_grad()
    F.cross_entropy(head(encoder(x).tanh()), y).backward()
    assert not torch.allclose(with_penalty, encoder.weight.grad)
    # and equal to the same penalty on the whole, differentiated by the hidden layer
    whole = nn.Sequential(encoder, nn.Tanh(), head)
    encoder.zero_grad()
    gr.Objective(F.cross_entropy, gr.DoubleBack(weight=1, wrt="1"))(whole, x, y).total.backward()
    torch.testing.assert_close(encoder.weight.grad, with_penalty)


def test_a_model_that_works_in_place_on_its_input() -> None:
    model, (x, y) = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)), (torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))
    found = gr.Objective(F.cross_entropy, gr.FrobReg(weight=1))(model, x, y).penalties["frob_reg"]
    expected = ((x > 0).float() @ model[1].weight.square().T).sum(1).mean()
    torch.testing.assert_close(found, expected)
    # likewise for an in-place operation right after a hidden layer
    deep = nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace=True), nn.Linear(5, 2))
    found = gr.Objective(F.cross_entropy, gr.FrobReg(weight=1, wrt="0"))(deep, x, y).penalties["frob_reg"]
    expected = ((deep[0](x) > 0).float() @ deep[2].weight.square().T).sum(1).mean()
    torch.testing.assert_close(found, expected)


def test_evaluation_mode_and_a_plain_function_as_model() -> None:
    weight = torch.randn(3, 2, requires_grad=True)
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    for settings in ({}, {"forward": "fresh"}, {"fraction": 0.5}):
        terms = gr.Objective(F.cross_entropy, gr.FrobReg(weight=1, **settings))(lambda v: v @ weight, x, y)
        torch.testing.assert_close(terms.penalties["frob_reg"], weight.square().sum())
    model, (x, y) = network().eval(), batch()
    before = copy.deepcopy(model.state_dict())
    first, second = (gr.Objective(F.cross_entropy, gr.FrobReg(weight=1, **s))(model, x, y).total for s in SETTINGS[:2])
    torch.testing.assert_close(first, second)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


# randomness


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
def test_reproducible_with_a_generator_and_new_with_each_call(settings) -> None:
    model, (x, y) = network(), batch()
    objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=1, **settings))

    def two_values(seed: int) -> list[float]:
        generator = seeded(seed)
        torch.manual_seed(0)
        copied = copy.deepcopy(model)
        return [objective(copied, x, y, generator=generator).penalties["spect_reg"].item() for _ in range(2)]

    first = two_values(7)
    assert first == two_values(7)
    assert first[0] != first[1]
    assert first != two_values(8)


def test_without_a_generator_the_global_seed_decides_and_every_step_differs() -> None:
    model, x, y = nn.Linear(3, 2), torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=1))

    def values(seed: int) -> list[float]:
        torch.manual_seed(seed)
        return [objective(model, x, y).penalties["spect_reg"].item() for _ in range(3)]

    assert values(0) == values(0) != values(1)
    assert len(set(values(0))) == 3


@pytest.mark.parametrize("make", [gr.DoubleBack, gr.FrobReg, gr.JacReg, gr.WeightDecay, gr.ConfidencePenalty])
def test_what_draws_nothing_leaves_the_global_state_alone(make) -> None:
    model, (x, y) = nn.Sequential(nn.Flatten(), nn.Linear(36, 4)), batch()
    before = torch.get_rng_state()
    gr.Objective(F.cross_entropy, make(weight=1))(model, x, y)
    assert torch.equal(before, torch.get_rng_state())


def test_a_fresh_pass_has_its_own_dropout_mask_and_a_shared_one_the_losss() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 1))
    nn.init.ones_(model[1].weight)
    x, y = torch.ones(1, 64), torch.zeros(1, 1)
    masks = {}
    for forward in ("shared", "fresh"):
        torch.manual_seed(0)
        objective = gr.Objective(F.mse_loss, gr.FrobReg(weight=1, forward=forward))
        terms = objective(model, x, y, generator=seeded())
        kept = (terms.logits - model[1].bias).item() / 2
        masks[forward] = (kept, terms.penalties["frob_reg"].item() / 4)
    assert masks["shared"][0] == pytest.approx(masks["shared"][1])
    assert masks["fresh"][0] == pytest.approx(masks["shared"][0])
    assert masks["fresh"][0] != pytest.approx(masks["fresh"][1])


def test_the_mask_of_a_fresh_pass_comes_from_the_generator_alone() -> None:
    model, (x, y) = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 4)), batch()
    objective = gr.Objective(F.cross_entropy, gr.DoubleBack(weight=1, forward="fresh"))

    def value(global_seed: int, seed: int) -> float:
        torch.manual_seed(global_seed)
        return objective(model, x, y, generator=seeded(seed)).penalties["double_back"].item()

    assert value(0, seed=0) == value(1, seed=0) != value(0, seed=1)


@pytest.mark.parametrize("mode", ["frozen", "running"])
def test_another_batch_norm_mode_keeps_the_losss_mask_unless_a_fresh_one_is_asked_for(mode: str) -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 1))
    nn.init.ones_(model[1].weight)
    for forward, same in (("shared", True), ("fresh", False)):
        torch.manual_seed(0)
        objective = gr.Objective(F.mse_loss, gr.FrobReg(weight=1, batch_norm=mode, forward=forward))
        terms = objective(model, torch.ones(1, 64), torch.zeros(1, 1), generator=seeded())
        kept = (terms.logits - model[1].bias).item() / 2
        assert (terms.penalties["frob_reg"].item() / 4 == pytest.approx(kept)) == same


def test_pickle_and_copy() -> None:
    objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=0.1, schedule=gr.Schedule(every=2)))
    model, (x, y) = network(), batch()
    objective(model, x, y, step=0)
    for other in (pickle.loads(pickle.dumps(objective)), copy.deepcopy(objective)):
        assert repr(other) == repr(objective)
        other(model, x, y, step=0)


# composition


def test_all_penalties_at_once_add_up() -> None:
    model, (x, y) = network(), batch()
    objective = gr.Objective(F.cross_entropy, *[make(weight=0.1 + i) for i, make in enumerate(ALL) if i < 9])
    terms = objective(model, x, y)
    expected = terms.loss + sum((0.1 + i) * terms.penalties[make.name] for i, make in enumerate(ALL) if i < 9)
    torch.testing.assert_close(terms.total, expected)


def test_two_of_a_kind_have_names_of_their_own() -> None:
    model, (x, y) = network(), batch()
    terms = gr.Objective(F.cross_entropy, gr.SpectReg(weight=1), gr.SpectReg(weight=1, wrt="2"))(model, x, y)
    assert list(terms.penalties) == ["spect_reg", "spect_reg_2"]


def test_repr_is_what_one_would_write() -> None:
    objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=0.03, wrt="conv1"), gr.DoubleBack(weight=10))
    assert repr(objective) == (
        "Objective(cross_entropy, SpectReg(weight=0.03, wrt='conv1'), DoubleBack(weight=10), engine='double_backward')"
    )


def test_a_penalty_of_ones_own_is_one_method() -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True, kw_only=True)
    class Difference(gr.GradientPenalty):
        name = "difference"

        def cotangents(self, probe: gr.Probe) -> torch.Tensor:
            return torch.tensor([1.0, -1.0]).reshape(1, 1, 2)

    model, x, y = nn.Linear(3, 2), torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    terms = gr.Objective(F.cross_entropy, Difference(weight=1))(model, x, y)
    torch.testing.assert_close(terms.penalties["difference"], (model.weight[0] - model.weight[1]).square().sum())


# unlabelled data


@pytest.mark.parametrize("make", [gr.SpectReg, gr.FrobReg, gr.JacReg])
def test_unlabelled_data_join_the_mean(make) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    x, y, more = torch.randn(4, 3), torch.tensor([0, 1, 0, 1]), torch.randn(12, 3)
    objective = gr.Objective(F.cross_entropy, make(weight=1, chunk_size=1))
    apart = [objective(model, part, torch.zeros(len(part), dtype=torch.long)) for part in (x, more)]
    together = objective(model, x, y, unlabeled=more)
    if make is not gr.SpectReg:
        expected = (4 * apart[0].penalties[make.name] + 12 * apart[1].penalties[make.name]) / 16
        torch.testing.assert_close(together.penalties[make.name], expected)
    assert torch.equal(together.loss, F.cross_entropy(model(x), y))


def test_unlabelled_data_leave_running_statistics_and_labelled_penalties_alone() -> None:
    model, (x, y) = network(), batch()
    plain = copy.deepcopy(model)
    objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=1), gr.DoubleBack(weight=1), gr.ConfidencePenalty(weight=1))
    more = 10 * batch(16)[0]
    torch.manual_seed(0)
    terms = objective(model, x, y, unlabeled=more, generator=seeded())
    torch.manual_seed(0)
    without = objective(plain, x, y, generator=seeded())
    for name in ("double_back", "confidence_penalty"):
        assert torch.equal(terms.penalties[name], without.penalties[name])
    assert terms.penalties["spect_reg"] != without.penalties["spect_reg"]
    for name, buffer in plain.named_buffers():
        assert torch.equal(buffer, model.get_buffer(name))


# schedules


def test_schedule_weights_the_total_and_skips_what_it_does_not_need() -> None:
    model, x, y = nn.Linear(3, 2), torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    schedule = gr.Schedule(warmup_steps=8, every=2)
    objective = gr.Objective(F.cross_entropy, gr.FrobReg(weight=0.5, schedule=schedule))
    norm = model.weight.square().sum()
    for step, factor in {0: 0, 1: 0, 2: 2 * 0.25, 3: 0, 4: 2 * 0.5, 8: 2, 9: 0, 10: 2}.items():
        terms = objective(model, x, y, step=step)
        torch.testing.assert_close(terms.total - terms.loss, 0.5 * factor * norm, atol=1e-6, rtol=1e-5)
        assert ("frob_reg" in terms.penalties) == (factor > 0)


def test_a_fraction_has_the_expectation_of_the_whole() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    x, y = 3 * torch.randn(8, 3).double(), torch.zeros(8, dtype=torch.long)
    for make in (gr.DoubleBack, gr.FrobReg):
        whole = gr.Objective(F.cross_entropy, make(weight=1))(model, x, y).penalties[make.name]
        generator = seeded()
        part = gr.Objective(F.cross_entropy, make(weight=1, fraction=0.25))
        draws = torch.stack([part(model, x, y, generator=generator).penalties[make.name].detach() for _ in range(600)])
        assert draws.std() > 0
        assert (draws.mean() - whole).abs() < 4 * draws.std() / len(draws) ** 0.5


def test_a_fraction_runs_the_model_on_that_part_only() -> None:
    sizes = []
    weight = torch.randn(3, 2, requires_grad=True)

    def model(v: torch.Tensor) -> torch.Tensor:
        sizes.append(len(v))
        return v @ weight

    gr.Objective(F.cross_entropy, gr.DoubleBack(weight=1, fraction=0.25))(model, torch.randn(8, 3), torch.zeros(8).long())
    gr.Objective(F.cross_entropy, gr.DoubleBack(weight=1, fraction=0.01))(model, torch.randn(8, 3), torch.zeros(8).long())
    assert sizes == [8, 2, 8, 1]


# losses


def test_double_back_follows_the_reduction_of_the_loss() -> None:
    """For one example, the penalty is the squared gradient of the loss as it is."""
    model, x, y = nn.Linear(3, 4), torch.randn(1, 3), torch.randn(1, 4)
    for loss in (F.mse_loss, nn.MSELoss(reduction="sum"), partial(F.mse_loss, reduction="sum"), nn.L1Loss()):
        found = gr.Objective(loss, gr.DoubleBack(weight=1))(model, x, y).penalties["double_back"]
        point = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(model(point), y), point)
        torch.testing.assert_close(found, gradient.square().sum())


class ScalarOnly:
    def __call__(self, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, y)


@pytest.mark.parametrize(
    "loss",
    [
        F.cross_entropy,
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(reduction="sum"),
        lambda z, y: F.cross_entropy(z, y, reduction="none"),
        lambda z, y, reduction="mean": F.cross_entropy(z, y, reduction=reduction),
    ],
)
def test_double_back_takes_any_loss_that_knows_its_examples(loss) -> None:
    model, (x, y) = nn.Sequential(nn.Flatten(), nn.Linear(36, 4)), batch()
    reference = gr.Objective(F.cross_entropy, gr.DoubleBack(weight=1))(model, x, y).penalties["double_back"]
    torch.testing.assert_close(gr.Objective(loss, gr.DoubleBack(weight=1))(model, x, y).penalties["double_back"], reference)


def test_a_module_loss_keeps_its_reduction() -> None:
    loss = nn.CrossEntropyLoss()
    model, (x, y) = nn.Sequential(nn.Flatten(), nn.Linear(36, 4)), batch()
    gr.Objective(loss, gr.DoubleBack(weight=1))(model, x, y)
    assert loss.reduction == "mean"


def test_a_loss_that_only_gives_a_scalar_will_do_for_all_but_double_back() -> None:
    model, (x, y) = nn.Sequential(nn.Flatten(), nn.Linear(36, 4)), batch()
    gr.Objective(ScalarOnly(), gr.SpectReg(weight=1))(model, x, y)
    with pytest.raises(ValueError, match="reduction='none'"):
        gr.Objective(ScalarOnly(), gr.DoubleBack(weight=1))(model, x, y)


@pytest.mark.parametrize("penalty", [gr.SpectReg, gr.DoubleBack])
@pytest.mark.parametrize("length", [1, 3, 5])
def test_a_part_of_the_batch_is_one_of_examples_whatever_comes_first(penalty: type[gr.SpectReg], length: int) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.rows = nn.Linear(5, 3), []

        def forward(self, scale: Tensor, x: Tensor) -> Tensor:
            self.rows.append(len(x))
            return self.last(x * scale[:1])

    model = Scaled()
    objective = gr.Objective(F.cross_entropy, penalty(weight=1, wrt="input.1", fraction=0.5))
    objective(model, (torch.ones(length), torch.randn(8, 5)), torch.randint(3, (8,)))
    assert model.rows == [8, 4]


@pytest.mark.parametrize(
    "penalty", [gr.JacReg(weight=1), gr.ConfidencePenalty(weight=1), gr.SoftmaxProjection(weight=1)], ids=repr
)
def test_classes_that_are_ruled_out(penalty: gr.Penalty) -> None:
    """As with a logit that is finite, and low enough."""
    layer, x, y = nn.Linear(5, 3).double(), torch.randn(4, 5).double(), torch.tensor([0, 1, 0, 1])
    values, gradients = [], []
    for low in (-torch.inf, -1e4):
        layer.zero_grad()
        masked = lambda x, low=low: layer(x).masked_fill(torch.tensor([False, False, True]), low)  # noqa: E731
        terms = gr.Objective(F.cross_entropy, penalty)(masked, x, y)
        terms.total.backward()
        values.append(terms.total.detach())
        gradients.append(layer.weight.grad)
    torch.testing.assert_close(values[0], values[1])
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("engine", ["double_backward", "linearized", "compiled", "finite_difference"])
def test_weights_of_classes_that_are_buffers_of_the_loss(engine: str) -> None:
    model, x, y = nn.Linear(5, 3).double(), torch.randn(8, 5).double(), torch.tensor([0, 1, 2, 1, 0, 1, 2, 2])
    weights, gradients = torch.tensor([1.0, 2.0, 3.0]).double(), []
    for loss in (nn.CrossEntropyLoss(weight=weights), partial(F.cross_entropy, weight=weights)):
        model.zero_grad()
        gr.Objective(loss, gr.DoubleBack(weight=1), engine=engine)(model, x, y).total.backward()
        gradients.append(model.weight.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_classes_that_are_ruled_out_move_nowhere() -> None:
    layer, x, y = nn.Linear(5, 3).double(), torch.randn(4, 5).double(), torch.tensor([0, 1, 0, 1])
    masked = nn.Sequential(layer)
    masked.forward = lambda x: layer(x).masked_fill(torch.tensor([False, False, True]), -torch.inf)
    gradients = []
    for engine in ("double_backward", "linearized", "finite_difference"):
        layer.zero_grad()
        gr.Objective(F.cross_entropy, gr.JacReg(weight=1), engine=engine)(masked, x, y).total.backward()
        gradients.append(layer.weight.grad)
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(gradients[2], gradients[0], rtol=1e-4, atol=1e-6)
