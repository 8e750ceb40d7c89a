"""The residual stream of a draft, where it leaves its last layer."""

from __future__ import annotations

import openvino as ov

from ovgraft import ir
from ovgraft.errors import Reason, StructureError


def last_residual(graph: ir.Graph, hidden: ov.Output) -> ov.Node:
    """The Add that ends the last layer: the first one every way up from ``hidden`` meets.

    Between it and ``hidden`` there is only the final norm, whose own Adds take a constant.

    Args:
        graph: View of the draft.
        hidden: What enters the output layer.

    Returns:
        The residual Add, or a StructureError.

    Raises:
        StructureError: The ways up end in different nodes, or in none.
    """
    fed = _fed(graph)
    ends: set[int] = set()
    seen: set[int] = set()
    stack = [graph.index(hidden.get_node())]
    while stack:
        node = stack.pop()
        if node in seen or not fed[node]:
            continue
        seen.add(node)
        sources = graph.inputs[node]
        adds_two = graph.types[node] == "Add" and all(fed[source] for source, _ in sources)
        if adds_two or not sources:
            ends.add(node)
        else:
            stack.extend(source for source, _ in sources)
    if len(ends) == 1 and graph.types[end := ends.pop()] == "Add":
        return graph.nodes[end]
    nodes = tuple(graph.ref(end) for end in sorted(ends))
    reason = Reason("no-residual", "the ways up from the output layer do not meet in one residual Add", nodes)
    raise StructureError(reason.message, node=graph.ref(graph.index(hidden.get_node())), reasons=(reason,))


def _fed(graph: ir.Graph) -> list[bool]:
    """For each node, whether its value depends on an input or a state."""
    fed = [kind in ("Parameter", "ReadValue") for kind in graph.types]
    for node, sources in enumerate(graph.inputs):
        fed[node] = fed[node] or any(fed[source] for source, _ in sources)
    return fed
