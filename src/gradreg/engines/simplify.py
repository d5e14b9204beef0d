"""A traced graph with fewer operations that gives the same numbers, bit for bit.

For graphs that are run one operation after the other, each of which costs microseconds however little it does: of the
operations that differentiation and vectorisation leave behind, a quarter do nothing. A compiler sees to that by itself.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

from gradreg.memory import changed, owners, written_by

aten = torch.ops.aten
#: Views that begin where the memory of their argument begins, and so are told apart by shape and strides.
RESHAPES = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.expand.default,
        aten.permute.default,
        aten.transpose.int,
        aten.t.default,
        aten.unsqueeze.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.detach.default,
        aten.alias.default,
    }
)
#: With an exponent or a factor of 1, copies.
SCALINGS = frozenset({aten.pow.Tensor_Scalar, aten.mul.Scalar, aten.div.Scalar})
#: Elements of a constant that is worth keeping, at most.
SMALL = 4096


def simplify(graph: GraphModule) -> None:
    """Make constants once, and leave out copies that nobody changes and views of what has been viewed so before."""
    _make_constants_once(graph)
    _leave_out_scalings_by_one(graph.graph)
    _view_once(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _make_constants_once(graph: GraphModule) -> None:
    """What is made of nothing, such as ``arange``, unless it is random or something is written to it."""
    unsafe = changed(graph.graph)
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and not node.all_input_nodes and node not in unsafe and _is_pure(node):
            made = node.target(*node.args, **node.kwargs)
            if isinstance(made, Tensor) and made.numel() <= SMALL:
                graph.register_buffer(f"constant_{node.name}", made, persistent=False)
                with graph.graph.inserting_before(node):
                    node.replace_all_uses_with(graph.graph.get_attr(f"constant_{node.name}"), propagate_meta=True)


def _is_pure(node: Node) -> bool:
    """Whether it gives the same every time, and changes nothing."""
    target = node.target
    return isinstance(target, OpOverload) and not (
        target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags
    )


def _leave_out_scalings_by_one(graph: Graph) -> None:
    """Where neither the copy nor what it is a copy of is written to before the copy is last read."""
    owner, place = owners(graph), {node: number for number, node in enumerate(graph.nodes)}
    written: dict[Node, list[int]] = {}
    last_read: dict[Node, int] = {}
    for node, number in place.items():
        for into in written_by(node):
            written.setdefault(owner[into], []).append(number)
        for read in node.all_input_nodes:
            last_read[owner[read]] = number
    for node in list(graph.nodes):
        if node.target in SCALINGS and node.args[1] == 1 and _looks_like(node, node.args[0]):
            source = node.args[0]
            read_until = last_read.get(node, place[node])
            if node not in written and not any(place[node] < at <= read_until for at in written.get(owner[source], [])):
                node.replace_all_uses_with(source)


def _view_once(graph: Graph) -> None:
    """Of views with one beginning, shape and strides, the first serves for all."""
    beginning: dict[Node, Node] = {}
    first: dict[tuple[object, ...], Node] = {}
    for node in list(graph.nodes):
        same = node.target in RESHAPES and isinstance(node.args[0], Node)
        beginning[node] = beginning[node.args[0]] if same else node
        if (look := _look(node)) is not None:
            earlier = first.setdefault((beginning[node], *look), node)
            if earlier is not node:
                node.replace_all_uses_with(earlier)


def _looks_like(node: Node, other: object) -> bool:
    return isinstance(other, Node) and _look(node) is not None and _look(node) == _look(other)


def _look(node: Node) -> tuple[object, ...] | None:
    """Type, shape and strides, of what is one tensor of the usual layout."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return None
    return value.dtype, value.shape, value.stride()
