"""Rows of a Jacobian for a compiler: the same numbers, written once, laid out for what reads them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch._inductor.inductor_prims
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Node

import gradreg as gr
from gradreg.draws import Draws
from gradreg.engines.program import trace
from gradreg.engines.rows import keep_rows
from gradreg.parts import begin_part

aten = torch.ops.aten
KEPT = torch.ops.prims.inductor_force_stride_order.default


def channels_last_rows(seed: int = 0, number: int = 3) -> Tensor:
    rows = torch.randn(number, 2, 4, 5, 5, generator=torch.Generator().manual_seed(seed))
    return rows.flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, (number, 2))


def batch() -> Tensor:
    return channels_last_rows(seed=1)[0]


def convolved(rows: Tensor) -> Tensor:
    sent = rows.relu()
    images = F.conv2d(sent.flatten(0, 1), torch.ones(4, 4, 3, 3))
    return images.sum() + sent.square().sum() + F.conv2d(sent.view(6, 4, 5, 5), torch.ones(1, 4, 1, 1)).sum()


def kept(graph: GraphModule) -> list[Node]:
    return [node for node in graph.graph.nodes if node.target is KEPT]


def what_is_kept(graph: GraphModule) -> list[object]:
    return [node.args[0].target for node in kept(graph)]


def test_what_a_convolution_reads_is_kept_in_its_layout() -> None:
    rows = channels_last_rows()
    graph = keep_rows(trace(convolved, rows))
    (relu,) = kept(graph)
    assert (relu.args[0].target, relu.args[1]) == (aten.relu.default, [200, 100, 1, 20, 4])
    assert list(relu.args[0].users) == [relu]  # all others read what is kept
    assert torch.equal(graph(rows), convolved(rows))


def test_a_sum_of_rows_is_kept_if_it_is_read_again() -> None:
    def function(rows: Tensor, others: Tensor) -> Tensor:
        total = rows.tanh() + others.sin()
        return total.exp().sum() + total.square().sum() + (rows.sin() + others.tanh()).sum()

    inputs = (channels_last_rows() + 1, channels_last_rows(seed=2) + 1)
    graph = keep_rows(trace(lambda a, b: function(a.flip(0), b.flip(0)), *inputs))
    assert what_is_kept(graph) == [aten.add.Tensor]  # once, and not the sum that is read once
    assert torch.equal(graph(*inputs), function(*(one.flip(0) for one in inputs)))


def test_a_sum_that_is_cast_before_it_is_read_again_is_kept_as_it_is() -> None:
    def function(rows: Tensor, others: Tensor) -> Tensor:
        total = (rows.flip(0) + others.flip(0)).float()
        return total.exp().sum() + total.square().sum()

    inputs = (channels_last_rows().bfloat16(), channels_last_rows(seed=2).bfloat16())
    graph = keep_rows(trace(function, *inputs))
    assert [node.meta["val"].dtype for node in kept(graph)] == [torch.bfloat16]


def test_what_masks_all_rows_is_computed_once() -> None:
    def function(rows: Tensor, images: Tensor) -> Tensor:
        active = images.square().relu()
        return aten.threshold_backward(rows, active, 0).sum() + aten.threshold_backward(rows.sin(), active, 0).sum()

    graph = keep_rows(trace(function, channels_last_rows(), batch()))
    assert what_is_kept(graph) == [aten.relu.default]
    assert torch.equal(graph(channels_last_rows(), batch()), function(channels_last_rows(), batch()))


@pytest.mark.parametrize("part", [lambda x: x[:, :2], lambda x: x[:, :, 1:-1], lambda x: x[:1, :, :1].expand(2, 4, 5, 5)])
def test_masks_that_are_parts_of_others_are_left_alone(part: Callable[[Tensor], Tensor]) -> None:
    def function(rows: Tensor, images: Tensor) -> Tensor:
        mask = part(images.sin())
        return aten.leaky_relu_backward(rows[(..., *map(slice, mask.shape[1:]))], mask, 0.1, False).sum()

    inputs = channels_last_rows(), batch()
    graph = keep_rows(trace(function, *inputs))
    assert torch.equal(graph(*inputs), function(*inputs))


def test_a_gated_network_is_compiled_as_others_are() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            first, second = self.convolution(x).chunk(2, 1)
            return self.last((F.leaky_relu(first, 0.1) * second.sigmoid()).mean((2, 3)))

    model = Gated().to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    objective = gr.Objective(F.cross_entropy, gr.FrobReg(weight=0.1), engine="compiled")
    objective(model, x, torch.tensor([0, 2]), generator=Draws.of_seed(0))
    program = next(iter(objective._prepared.values())).program
    states = [[tensor.clone() for tensor in program.state] for _ in range(2)]
    with torch.no_grad():
        program.graph(states[0], program.inputs)
        keep_rows(program.graph)(states[1], program.inputs)
    assert all(map(torch.equal, *states))


def test_one_row_and_other_layouts_are_left_alone() -> None:
    for rows in (channels_last_rows(number=1), channels_last_rows().contiguous()):
        graph = keep_rows(trace(lambda rows: F.conv2d(rows.relu().flatten(0, 1), torch.ones(4, 4, 3, 3)).sum(), rows))
        assert not kept(graph)


def test_rows_that_are_written_to_are_left_alone() -> None:
    def function(rows: Tensor) -> Tensor:
        sent = rows.relu()
        before = F.conv2d(sent.flatten(0, 1), torch.ones(4, 4, 3, 3)).sum()
        sent.select(0, 0).add_(1)
        return before + F.conv2d(sent.flatten(0, 1), torch.ones(1, 4, 1, 1)).sum()

    graph = keep_rows(trace(function, channels_last_rows()))
    assert not kept(graph)
    assert torch.equal(graph(channels_last_rows()), function(channels_last_rows()))


def test_masks_that_are_written_to_are_left_alone() -> None:
    def function(rows: Tensor, images: Tensor) -> Tensor:
        mask = images.sin()
        before = aten.threshold_backward(rows, mask, 0).sum()
        mask.select(0, 0).neg_()
        return before + aten.threshold_backward(rows, mask, 0).square().sum()

    graph = keep_rows(trace(function, channels_last_rows(), batch()))
    assert not kept(graph)
    assert torch.equal(graph(channels_last_rows(), batch()), function(channels_last_rows(), batch()))


def test_what_is_kept_belongs_to_the_part_of_the_rows() -> None:
    def function(rows: Tensor) -> Tensor:
        sent = rows.relu()
        size = sent.square().sum()
        begin_part()
        return size + F.conv2d(sent.flatten(0, 1), torch.ones(4, 4, 3, 3)).sum()

    graph = keep_rows(trace(function, channels_last_rows()))
    later = [node.meta.get("gradreg_later_parts", 0) for node in graph.graph.nodes if node.op == "call_function"]
    assert kept(graph)
    assert later == sorted(later, reverse=True)
    assert (later[0], later[-1]) == (1, 0)


def test_a_step_with_whole_jacobians_is_the_same_bit_for_bit() -> None:
    model = gr.models.resnet(num_classes=3, widths=(4, 8), blocks_per_level=1).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    objective = gr.Objective(F.cross_entropy, gr.FrobReg(weight=0.1), engine="compiled")
    objective(model, x, torch.tensor([0, 2]), generator=Draws.of_seed(0))
    program = next(iter(objective._prepared.values())).program
    states = [[tensor.clone() for tensor in program.state] for _ in range(2)]
    with torch.no_grad():
        program.graph(states[0], program.inputs)
        graph = keep_rows(program.graph)
        graph(states[1], program.inputs)
    assert {aten.clamp_min.default, aten.relu.default} & set(what_is_kept(graph))
    assert {aten.threshold_backward.default} & set(what_is_kept(graph))
    assert all(node.meta["val"].shape[-2:].numel() > 1 for node in kept(graph))  # no statistics of batch norm
    assert not kept(program.graph)
    assert all(map(torch.equal, *states))
