"""The compiled engine against the eager one. On the CPU the traced graph is replayed; what compiles is tested on a GPU."""

from __future__ import annotations

import gc
import warnings
import weakref
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from problems import NAMES, problem
from test_gradients import ANY_OUTPUT, CLASSES
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gradreg as gr
from gradreg.draws import Draws
from gradreg.engines import Choice, Compiled, FiniteDifference, Forward, Linearized, compiled, program
from gradreg.engines.compiled import _start
from gradreg.engines.twice import FastTwice
from gradreg.parts import compiled_in_parts


def terms_and_gradients(model: nn.Module, x, y, loss, *penalties: gr.Penalty, engine, seed: int = 0, **options):
    objective = gr.Objective(loss, *penalties, engine=engine)
    terms = objective(model, x, y, generator=Draws.of_seed(seed), **options)
    model.zero_grad()
    terms.total.backward()
    return terms, [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def assert_same(found, expected, tolerance: float = 1e-9) -> None:
    (terms, gradients), (wanted, wanted_gradients) = found, expected
    for name in ("total", "loss", "logits"):
        torch.testing.assert_close(getattr(terms, name).detach(), getattr(wanted, name).detach(), rtol=tolerance, atol=1e-10)
    assert terms.penalties.keys() == wanted.penalties.keys()
    for mine, theirs in zip(gradients, wanted_gradients, strict=True):
        torch.testing.assert_close(mine, torch.zeros_like(mine) if theirs is None else theirs, rtol=tolerance, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("penalty", [p for p in ANY_OUTPUT if getattr(p, "chunk_size", None) is None], ids=repr)
def test_equals_double_backward(name: str, penalty: gr.Penalty) -> None:
    p = problem(name)
    arguments = (p.model, p.x, p.y, p.loss, penalty)
    assert_same(
        terms_and_gradients(*arguments, engine="compiled"), terms_and_gradients(*arguments, engine="double_backward")
    )


@pytest.mark.parametrize("penalty", [p for p in CLASSES if getattr(p, "chunk_size", None) is None], ids=repr)
def test_equals_double_backward_on_classes(penalty: gr.Penalty) -> None:
    p = problem("conv_batch_norm")
    arguments = (p.model, p.x, p.y, p.loss, penalty)
    assert_same(
        terms_and_gradients(*arguments, engine="compiled"), terms_and_gradients(*arguments, engine="double_backward")
    )


@pytest.mark.parametrize("inner", [Linearized(), FiniteDifference(central=True), Forward()], ids=repr)
@pytest.mark.parametrize("name", ["mlp", "conv_dropout"])
def test_compiles_the_other_engines_too(inner, name: str) -> None:
    p = problem(name)
    arguments = (p.model, p.x, p.y, p.loss, gr.SpectReg(weight=0.1), gr.WeightDecay(weight=0.1))
    found = terms_and_gradients(*arguments, engine=Compiled(inner))
    assert_same(found, terms_and_gradients(*arguments, engine=inner), 1e-6)


@pytest.mark.parametrize("chunk_size", [1, 3])
def test_chunks(chunk_size: int) -> None:
    p = problem("conv_batch_norm")
    arguments = (p.model, p.x, p.y, p.loss, gr.FrobReg(weight=0.1, chunk_size=chunk_size))
    assert_same(
        terms_and_gradients(*arguments, engine="compiled"), terms_and_gradients(*arguments, engine="double_backward")
    )


def toy() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(48, 3))
    return model.double(), torch.randn(5, 1, 6, 6).double(), torch.tensor([0, 1, 2, 0, 1])


def test_trains_as_the_eager_engine_with_a_schedule_and_an_optimizer() -> None:
    def weights(engine: str) -> Tensor:
        model, x, y = toy()
        objective = gr.Objective(
            F.cross_entropy,
            gr.SpectReg(weight=0.1, schedule=gr.Schedule(warmup_steps=4, every=2)),
            gr.ConfidencePenalty(weight=0.1),
            engine=engine,
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(8):
            terms = objective(model, x + step, y, generator=Draws.of_seed(step), step=step)
            optimizer.zero_grad()
            terms.total.backward()
            optimizer.step()
        return torch.cat([t.double().flatten() for t in model.state_dict().values()])

    torch.testing.assert_close(weights("compiled"), weights("double_backward"), rtol=1e-9, atol=1e-10)


def test_two_calls_before_one_backward() -> None:
    model, x, y = toy()
    objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=0.1), engine="compiled")
    parts = [
        terms_and_gradients(model, x * k, y, F.cross_entropy, gr.SpectReg(weight=0.1), engine="compiled")[1] for k in (1, 2)
    ]
    model.zero_grad()
    totals = [objective(model, x * k, y, generator=Draws.of_seed(0)).total for k in (1, 2)]
    (totals[0] + 3 * totals[1]).backward()
    for parameter, first, second in zip(model.parameters(), *parts, strict=True):
        torch.testing.assert_close(parameter.grad, first + 3 * second)


def test_new_shapes_modes_and_unlabelled_data() -> None:
    model, x, y = toy()
    penalty = gr.SpectReg(weight=0.1)
    for data in ((x, y), (x[:3], y[:3])):
        for training in (True, False):
            model.train(training)
            compiled, eager = (
                terms_and_gradients(model, *data, F.cross_entropy, penalty, engine=engine, unlabeled=x[:2])
                for engine in ("compiled", "double_backward")
            )
            assert_same(compiled, eager)


def test_frozen_parameters_stay_out() -> None:
    model, x, y = toy()
    model[0].weight.requires_grad_(False)
    found = terms_and_gradients(model, x, y, F.cross_entropy, gr.SpectReg(weight=0.1), engine="compiled")
    assert found[1][0] is None
    assert found[1][1] is not None


def test_new_masks_and_projections_in_each_call() -> None:
    model, x, y = toy()
    objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=0.1), engine="compiled")
    assert len({objective(model, x, y).total.item() for _ in range(3)}) == 3
    again = {objective(model, x, y, generator=torch.Generator().manual_seed(3)).total.item() for _ in range(2)}
    assert len(again) == 1


def test_control_flow_by_value_is_refused_with_a_way_out() -> None:
    class Branching(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.sum() > 0 else super().forward(-x)

    model, x, y = Branching(3, 2), torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    with pytest.raises(gr.DifferentiationError, match="control flow depends on shapes.*engine='double_backward'"):
        gr.Objective(F.cross_entropy, gr.SpectReg(weight=1), engine="compiled")(model, x, y)


def test_a_plain_function_is_refused() -> None:
    with pytest.raises(TypeError, match="engine='compiled' needs a torch.nn.Module"):
        gr.Objective(F.cross_entropy, gr.SpectReg(weight=1), engine="compiled")(
            torch.tanh, torch.randn(4, 3), torch.tensor([0] * 4)
        )


def test_not_finite_is_told() -> None:
    model, x, y = toy()
    with pytest.raises(FloatingPointError):
        gr.Objective(F.cross_entropy, gr.SpectReg(weight=1), engine="compiled")(model, x * float("inf"), y)


def test_what_was_traced_goes_with_the_objective() -> None:
    model, x, y = toy()
    objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=0.1), engine="compiled")
    objective(model, x, y)
    gone = weakref.ref(model)
    del model, objective
    gc.collect()
    assert gone() is None


def test_a_parameter_without_gradient_has_none_as_in_eager_mode() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    model = Spare()
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    gr.Objective(F.cross_entropy, gr.SpectReg(weight=1), engine="compiled")(model, x, y).total.backward()
    assert model.used.weight.grad is not None
    assert model.spare.weight.grad is None


def test_nothing_to_train_is_told() -> None:
    model = nn.Linear(3, 2).requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        gr.Objective(F.cross_entropy, gr.SpectReg(weight=1), engine="compiled")(
            model, torch.randn(4, 3), torch.tensor([0] * 4)
        )


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(lambda x: self.first(x).tanh(), x, use_reentrant=False))


class Branching(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 1e6 else -super().forward(x)


@pytest.mark.parametrize("make", [Checkpointed, lambda: Branching(3, 2)])
def test_auto_goes_on_without_a_compiler_where_a_step_cannot_be_compiled(make, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = make(), torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    with pytest.raises(gr.DifferentiationError, match="engine='double_backward'"):
        gr.Objective(F.cross_entropy, gr.SpectReg(weight=1), engine="compiled")(model, x, y)
    monkeypatch.setattr("gradreg.objective.choose", lambda *_: Choice(gr.Compiled(), "as on a GPU"))
    objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=1), engine="auto")
    found = objective(model, x, y, generator=torch.Generator())
    assert (objective.choice.engine.name, objective.engine.name) == ("double_backward", "double_backward")
    assert objective.choice.reason.startswith("the step cannot be compiled: ")
    torch.testing.assert_close(found.loss, F.cross_entropy(model(x), y))
    found.total.backward()


class WithMargin(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.margin = nn.Parameter(torch.ones(()))

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.margin * logits, y)


@pytest.mark.parametrize("loss", [WithMargin(), F.cross_entropy], ids=["a loss with parameters", "a compiler that fails"])
def test_auto_goes_on_whatever_keeps_a_step_from_being_compiled(loss, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr("gradreg.objective.choose", lambda *_: Choice(gr.Compiled(), "as on a GPU"))
    monkeypatch.setattr("gradreg.engines.compiled.Program", fail)
    objective = gr.Objective(loss, gr.SpectReg(weight=1), engine="auto")
    objective(nn.Linear(3, 2), torch.randn(4, 3), torch.tensor([0, 1, 1, 0])).total.backward()
    assert objective.engine.name == "double_backward"


def test_what_is_wrong_without_a_compiler_too_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradreg.objective.choose", lambda *_: Choice(gr.Compiled(), "as on a GPU"))
    objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=1), engine="auto")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        objective(nn.Linear(3, 2), torch.randn(4, 5), torch.tensor([0, 1, 1, 0]))


def traced_square() -> tuple[torch.fx.GraphModule, list[Tensor], list[Tensor]]:
    def step(state: list[Tensor], inputs: list[Tensor]) -> None:
        state[0].copy_(inputs[0].square())

    state, inputs = [torch.zeros(3)], [torch.tensor([1.0, 2.0, 3.0])]
    return program.trace(step, [state[0].clone()], inputs), state, inputs


def test_a_compiled_step_that_is_wrong_is_found_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, state, inputs = traced_square()

    def wrong(graph: torch.fx.GraphModule, **_: object):
        return lambda state, inputs: state[0].copy_(inputs[0].square() * 1.2)

    monkeypatch.setattr(torch, "compile", wrong)
    with pytest.warns(UserWarning, match="torch.compile got this step wrong: results differ by 2.0e-01"):
        assert program.compiled_and_checked(graph, state, inputs, [[0]]) is graph
    assert state[0].count_nonzero() == 0  # tried on copies


def test_a_compiled_step_that_is_right_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, state, inputs = traced_square()

    def right(state: list[Tensor], inputs: list[Tensor]) -> None:
        state[0].copy_(inputs[0].square() * 1.001)

    monkeypatch.setattr(torch, "compile", lambda graph, **_: right)
    assert program.compiled_and_checked(graph, state, inputs, [[0]]) is right


def test_what_the_compiler_says_of_small_softmaxes_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, state, inputs = traced_square()

    def talkative(state: list[Tensor], inputs: list[Tensor]) -> None:
        if not said:  # when it compiles
            said.append(True)
            warnings.warn("\nOnline softmax is disabled on the fly since Inductor decides to\nsplit it.", stacklevel=1)
        graph(state, inputs)

    said: list[bool] = []
    monkeypatch.setattr(torch, "compile", lambda graph, **_: talkative)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert program.compiled_and_checked(graph, state, inputs, [[0]]) is talkative
    assert said


@pytest.mark.parametrize("half", [False, True])
def test_wrong_gradients_are_found_beside_large_results(monkeypatch: pytest.MonkeyPatch, half: bool) -> None:
    def step(state: list[Tensor], inputs: list[Tensor], factor: float = 1.0) -> None:
        x = inputs[0].to(torch.bfloat16) if half else inputs[0]
        state[0].copy_(1e4 * x)
        state[1].copy_(factor * x)

    state, inputs = [torch.zeros(3), torch.zeros(3)], [torch.tensor([1.0, 2.0, 3.0])]
    graph = program.trace(lambda state, inputs: step(state, inputs), [t.clone() for t in state], inputs)
    monkeypatch.setattr(torch, "compile", lambda graph, **_: lambda state, inputs: step(state, inputs, 2.0))
    with pytest.warns(UserWarning, match=r"results differ by 1.0e\+00"):
        assert program.compiled_and_checked(graph, state, inputs, [[0], [1]]) is graph


def test_error_of_a_step() -> None:
    big, small = torch.full((4,), 100.0), torch.full((4,), 1e-6)
    assert program.largest_error([big, small], [big, small]) == 0
    assert program.largest_error([big, 2 * small], [big, small]) < 1e-5  # rounding of what ought to be zero
    assert program.largest_error([1.1 * big, small], [big, small]) == pytest.approx(0.1, rel=1e-5)
    assert program.largest_error([big * float("nan"), small], [big, small]) == float("inf")
    assert program.error_of_all([big, 10 + small], [big, small]) == pytest.approx(0.1, rel=1e-3)
    assert program.error_of_all([big * float("nan"), small], [big, small]) == float("inf")


@pytest.mark.parametrize(("factor", "used"), [(1.3, True), (2.0, False)])
def test_in_half_precision_the_check_allows_for_rounding_alone(
    monkeypatch: pytest.MonkeyPatch, factor: float, used: bool
) -> None:
    def step(state: list[Tensor], inputs: list[Tensor]) -> None:
        state[0].copy_(inputs[0].to(torch.bfloat16).square())

    state, inputs = [torch.zeros(3)], [torch.tensor([1.0, 2.0, 3.0])]
    graph = program.trace(step, [state[0].clone()], inputs)

    def rounded(state: list[Tensor], inputs: list[Tensor]) -> None:
        state[0].copy_(inputs[0].square() * factor)

    monkeypatch.setattr(torch, "compile", lambda graph, **_: rounded)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (program.compiled_and_checked(graph, state, inputs, [[0]]) is rounded) == used


def test_the_check_sees_the_penalties_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Spy(program.Program):
        def __init__(self, step, state, inputs, **options) -> None:
            seen.append(inputs[-2].tolist())
            super().__init__(step, state, inputs, **options)

    monkeypatch.setattr("gradreg.engines.compiled.Program", Spy)
    model, x, y = toy()
    gr.Objective(F.cross_entropy, gr.SpectReg(weight=0.25), engine="compiled")(model, x, y)
    assert seen == [[0.25]]


def test_an_optimizer_with_a_past_keeps_it() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    before = [value.clone() for state in optimizer.state.values() for value in state.values()]
    _start(optimizer)
    after = [value for state in optimizer.state.values() for value in state.values()]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_an_optimizer_keeps_its_past_beside_parameters_without_gradients_and_new_ones() -> None:
    layers = [nn.Linear(3, 2) for _ in range(3)]
    optimizer = torch.optim.Adam([p for layer in layers for p in layer.parameters()])
    layers[0](torch.randn(4, 3)).sum().backward()
    optimizer.step()
    layers[1](torch.randn(4, 3)).sum().backward()
    old = [value.clone() for p in layers[0].parameters() for value in optimizer.state[p].values()]
    weights = [p.detach().clone() for layer in layers for p in layer.parameters()]
    _start(optimizer)
    torch.testing.assert_close([value for p in layers[0].parameters() for value in optimizer.state[p].values()], old)
    assert all(value.abs().sum() == 0 for p in layers[1].parameters() for value in optimizer.state[p].values())
    assert not any(optimizer.state.get(p) for p in layers[2].parameters())
    torch.testing.assert_close([p.detach() for layer in layers for p in layer.parameters()], weights)


def test_a_model_with_random_numbers_of_its_own_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with the traced operations, it draws what they draw; and the random state stays where it was."""

    def step(state: list[Tensor], inputs: list[Tensor]) -> None:
        state[0].copy_(inputs[0] * torch.rand_like(inputs[0]))

    state, inputs = [torch.zeros(3)], [torch.tensor([1.0, 2.0, 3.0])]
    graph, options = program.trace(step, [state[0].clone()], inputs), []
    monkeypatch.setattr(torch, "compile", lambda graph, **given: options.append(given["options"]) or graph)
    before = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program.compiled_and_checked(graph, state, inputs, [[0]])
    assert torch.equal(torch.get_rng_state(), before)
    assert options[0]["fallback_random"]


def test_a_program_does_under_autocast_what_was_traced() -> None:
    """What was traced outside autocast, as derivatives are, must not be cast when it runs inside."""

    def step(state: list[Tensor], inputs: list[Tensor]) -> None:
        with torch.autocast("cpu", enabled=False):
            state[0].copy_(inputs[0] @ inputs[0])

    x = torch.randn(8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        run = program.Program(step, [torch.zeros(8, 8)], [x], judged=[[0]])
        run()
    assert torch.equal(run.state[0], x @ x)


def peak_of(graph: torch.fx.GraphModule, *args: object) -> int:
    """Bytes alive at most, if every operation keeps its result until it was used for the last time."""
    last = {used: node for node in graph.graph.nodes for used in node.all_input_nodes}
    alive: dict[torch.fx.Node, int] = {}
    peaks = []

    class Counting(torch.fx.Interpreter):
        def run_node(self, node: torch.fx.Node) -> object:
            result = super().run_node(node)
            if isinstance(result, Tensor) and result._base is None:
                alive[node] = result.nbytes
            peaks.append(sum(alive.values()))
            for used in node.all_input_nodes:
                if last[used] is node:
                    alive.pop(used, None)
            return result

    with torch.no_grad():
        Counting(graph).run(*args)
    return max(peaks)


def test_chunks_bound_the_memory_of_a_compiled_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the layers of a GPU: chunks are computed again, one after the other, and the gradient is the same."""
    monkeypatch.setattr(compiled, "FastTwice", partial(FastTwice, everywhere=True))
    torch.manual_seed(0)
    model = gr.models.resnet(widths=(8,), blocks_per_level=2).double()
    x, y = torch.randn(8, 3, 8, 8).double(), torch.randint(10, (8,))

    def step(chunk_size: int | None) -> tuple[Tensor, int]:
        objective = gr.Objective(F.cross_entropy, gr.FrobReg(weight=0.1, chunk_size=chunk_size), engine="compiled")
        model.zero_grad()
        objective(model, x, y).total.backward()
        (prepared,) = objective._prepared.values()
        run = prepared.program
        peak = peak_of(run.graph, [t.clone() for t in run.state], run.inputs)
        return torch.cat([p.grad.flatten() for p in model.parameters()]), peak

    (whole, at_once), (chunked, one_by_one) = step(None), step(2)
    torch.testing.assert_close(chunked, whole)
    assert one_by_one < 0.6 * at_once


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_results_of_a_step_survive_torch_compile(dtype: torch.dtype) -> None:
    """PyTorch 2.13 drops what is written to a double without dimensions."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 3)).to(dtype)
    x, y = torch.randn(6, 4, dtype=dtype), torch.tensor([0, 1, 2, 0, 1, 2])
    objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=0.1), engine="compiled")
    objective(model, x, y)
    (prepared,) = objective._prepared.values()
    run = prepared.program
    expected, found = ([torch.zeros_like(t) for t in run.state] for _ in range(2))
    with torch.no_grad():
        run.graph(expected, run.inputs)
        compiler = partial(torch.compile, backend="aot_eager", fullgraph=True, dynamic=False)
        compiled_in_parts(run.graph, compiler)(found, run.inputs)
    torch.testing.assert_close(found, expected)
    assert all(bool(tensor.any()) for tensor in expected[: len(prepared.outputs)])
