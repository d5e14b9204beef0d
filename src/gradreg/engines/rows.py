"""Rows of a Jacobian, in a graph for a compiler: what of them is kept in memory, and laid out how.

Of rows, ten times the batch, an element-wise kernel takes as long as reading and writing them does. A compiler decides what
to keep by counting tensors, not their sizes, and lays out ``[rows, batch, channels, height, width]`` one channel after the
other, since it knows no memory format for five dimensions but one for volumes. So it is told:

- what a convolution reads is laid out for it, not copied;
- a sum of rows that is read again is written once, not summed from its terms each time;
- what rows are masked by, the same for all of them, is computed once, not once for each row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from gradreg.memory import changed

aten = torch.ops.aten
CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
MASKED = (aten.threshold_backward.default, aten.leaky_relu_backward.default)


def write_rows_down(graph: GraphModule) -> None:
    """Tell the compiler which rows to keep in memory; the numbers stay the same, bit for bit.

    Those that are written to in place are left to it.
    """
    unsafe, terms = changed(graph.graph), dict[Node, set[Node]]()
    for node in [node for node in graph.graph.nodes if _is_rows(node)]:
        terms[node] = _terms(node, terms)
        if node not in unsafe and (_is_convolved(node) or (len(terms[node]) > 1 and _is_read_again(node))):
            written = _written(graph, node)
            terms[written] = {written}
        if node.target in MASKED and _is_computed(node.args[1]) and node.args[1] not in unsafe:
            _written(graph, node.args[1])
    graph.recompile()


def _is_rows(node: Node) -> bool:
    """Whether these are two or more rows of a batch of images, with the channels last."""
    rows = node.meta.get("val")
    if node.op != "call_function" or not isinstance(rows, Tensor) or rows.ndim != 5 or rows.shape[0] < 2:
        return False
    adjoining = rows.stride(0) == rows.shape[1] * rows.stride(1)
    return adjoining and rows[0].is_contiguous(memory_format=torch.channels_last)


def _terms(node: Node, terms: dict[Node, set[Node]]) -> set[Node]:
    """The rows in memory from which these are computed, element by element."""
    if torch.Tag.pointwise not in getattr(node.target, "tags", ()) and node.target is not aten._to_copy.default:
        return {node}
    return set().union(*(terms[source] for source in node.all_input_nodes if source in terms))


def _is_convolved(node: Node) -> bool:
    return any(_is_folded(node, user) and any(after.target in CONVOLUTIONS for after in user.users) for user in node.users)


def _is_folded(node: Node, user: Node) -> bool:
    """Whether this user is its view with rows and batch in one; that of a view is of the same memory."""
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


def _is_computed(mask: Any) -> bool:
    """Whether it has no rows itself, and is not in memory already."""
    return mask.op == "call_function" and mask.meta["val"].ndim == 4 and mask.target is not _keep()


def _written(graph: GraphModule, node: Node) -> Node:
    """What all others read from now on: the same numbers, in memory, in these strides."""
    with graph.graph.inserting_before(node.next):
        written = graph.graph.call_function(_keep(), (node, list(node.meta["val"].stride())))
    written.meta = dict(node.meta)  # of the same part of the step, wherever it is that it is read
    node.replace_all_uses_with(written, delete_user_cb=lambda user: user is not written)
    return written


def _keep() -> Callable[..., Any]:
    """The operation by which inductor's own passes fix a layout; without a compiler it copies, or does nothing."""
    import torch._inductor.inductor_prims  # not before it is needed: this loads the whole compiler

    return torch.ops.prims.inductor_force_stride_order.default
