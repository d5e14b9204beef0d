"""Compiled objectives as they are used: other shapes, other settings, inputs and random numbers with a past."""

from __future__ import annotations

import gc
import pickle
import warnings
import weakref
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradreg as gr
from gradreg.draws import Draws
from gradreg.engines import Choice, Compiled, FiniteDifference, Forward, Linearized, program
from gradreg.engines.compiled import MOST_GRAPHS
from gradreg.engines.parallel import wrapper_in


class Noise(nn.Module):
    """Random numbers that are not dropout's."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn_like(x)


def network(*between: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), *between, nn.Linear(8, 3))


def batch(size: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, 3, generator=generator), torch.randint(3, (size,), generator=generator)


def spect(engine: str | Compiled = "compiled", **settings: object) -> gr.Objective:
    return gr.Objective(F.cross_entropy, gr.SpectReg(weight=0.1, **settings), engine=engine)


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: nn.Sequential(nn.DataParallel(model))])
def test_what_synchronises_in_hooks_is_refused(wrap) -> None:
    model = wrap(network())
    assert wrapper_in(model) == "DataParallel"
    with pytest.raises(gr.DifferentiationError, match=r"DataParallel synchronises.*engine='double_backward'"):
        spect()(model, *batch())
    auto = spect("auto")
    auto(model, *batch())
    assert "DataParallel synchronises" in auto.choice.reason


@pytest.mark.parametrize("inner", [FiniteDifference(), Linearized(), Forward()])
def test_a_pass_that_is_run_again_must_draw_the_same(inner) -> None:
    with pytest.raises(gr.DifferentiationError, match="random operations of its own.* without 'compiled'"):
        spect(Compiled(inner))(network(Noise()), *batch())
    spect(Compiled(inner))(network(nn.Dropout(0.5)), *batch())  # masks are drawn by key


def test_so_must_a_pass_with_the_losss_mask() -> None:
    model = network(nn.BatchNorm1d(8), Noise())
    with pytest.raises(gr.DifferentiationError, match="random operations of its own"):
        spect(batch_norm="frozen")(model, *batch())
    spect(batch_norm="frozen", forward="fresh")(model, *batch())


def test_tracing_draws_nothing() -> None:
    """The first call has the numbers that it has when it comes again."""
    objective, model, (x, y) = spect(), network(Noise()), batch()
    found = []
    for _ in range(2):
        torch.manual_seed(1)
        found.append((objective(model, x, y).logits, torch.rand(())))
    for first, second in zip(*found, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_an_input_that_is_computed_is_refused_and_auto_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, model, (x, y) = nn.Linear(3, 3), network(), batch()
    with pytest.raises(gr.DifferentiationError, match=r"an input is computed from other tensors \(AddmmBackward0\)"):
        spect()(model, encoder(x), y)
    auto = chosen(spect("auto"))
    auto(model, encoder(x), y).total.backward()
    assert encoder.weight.grad is not None
    assert auto.engine.name == "double_backward"


def chosen(objective: gr.Objective) -> gr.Objective:
    """As ``auto`` chooses on a GPU."""
    objective._set_choice(Choice(Compiled(), "a module on a GPU"), 0)
    return objective


def test_inputs_leave_no_graph_behind() -> None:
    objective, model, (x, y) = spect(), network(), batch()
    x.requires_grad_()
    for _ in range(3):
        objective(model, x, y)
    (prepared,) = objective._prepared.values()
    assert not any(tensor.requires_grad for tensor in prepared.inputs)


def test_a_bad_batch_does_not_change_the_choice() -> None:
    objective, model, (x, y) = chosen(spect("auto")), network(), batch()
    objective(model, x, y)
    with pytest.raises(ValueError, match="5 examples and the targets have 4"):
        objective(model, x, y[:4])
    assert objective.engine.name == "compiled"


class Scaled(nn.Module):
    """Keeps a number that is changed from outside, and one that it changes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale, self.calls = nn.Linear(3, 3), 1.0, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.scale * self.linear(x)


def test_numbers_of_the_model_that_change_are_seen() -> None:
    objective, model, (x, y) = spect(), Scaled(), batch()
    for scale in (1.0, 0.0, 1.0):
        model.scale = scale
        assert bool((objective(model, x, y).logits == 0).all()) == (scale == 0)
    assert len(objective._prepared) <= 3  # what it counts itself is no reason to trace it in every call
    before = len(objective._prepared)
    objective(model, x, y)
    assert len(objective._prepared) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "1", nn.Sigmoid()),
        lambda model: model[1].register_forward_hook(lambda module, inputs, output: 2 * output),
        lambda model: setattr(model[1], "forward", torch.relu),
        lambda model: setattr(model[3], "kernel_size", (2,)),
    ],
    ids=["module", "hook", "forward", "tuple"],
)
def test_a_model_that_computes_something_else_is_traced_anew(change) -> None:
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Unflatten(1, (3, 2)), nn.AvgPool1d((1,), 1), nn.Flatten())
    objective = gr.Objective(
        lambda logits, y: logits.square().mean() + 0 * y.sum(), gr.SpectReg(weight=1), engine="compiled"
    )
    x, y, draws = torch.randn(4, 5), torch.tensor([0, 1, 2, 1]), Draws.of_seed(0)
    objective(model, x, y, generator=draws)
    change(model)
    assert objective(model, x, y, generator=draws).loss == model(x).square().mean()


def test_begun_in_inference_mode() -> None:
    objective, model, (x, y) = gr.Objective(F.cross_entropy, engine="compiled"), network(), batch()
    with torch.inference_mode():
        objective(model, x, y)
    objective(model, x, y).total.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_model_of_torch_compile_is_refused_with_a_way_that_works() -> None:
    model = torch.compile(network(), backend="eager")
    with pytest.raises(gr.DifferentiationError, match="compiled by torch.compile.*_orig_mod"):
        spect()(model, *batch())
    spect()(model._orig_mod, *batch()).total.backward()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x[:, None])[0][:, -1]


@pytest.mark.parametrize("engine", ["compiled", "linearized", "forward"])
def test_recurrent_layers_are_refused_with_a_way_that_works(engine: str) -> None:
    with pytest.raises(gr.DifferentiationError, match="engine='double_backward'"):
        spect(engine)(Recurrent(), *batch())
    spect("double_backward")(Recurrent(), *batch()).total.backward()


def test_an_objective_is_pickled_without_its_graphs() -> None:
    objective = spect()
    objective(network(), *batch())
    again = pickle.loads(pickle.dumps(objective))
    assert (again.penalties, len(again._prepared), len(objective._prepared)) == (objective.penalties, 0, 1)


def test_settings_that_change_are_seen() -> None:
    loss, model, (x, y) = nn.CrossEntropyLoss(), network(nn.BatchNorm1d(8)), batch()
    objective = gr.Objective(loss, gr.WeightDecay(weight=1e-6), engine="compiled")
    first = objective(model, x, y).loss
    loss.label_smoothing = 0.5
    assert objective(model, x, y).loss != first
    model[2].momentum = 0.0
    before = model[2].running_mean.clone()
    objective(model, x, y)
    assert torch.equal(model[2].running_mean, before)


def test_old_graphs_go() -> None:
    objective, model = spect(), network()
    for size in range(1, MOST_GRAPHS + 1):
        objective(model, *batch(size))
    objective(model, *batch(1))  # used again: it stays
    with pytest.warns(UserWarning, match=f"more than {MOST_GRAPHS} shapes.*drop_last=True"):
        objective(model, *batch(MOST_GRAPHS + 1))
    sizes = [len(prepared.inputs[0]) for prepared in objective._prepared.values()]
    assert sorted(sizes) == [1, *range(3, MOST_GRAPHS + 2)]


def test_a_program_goes_with_its_objective_at_once() -> None:
    """Without waiting for the collector: it holds a copy of the weights' gradients."""
    objective, model = spect(), network()
    objective(model, *batch())
    (prepared,) = objective._prepared.values()
    program = weakref.ref(prepared.program)
    gc.disable()
    try:
        del objective, prepared
        assert program() is None
    finally:
        gc.enable()


def test_an_infinite_loss_is_not_blamed_on_the_penalty() -> None:
    def infinite(logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y) + torch.inf

    found = {}
    for engine in ("double_backward", "compiled"):
        objective = gr.Objective(infinite, gr.FrobReg(weight=0.1), engine=engine)
        found[engine] = objective(network(), *batch()).total.item()
    assert found["compiled"] == found["double_backward"] == torch.inf


def assert_as_without_a_compiler(model: nn.Module, objective: gr.Objective) -> None:
    """With a penalty that draws nothing."""
    eager = gr.Objective(objective.loss, *objective.penalties, class_dim=objective.class_dim)
    x, y = batch()
    torch.testing.assert_close(objective(model, x, y).total, eager(model, x, y).total)


def test_models_of_one_kind_share_what_was_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    traced, trace = [], program.trace
    monkeypatch.setattr(program, "trace", lambda *given: traced.append(1) or trace(*given))
    engine = Compiled(codes={})
    for seed in range(3):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 3))
        assert_as_without_a_compiler(model, gr.Objective(F.cross_entropy, gr.JacReg(weight=0.1 + seed), engine=engine))
    assert len(traced) == 1
    model[0].weight.requires_grad_(False)
    model[0].bias.requires_grad_(False)
    assert_as_without_a_compiler(model, gr.Objective(F.cross_entropy, gr.JacReg(weight=0.1), engine=engine))
    assert len(traced) == 2


def test_what_computes_something_else_does_not_share_it() -> None:
    """Losses that come and go, one at the address of another; axes of classes; activations; penalties of one name."""
    engine = Compiled(codes={})
    for smoothing in range(20):
        loss = partial(F.cross_entropy, label_smoothing=smoothing / 40)
        assert_as_without_a_compiler(network(), gr.Objective(loss, gr.JacReg(weight=0.1), engine=engine))
    for activation in (nn.Tanh(), nn.Sigmoid(), nn.ELU(), nn.ELU(0.5)):
        assert_as_without_a_compiler(
            network(activation), gr.Objective(F.cross_entropy, gr.JacReg(weight=0.1), engine=engine)
        )

    for scale in (1.0, 2.0, 3.0):
        hooked = network()
        hooked[0].register_forward_hook(lambda module, inputs, output, scale=scale: scale * output)
        assert_as_without_a_compiler(hooked, gr.Objective(F.cross_entropy, gr.JacReg(weight=0.1), engine=engine))

    def scaled(factor: float) -> gr.Penalty:
        @dataclass(frozen=True, kw_only=True)
        class Scaled(gr.Penalty):
            name: ClassVar[str] = "scaled"

            def __call__(self, probe: gr.Probe) -> Tensor:
                return factor * probe.logits.square().sum(1)

        return Scaled(weight=1.0)

    for factor in (1.0, 2.0, 3.0):
        assert_as_without_a_compiler(network(), gr.Objective(F.cross_entropy, scaled(factor), engine=engine))


def test_the_axis_of_classes_is_part_of_what_was_traced() -> None:
    """Of outputs as large one way as the other."""
    engine, x, y = Compiled(codes={}), torch.randn(4, 3), torch.randint(3, (4, 3))
    model = nn.Sequential(nn.Linear(3, 9), nn.Unflatten(1, (3, 3)))
    for class_dim in (1, 2):
        objective, eager = (
            gr.Objective(F.cross_entropy, gr.ConfidencePenalty(weight=1.0), engine=one, class_dim=class_dim)
            for one in (engine, "double_backward")
        )
        torch.testing.assert_close(objective(model, x, y).total, eager(model, x, y).total)


def test_an_engine_is_pickled_without_what_it_compiled() -> None:
    engine = Compiled(codes={})
    spect(engine)(network(), *batch())
    engine.codes["more"] = program.Code(None, lambda: None)  # as a GPU's, which cannot be pickled
    assert pickle.loads(pickle.dumps(spect(engine))).engine == Compiled()


def test_a_running_mean_of_the_loss_moves_once_a_step() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            losses = F.cross_entropy(logits, y, reduction="none")
            self.mean.lerp_(losses.detach().mean(), 0.5)
            return losses

    model, x, y = nn.Sequential(nn.Linear(5, 3), nn.Tanh()), torch.randn(4, 5), torch.tensor([0, 1, 2, 1])
    found = []
    for engine in ("double_backward", "linearized", "compiled"):
        loss = Loss()
        objective = gr.Objective(loss, gr.DoubleBack(weight=1), engine=engine)
        terms = [objective(model, x, y) for _ in range(2)]
        found.append(terms[0].penalties["double_back"].detach())
        torch.testing.assert_close(loss.mean, 0.75 * terms[0].loss.detach())
    torch.testing.assert_close(found, [found[0]] * 3)


def test_what_hooks_may_do_is_not_shared_and_not_kept() -> None:
    """But for the norms of PyTorch, which are hooks of another kind."""
    codes: dict = {}
    objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=1), engine=Compiled(codes=codes))
    for number in range(4):
        hooked = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
        if number % 2:
            hooked[1].register_forward_hook(lambda module, inputs, output: 2 * output)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.nn.utils.weight_norm(hooked[0])
        objective(hooked, torch.randn(4, 5), torch.tensor([0, 1, 2, 1]))
    assert len(codes) == 1
