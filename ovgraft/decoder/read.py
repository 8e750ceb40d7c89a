"""Read a whole decoder LM graph."""

from __future__ import annotations

from collections.abc import Sequence

import openvino as ov

from ovgraft.decoder.dataflow import Origins, origins, stream
from ovgraft.decoder.embedding import read_embedding
from ovgraft.decoder.layers import find_layers
from ovgraft.decoder.lm_head import read_lm_head
from ovgraft.decoder.types import Decoder, Embedding, LmHead
from ovgraft.drafts.contract import Key, Port
from ovgraft.errors import Reason, StructureError
from ovgraft.ir.graph import Graph


def read_decoder(model: ov.Model, graph: Graph | None = None) -> Decoder:
    """Find embedding, layers and lm_head of a decoder LM by structure; the model is not touched, no weight is read.

    Args:
        model: A decoder with ``logits``, taking ``input_ids`` or ``inputs_embeds``; stateful, stateless with its cache
            as inputs, or converted to paged attention.
        graph: Its indexed view, when the caller has one.

    Raises:
        StructureError: It is none, it is a draft, or the graph doesn't decide; the reasons say what was found where.
    """
    draft = _draft_signs(model)
    if draft:
        raise StructureError("this is a draft model, not a decoder to graft a draft onto", reasons=tuple(draft))
    graph = graph or Graph(model)
    values = origins(graph)
    lm_head = read_lm_head(model, graph, values)
    source, embedding = _source(graph, values, lm_head)
    layers = find_layers(graph, source, lm_head.hidden, values)
    return Decoder(model, graph, source, lm_head.hidden, layers, embedding, lm_head)


def _draft_signs(model: ov.Model) -> list[Reason]:
    """What tells an exported draft: its rt_info, or the input that takes the target's hidden states."""
    signs = [
        Reason("is-draft", f"rt_info has {'/'.join(key)}")
        for key in (Key.DFLASH_MODE, Key.EAGLE3_MODE)
        if model.has_rt_info(list(key))
    ]
    if any(Port.HIDDEN_STATES in port.get_names() for port in model.inputs):
        signs.append(Reason("is-draft", f"the model has an input '{Port.HIDDEN_STATES}'"))
    return signs


def _source(graph: Graph, values: Origins, lm_head: LmHead) -> tuple[ov.Output, Embedding | None]:
    """Where token values enter: ``inputs_embeds`` when it leads to lm_head, else the embedding's output."""
    parameters = [i for i in graph.find("Parameter") if graph.is_real(i)]
    named = [i for i in parameters if Port.INPUTS_EMBEDS in graph.nodes[i].output(0).get_names()]
    leading = _leading(graph, named, lm_head)
    if leading:
        return graph.output(leading[0]), None
    try:
        embedding = read_embedding(graph.model, graph, values, vocab_size=lm_head.vocab_size, width=lm_head.width)
    except StructureError as error:
        # Without its name, a parameter as wide as lm_head that leads there can still be the token values.
        wide = [i for i in parameters if _width(graph, i) == lm_head.width]
        leading = _leading(graph, wide, lm_head)
        if len(leading) != 1:
            raise StructureError("no token values found", reasons=error.reasons) from error
        return graph.output(leading[0]), None
    return embedding.output, embedding


def _leading(graph: Graph, parameters: Sequence[int], lm_head: LmHead) -> list[int]:
    sink = (graph.index(lm_head.hidden.get_node()), lm_head.hidden.get_index())
    return [i for i in parameters if stream(graph, (i, 0), sink) is not None]


def _width(graph: Graph, parameter: int) -> int | None:
    shape = graph.nodes[parameter].get_output_partial_shape(0)
    if shape.rank.is_dynamic or not len(shape) or shape[-1].is_dynamic:
        return None
    return int(shape[-1].get_length())
