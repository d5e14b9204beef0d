"""Parts of a traced step that are compiled one after the other.

A compiler that sees the whole step puts off what belongs to one pass until the next one uses it, and keeps all that it is
computed from till then: the second derivative of every batch norm waits so for the last backward pass, in single precision.
Between parts a value is either kept as it was traced, or computed again from what is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.node import map_arg
from torch.fx.passes.split_module import split_module

from gradreg.memory import changed

#: How many parts begin after a node, and which it belongs to, in its ``meta``.
_LATER, _PART = "gradreg_later_parts", "gradreg_part"
#: A value is computed again if what must be kept for that, beyond what is kept anyway, is smaller by this factor,
#: what has to be read for it is no more than this many times as large, and no more than this many operations away.
_SMALLER, _READ, _FAR = 8, 2.5, 50


def begin_part(_: object = None) -> None:
    """What is traced from here on belongs to the next part; nothing if nothing is traced, or all in one go as in a fleet."""
    mode = get_proxy_mode()
    if mode is not None and torch._C._functorch.maybe_current_level() is None:
        for node in mode.tracer.graph.nodes:
            node.meta[_LATER] = node.meta.get(_LATER, 0) + 1


def begin_part_at_gradient(tensor: Tensor) -> None:
    """A part begins when the backward pass has come to this tensor."""
    if get_proxy_mode() is not None and tensor.requires_grad:
        tensor.register_hook(begin_part)  # type: ignore[no-untyped-call]


def compiled_in_parts(graph: GraphModule, compiler: Callable[[nn.Module], Any]) -> Callable[..., Any]:
    """The graph with each of its parts compiled, equal ones once.

    A part holds what it is given until it ends.
    """
    number = max(node.meta.get(_LATER, 0) for node in graph.graph.nodes)
    if number == 0:
        return compiler(graph)  # type: ignore[no-any-return]
    graph = _copy_of(graph)
    for node in graph.graph.nodes:
        node.meta[_PART] = number - node.meta.get(_LATER, 0)
    unsafe = changed(graph.graph)
    for part in range(1, number + 1):
        _compute_again(graph, part, unsafe)
    # In the order of the trace: writes are no dependences that a split could see.
    whole = split_module(graph, graph, lambda node: node.meta[_PART], keep_original_order=True)
    compiled: dict[Any, Any] = {}
    for name, module in list(whole.named_children()):
        operations = _operations(module)
        if operations not in compiled:
            compiled[operations] = compiler(module)
        delattr(whole, name)  # what is compiled need not be a module
        setattr(whole, name, compiled[operations])

    def run(state: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        whole(*state, *inputs)

    return run


def _copy_of(graph: GraphModule) -> GraphModule:
    """Its nodes, with the tensors as plain arguments."""
    nodes = Graph()
    nodes.output(nodes.graph_copy(graph.graph, {}))
    return GraphModule(graph, nodes)


def _operations(module: Any) -> tuple[Any, ...]:
    """All that its results depend on but for the values it is given: the same for the chunks of a penalty, ends apart."""
    places = {node: place for place, node in enumerate(module.graph.nodes)}

    def line(node: Node) -> tuple[Any, ...]:
        given = map_arg((node.args, node.kwargs), lambda other: f"%{places[other]}")
        what = None if node.op == "placeholder" else node.target  # a function, or the name of a constant
        return node.op, what, str(given), _layout(node.meta.get("val"))

    return tuple(map(line, module.graph.nodes))


def _layout(value: object) -> object:
    return (value.shape, value.stride(), value.dtype, value.device) if isinstance(value, Tensor) else None


def _compute_again(graph: GraphModule, part: int, unsafe: set[Node]) -> None:
    """Let a part compute again what is a few operations away from what it is given.

    The input of a convolution is one: a ReLU and a batch norm away from the convolution before, which is given for their
    derivatives. It would be as large again.
    """
    given: set[Node] = set()
    for node in list(graph.graph.nodes):
        users = [user for user in node.users if user.meta[_PART] == part and user.op == "call_function"]
        if node.op != "call_function" or node.meta[_PART] >= part or not users:
            continue
        chain, ends = _way_back(node, given)
        more = {end for end in ends - given if end.op == "call_function"}  # inputs are there for all parts
        if ends & given and _is_cheap(node, more, ends & given) and unsafe.isdisjoint((*chain, *ends)):
            _repeat(chain, node, users, part)
            given |= more
        else:
            given.add(node)


def _is_cheap(node: Node, more: set[Node], given: set[Node]) -> bool:
    size = _bytes([node])
    return _SMALLER * _bytes(more) < size and _bytes(given) < _READ * size


def _way_back(node: Node, given: set[Node]) -> tuple[list[Node], set[Node]]:
    """The element-wise operations that lead to a node, in order, and the values that they start from."""
    chain: dict[Node, None] = {}
    ends: set[Node] = set()

    def visit(one: Node, distance: int) -> None:
        if one in given or distance > _FAR or not _is_elementwise(one):
            ends.add(one)
        elif one not in chain:
            for other in one.all_input_nodes:
                visit(other, distance + 1)
            chain[one] = None

    visit(node, 0)
    return list(chain), ends


def _repeat(chain: Sequence[Node], node: Node, users: Sequence[Node], part: int) -> None:
    """Put the chain in front of each user, and its end in the place of the node: shared, it would be kept between them."""
    for user in users:
        copies: dict[Node, Node] = {}
        with node.graph.inserting_before(user):
            for one in chain:
                copies[one] = node.graph.node_copy(one, lambda other, copies=copies: copies.get(other, other))  # type: ignore[misc]
                copies[one].meta[_PART] = part
        user.replace_input_with(node, copies[node])


#: What is as cheap, and not tagged as element-wise.
_ALIKE = (
    "view",
    "_unsafe_view",
    "expand",
    "unsqueeze",
    "squeeze",
    "permute",
    "alias",
    "detach",
    "_to_copy",
    "constant_pad_nd",
)


def _is_elementwise(node: Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable:
        return False
    return torch.Tag.pointwise in target.tags or target.overloadpacket.__name__ in _ALIKE


def _bytes(nodes: Iterable[Node]) -> int:
    values = (node.meta.get("val") for node in nodes)
    return sum(math.prod(value.shape) * value.element_size() for value in values if isinstance(value, Tensor))
