"""Cut the residual stream into steps and tell what each one does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ovgraft.decoder.dataflow import Origins, Stream, Value, dominators
from ovgraft.ir.graph import Graph

ATTENTION_TYPES = frozenset({"PagedAttentionExtension", "ScaledDotProductAttention"})
LINEAR_ATTENTION_TYPES = frozenset({"GatedDeltaNet", "Loop", "PagedGatedDeltaNet", "TensorIterator"})
STATE_SPACE_TYPES = frozenset({"PagedSelectiveSSM"})
CONVOLUTION_TYPES = frozenset({"Convolution", "GroupConvolution", "PagedCausalConv1D"})
# Ops that by their type alone mix positions. Softmax is none of them: mixture-of-experts routers have one.
_MARKS = ATTENTION_TYPES | STATE_SPACE_TYPES | frozenset({"GatedDeltaNet", "PagedCausalConv1D", "PagedGatedDeltaNet"})
# Ops that may mix positions; in a step without a mark nobody can tell.
_SUSPECTS = frozenset({"Convolution", "GRUSequence", "GroupConvolution", "LSTMSequence", "Loop", "TensorIterator"})
_PRODUCTS = frozenset({"Einsum", "MatMul"}) | CONVOLUTION_TYPES

StateReads = Mapping[int, frozenset[str]]
"""By node: ids of the variables whose values reach it."""


@dataclass(frozen=True, slots=True)
class Step:
    """What happens between two neighbouring values that every way passes through.

    Attributes:
        start: The value it begins with.
        end: The value it ends with.
        nodes: The nodes on the stream behind ``start``, up to and including that of ``end``, in topological order.
        marks: Those of them that mix positions: attention, or an op that meets a state.
        suspects: Those that may mix positions; empty where there are marks.
        mixes: It multiplies by a matrix or has a mark; norms, scales and biases don't.
        residual: It mixes, and ``start`` also goes around all of it.
        joins: It doesn't mix, and takes in data from off the stream, as an add of visual features does.
        crossing: A value inside it that is mixed already, feeds a mark, and goes around it: another layer's output.
    """

    start: Value
    end: Value
    nodes: Sequence[int]
    marks: tuple[int, ...]
    suspects: tuple[int, ...]
    mixes: bool
    residual: bool
    joins: bool
    crossing: int | None


def state_reads(graph: Graph, ways: Stream) -> StateReads:
    """Variables that reach a node through ops off the stream; nodes on the stream don't pass them on.

    Only real-typed values count: a past length taken from the shape of a state marks nothing.
    """
    on_stream = ways.predecessors.keys()
    reads: dict[int, frozenset[str]] = {
        node: frozenset({graph.nodes[node].get_variable_id()}) for node in graph.find("ReadValue")
    }
    for node in range(len(graph)):
        variables = reads.get(node)
        if variables is None or node in on_stream:
            continue
        for port, consumer, _ in graph.consumers[node]:
            if graph.types[consumer] != "ShapeOf" and graph.is_real(node, port):
                reads[consumer] = reads.get(consumer, frozenset()) | variables
    return reads


def is_mark(graph: Graph, reads: StateReads, node: int) -> bool:
    """Whether a node on the stream mixes positions: by its type, or because it meets a state."""
    return graph.types[node] in _MARKS or node in reads


def steps(graph: Graph, values: Origins, ways: Stream, reads: StateReads) -> list[Step]:
    """The steps of a stream, in order, O(edges)."""
    position = {node: i for i, node in enumerate(ways.nodes)}
    return [
        _step(graph, values, ways, reads, start, end, ways.nodes[position[start[0]] + 1 : position[end[0]] + 1])
        for start, end in pairwise(dominators(graph, ways))
    ]


def _step(
    graph: Graph, values: Origins, ways: Stream, reads: StateReads, start: Value, end: Value, nodes: Sequence[int]
) -> Step:
    marks = tuple(node for node in nodes if is_mark(graph, reads, node))
    mixing = {*marks, *(node for node in nodes if _multiplies(graph, values, node))}
    return Step(
        start=start,
        end=end,
        nodes=nodes,
        marks=marks,
        suspects=() if marks else tuple(node for node in nodes if graph.types[node] in _SUSPECTS),
        mixes=bool(mixing),
        residual=bool(mixing) and _goes_around(ways, start[0], end[0], nodes, mixing),
        joins=not mixing and any(_takes_in(graph, values, ways, node) for node in nodes),
        crossing=_crossing(graph, ways, end[0], nodes, mixing, set(marks)) if marks else None,
    )


def _multiplies(graph: Graph, values: Origins, node: int) -> bool:
    """Whether a node is a product, or takes a constant with more than one long dimension (fused experts)."""
    if graph.types[node] in _PRODUCTS:
        return True
    for producer, port in graph.inputs[node]:
        if values.constant[producer] and graph.is_real(producer, port):
            shape = graph.nodes[producer].get_output_partial_shape(port)
            if shape.is_static and sum(dimension.get_length() > 1 for dimension in shape) > 1:
                return True
    return False


def _takes_in(graph: Graph, values: Origins, ways: Stream, node: int) -> bool:
    return any(
        producer not in ways.predecessors and values.fed[producer] and graph.is_real(producer, port)
        for producer, port in graph.inputs[node]
    )


def _goes_around(ways: Stream, start: int, end: int, nodes: Sequence[int], mixing: set[int]) -> bool:
    """Whether a way from start to end avoids every mixing node."""
    reached = {start}
    for node in nodes:
        if node not in mixing and any(before in reached for before in ways.predecessors[node]):
            reached.add(node)
    return end in reached


def _crossing(
    graph: Graph, ways: Stream, end: int, nodes: Sequence[int], mixing: set[int], marks: set[int]
) -> int | None:
    """A node inside that comes after a mixing node, before a mark, and reaches the end without mixing.

    One layer has none: between its input and its mark there is no residual. Two layers that a skip ties together have:
    the output of the first. A factor on what attention gave, such as the kernel of a convolution around it, is no skip.
    """
    mixed: set[int] = set()
    marked: set[int] = set()
    for node in nodes:
        if node in mixing or any(before in mixed for before in ways.predecessors[node]):
            mixed.add(node)
        if node in marks or any(before in marked for before in ways.predecessors[node]):
            marked.add(node)

    def scales(node: int, product: int) -> bool:
        return graph.types[product] == "Multiply" and node not in marked and product in marked

    free = {end} - mixing
    before_mark: set[int] = set()
    for node in reversed(nodes):
        ahead = ways.successors[node] if node != end else ()
        if any(after in marks or after in before_mark for after in ahead):
            before_mark.add(node)
        if any(after in free and not scales(node, after) for after in ahead):
            if node in mixed and node in before_mark:
                return node
            if node not in mixing:
                free.add(node)
    return None
