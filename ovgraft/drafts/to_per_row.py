"""An exported DFlash draft, read for its rewrite into the per-row form, and the rewrite.

The exporter computes keys and values of context and block rows in one go over ``Concat(context, block)``, splits them,
appends the context part to the cache and then the block part. One row axis makes the split needless: what was a Concat
becomes a choice by row, and the cache takes all rows (a host rolls the block rows back through ``past_lens``).
"""

from __future__ import annotations

from dataclasses import dataclass

import openvino as ov

from ovgraft import ir
from ovgraft.drafts.cached_rows import CachedRows, read_cached_rows
from ovgraft.drafts.contract import Port
from ovgraft.drafts.grafting import redirect
from ovgraft.drafts.per_row import RowAttention, RowKinds, repeat_heads
from ovgraft.drafts.row_attention import read_row_attention
from ovgraft.errors import Reason, StructureError
from ovgraft.ir.graph import Graph


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
    for i, sees in zip(nodes, read_row_attention(graph, nodes), strict=True):
        key, value = read_cached_rows(graph, i, 1), read_cached_rows(graph, i, 2)
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
