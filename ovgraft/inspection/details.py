"""Ports, and what layers are made of, read from the graph when somebody asks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import openvino as ov

from ovgraft import decoder, drafts, ir
from ovgraft.decoder.paging import PagedInput
from ovgraft.inspection.formats import formats_of
from ovgraft.inspection.parts import Flow, Part
from ovgraft.inspection.tree_layers import AttentionInfo, LayerDetails, PortInfo


def layer_details(
    stack: decoder.LayerStack, flow: Flow, parts: dict[Part, list[int]], *, in_blocks: bool
) -> list[LayerDetails]:
    """Details of each layer.

    Args:
        stack: The layers.
        flow: Where data runs.
        parts: What :func:`~ovgraft.inspection.parts.constants_by_part` says of the model.
        in_blocks: It is a DFlash draft, whose rows come in blocks.
    """
    graph = stack.graph
    found = decoder.read_attention(stack)
    attention = [_attention(graph, each) for each in found]
    if in_blocks:
        attention = _with_block_rows(graph, attention)
    by_layer: dict[int, list[AttentionInfo]] = defaultdict(list)
    for each, info in zip(found, attention, strict=True):
        by_layer[each.layer].append(info)
    details = []
    for layer in stack.layers:
        weights = formats_of(graph, parts.get(layer.index, ()))
        size = sum(entry.bytes for entry in weights)
        boundary, inputs = port(layer.output), flow.inputs[layer.index]
        details.append(LayerDetails(boundary, tuple(by_layer[layer.index]), weights, size, inputs))
    return details


def _attention(graph: ir.Graph, found: decoder.Attention) -> AttentionInfo:
    return AttentionInfo(
        node=graph.ref(graph.index(found.node)),
        heads=found.heads,
        kv_heads=found.kv_heads,
        head_size=found.head_size,
        value_head_size=found.value_head_size,
        window=found.window,
        sinks=found.sinks,
        states=found.states or _caches(graph, graph.index(found.node)),
        state_layer=found.state_layer,
    )


def _with_block_rows(graph: ir.Graph, attention: Sequence[AttentionInfo]) -> list[AttentionInfo]:
    """Window and direction by what the masks do, which draft exporters write in many ways."""
    sees = drafts.read_row_attention(graph, [each.node.index for each in attention])
    return [
        info if isinstance(seen, str) else replace(info, window=seen.window or None, bidirectional=seen.bidirectional)
        for info, seen in zip(attention, sees, strict=True)
    ]


def _caches(graph: ir.Graph, attention: int) -> tuple[str, ...]:
    """The inputs that hold keys and values of a paged attention op, which has no variables."""
    if graph.types[attention] != "PagedAttentionExtension":
        return ()
    sources = graph.inputs[attention][PagedInput.KEY_CACHE : PagedInput.KEY_CACHE + 2]
    return tuple(graph.names[source] for source, _ in sources if graph.types[source] == "Parameter")


def port(output: ov.Output) -> PortInfo:
    """Names, type and shape of an output."""
    shape = str(output.get_partial_shape())
    return PortInfo(tuple(sorted(output.get_names())), output.get_element_type().get_type_name(), shape)
