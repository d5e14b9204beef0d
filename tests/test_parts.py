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


def program_of(model: nn.Module, *penalties: gr.Penalty, half: bool = False, batch_size: int = 4) -> Program:
    """The traced step of a network of small images."""
    objective = gr.Objective(F.cross_entropy, *penalties, engine="compiled")
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        objective(model, torch.randn(batch_size, 3, 8, 8), torch.randint(10, (batch_size,)))
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


#: Ways to write to the memory of a tensor.
WRITES: dict[str, Callable[[Tensor], object]] = {
    "itself": lambda t: t.relu_(),
    "a row": lambda t: t[0].fill_(5),
    "split": lambda t: t.split(4)[0].fill_(5),
    "unbind": lambda t: t.unbind()[1].fill_(5),
    "transposed": lambda t: t.t().add_(1),
    "out": lambda t: torch.sin(torch.ones(8, 8), out=t),
    "out of a view": lambda t: torch.sin(torch.ones(8), out=t[0]),
    "unsafe view": lambda t: torch.ops.aten._unsafe_view(t, [64]).fill_(5),
    "foreach": lambda t: torch._foreach_add_([t], 1.0),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_nor_what_shares_memory_with_something_written_to(write: Callable[[Tensor], object]) -> None:
    """What is computed from it, and from a view of it, was so before it changed; and a view sees the change."""

    def step(state: list[Tensor], inputs: list[Tensor]) -> None:
        product = inputs[0] @ inputs[0]
        before, end = product * 2, product[:, :]
        of_view, transposed = end * 3, product.t() * 4
        write(product)
        begin_part()
        for place, value in enumerate((product.sin(), before, end.cos(), of_view, transposed)):
            state[place].copy_(value)

    state, x = [*torch.zeros(5, 8, 8)], torch.randn(8, 8)
    spied_on(traced(step, state, x), state, [x])
    torch.testing.assert_close(state[1], 2 * x @ x)


def test_nor_what_is_written_to_itself_after_it_was_computed() -> None:
    def step(state: list[Tensor], inputs: list[Tensor]) -> None:
        product = inputs[0] @ inputs[0]
        early = product[:]
        doubled, changed = product.relu_() * 2, product * 3
        changed.chunk(2)[0].fill_(5)
        early.add_(1)
        begin_part()
        for place, value in enumerate((product.sin(), doubled, changed)):
            state[place].copy_(value)

    state, x = [*torch.zeros(3, 8, 8)], torch.randn(8, 8)
    spied_on(traced(step, state, x), state, [x])


def test_parts_run_in_the_order_of_the_trace() -> None:
    """Though the second needs nothing that the first gives: it writes to what the first reads."""

    def step(state: list[Tensor], inputs: list[Tensor]) -> None:
        state[1].copy_(state[0] @ state[0])
        begin_part()
        state[0].copy_(inputs[0].sin())
        begin_part()
        state[2].copy_(state[0] @ inputs[0])

    state, x = [torch.randn(8, 8), *torch.zeros(2, 8, 8)], torch.randn(8, 8)
    spied_on(traced(step, state, x), state, [x])


class RunningNorm(nn.Module):
    """Normalises by statistics of the past, both in one buffer, and then brings that up to date."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(192, 16), nn.Linear(16, 10)
        self.register_buffer("statistics", torch.rand(2, 16))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.flatten(1))
        mean, var = self.statistics
        y = (h - mean) * (var + 0.01).rsqrt()
        with torch.no_grad():
            self.statistics.lerp_(torch.stack([h.mean(0), h.var(0)]), 0.1)
        return self.last(F.gelu(y) + F.gelu(h))


def test_a_layer_that_changes_what_it_used() -> None:
    run = program_of(RunningNorm(), gr.SpectReg(weight=0.1), batch_size=64)
    assert len(spied_on(run.graph, run.state, run.inputs).calls) == 3


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
