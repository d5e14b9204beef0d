"""Rows of a Jacobian, in a graph for a compiler: what of them is kept in memory, and laid out how.

Of rows, ten times the batch, an element-wise kernel takes as long as reading and writing them does. A compiler decides what
to keep by counting tensors, not their sizes, and lays out ``[rows, batch, channels, height, width]`` one channel after the
other, since it knows no memory format for five dimensions but one for volumes. So it is told:

- what a convolution reads is laid out for it, not copied;
- a sum of rows that is read again is written once, not summed from its terms each time;
- what all rows are masked by is computed once and kept, also for later parts of the step, not computed for each row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from gradreg.memory import changed

aten = torch.ops.aten
CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
MASKED = (aten.threshold_backward.default, aten.leaky_relu_backward.default)


def keep_rows(graph: GraphModule) -> GraphModule:
    """A copy that tells the compiler which rows to keep in memory; the numbers are the same, bit for bit.

    Rows and masks that are written to in place are left to it.
    """
    graph = _copy(graph)
    written_to, terms = changed(graph.graph), dict[Node, set[Node]]()
    for node in [node for node in graph.graph.nodes if node.op == "call_function" and _is_rows(node)]:
        terms[node] = _terms(node, terms)
        if node not in written_to and (_is_convolved(node) or (len(terms[node]) > 1 and _is_read_again(node))):
            kept = _kept(graph, node)
            terms[kept] = {kept}
        if node.target in MASKED and node.args[1] not in written_to and _is_mask_of_all(node.args[1]):
            _kept(graph, node.args[1])
    graph.recompile()
    return graph


def _copy(graph: GraphModule) -> GraphModule:
    copy = Graph()
    copy.output(copy.graph_copy(graph.graph, {}))
    copy.set_codegen(graph.graph._codegen)  # takes the arguments apart
    return GraphModule(graph, copy)


def _is_rows(node: Node) -> bool:
    """Whether these are two or more rows of a batch of images, one after the other, each with the channels last."""
    rows = node.meta.get("val")
    return (
        isinstance(rows, Tensor)
        and rows.ndim == 5
        and rows.shape[0] > 1
        and rows.shape[3:].numel() > 1
        and rows.stride(0) == rows[0].numel()
        and rows[0].is_contiguous(memory_format=torch.channels_last)
    )


def _terms(node: Node, terms: dict[Node, set[Node]]) -> set[Node]:
    """The rows in memory from which these are computed, element by element."""
    if torch.Tag.pointwise not in getattr(node.target, "tags", ()) and node.target is not aten._to_copy.default:
        return {node}
    return set[Node]().union(*(terms.get(source, {source}) for source in node.all_input_nodes if _is_rows(source)))


def _is_convolved(node: Node) -> bool:
    return any(_is_folded(node, user) and any(after.target in CONVOLUTIONS for after in user.users) for user in node.users)


def _is_folded(node: Node, user: Node) -> bool:
    """Whether this user is its view with rows and batch in one. A view itself is not to be kept, but what it is of."""
    return (
        user.target is aten.view.default
        and node.target is not aten.view.default
        and user.meta["val"].shape[1:] == node.meta["val"].shape[2:]
    )


def _is_read_again(node: Node) -> bool:
    users = list(node.users)
    if len(users) == 1 and users[0].target is aten._to_copy.default:  # to be written in the precision before the cast
        users = list(users[0].users)
    return len(users) > 1


def _is_mask_of_all(mask: Any) -> bool:
    """Whether it is computed for a batch of images, without rows, channels last, and not kept already."""
    return (
        mask.op == "call_function"
        and mask.target is not _keep()
        and mask.meta["val"].ndim == 4
        and mask.meta["val"].is_contiguous(memory_format=torch.channels_last)
    )


def _kept(graph: GraphModule, node: Node) -> Node:
    """What all others read from now on: the same numbers, in memory, in these strides."""
    with graph.graph.inserting_before(node.next):
        kept = graph.graph.call_function(_keep(), (node, list(node.meta["val"].stride())))
    kept.meta = dict(node.meta)  # of the same part of the step, wherever it is that it is read
    node.replace_all_uses_with(kept, delete_user_cb=lambda user: user is not kept)
    return kept


def _keep() -> Callable[..., Any]:
    """The operation by which inductor's own passes fix a layout; without a compiler it copies."""
    import torch._inductor.inductor_prims  # not before it is needed: this loads the whole compiler

    return torch.ops.prims.inductor_force_stride_order.default
