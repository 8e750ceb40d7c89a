"""Single nodes and their neighbourhoods, picked by name."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import openvino as ov

from ovgraft import ir
from ovgraft.errors import SpecError
from ovgraft.inspection.request import Request
from ovgraft.inspection.tree_nodes import GraphInfo, NodeInfo, OutputInfo, SourceInfo


def chosen(names: Sequence[str], edges: Sequence[Sequence[int]], request: Request) -> dict[int, int | None]:
    """The nodes a request asks for, in the order of the model.

    Args:
        names: Of all nodes.
        edges: For each node the producers of its inputs.
        request: What is asked for.

    Returns:
        Node -> distance to the node of ``around``, None for those that only match a pattern.

    Raises:
        SpecError: ``around`` names several nodes.
    """
    found: dict[int, int | None] = {
        i: None
        for i, name in enumerate(names)
        if any(name == pattern or fnmatchcase(name, pattern) for pattern in request.node)
    }
    if request.around is not None:
        centre = _centre(names, request.around)
        if centre is not None:
            found |= _neighbourhood(edges, centre, request.hops)
    return dict(sorted(found.items()))


def _centre(names: Sequence[str], wanted: str) -> int | None:
    same = [i for i, name in enumerate(names) if name == wanted]
    if not same and wanted.startswith("#") and wanted[1:].isdecimal():
        same = [int(wanted[1:])] if int(wanted[1:]) < len(names) else []
    if not same:
        same = [i for i, name in enumerate(names) if fnmatchcase(name, wanted)]
    if len(same) > 1:
        places = ", ".join(f"#{i}" for i in same[:6]) + (", ..." if len(same) > 6 else "")
        raise SpecError(f"{len(same)} nodes are called '{wanted}'", hint=f"say which one by its number: {places}")
    return same[0] if same else None


def _neighbourhood(edges: Sequence[Sequence[int]], centre: int, hops: int) -> dict[int, int]:
    consumers: list[list[int]] = [[] for _ in edges]
    for consumer, producers in enumerate(edges):
        for producer in producers:
            consumers[producer].append(consumer)
    distance = {centre: 0}
    ring = [centre]
    for step in range(1, hops + 1):
        ring = list(dict.fromkeys(n for i in ring for n in (*edges[i], *consumers[i]) if n not in distance))
        distance |= dict.fromkeys(ring, step)
    return distance


def collect_nodes(graph: ir.Graph, request: Request) -> tuple[NodeInfo, ...]:
    """The nodes a request asks for, each in full."""
    if not request.node and request.around is None:
        return ()
    edges = [[producer for producer, _ in sources] for sources in graph.inputs]
    return tuple(_node(graph, i, distance) for i, distance in chosen(graph.names, edges, request).items())


def collect_graph(graph: ir.Graph) -> GraphInfo:
    """All nodes in columns."""
    return GraphInfo(
        names=tuple(graph.names),
        types=tuple(graph.types),
        outputs=tuple(_first_output(node) for node in graph.nodes),
        inputs=tuple(tuple(producer for producer, _ in sources) for sources in graph.inputs),
    )


def _first_output(node: ov.Node) -> str:
    if not node.get_output_size():
        return ""
    return f"{node.get_output_element_type(0).get_type_name()} {node.get_output_partial_shape(0)}"


def _node(graph: ir.Graph, i: int, distance: int | None) -> NodeInfo:
    node = graph.nodes[i]
    consumers: list[list[int]] = [[] for _ in range(node.get_output_size())]
    for output, consumer, _ in graph.consumers[i]:
        consumers[output].append(consumer)
    return NodeInfo(
        node=graph.ref(i),
        opset=str(node.get_type_info().version_id),
        attributes={name: _plain(value) for name, value in node.get_attributes().items()},
        inputs=tuple(
            SourceInfo(
                graph.ref(producer),
                output,
                node.get_input_element_type(port).get_type_name(),
                str(node.get_input_partial_shape(port)),
            )
            for port, (producer, output) in enumerate(graph.inputs[i])
        ),
        outputs=tuple(
            OutputInfo(
                tuple(sorted(node.output(port).get_names())),
                node.get_output_element_type(port).get_type_name(),
                str(node.get_output_partial_shape(port)),
                tuple(graph.ref(consumer) for consumer in dict.fromkeys(consumers[port])),
            )
            for port in range(node.get_output_size())
        ),
        bytes=int(node.get_byte_size()) if graph.types[i] == "Constant" else None,
        bodies=_bodies(node),
        distance=distance,
    )


def _bodies(node: ov.Node) -> tuple[int, ...]:
    kind = node.get_type_name()
    if kind in ("Loop", "TensorIterator"):
        return (len(node.get_function().get_ops()),)
    if kind == "If":
        return tuple(len(node.get_function(branch).get_ops()) for branch in range(2))
    return ()


def _plain(value: Any) -> Any:
    """An attribute as JSON can hold it."""
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return str(value)
