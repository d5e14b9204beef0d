"""A traced step in parts: the same results, and only what has to be kept goes from one to the next."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule

import gradreg as gr
from gradreg.engines import compiled
from gradreg.engines.program import Program, trace
from gradreg.engines.twice import FastTwice
from gradreg.parts import begin_part, compiled_in_parts


@pytest.fixture
def layers_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "FastTwice", partial(FastTwice, everywhere=True))


def program_of(model: nn.Module, *penalties: gr.Penalty, half: bool = False) -> Program:
    """The traced step of a network of small images."""
    objective = gr.Objective(F.cross_entropy, *penalties, engine="compiled")
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        objective(model, torch.randn(4, 3, 8, 8), torch.randint(10, (4,)))
    return next(iter(objective._prepared.values())).program


def traced(step: Callable[[list[Tensor], list[Tensor]], None], state: list[Tensor], x: Tensor) -> GraphModule:
    return trace(lambda state, inputs: step(state, inputs), [t.clone() for t in state], [x])


class Spy:
    """Stands for the compiler: the parts it was given, and each call of one of them."""

    def __init__(self) -> None:
        self.parts: list[nn.Module] = []
        self.calls: list[tuple[Tensor, ...]] = []

    def __call__(self, part: nn.Module) -> Callable[..., object]:
        self.parts.append(part)
        return lambda *args: self.calls.append(args) or part(*args)


def spied_on(graph: GraphModule, state: list[Tensor], inputs: list[Tensor]) -> Spy:
    """Runs in parts, on this state, and finds what the graph in one piece gives."""
    spy, expected = Spy(), [t.clone() for t in state]
    with torch.no_grad():
        graph(expected, inputs)
        compiled_in_parts(graph, spy)(state, inputs)
    torch.testing.assert_close(state, expected)
    return spy


@pytest.mark.usefixtures("layers_of_a_gpu")
def test_the_last_pass_gets_what_is_kept_in_half_precision() -> None:
    """Of each layer its output, and the second derivative of its batch norm; and, since all others can be computed from two
    values that are kept, the end of every second block."""
    model = gr.models.resnet(widths=(8,), blocks_per_level=2)
    run = program_of(model, gr.SpectReg(weight=0.1), half=True)
    _forward, _penalty, last = spied_on(run.graph, run.state, run.inputs).calls
    known = {t.data_ptr() for t in (*run.state, *run.inputs)}
    kept = {t.data_ptr(): t for t in last if t.data_ptr() not in known and t.numel() == 4 * 8 * 8 * 8}.values()
    num_layers = sum(isinstance(module, nn.Conv2d) for module in model.modules())
    assert {t.dtype for t in kept} == {torch.bfloat16}
    assert len(kept) == 2 * num_layers + 1


def test_a_plain_step_is_one_part() -> None:
    run = program_of(nn.Sequential(nn.Flatten(), nn.Linear(192, 10)))
    assert compiled_in_parts(run.graph, lambda graph: graph) is run.graph


@pytest.mark.usefixtures("layers_of_a_gpu")
def test_chunks_are_parts_that_are_compiled_once() -> None:
    run = program_of(gr.models.resnet(widths=(4,), blocks_per_level=1), gr.FrobReg(weight=0.1, chunk_size=1))
    spy = spied_on(run.graph, run.state, run.inputs)
    assert len(spy.calls) == 2 * 10 + 3  # every chunk twice, the model's two passes, and what is before the first chunk
    assert len(spy.parts) == 8


def test_what_has_changed_since_is_not_computed_again() -> None:
    def step(state: list[Tensor], inputs: list[Tensor]) -> None:
        product = inputs[0] @ inputs[0]
        scaled, shifted, doubled = product * state[0], product + 1, product * 2
        doubled[0].fill_(5)
        begin_part()
        state[0].copy_(product.sin())
        state[1].copy_(scaled)
        state[2].copy_(shifted)
        state[3].copy_(doubled)

    state, x = [torch.full((8, 8), 2.0), *torch.zeros(3, 8, 8)], torch.randn(8, 8)
    spy = spied_on(traced(step, state, x), state, [x])
    torch.testing.assert_close(state[1:3], [2 * x @ x, x @ x + 1])
    given = [len(args) for args in spy.calls]
    assert given == [2, 7]  # four tensors to write to, the product, and two that are not what it gives any more


def test_a_long_way_is_not_gone_again() -> None:
    def step(state: list[Tensor], inputs: list[Tensor]) -> None:
        product = inputs[0] @ inputs[0]
        far = product
        for _ in range(2000):
            far = far * 1.001
        begin_part()
        state[0].copy_(product.sin())
        state[1].copy_(far)

    state, x = [*torch.zeros(2, 4, 4)], torch.randn(4, 4)
    first, second = (len(part.graph.nodes) for part in spied_on(traced(step, state, x), state, [x]).parts)
    assert first > 2000
    assert second < 10
