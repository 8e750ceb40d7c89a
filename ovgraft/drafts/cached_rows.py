"""Keys and values of an exported DFlash draft: cache, context rows and block rows, by what they are joined from."""

from __future__ import annotations

from dataclasses import dataclass

from ovgraft.ir.graph import Graph

_HEAD_LAYOUT = {"Reshape", "Broadcast", "Unsqueeze"}
_NO_END = 1 << 30  # exporters write the largest i32 or i64 for the end of an axis
_BATCH_AXIS, _ROW_AXIS, _RANK = 0, 2, 4


@dataclass(frozen=True)
class CachedRows:
    """Where one of key or value gets its rows.

    Attributes:
        joined: Concat of cache and block part, what attention reads.
        cache: Gather of the cache variable by ``beam_idx``.
        appended: Concat of cache and context part, what the variable is assigned.
        rows: Context and block rows together, before the split.
        kept: Cache rows attention may read, where the exporter cuts them for a sliding window; 0 is all.
    """

    joined: int
    cache: int
    appended: int
    rows: tuple[int, int]
    kept: int


def read_cached_rows(graph: Graph, attention: int, port: int) -> CachedRows | str:
    """Read where attention takes its keys or values from.

    Args:
        graph: View of the draft.
        attention: Number of the ScaledDotProductAttention.
        port: 1 for keys, 2 for values.

    Returns:
        The rows, or how they are laid out otherwise than the exporter does, in words.
    """
    what = "key" if port == 1 else "value"
    joined = graph.inputs[attention][port][0]
    while graph.types[joined] in _HEAD_LAYOUT:
        joined = graph.inputs[joined][0][0]
    if not _joins_rows(graph, joined):
        return f"the {what} is not Concat(cache and context rows, block rows)"
    (before, _), (split, split_port) = graph.inputs[joined]
    kept = 0
    if graph.types[before] == "Slice":
        kept = _kept_rows(graph, before)
        if not kept:
            return f"the {what} cache is cut in a way that is not understood"
        before = graph.inputs[before][0][0]
    if not _joins_rows(graph, before) or graph.types[split] != "VariadicSplit":
        return f"the {what} is not Concat(Concat(cache, context rows), block rows)"
    (cache, _), (context, context_port) = graph.inputs[before]
    if context != split or (context_port, split_port) != (0, 1) or _number(graph, split, 1) not in _axes(_ROW_AXIS):
        return f"context and block rows of the {what} are not two parts of one split"
    if graph.types[cache] != "Gather" or graph.types[graph.inputs[cache][0][0]] != "ReadValue":
        return f"the {what} cache is not Gather(ReadValue, beam_idx)"
    if _number(graph, cache, 2) not in _axes(_BATCH_AXIS):
        return f"the {what} cache is not gathered by request"
    return CachedRows(joined, cache, before, graph.inputs[split][0], kept)


def _joins_rows(graph: Graph, i: int) -> bool:
    """Whether a node is a Concat of two parts ``[B, heads, rows, size]`` along the rows."""
    if graph.types[i] != "Concat" or len(graph.inputs[i]) != 2:
        return False
    rank = graph.nodes[i].get_output_partial_shape(0).rank
    axis = graph.nodes[i].get_attributes()["axis"]
    return bool(rank.is_static and rank.get_length() == _RANK and axis in _axes(_ROW_AXIS))


def _kept_rows(graph: Graph, i: int) -> int:
    """How many of the last rows a Slice keeps; 0 when it cuts otherwise."""
    start, stop, step, axis = (_number(graph, i, port) for port in (1, 2, 3, 4))
    if start is None or stop is None or start >= 0 or stop < _NO_END or step != 1 or axis not in _axes(_ROW_AXIS):
        return 0
    return -start


def _axes(axis: int) -> tuple[int, int]:
    """The two ways to name an axis."""
    return axis, axis - _RANK


def _number(graph: Graph, i: int, port: int) -> int | None:
    """The one whole number at an input; None when it is none, or not constant."""
    if port >= len(graph.inputs[i]):
        return None
    node = graph.nodes[graph.inputs[i][port][0]]
    if node.get_type_name() != "Constant" or node.data.size != 1:
        return None
    return int(node.data.item())
