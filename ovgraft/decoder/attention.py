"""Inventory of attention and state: heads, sizes, windows, sinks, and who updates and reads which variable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import openvino as ov

from ovgraft.decoder.dataflow import Value, stream
from ovgraft.decoder.kinds import state_owners
from ovgraft.decoder.paging import fold
from ovgraft.decoder.steps import ATTENTION_TYPES, StateReads, state_reads
from ovgraft.decoder.types import LayerStack
from ovgraft.ir.graph import Graph

_MASK_PORT, _SINKS_PORT = 3, 5
_PAGED_WINDOW_PORT, _PAGED_SINKS_PORT = 10, 20
_PAGED_SIZES = ("num_k_heads", "k_head_size", "v_head_size")
_COMPARISONS = frozenset({"Greater", "GreaterEqual", "Less", "LessEqual"})


@dataclass(frozen=True, eq=False)
class Attention:
    """One attention op.

    A size is None where the graph does not fix it.

    Attributes:
        node: The op, ScaledDotProductAttention or PagedAttentionExtension.
        layer: The layer it is in.
        heads: Query heads.
        kv_heads: Heads of keys and values.
        head_size: Size of a query and key head.
        value_head_size: Size of a value head.
        window: Keys a query sees at most, itself included, where the mask compares positions with such a distance;
            None where no such comparison is found. What a mask lets through for sure is found by running it:
            :func:`~ovgraft.decoder.masks.read_masks`.
        sinks: Whether it has attention sinks.
        states: Ids of the variables it reads: keys, then values.
        state_layer: The layer that updates them; another one's under KV sharing; None without variables.
    """

    node: ov.Node
    layer: int
    heads: int | None
    kv_heads: int | None
    head_size: int | None
    value_head_size: int | None
    window: int | None
    sinks: bool
    states: tuple[str, ...]
    state_layer: int | None


@dataclass(frozen=True, eq=False)
class State:
    """One variable of a stateful model.

    Attributes:
        variable_id: Its id.
        element_type: OpenVINO type name, for example ``f32``.
        shape: Its shape, for example ``[?,2,?,16]``.
        layer: The layer that updates it, None when none does.
        readers: The layers that read it, in order.
    """

    variable_id: str
    element_type: str
    shape: str
    layer: int | None
    readers: tuple[int, ...]


def read_attention(stack: LayerStack) -> tuple[Attention, ...]:
    """The attention ops of all layers, in order; attention written out is not listed."""
    graph, reads = stack.graph, _reads(stack)
    owners = _owners(stack, _readers(stack, reads))
    shapes = {v.info.variable_id: v.info.data_shape for v in stack.model.get_variables()}
    found: list[Attention] = []
    for layer in stack.layers:
        for node in layer.attention:
            if node.get_type_name() in ATTENTION_TYPES:
                states = _states(graph, reads, graph.index(node))
                owned = {owners[state] for state in states if state in owners}
                sizes = _paged_sizes(node) if node.get_type_name().startswith("Paged") else _sizes(node, states, shapes)
                found.append(
                    Attention(
                        node,
                        layer.index,
                        *sizes,
                        window=_window(graph, graph.index(node)),
                        sinks=_has_sinks(node),
                        states=states,
                        state_layer=min(owned) if owned else None,
                    )
                )
    return tuple(found)


def read_states(stack: LayerStack) -> tuple[State, ...]:
    """The variables of a stateful model, by owning layer, then by id."""
    readers = _readers(stack, _reads(stack))
    owners = _owners(stack, readers)
    states = [
        State(
            info.variable_id,
            info.data_type.get_type_name(),
            str(info.data_shape),
            owners.get(info.variable_id),
            tuple(readers.get(info.variable_id, ())),
        )
        for info in (variable.info for variable in stack.model.get_variables())
    ]
    last = len(stack.layers)
    return tuple(sorted(states, key=lambda s: (last if s.layer is None else s.layer, s.variable_id)))


def _reads(stack: LayerStack) -> StateReads:
    ways = stream(stack.graph, _value(stack.graph, stack.source), _value(stack.graph, stack.sink))
    return state_reads(stack.graph, ways) if ways is not None else {}


def _readers(stack: LayerStack, reads: StateReads) -> dict[str, list[int]]:
    """The layers that read each variable."""
    readers: dict[str, list[int]] = {}
    for layer in stack.layers:
        nodes = (stack.graph.index(node) for node in layer.attention)
        for state in sorted({state for node in nodes for state in reads.get(node, ())}):
            readers.setdefault(state, []).append(layer.index)
    return readers


def _owners(stack: LayerStack, readers: dict[str, list[int]]) -> dict[str, int]:
    return state_owners(stack.graph, [_value(stack.graph, layer.entry) for layer in stack.layers], readers)


def _value(graph: Graph, output: ov.Output) -> Value:
    return graph.index(output.get_node()), output.get_index()


def _states(graph: Graph, reads: StateReads, node: int) -> tuple[str, ...]:
    """Variables behind keys and behind values; one that holds both is named once."""
    found: list[str] = []
    for producer, _ in graph.inputs[node][1:3]:
        found += [state for state in sorted(reads.get(producer, ())) if state not in found]
    return tuple(found)


def _sizes(
    node: ov.Node, states: Sequence[str], shapes: dict[str, ov.PartialShape]
) -> tuple[int | None, int | None, int | None, int | None]:
    """Query heads, heads of keys and values, sizes of key and value heads, of queries ``[B, heads, S, size]``."""
    query, key, value = (node.input_value(port).get_partial_shape() for port in range(3))
    heads, head_size, value_size = _length(query, 1), _length(query, -1), _length(value, -1)
    # Behind the cache the heads are repeated for grouped queries, so the cache itself tells their number.
    cached = [_length(shapes[state], i) for state in states[:1] for i in range(len(shapes[state]))]
    if head_size in cached and len(cached) == 4:
        cached.remove(head_size)
        rest = [size for size in cached if size is not None and size > 0]
        kv_heads = rest[0] if len(rest) == 1 else None
    else:
        kv_heads = _length(key, 1) if not states else None
    return heads, kv_heads, head_size, value_size


def _paged_sizes(node: ov.Node) -> tuple[int | None, int | None, int | None, int | None]:
    """The same of ``[T, heads * size]`` rows; OpenVINO keeps the head sizes in the op's rt_info."""
    info = node.get_rt_info()
    kv_heads, head_size, value_size = (int(info[name].value) if name in info else None for name in _PAGED_SIZES)
    return _paged_heads(node, head_size), kv_heads, head_size, value_size


def _paged_heads(node: ov.Node, head_size: int | None) -> int | None:
    """Query heads: by the width of the rows, else by what they were before their heads were merged."""
    query = node.input_value(0)
    width = _length(query.get_partial_shape(), -1)
    if head_size is None or width is not None:
        return width // head_size if width and head_size else None
    if query.get_node().get_type_name() != "Reshape":
        return None
    split = query.get_node().input_value(0).get_partial_shape()
    return _length(split, -2) if _length(split, -1) == head_size else None


def _length(shape: ov.PartialShape, i: int) -> int | None:
    if shape.rank.is_dynamic or not -len(shape) <= i < len(shape) or shape[i].is_dynamic:
        return None
    return int(shape[i].get_length())


def _has_sinks(node: ov.Node) -> bool:
    port = _PAGED_SINKS_PORT if node.get_type_name().startswith("Paged") else _SINKS_PORT
    if node.get_input_size() <= port:
        return False
    shape = node.input_value(port).get_partial_shape()
    return shape.is_dynamic or all(size.get_length() for size in shape)


def _window(graph: Graph, node: int) -> int | None:
    if graph.types[node] == "PagedAttentionExtension":
        try:
            return int(fold(graph.output(*graph.inputs[node][_PAGED_WINDOW_PORT])).item()) or None
        except ValueError:
            return None
    if len(graph.inputs[node]) <= _MASK_PORT:
        return None
    found: set[int] = set()
    seen: set[int] = set()
    waiting = [graph.inputs[node][_MASK_PORT][0]]
    while waiting:
        current = waiting.pop()
        if current in seen or graph.types[current] == "ShapeOf":
            continue
        seen.add(current)
        if graph.types[current] in _COMPARISONS:
            found |= _distance(graph, current)
        waiting += (producer for producer, _ in graph.inputs[current])
    return found.pop() if len(found) == 1 else None


def _distance(graph: Graph, comparison: int) -> set[int]:
    """The window of ``key > query - window``, in any of the ways to write it; empty for other comparisons."""
    strict = graph.types[comparison] in ("Greater", "Less")
    for producer, _ in graph.inputs[comparison]:
        if graph.types[producer] in ("Add", "Subtract"):
            for operand, _ in graph.inputs[producer]:
                shift = abs(_number(graph, operand) or 0) if graph.types[operand] == "Constant" else 0
                if shift > 1:
                    return {shift if strict else shift + 1}
    return set()


def _number(graph: Graph, constant: int) -> int | None:
    """The one number of an integer constant; None for others."""
    node = graph.nodes[constant]
    shape = node.get_output_shape(0)
    if graph.is_real(constant) or any(size != 1 for size in shape):
        return None
    return int(node.get_vector()[0])
