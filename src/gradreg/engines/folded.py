"""Rows of a Jacobian, folded into the batch of a convolution, in the memory format that the convolution reads.

A compiler lays out the rows ``[rows, batch, channels, height, width]`` one channel after the other, since it knows no memory
format for five dimensions but one for volumes, and copies them for every convolution. A product with 1 of what is folded
already is laid out for the convolution, and all others read it through a view.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from gradreg.memory import changed

aten = torch.ops.aten
CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)


def lay_out_for_convolutions(graph: GraphModule) -> None:
    """All rows that a convolution reads with the channels last; the numbers stay the same, bit for bit.

    Not those that are written to: the product is a copy.
    """
    unsafe = changed(graph.graph)
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target is not aten.view.default and node not in unsafe:
            folded = [user for user in node.users if _is_folded(node, user)]
            if folded:
                _fold_first(graph, node, folded)
    graph.recompile()


def _is_folded(node: Node, user: Node) -> bool:
    """Whether this user is its view with the first two of five dimensions in one, channels last, for a convolution."""
    rows, view = node.meta.get("val"), user.meta.get("val")
    return (
        user.target is aten.view.default
        and isinstance(rows, Tensor)
        and isinstance(view, Tensor)
        and (rows.ndim, view.shape[1:]) == (5, rows.shape[2:])
        and view.is_contiguous(memory_format=torch.channels_last)
        and any(after.target in CONVOLUTIONS for after in user.users)
    )


def _fold_first(graph: GraphModule, node: Node, folded: list[Node]) -> None:
    rows, view = node.meta["val"], folded[0].meta["val"]
    with graph.graph.inserting_before(node.next):
        first = graph.graph.call_function(aten.view.default, (node, list(view.shape)))
        kept = graph.graph.call_function(aten.mul.Tensor, (first, 1))
        unfolded = graph.graph.call_function(aten.view.default, (kept, list(rows.shape)))
    for new, value in ((first, view), (kept, view), (unfolded, rows)):
        new.meta = node.meta | {"val": value}  # of the same part of the step as the rows, wherever it is that they are read
    for view_of_it in folded:
        view_of_it.replace_all_uses_with(kept)
        graph.graph.erase_node(view_of_it)
    node.replace_all_uses_with(unfolded, delete_user_cb=lambda user: user is not first)
    if not unfolded.users:
        graph.graph.erase_node(unfolded)
