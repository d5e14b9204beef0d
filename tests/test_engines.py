"""Every engine with every penalty, against float64 finite differences of the parameters and against each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from problems import CLASSIFICATION, NAMES, Problem, problem
from reference import squared_norms, summed_jacobian
from test_gradients import ANY_OUTPUT, CLASSES, OPTIONS, assert_gradient_is_right, penalty_value
from torch import Tensor, nn

import gradreg as gr
from gradreg.engines import ENGINES, DoubleBackward, Engine, FiniteDifference, Forward, Linearized

EXACT = [Linearized(), DoubleBackward(transformed=True), Linearized(transformed=True)]
#: Relative errors of the derivative in float64 that the documentation promises, kinks apart.
DIFFERENCES = [
    (FiniteDifference(), 2e-5),
    (FiniteDifference(central=True), 1e-5),
    (FiniteDifference(transformed=True), 2e-5),
]
ids = {"ids": repr}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("penalty", ANY_OUTPUT, **ids)
@pytest.mark.parametrize("engine", EXACT, **ids)
def test_exact_engines(name: str, penalty: gr.Penalty, engine: Engine) -> None:
    assert_gradient_is_right(problem(name), penalty, engine)


@pytest.mark.parametrize("name", CLASSIFICATION)
@pytest.mark.parametrize("penalty", CLASSES, **ids)
@pytest.mark.parametrize("engine", EXACT, **ids)
def test_exact_engines_on_classes(name: str, penalty: gr.Penalty, engine: Engine) -> None:
    assert_gradient_is_right(problem(name), penalty, engine)


@pytest.mark.parametrize("penalty", OPTIONS, **ids)
@pytest.mark.parametrize("engine", EXACT, **ids)
def test_exact_engines_with_options(penalty: gr.Penalty, engine: Engine) -> None:
    assert_gradient_is_right(problem("conv_batch_norm"), penalty, engine)


@pytest.mark.parametrize("name", CLASSIFICATION)
@pytest.mark.parametrize("penalty", [*ANY_OUTPUT, *CLASSES], **ids)
@pytest.mark.parametrize(("engine", "rel"), DIFFERENCES, **ids)
def test_differences(name: str, penalty: gr.Penalty, engine: Engine, rel: float) -> None:
    assert_gradient_is_right(problem(name), penalty, engine, rel=rel)


@pytest.mark.parametrize("penalty", [p for p in OPTIONS if not isinstance(p.norm, str) or p.norm != "l1"], **ids)
@pytest.mark.parametrize(("engine", "rel"), DIFFERENCES, **ids)
def test_differences_with_options(penalty: gr.Penalty, engine: Engine, rel: float) -> None:
    assert_gradient_is_right(problem("conv_batch_norm"), penalty, engine, rel=5 * rel)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("engine", [*EXACT, *[engine for engine, _ in DIFFERENCES]], **ids)
def test_values_are_exact_to_rounding(name: str, engine: Engine) -> None:
    p = problem(name)
    for penalty in (gr.SpectReg(weight=1, num_projections=2, norm="l2"), gr.DoubleBack(weight=1), gr.FrobReg(weight=1)):
        torch.testing.assert_close(penalty_value(p, penalty, engine), penalty_value(p, penalty), rtol=1e-12, atol=1e-14)


# ---- the estimator ----


def estimates(p: Problem, penalty: gr.Penalty, engine: Engine, num: int = 400) -> np.ndarray:
    generator = torch.Generator().manual_seed(0)
    objective = gr.Objective(p.loss, penalty, engine=engine)
    found = []
    for _ in range(num):
        torch.manual_seed(0)  # the same dropout mask
        found.append(objective(p.model, p.x, p.y, generator=generator).penalties[penalty.name].item())
    return np.array(found)


def assert_mean_is(found: np.ndarray, expected: float) -> None:
    error = found.std(ddof=1) / math.sqrt(len(found))
    assert abs(found.mean() - expected) < 4 * error + 1e-6 * abs(expected), (found.mean(), expected, error)


WITHOUT_BATCH_NORM = [name for name in CLASSIFICATION if name != "conv_batch_norm"]


@pytest.mark.parametrize("name", WITHOUT_BATCH_NORM)
@pytest.mark.parametrize("engine", [Forward(), Forward(tangents="difference", step=1e-7)], **ids)
def test_forward_estimates_every_penalty_without_bias(name: str, engine: Engine) -> None:
    p = problem(name)
    frobenius = penalty_value(p, gr.FrobReg(weight=1)).item()
    for penalty in (gr.SpectReg(weight=1), gr.FrobReg(weight=1), gr.RandomOneHot(weight=1)):
        assert_mean_is(estimates(p, penalty, engine), frobenius)
    for penalty in (gr.DoubleBack(weight=1), gr.JacReg(weight=1), gr.OneHot(weight=1), gr.TopK(weight=1, k=2)):
        assert_mean_is(estimates(p, penalty, engine), penalty_value(p, penalty).item())


def test_forward_under_batch_norm_estimates_one_projection_per_example() -> None:
    p = problem("conv_batch_norm")
    full = torch.autograd.functional.jacobian(p.model, p.x)  # [batch, outputs, batch, *input]
    expected = full.square().sum().item() / len(p.x)
    assert_mean_is(estimates(p, gr.SpectReg(weight=1), Forward()), expected)
    assert_mean_is(estimates(p, gr.SpectReg(weight=1, per_example=True), DoubleBackward()), expected)


def test_forward_has_an_unbiased_gradient() -> None:
    p = problem("mlp")
    objective = gr.Objective(p.loss, gr.SpectReg(weight=1), engine=Forward())
    generator = torch.Generator().manual_seed(0)
    expected = torch.autograd.grad(penalty_value(p, gr.FrobReg(weight=1)), p.model[0].weight)[0]
    found = torch.stack(
        [
            torch.autograd.grad(objective(p.model, p.x, p.y, generator=generator).penalties["spect_reg"], p.model[0].weight)[
                0
            ]
            for _ in range(800)
        ]
    )
    deviations = (found.mean(0) - expected) / (found.std(0) / math.sqrt(len(found)))
    assert deviations.abs().max() < 4.5
    assert deviations.square().mean().sqrt() < 1.4


def test_forward_averages_over_the_projections() -> None:
    p = problem("mlp")
    one = estimates(p, gr.SpectReg(weight=1), Forward())
    many = estimates(p, gr.SpectReg(weight=1, num_projections=8), Forward())
    assert many.std() < 0.6 * one.std()


def test_forward_refuses_other_norms() -> None:
    p = problem("mlp")
    with pytest.raises(ValueError, match="norm='l2' cannot be estimated.*another engine"):
        gr.Objective(p.loss, gr.SpectReg(weight=1, norm="l2"), engine="forward")(p.model, p.x, p.y)


# ---- hidden layers, unlabelled data, side effects ----


@pytest.mark.parametrize("engine", ["linearized", "finite_difference"])
def test_options_of_the_pass_reach_every_engine(engine: str) -> None:
    p = problem("conv_batch_norm")
    p.model[1].momentum = 0.0  # running statistics that stay
    for penalty in (
        gr.SpectReg(weight=1, batch_norm="frozen"),
        gr.SpectReg(weight=1, batch_norm="running"),
        gr.DoubleBack(weight=1, wrt="2"),
        gr.DoubleBack(weight=1, fraction=0.5, forward="fresh"),
    ):
        reference = torch.autograd.grad(penalty_value(p, penalty), p.model[0].weight, allow_unused=True)[0]
        found = torch.autograd.grad(penalty_value(p, penalty, engine), p.model[0].weight, allow_unused=True)[0]
        torch.testing.assert_close(found, reference, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("engine", ENGINES)
def test_running_statistics_are_updated_once(engine: str) -> None:
    def after(engine: str | None) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 3))
        x, y = torch.randn(4, 1, 6, 6), torch.tensor([0, 1, 2, 0])
        penalties = [gr.SpectReg(weight=1)] if engine else []
        gr.Objective(F.cross_entropy, *penalties, engine=engine or "double_backward")(model, x, y).total.backward()
        return torch.cat([model[1].running_mean, model[1].running_var, model[1].num_batches_tracked[None]])

    torch.testing.assert_close(after(engine), after(None))


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "compiled"])  # which draws by key
def test_global_random_state_moves_as_in_an_ordinary_step(engine: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 3))
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    torch.manual_seed(0)
    model(x)
    expected = torch.rand(1)
    torch.manual_seed(0)
    gr.Objective(F.cross_entropy, gr.SpectReg(weight=1), engine=engine)(model, x, y, generator=torch.Generator())
    assert torch.rand(1) == expected


# ---- models without a second derivative ----


class OneBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient * (1 - ctx.saved_tensors[0].tanh() ** 2)


def test_finite_difference_needs_one_backward_only() -> None:
    p = problem("mlp")
    layers = list(p.model)

    class Once(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layers)

        def forward(self, x: Tensor) -> Tensor:
            hidden = OneBackward.apply(self.layers[0](x))
            return self.layers[4](self.layers[3](self.layers[2](hidden)))

    once = Problem("once", Once(), p.x, p.y, p.loss)
    reference = torch.autograd.grad(penalty_value(p, gr.DoubleBack(weight=1)), layers[0].weight)[0]
    found = torch.autograd.grad(penalty_value(once, gr.DoubleBack(weight=1), "finite_difference"), layers[0].weight)[0]
    torch.testing.assert_close(found, reference, rtol=1e-5, atol=1e-8)
    with pytest.raises(gr.DifferentiationError, match="engine='finite_difference'"):
        penalty_value(once, gr.DoubleBack(weight=1))


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_differences_of_a_compiled_model() -> None:
    p = problem("mlp")
    compiled = Problem("compiled", torch.compile(p.model, backend="aot_eager"), p.x, p.y, p.loss)
    reference = torch.autograd.grad(penalty_value(p, gr.DoubleBack(weight=1)), p.model[0].weight)[0]
    found = torch.autograd.grad(penalty_value(compiled, gr.DoubleBack(weight=1), "finite_difference"), p.model[0].weight)[0]
    torch.testing.assert_close(found, reference, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("engine", [FiniteDifference(), Forward(tangents="difference")], **ids)
def test_recurrent_layers(engine: Engine) -> None:
    torch.manual_seed(0)

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0][:, -1])

    model, x, y = Recurrent(), torch.randn(5, 4, 3), torch.tensor([0, 1, 0, 1, 1])
    gr.Objective(F.cross_entropy, gr.SpectReg(weight=1), engine=engine)(model, x, y).total.backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


# ---- precision ----


@pytest.mark.parametrize(
    ("engine", "dtype", "bound"),
    [
        ("double_backward", torch.float32, 1e-4),
        ("linearized", torch.float32, 1e-4),
        ("finite_difference", torch.float32, 0.2),  # the default step is 0.01
        (FiniteDifference(central=True), torch.float32, 0.05),
        (FiniteDifference(step=3e-4), torch.float32, 1e-2),
        (FiniteDifference(central=True, step=5e-3), torch.float32, 2e-3),
        ("double_backward", torch.bfloat16, 0.05),
        ("linearized", torch.bfloat16, 0.05),
        ("finite_difference", torch.bfloat16, 0.35),
        (FiniteDifference(central=True), torch.bfloat16, 0.25),
    ],
    ids=repr,
)
@pytest.mark.parametrize("penalty", [gr.SpectReg(weight=1), gr.DoubleBack(weight=1), gr.FrobReg(weight=1)], **ids)
def test_error_by_precision(engine, dtype, bound: float, penalty: gr.Penalty) -> None:
    """The relative error of the gradient stays within what the documentation says, under autocast in bfloat16."""
    p = problem("mlp")
    reference = torch.autograd.grad(penalty_value(p, penalty), list(p.model.parameters()), allow_unused=True)
    try:
        single = Problem("single", p.model.float(), p.x.float(), p.y, p.loss)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            value = penalty_value(single, penalty, engine)
        found = torch.autograd.grad(value, list(p.model.parameters()), allow_unused=True)
    finally:
        p.model.double()
    kept = [(f.double(), r) for f, r in zip(found, reference, strict=True) if r is not None]
    error = math.sqrt(sum(float((f - r).square().sum()) for f, r in kept) / sum(float(r.square().sum()) for _, r in kept))
    assert error < bound


class Single(nn.Module):
    """A model that leaves autocast, as users do where half precision is too little."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.layers(x.float())


@pytest.mark.parametrize("penalty", [gr.SpectReg(weight=1), gr.FrobReg(weight=1)], **ids)
@pytest.mark.parametrize("engine", [*ENGINES, DoubleBackward(transformed=True)], **ids)
def test_derivatives_of_what_runs_in_single_precision_are_in_single_precision(engine, penalty: gr.Penalty) -> None:
    model, x, y = Single(), torch.randn(4, 5), torch.tensor([0, 1, 2, 1])
    gradients = []
    for half in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            terms = gr.Objective(F.cross_entropy, penalty, engine=engine)(model, x, y, generator=torch.Generator())
        model.zero_grad()
        terms.total.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(map(torch.equal, *gradients))


# ---- choosing ----


def test_auto_says_what_it_chose_and_why() -> None:
    p = problem("mlp")
    objective = gr.Objective(p.loss, gr.SpectReg(weight=1), engine="auto")
    objective(p.model, p.x, p.y).total.backward()
    assert objective.choice is not None
    assert (objective.choice.engine.name, objective.engine.name) == ("double_backward", "double_backward")
    assert "not on a GPU" in objective.choice.reason


def test_auto_tries_what_only_acts_later() -> None:
    """A penalty that warms up does nothing at step 0."""
    penalty = gr.SpectReg(weight=0.1, schedule=gr.Schedule(warmup_steps=10))
    objective, layer = gr.Objective(F.cross_entropy, penalty, engine="auto"), nn.Linear(3, 2)
    for step in range(2):
        terms = objective(lambda x: OneBackward.apply(layer(x)), torch.randn(4, 3), torch.tensor([0, 1, 1, 0]), step=step)
        terms.total.backward()
    assert objective.engine.name == "finite_difference"


def test_auto_takes_differences_where_there_is_no_second_derivative() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=1), engine="auto")
    objective(lambda x: OneBackward.apply(model(x)), torch.randn(4, 3), torch.tensor([0, 1, 1, 0])).total.backward()
    assert objective.choice is not None
    assert objective.choice.engine.name == "finite_difference"
    assert "OneBackward is marked @once_differentiable" in objective.choice.reason


@pytest.mark.parametrize("make", [FiniteDifference, Forward])
def test_step_must_make_sense(make) -> None:
    with pytest.raises(ValueError, match="step=2.0 must be between 0 and 1"):
        make(step=2.0)


def test_unknown_tangents() -> None:
    with pytest.raises(ValueError, match="tangents='backward' is unknown"):
        Forward(tangents="backward")  # type: ignore[arg-type]


def test_reference_agrees_with_the_jacobian_of_autograd() -> None:
    p = problem("mlp")
    expected = squared_norms(summed_jacobian(p.logits, p.x)).mean()
    assert penalty_value(p, gr.FrobReg(weight=1), Linearized()).item() == pytest.approx(expected, rel=1e-6)
