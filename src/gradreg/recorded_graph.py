"""The graph that autograd recorded: which of its nodes made a tensor, and which lie on the way to another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge


def nodes_of(tensors: Sequence[Tensor]) -> Iterator[Node]:
    """The nodes that made these tensors, back to the leaves."""
    waiting = [tensor.grad_fn for tensor in tensors]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting.extend(following for following, _ in node.next_functions)


def nodes_between(output: Tensor, points: Sequence[Tensor]) -> set[Node]:
    """The nodes through which the gradient of the output flows on its way to the points."""
    users: dict[Node, list[Node]] = {}
    for node in nodes_of([output]):
        for following, _ in node.next_functions:
            if following is not None:
                users.setdefault(following, []).append(node)
    waiting = [get_gradient_edge(point).node for point in points]
    between: set[Node] = set()
    while waiting:
        new = [user for user in users.get(waiting.pop(), []) if user not in between]
        between.update(new)
        waiting.extend(new)
    return between


def custom_function(node: Node) -> type | None:
    """The ``autograd.Function`` written in Python that this node belongs to."""
    function: type | None = getattr(node, "_forward_cls", None)
    return function
