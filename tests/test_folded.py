"""Rows folded into a convolution's batch: the same numbers, laid out once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

import gradreg as gr
from gradreg.draws import Draws
from gradreg.engines.folded import lay_out_for_convolutions
from gradreg.engines.program import trace
from gradreg.parts import begin_part

aten = torch.ops.aten


def channels_last_rows() -> Tensor:
    rows = torch.randn(3, 2, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    return rows.flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, (3, 2))


def convolved(rows: Tensor) -> Tensor:
    sent = rows.relu()
    images = F.conv2d(sent.flatten(0, 1), torch.ones(4, 4, 3, 3))
    return images.sum() + sent.square().sum() + F.conv2d(sent.view(6, 4, 5, 5), torch.ones(1, 4, 1, 1)).sum()


def read_by_convolutions(graph: GraphModule) -> set[object]:
    return {node.args[0].target for node in graph.graph.nodes if node.target is aten.convolution.default}


def test_what_a_convolution_reads_is_laid_out_for_it() -> None:
    rows = channels_last_rows()
    graph = trace(convolved, rows)
    lay_out_for_convolutions(graph)
    assert read_by_convolutions(graph) == {aten.mul.Tensor}
    (product,) = {node.args[0] for node in graph.graph.nodes if node.target is aten.convolution.default}
    relu = next(node for node in graph.graph.nodes if node.target is aten.relu.default)
    assert list(relu.users) == [product.args[0]]  # all others read the product
    assert torch.equal(graph(rows), convolved(rows))


def test_other_layouts_are_left_alone() -> None:
    rows = channels_last_rows().contiguous()
    graph = trace(convolved, rows)
    before = len(graph.graph.nodes)
    lay_out_for_convolutions(graph)
    assert len(graph.graph.nodes) == before


def test_rows_that_are_written_to_are_left_alone() -> None:
    def function(rows: Tensor) -> Tensor:
        sent = rows.relu()
        before = F.conv2d(sent.flatten(0, 1), torch.ones(4, 4, 3, 3)).sum()
        sent.select(0, 0).add_(1)
        return before + F.conv2d(sent.flatten(0, 1), torch.ones(1, 4, 1, 1)).sum()

    graph = trace(function, channels_last_rows())
    lay_out_for_convolutions(graph)
    assert aten.mul.Tensor not in read_by_convolutions(graph)
    assert torch.equal(graph(channels_last_rows()), function(channels_last_rows()))


def test_the_layout_belongs_to_the_part_of_the_rows() -> None:
    def function(rows: Tensor) -> Tensor:
        sent = rows.relu()
        size = sent.square().sum()
        begin_part()
        return size + F.conv2d(sent.flatten(0, 1), torch.ones(4, 4, 3, 3)).sum()

    graph = trace(function, channels_last_rows())
    lay_out_for_convolutions(graph)
    later = [node.meta.get("gradreg_later_parts", 0) for node in graph.graph.nodes if node.op == "call_function"]
    assert later == sorted(later, reverse=True)
    assert later[0] == 1
    assert later[-1] == 0


def test_a_step_with_whole_jacobians_is_the_same_bit_for_bit() -> None:
    model = gr.models.resnet(num_classes=3, widths=(4, 8), blocks_per_level=1).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    objective = gr.Objective(F.cross_entropy, gr.FrobReg(weight=0.1), engine="compiled")
    objective(model, x, torch.tensor([0, 2]), generator=Draws.of_seed(0))
    program = next(iter(objective._prepared.values())).program
    states = [[tensor.clone() for tensor in program.state] for _ in range(2)]
    with torch.no_grad():
        program.graph(states[0], program.inputs)
        lay_out_for_convolutions(program.graph)
        program.graph(states[1], program.inputs)
    assert aten.mul.Tensor in read_by_convolutions(program.graph)
    assert all(map(torch.equal, *states))
