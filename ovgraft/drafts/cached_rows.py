"""Keys and values of an exported DFlash draft: cache, context rows and block rows, by what they are joined from."""

from __future__ import annotations

from dataclasses import dataclass

from ovgraft.ir.graph import Graph

_HEAD_LAYOUT = {"Reshape", "Broadcast", "Unsqueeze", "Transpose", "Convert"}


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
    if graph.types[joined] != "Concat" or len(graph.inputs[joined]) != 2:
        return f"the {what} is not Concat(cache and context rows, block rows)"
    (before, _), (split, split_port) = graph.inputs[joined]
    kept = 0
    if graph.types[before] == "Slice":
        start = graph.nodes[graph.inputs[before][1][0]]
        if start.get_type_name() != "Constant" or int(start.data.ravel()[0]) >= 0:
            return f"the {what} cache is cut in a way that is not understood"
        kept = -int(start.data.ravel()[0])
        before = graph.inputs[before][0][0]
    if graph.types[before] != "Concat" or graph.types[split] != "VariadicSplit":
        return f"the {what} is not Concat(Concat(cache, context rows), block rows)"
    (cache, _), (context, context_port) = graph.inputs[before]
    if context != split or (context_port, split_port) != (0, 1):
        return f"context and block rows of the {what} are not two parts of one split"
    if graph.types[cache] != "Gather" or graph.types[graph.inputs[cache][0][0]] != "ReadValue":
        return f"the {what} cache is not Gather(ReadValue, beam_idx)"
    return CachedRows(joined, cache, before, graph.inputs[split][0], kept)
