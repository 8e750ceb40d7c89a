"""An exported DFlash draft, read for its rewrite into the per-row form, and the rewrite.

The exporter computes keys and values of context and block rows in one go over ``Concat(context, block)``, splits them,
appends the context part to the cache and then the block part. One row axis makes the split needless: what was a Concat
becomes a choice by row, and the cache takes all rows (a host rolls the block rows back through ``past_lens``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import openvino as ov

from ovgraft import ir
from ovgraft.decoder.mask_function import MaskFunction, mask_functions
from ovgraft.drafts.contract import Port
from ovgraft.drafts.grafting import redirect
from ovgraft.drafts.per_row import RowAttention, RowKinds, repeat_heads
from ovgraft.errors import Reason, StructureError
from ovgraft.ir.graph import Graph

_CONTEXT, _ROWS = 40, 6
_LONGEST_TRIED = 1 << 15  # context rows: the mask may hang on the FC of as many states
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


@dataclass(frozen=True)
class DraftAttention:
    """One attention op of an exported draft.

    Attributes:
        node: The ScaledDotProductAttention.
        key: Its key.
        value: Its value.
        sees: What its mask lets through.
    """

    node: int
    key: CachedRows
    value: CachedRows
    sees: RowAttention


@dataclass(frozen=True)
class ExportedDraft:
    """What the rewrite needs.

    Attributes:
        attention: All attention ops, in topological order.
        sources: Concats of context and block rows that feed keys and values.
        cuts: Slices that drop the anchor row in front of an output.
    """

    attention: tuple[DraftAttention, ...]
    sources: tuple[int, ...]
    cuts: tuple[int, ...]


def read_exported(graph: Graph) -> ExportedDraft:
    """Read an exported DFlash draft by structure.

    Raises:
        StructureError: Something is not laid out as the exporter does; every finding is listed.
    """
    reasons: list[Reason] = []
    attention = []
    nodes = graph.find("ScaledDotProductAttention")
    masks = mask_functions([graph.nodes[i] for i in nodes], draft=True)
    for i, mask in zip(nodes, masks, strict=True):
        key, value = _cached_rows(graph, i, 1), _cached_rows(graph, i, 2)
        sees = _sees(mask, key.kept if isinstance(key, CachedRows) else 0)
        bad = [found for found in (key, value) if isinstance(found, str)]
        if isinstance(sees, str):
            bad.append(sees)
        if bad:
            reasons += [Reason("not-an-exported-draft", text, (graph.ref(i),)) for text in bad]
        elif isinstance(key, CachedRows) and isinstance(value, CachedRows) and isinstance(sees, RowAttention):
            attention.append(DraftAttention(i, key, value, sees))
    if not nodes:
        reasons.append(Reason("no-attention", "the draft has no ScaledDotProductAttention"))
    sources = sorted({source for entry in attention for source in _row_sources(graph, entry)})
    if attention and not sources:
        reasons.append(Reason("no-row-source", "keys and values do not come from Concat(context rows, block rows)"))
    if reasons:
        raise StructureError("the draft cannot be rewritten row by row", reasons=tuple(reasons))
    return ExportedDraft(tuple(attention), tuple(sources), tuple(_cuts(graph)))


def _cached_rows(graph: Graph, attention: int, port: int) -> CachedRows | str:
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


def _row_sources(graph: Graph, entry: DraftAttention) -> list[int]:
    """The Concats of context and block rows behind one attention op's keys and values."""
    found = []
    for rows in (entry.key.rows[0], entry.value.rows[0]):
        i, projections = rows, 0
        stack, seen = [i], set()
        while stack:
            i = stack.pop()
            if i in seen:
                continue
            seen.add(i)
            if graph.types[i] == "Concat" and projections and _is_row_concat(graph, i):
                found.append(i)
                continue
            projections += graph.types[i] == "MatMul"
            stack.extend(source for source, port in graph.inputs[i] if graph.is_real(source, port))
    return found


def _is_row_concat(graph: Graph, i: int) -> bool:
    """Whether a Concat joins two activations ``[B, rows, width]`` along the rows."""
    shape = graph.nodes[i].get_output_partial_shape(0)
    axis = graph.nodes[i].get_attributes().get("axis")
    return len(graph.inputs[i]) == 2 and shape.rank.is_static and shape.rank.get_length() == 3 and axis in (1, -2)


def _cuts(graph: Graph) -> list[int]:
    """Slices that drop row 0 on axis 1, the anchor's."""
    found = []
    for i in graph.find("Slice"):
        values = [graph.nodes[source] for source, _ in graph.inputs[i][1:]]
        if all(node.get_type_name() == "Constant" and node.data.size == 1 for node in values) and len(values) == 4:
            start, _, step, axis = (int(node.data.ravel()[0]) for node in values)
            rank = graph.nodes[i].get_output_partial_shape(0).rank
            if (start, step, axis) == (1, 1, 1) and rank.is_static and rank.get_length() == 3:
                found.append(i)
    return found


def _sees(mask: MaskFunction | None, kept: int) -> RowAttention | str:
    """What a block row sees, from running the mask over 40 context rows and 6 block rows."""
    if mask is None:
        return "the attention has no mask input, or is causal by attribute"
    windows = [kept, *mask.integers] if kept else mask.integers
    context = max([_CONTEXT, *(window + _ROWS for window in windows if window < _LONGEST_TRIED)])
    try:
        bias = mask.run(0, _ROWS, context=context)
    except RuntimeError as error:
        return f"the mask could not be run: {str(error).strip().splitlines()[-1]}"
    keys = bias.shape[-1]
    if bias.shape[1] not in (1, _ROWS) or keys not in (1, context + _ROWS, kept + _ROWS):
        return f"the mask has shape {list(bias.shape)} for {context} context rows and {_ROWS} block rows"
    seen = np.isfinite(np.broadcast_to(bias, (bias.shape[0], _ROWS, keys if keys > 1 else context + _ROWS)))
    if (seen != seen[:1]).any() or (bias[np.isfinite(bias)] != 0).any():
        return "the mask treats heads differently or adds a bias"
    seen = seen[0]
    width = seen.shape[1]
    position = np.arange(width) - (width - _ROWS)  # of each key, the first block row being 0
    distance = np.arange(_ROWS)[:, None] - position[None]
    for bidirectional in (True, False):
        for window in [0, *sorted(set(windows) - {0, 1})]:
            wanted = distance < window if window else np.ones_like(distance, bool)
            if not bidirectional:
                wanted = wanted & (distance >= 0)
            if np.array_equal(seen, wanted):
                untried = [number for number in windows if number >= _LONGEST_TRIED]
                if not window and untried:
                    return f"the mask may have a window of {untried[0]}, too long to try"
                return _with_cut(window, kept, bidirectional)
    return "the mask is none that a draft layer is known to have"


def _with_cut(window: int, kept: int, bidirectional: bool) -> RowAttention | str:
    """The window, where the exporter also cuts the cache to the last ``kept`` rows."""
    if kept and (not window or window > kept):
        return f"the cache is cut to {kept} rows but the mask's window is {window or 'unlimited'}"
    return RowAttention(window, bidirectional)


def rewrite(graph: Graph, draft: ExportedDraft) -> ov.Node:
    """Rewrite the model in place.

    Args:
        graph: View of the model.
        draft: What :func:`read_exported` found in it.

    Returns:
        The new input ``token_type_ids`` i64 ``[B, S]``.
    """
    model = graph.model
    types = ir.make_parameter(Port.TOKEN_TYPE_IDS, "i64", [-1, -1])
    mask = next(p for p in model.get_parameters() if Port.ATTENTION_MASK in p.output(0).get_names())
    kinds = RowKinds(types.output(0), mask.output(0))
    for i in draft.sources:
        (context, context_port), (block, block_port) = graph.inputs[i]
        rows = kinds.select(graph.output(block, block_port), graph.output(context, context_port))
        rows.get_node().set_friendly_name(graph.names[i])
        redirect(graph, graph.output(i), rows)
    for entry in draft.attention:
        attention = graph.nodes[entry.node]
        heads = attention.input_value(0).get_partial_shape()[1].get_length()
        for port, cached in ((1, entry.key), (2, entry.value)):
            joined = ir.opset.concat([graph.output(cached.cache), graph.output(*cached.rows)], 2)
            joined.set_friendly_name(graph.names[cached.appended])
            graph.nodes[cached.appended].set_friendly_name(f"{graph.names[cached.appended]}/context")
            redirect(graph, graph.output(cached.appended), joined.output(0))
            attention.input(port).replace_source_output(repeat_heads(joined.output(0), heads))
        attention.input(3).replace_source_output(kinds.mask(entry.sees))
    for i in draft.cuts:
        source = graph.output(*graph.inputs[i][0])
        names = graph.output(i).get_names()
        redirect(graph, graph.output(i), source)
        graph.output(i).set_names(set())
        source.add_names(names)
    model.add_parameters([types])
    model.validate_nodes_and_infer_types()
    return types
