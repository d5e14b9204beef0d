"""Bad input gets an error that gives the value, the reason and the fix."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradreg as gr
from gradreg import functional as G
from gradreg.engines import DifferentiationError

SPECT = gr.SpectReg(weight=1)


def step(model=None, x=None, y=None, penalty: gr.Penalty = SPECT, **kwargs):
    model = nn.Linear(3, 2) if model is None else model
    x = torch.randn(4, 3) if x is None else x
    y = torch.tensor([0, 1, 0, 1]) if y is None else y
    return gr.Objective(F.cross_entropy, penalty)(model, x, y, **kwargs)


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_weight(weight: float) -> None:
    with pytest.raises(ValueError, match=rf"SpectReg: weight={weight}.*Use weight=0"):
        gr.SpectReg(weight=weight)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"norm": "l3"}, "norm='l3' is unknown: choose 'squared_l2'"),
        ({"forward": "new"}, "forward='new' is unknown: choose 'shared'"),
        ({"batch_norm": "eval"}, "batch_norm='eval' is unknown: choose 'train'"),
        ({"fraction": 0}, "fraction=0 must be above 0"),
        ({"fraction": 1.5}, "at most 1"),
        ({"chunk_size": 0}, "chunk_size=0 must be at least 1"),
        ({"projection": "cube"}, "projection='cube' is unknown: choose one of 'gaussian'"),
        ({"num_projections": 0}, "num_projections=0 must be at least 1"),
    ],
)
def test_options(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        gr.SpectReg(weight=1, **arguments)


def test_values_of_other_classes() -> None:
    for make, message in [
        (lambda: gr.TargetSlope(0.0), "target=0.0 must be positive"),
        (lambda: gr.TargetSlope(1.0, "cubic"), "shape='cubic' is unknown"),
        (lambda: gr.Schedule(every=0), "every=0 must be at least 1"),
        (lambda: gr.Schedule(warmup_steps=-1), "warmup_steps=-1 must not be negative"),
        (lambda: gr.TopK(weight=1, k=0), "k=0 must be at least 1"),
        (lambda: gr.ConfidencePenalty(weight=1, reduction="max"), "reduction='max' is unknown"),
        (lambda: gr.LabelSmoothing(weight=1.5), "weight=1.5 must be at most 1"),
        (
            lambda: gr.Objective(F.cross_entropy, SPECT, engine="magic"),
            "engine='magic' is unknown: choose one of 'auto', 'double_backward'",
        ),
        (lambda: gr.Objective(F.cross_entropy, SPECT, class_dim=0), "class_dim=0 is the batch"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
    with pytest.raises(TypeError, match="pass instances such as"):
        gr.Objective(F.cross_entropy, gr.SpectReg)


def test_integer_inputs_point_to_the_embedding() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    with pytest.raises(TypeError, match=r"input is torch.int64.*wrt='0'"):
        step(model, torch.randint(5, (4, 2)))


@pytest.mark.parametrize(
    ("context", "way_out"), [(torch.no_grad, "enable_grad"), (torch.inference_mode, r"inference_mode\(False\)")]
)
def test_no_gradients_recorded(context, way_out) -> None:
    with (
        context(),
        pytest.raises(RuntimeError, match=rf"spect_reg cannot be computed under torch.{context.__name__}.*{way_out}"),
    ):
        step()
    with context():
        step(penalty=gr.SpectReg(weight=0))
        step(penalty=gr.ConfidencePenalty(weight=1))


@pytest.mark.parametrize(
    "model",
    [
        lambda x: (x > 0).float() @ torch.randn(3, 2),
        lambda x: x.detach() @ torch.randn(3, 2, requires_grad=True),
        lambda x: torch.zeros(len(x), 2, requires_grad=True),
        torch.no_grad()(nn.Linear(3, 2).forward),
    ],
)
def test_output_that_does_not_depend_on_the_input(model) -> None:
    with pytest.raises(ValueError, match="output does not depend on the tensor to differentiate by.*name a module after"):
        step(model)


def test_compiled() -> None:
    compiled = torch.compile(nn.Linear(3, 2), backend="eager")
    with pytest.raises(gr.DifferentiationError, match="torch.compile.*model._orig_mod"):
        step(compiled)
    step(compiled, penalty=gr.SpectReg(weight=0))
    model = nn.Sequential(nn.Linear(3, 2))
    model[0].compile(backend="eager")
    with pytest.raises(gr.DifferentiationError, match=r"^0 was compiled"):
        step(model)


def test_sharded() -> None:
    class FSDPModule:
        """As fully_shard does, which puts this class among a module's bases."""

    model = nn.Linear(3, 2)
    model.__class__ = type("FSDPLinear", (FSDPModule, nn.Linear), {})
    with pytest.raises(gr.DifferentiationError, match="sharded by FSDP.*engine='finite_difference'"):
        step(model)


class OnceDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0].exp()


def test_operation_without_second_derivative_is_named() -> None:
    """Found in the objective's call, not later in backward()."""
    layer = nn.Linear(3, 2)
    with pytest.raises(gr.DifferentiationError, match="once_differentiable.*name a module after it in wrt"):
        step(lambda x: OnceDifferentiable.apply(layer(x)))
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def fused(x: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            q = x[:, None, None, :].expand(4, 1, 2, 3)
            return layer(F.scaled_dot_product_attention(q, q, q).mean((1, 2)))

    with pytest.raises(gr.DifferentiationError, match="scaled_dot_product.*is not implemented, so"):
        step(fused)


def test_naming_a_module_after_such_an_operation_is_a_way_out() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.middle, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.middle(OnceDifferentiable.apply(self.first(x))).tanh())

    model = Late()
    step(model, penalty=gr.SpectReg(weight=1, wrt="middle")).total.backward()
    assert model.first.weight.grad.any()


def test_every_wrt_is_tried_whichever_came_first() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(OnceDifferentiable.apply(self.first(x)).sin())

    model = Late()
    step(model, penalty=gr.SpectReg(weight=1, wrt="last"))
    with pytest.raises(gr.DifferentiationError, match="OnceDifferentiable is marked"):
        step(model)


def test_an_operation_beside_the_path_is_no_obstacle() -> None:
    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.a(x).tanh()) + OnceDifferentiable.apply(self.b(x))

    step(Beside(), penalty=gr.SpectReg(weight=1, wrt="a")).total.backward()


def test_plain_function_has_no_batch_norm_layers_to_switch() -> None:
    with pytest.raises(
        ValueError, match="batch_norm='frozen' needs the layers of a torch.nn.Module.*pass the module itself"
    ):
        step(lambda x: x[:, :2], penalty=gr.SpectReg(weight=1, batch_norm="frozen"))


def test_empty_batch_and_bad_numbers() -> None:
    with pytest.raises(ValueError, match="the batch is empty"):
        step(x=torch.randn(0, 3), y=torch.empty(0, dtype=torch.long), penalty=gr.ConfidencePenalty(weight=1))
    with pytest.raises(ValueError, match="step=-1 must not be negative"):
        step(penalty=gr.SpectReg(weight=1, schedule=gr.Schedule(every=2)), step=-1)
    with pytest.raises(TypeError, match="weight='0.1' must be a number, not str"):
        gr.SpectReg(weight="0.1")
    with pytest.raises(ValueError, match=r"class_dim points to the batch of an output of shape \(4, 2\)"):
        gr.Objective(F.cross_entropy, gr.JacReg(weight=1), class_dim=-2)(
            nn.Linear(3, 2), torch.randn(4, 3), torch.zeros(4).long()
        )


def test_wrt_names_no_module() -> None:
    model = nn.Sequential()
    model.add_module("encoder", nn.Linear(3, 3))
    model.add_module("head", nn.Linear(3, 2))
    with pytest.raises(ValueError, match="wrt='encodr' names no submodule of Sequential.*'encoder'"):
        step(model, penalty=gr.SpectReg(weight=1, wrt="encodr"))
    with pytest.raises(ValueError, match="wrt='encoder' names no submodule of function"):
        step(lambda x: model(x), penalty=gr.SpectReg(weight=1, wrt="encoder"))
    with pytest.raises(ValueError, match="wrt='input.z' names no input.*left, right"):
        gr.Objective(F.cross_entropy, gr.SpectReg(weight=1, wrt="input.z"))(
            lambda left, right: left, {"left": torch.randn(2, 2), "right": torch.randn(2, 2)}, torch.tensor([0, 1])
        )


def test_wrt_names_a_module_without_activations() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    with pytest.raises(ValueError, match="wrt='unused'.*Name a module that the model calls"):
        step(Unused(), penalty=gr.SpectReg(weight=1, wrt="unused"))


def test_wrt_without_the_batch_first() -> None:
    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(x.transpose(0, 1))[0].mean(0)

    with pytest.raises(ValueError, match=r"wrt='lstm' has shape \(5, 4, 2\).*batch_first=True"):
        step(TimeFirst(), torch.randn(4, 5, 3), penalty=gr.SpectReg(weight=1, wrt="lstm"))


def test_batch_sizes() -> None:
    with pytest.raises(ValueError, match="output has 4 examples and the targets have 3"):
        step(y=torch.tensor([0, 1, 0]))
    with pytest.raises(ValueError, match=r"wrt='input' has shape \(4, 3\) while the output has batch size 2"):
        step(lambda x: x.reshape(2, 6), y=torch.tensor([0, 1]))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_in_the_penalty(bad: float) -> None:
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight[0, 0] = bad
    with pytest.raises(FloatingPointError, match=r"frob_reg is (nan|inf): the model's output is not finite"):
        step(model, penalty=gr.FrobReg(weight=1))
    big = nn.Linear(3, 2)
    nn.init.constant_(big.weight, 1e30)
    with pytest.raises(FloatingPointError, match="frob_reg is inf: the gradient overflowed.*warmup_steps"):
        step(big, penalty=gr.FrobReg(weight=1))
    unchecked = gr.Objective(F.cross_entropy, gr.FrobReg(weight=1), check_finite=False)
    assert unchecked(big, torch.randn(4, 3), torch.tensor([0, 1, 0, 1])).total.isinf()


def test_classes_where_there_are_none() -> None:
    x, y = torch.randn(4, 3), torch.randn(4, 1)
    for penalty in (gr.JacReg(weight=1), gr.ConfidencePenalty(weight=1), gr.TopK(weight=1), gr.SoftmaxProjection(weight=1)):
        with pytest.raises(ValueError, match=r"shape \(4, 1\), which holds no classes.*Use SpectReg"):
            gr.Objective(F.mse_loss, penalty)(nn.Linear(3, 1), x, y)
    with pytest.raises(ValueError, match=r"targets are torch.float32 \(4, 2\).*needs integer class labels of shape \(4,\)"):
        gr.Objective(F.mse_loss, gr.OneHot(weight=1))(nn.Linear(3, 2), x, torch.randn(4, 2))


def test_too_many() -> None:
    with pytest.raises(ValueError, match="num_projections=3 orthogonal directions do not exist for 2 outputs"):
        step(penalty=gr.SpectReg(weight=1, projection="orthogonal", num_projections=3))
    with pytest.raises(ValueError, match="k=3 logits do not exist in 2 classes"):
        step(penalty=gr.TopK(weight=1, k=3))


def test_schedule_without_a_step() -> None:
    with pytest.raises(ValueError, match=r"every=2.*call objective\(model, x, y, step=i\)"):
        step(penalty=gr.SpectReg(weight=1, schedule=gr.Schedule(every=2)))


def test_unlabelled_data_that_nothing_uses() -> None:
    with pytest.raises(ValueError, match="unlabeled was given, but no penalty here can use it.*Add SpectReg"):
        step(penalty=gr.DoubleBack(weight=1), unlabeled=torch.randn(4, 3))


def test_running_statistics_that_are_not_kept() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, track_running_stats=False))
    with pytest.raises(ValueError, match="keeps no running statistics.*Use batch_norm='frozen'"):
        step(model, penalty=gr.SpectReg(weight=1, batch_norm="running"))


def test_weight_decay_without_weights() -> None:
    with pytest.raises(ValueError, match="no trainable parameter with two or more dimensions.*Pass the module itself"):
        step(lambda x: x, penalty=gr.WeightDecay(weight=1), x=torch.randn(4, 2))


def test_model_that_returns_no_tensor() -> None:
    with pytest.raises(TypeError, match="the model returned dict, expected a tensor"):
        step(lambda x: {"a": x})


def test_functions() -> None:
    x = torch.randn(4, 3)
    layer = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=r"inputs.requires_grad is False.*Call inputs.requires_grad_\(\) before"):
        G.spect_reg(layer(x), x)
    x.requires_grad_()
    with pytest.raises(ValueError, match=r"loss has shape \(\), expected \[batch\].*reduction='none'"):
        G.double_back(layer(x).sum(), x)
    with pytest.raises(ValueError, match=r"inputs have shape \(4, 3\) and the output \(2, 4\)"):
        G.spect_reg(layer(x).reshape(2, 4), x)
    with pytest.raises(ValueError, match="output does not depend"):
        G.spect_reg(layer(torch.randn(4, 3)), x)
    with pytest.raises(ValueError, match="this probe has none"):
        gr.SpectReg(weight=1)(gr.Probe(logits=layer(x)))
    with pytest.raises(ValueError, match="DoubleBack needs the loss"):
        gr.DoubleBack(weight=1)(gr.Probe(logits=layer(x), vjp=lambda c: [c]))


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: gr.SpectReg(weight=1, wrt=None), TypeError, "wrt=None must be a name: 'input'"),
        (lambda: gr.SpectReg(weight=1, chunk_size=2.0), ValueError, "chunk_size=2.0 must be at least 1 and whole"),
        (lambda: gr.SpectReg(weight=1, num_projections=2.0), ValueError, "num_projections=2.0 must be at least 1 and whole"),
        (lambda: gr.Objective(nn.CrossEntropyLoss), TypeError, r"is a class: pass an instance, CrossEntropyLoss\(\)"),
        (
            lambda: gr.Objective(F.cross_entropy, engine=gr.Compiled),
            TypeError,
            r"is a class: pass an instance, Compiled\(\)",
        ),
    ],
)
def test_what_is_of_the_wrong_kind(make, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()


def test_numbers_of_numpy_are_numbers() -> None:
    assert repr(gr.SpectReg(weight=np.float32(0.5))) == "SpectReg(weight=0.5)"


def test_a_seed_is_no_generator_and_a_number_no_output() -> None:
    model, x, y = nn.Linear(3, 2), torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=1))
    with pytest.raises(TypeError, match=r"generator=0 is no generator: pass torch.Generator\(\).manual_seed\(0\)"):
        objective(model, x, y, generator=0)
    with pytest.raises(ValueError, match="returned a single number"):
        gr.Objective(lambda output, _: output, gr.WeightDecay(weight=1))(nn.Sequential(model, Mean()), x, y)


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean()


@pytest.mark.parametrize("ignored", [0, 255, -100])
@pytest.mark.parametrize("penalty", [gr.OneHot(weight=0.3), gr.LabelSmoothing(weight=0.3)])
def test_labels_that_the_loss_ignores_are_ignored(penalty: gr.Penalty, ignored: int) -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(3, 4), torch.randn(5, 3), torch.tensor([1, ignored, 2, ignored, 3])
    known = y != ignored
    loss = partial(F.cross_entropy, ignore_index=ignored)
    found = gr.Objective(loss, penalty)(model, x, y).penalties[penalty.name]
    expected = gr.Objective(loss, penalty)(model, x[known], y[known]).penalties[penalty.name]
    torch.testing.assert_close(found, expected * known.float().mean())


@pytest.mark.parametrize("engine", ["double_backward", "forward"])
def test_norms_in_half_precision_do_not_overflow(engine: str) -> None:
    """A Jacobian with entries of 300, whose squares are beyond float16."""
    model = nn.Linear(4, 4, bias=False).half()
    nn.init.constant_(model.weight, 300.0)
    objective = gr.Objective(lambda logits, _: logits.float().mean(), gr.FrobReg(weight=1e-6), engine=engine)
    value = objective(model, torch.ones(2, 4).half(), None, generator=torch.Generator().manual_seed(0)).penalties["frob_reg"]
    assert value.dtype == torch.float32
    assert value.isfinite()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: gr.Schedule(every=1.5), ValueError, "every=1.5 must be at least 1 and whole"),
        (lambda: gr.Schedule(warmup_steps=2.5), ValueError, "warmup_steps=2.5 must not be negative, and whole"),
        (lambda: gr.SpectReg(weight=1, fraction="half"), ValueError, "fraction='half' must be above 0"),
        (lambda: gr.Objective("cross_entropy"), TypeError, "the loss 'cross_entropy' is no function"),
    ],
)
def test_what_is_no_number_or_function_is_told_at_once(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_step_says_what_it_was_given_in_a_wrong_place() -> None:
    model, objective = nn.Linear(3, 2), gr.Objective(F.cross_entropy)
    sgd, lbfgs = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.LBFGS(model.parameters())
    with pytest.raises(TypeError, match=r"the objective is Linear: gr.Step\(objective, model, optimizer\)"):
        gr.Step(model, objective, sgd)
    with pytest.raises(TypeError, match="LBFGS evaluates the loss several times a step"):
        gr.Step(objective, model, lbfgs)


@pytest.mark.parametrize(
    ("x", "cure"), [(np.zeros((4, 3), dtype=np.float32), "torch.as_tensor"), (torch.zeros(4, 3, dtype=torch.uint8), "/ 255")]
)
def test_inputs_that_are_no_floats_are_told_what_to_do(x, cure) -> None:
    with pytest.raises(TypeError, match=re.escape(cure)):
        gr.Objective(F.cross_entropy, gr.SpectReg(weight=1))(nn.Linear(3, 2), x, torch.zeros(4, dtype=torch.long))


@pytest.mark.parametrize("loss", [F.mse_loss, nn.MSELoss(), nn.L1Loss(), partial(F.huber_loss, delta=2.0)])
def test_targets_that_would_meet_every_example_are_refused(loss) -> None:
    model, x, y = nn.Linear(3, 1), torch.randn(4, 3), torch.randn(4)
    objective = gr.Objective(loss, gr.DoubleBack(weight=1))
    with pytest.raises(ValueError, match=r"output has shape \(4, 1\) and the targets \(4,\).*y.unsqueeze\(1\)"):
        objective(model, x, y)
    objective(model, x, y.unsqueeze(1))


@pytest.mark.parametrize("loss", [nn.BCEWithLogitsLoss(), F.binary_cross_entropy_with_logits, nn.MultiLabelSoftMarginLoss()])
def test_a_softmax_over_labels_of_which_several_hold_is_refused(loss) -> None:
    model, x, y = nn.Linear(3, 4), torch.randn(5, 3), torch.ones(5, 4)
    for penalty in (gr.JacReg, gr.TopK, gr.SoftmaxProjection, gr.ConfidencePenalty):
        with pytest.raises(ValueError, match="several labels may hold at once.*Use SpectReg, FrobReg or DoubleBack"):
            gr.Objective(loss, penalty(weight=1))(model, x, y)
    gr.Objective(loss, gr.SpectReg(weight=1), gr.FrobReg(weight=1), gr.DoubleBack(weight=1))(model, x, y)


def test_a_penalty_of_ones_own_is_named_after_its_class() -> None:
    @dataclass(frozen=True, kw_only=True)
    class FirstLogit(gr.GradientPenalty):
        def cotangents(self, probe: gr.Probe) -> torch.Tensor:
            first = torch.zeros_like(probe.logits)
            first[:, 0] = 1
            return first.unsqueeze(0)

    terms = gr.Objective(F.mse_loss, FirstLogit(weight=1))(nn.Linear(3, 2), torch.randn(4, 3), torch.randn(4, 2))
    assert set(terms.penalties) == {"first_logit"}


class ClassicLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, y):
        ctx.save_for_backward(logits.softmax(1), y)
        return F.cross_entropy(logits, y, reduction="none")

    @staticmethod
    def backward(ctx, gradient):
        p, y = ctx.saved_tensors
        return (p - F.one_hot(y, 3)) * gradient[:, None], None


def test_a_loss_whose_derivative_may_not_be_differentiable_again() -> None:
    """Here PyTorch would take the saved softmax for a constant."""
    objective = gr.Objective(ClassicLoss.apply, gr.DoubleBack(weight=1))
    with pytest.raises(TypeError, match="without setup_context.*DoubleBack differentiates it"):
        objective(nn.Linear(5, 3), torch.randn(4, 5), torch.tensor([0, 1, 2, 1]))


def test_auto_without_gradients_chooses_nothing() -> None:
    later = gr.SpectReg(weight=1, schedule=gr.Schedule(warmup_steps=5))
    objective = gr.Objective(F.cross_entropy, later, engine="auto")
    model, x, y = nn.Linear(5, 3), torch.randn(4, 5), torch.tensor([0, 1, 2, 1])
    with torch.no_grad():
        assert objective(model, x, y, step=0).loss == F.cross_entropy(model(x), y)
        with pytest.raises(RuntimeError, match="cannot be computed under torch.no_grad"):
            objective(model, x, y, step=5)
    assert objective.choice is None
    objective(model, x, y, step=5)
    assert objective.choice is not None


def test_classes_in_the_last_dimension_are_not_the_batch() -> None:
    model = nn.Sequential(nn.Linear(5, 1), nn.Flatten(0))
    for penalty in (gr.TopK(weight=1), gr.JacReg(weight=1), gr.ConfidencePenalty(weight=1)):
        with pytest.raises(ValueError, match="holds no classes"):
            gr.Objective(F.mse_loss, penalty, class_dim=-1)(model, torch.randn(4, 5), torch.randn(4))


class WithoutForwardMode(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # noqa: ARG004
        return x * 2

    @staticmethod
    def backward(ctx, gradient):  # noqa: ARG004
        return 2 * gradient


@pytest.mark.parametrize("engine", ["linearized", "forward"])
def test_an_operation_without_forward_mode(engine: str) -> None:
    layer = nn.Linear(5, 3)
    with pytest.raises(DifferentiationError, match=r"forward mode does not go through the model.*use engine="):
        gr.Objective(F.cross_entropy, gr.SpectReg(weight=1), engine=engine)(
            lambda x: WithoutForwardMode.apply(layer(x)), torch.randn(4, 5), torch.tensor([0, 1, 2, 1])
        )


def test_arrays_are_no_tensors_for_a_graph() -> None:
    objective = gr.Objective(lambda logits, y: logits.sum() * y.sum(), gr.SpectReg(weight=1), engine="compiled")
    with pytest.raises(TypeError, match=r"target is a ndarray: make it a tensor"):
        objective(nn.Linear(5, 3), torch.randn(4, 5), np.ones(4))


def test_a_submodule_called_input() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.input, self.last = nn.Sequential(nn.Linear(5, 5), nn.Tanh()), nn.Linear(5, 3)

        def forward(self, x):
            return self.last(self.input(x))

    with pytest.raises(ValueError, match="names no input.*submodule of that name.*rename it"):
        step(Model(), torch.randn(4, 5), penalty=gr.SpectReg(weight=1, wrt="input.0"))
