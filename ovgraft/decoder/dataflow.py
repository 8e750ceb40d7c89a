"""Which values of a graph are constant, which depend on data, and which the residual stream passes through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ovgraft.ir.graph import Graph
from ovgraft.ir.weights import VARYING

Value = tuple[int, int]
"""An output: (node number, output port)."""

# Keys and values are state, not residual stream: a layer may read those of another layer (KV sharing, value residuals),
# and such an edge must not look like a way around the layers between.
_KEY_AND_VALUE_PORTS = {"ScaledDotProductAttention": (1, 2), "PagedAttentionExtension": (1, 2)}


@dataclass(frozen=True, slots=True)
class Origins:
    """Where the nodes' values come from, by node number.

    Attributes:
        constant: The value is fixed by constants alone.
        fed: The value depends on the data, not only the shape, of an input or a state.
    """

    constant: Sequence[bool]
    fed: Sequence[bool]


def origins(graph: Graph) -> Origins:
    """Tell constants and data apart, O(edges)."""
    constant: list[bool] = []
    fed: list[bool] = []
    for op, sources in zip(graph.types, graph.inputs, strict=True):
        if not sources:
            constant.append(op == "Constant")
            fed.append(op in ("Parameter", "ReadValue"))
            continue
        constant.append(op not in VARYING and all([constant[producer] for producer, _ in sources]))
        fed.append(op == "ReadValue" or (op != "ShapeOf" and any([fed[producer] for producer, _ in sources])))
    return Origins(constant, fed)


@dataclass(frozen=True, slots=True)
class Stream:
    """All ways from a source to a sink along real-typed data edges.

    Attributes:
        source: Where they start.
        sink: Where they end.
        nodes: Every node on one of them, in topological order, source and sink included.
        predecessors: For a node on the stream, the nodes on the stream that feed it.
        successors: For a node on the stream, the nodes on the stream that it feeds.
    """

    source: Value
    sink: Value
    nodes: Sequence[int]
    predecessors: dict[int, list[int]]
    successors: dict[int, list[int]]


def stream(graph: Graph, source: Value, sink: Value) -> Stream | None:
    """The ways from ``source`` to ``sink``; None when there is none.

    Integers, booleans and shapes are no data here, nor are the keys and values of attention.
    """
    start, end = source[0], sink[0]
    types = graph.types
    forward: dict[int, list[int]] = {start: []}
    for node in range(start, end):
        successors = forward.get(node)
        if successors is None:
            continue
        real: dict[int, bool] = {}
        for port, consumer, into in graph.consumers[node]:
            kind = types[consumer]
            if consumer > end or kind == "ShapeOf" or (node == start and port != source[1]):
                continue
            if kind in _KEY_AND_VALUE_PORTS and into in _KEY_AND_VALUE_PORTS[kind]:
                continue
            if port not in real:
                real[port] = graph.is_real(node, port)
            if real[port]:
                successors.append(consumer)
                forward.setdefault(consumer, [])
    if end not in forward:
        return None
    kept: dict[int, list[int]] = {end: []}
    for node in range(end - 1, start - 1, -1):
        ahead = sorted({consumer for consumer in forward.get(node, ()) if consumer in kept})
        if ahead:
            kept[node] = ahead
    nodes = sorted(kept)
    predecessors: dict[int, list[int]] = {node: [] for node in nodes}
    for node in nodes:
        for consumer in kept[node]:
            predecessors[consumer].append(node)
    return Stream(source, sink, nodes, predecessors, kept)


def dominators(graph: Graph, ways: Stream) -> list[Value]:
    """The values that every way passes through, from the source to the sink, both included.

    These are the dominators of the sink. Every node of a stream lies on a way from source to sink, so a node is on all
    of them exactly when no edge leads past it in topological order: O(edges), where a general dominator tree is not
    needed.
    """
    found: list[Value] = []
    furthest = ways.nodes[0]
    for node in ways.nodes:
        if furthest <= node:
            value = _value_of(graph, ways, node)
            if value is not None:
                found.append(value)
        furthest = max(furthest, node, *ways.successors[node])
    return found


def _value_of(graph: Graph, ways: Stream, node: int) -> Value | None:
    """The one output of ``node`` on the stream; None when there are several, as of a Split."""
    if node == ways.source[0]:
        return ways.source
    if node == ways.sink[0]:
        return ways.sink
    on_stream = set(ways.successors[node])
    ports = {port for port, consumer, _ in graph.consumers[node] if consumer in on_stream}
    ports = {port for port in ports if graph.is_real(node, port)} if len(ports) > 1 else ports
    return (node, ports.pop()) if len(ports) == 1 else None
