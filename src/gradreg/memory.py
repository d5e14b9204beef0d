"""Which values of a traced graph share memory, and which are written to."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node
from torch.fx.node import map_arg


def owners(graph: Graph) -> dict[Node, Node]:
    """For each value the one that its memory was made for: itself, or what it is a view of or the result of a write to."""
    found: dict[Node, Node] = {}
    for node in graph.nodes:
        shared = _shared(node)
        found[node] = found[shared[0]] if shared else node
    return found


def written_by(node: Node) -> list[Node]:
    """Those of the values it is given that it writes to."""
    return [value for alias, values in _aliased(node) if alias.is_write for value in values]


def changed(graph: Graph) -> set[Node]:
    """All that share memory with something that is written to, and so may not be what they were any more."""
    owner = owners(graph)
    written = {owner[value] for node in graph.nodes for value in written_by(node)}
    return {node for node, first in owner.items() if first in written}


def _shared(node: Node) -> list[Node]:
    """Those of the values it is given whose memory its result shares."""
    if node.target in (operator.getitem, torch.ops.aten._unsafe_view.default):  # views, though not declared as such
        return node.all_input_nodes[:1]
    returned = node.target._schema.returns if isinstance(node.target, OpOverload) else ()
    if all(value.alias_info is None for value in returned):
        return []
    return [value for _, values in _aliased(node) for value in values]


def _aliased(node: Node) -> list[tuple[Any, list[Node]]]:
    """How the operation was declared to treat the memory of its arguments, for those where it was."""
    if not isinstance(node.target, OpOverload):
        return []
    declared = node.target._schema.arguments
    given = dict(zip((one.name for one in declared), node.args, strict=False)) | node.kwargs
    return [(one.alias_info, _nodes(given.get(one.name))) for one in declared if one.alias_info is not None]


def _nodes(given: Any) -> list[Node]:
    found: list[Node] = []
    map_arg(given, found.append)
    return found
