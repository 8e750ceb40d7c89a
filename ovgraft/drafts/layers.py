"""The layers of a draft, found as those of a decoder are: by the shape of the graph, whatever its nodes are called.

Two inputs carry rows: tokens (ids, or rows of an embedding) and the target's hidden states. The residual stream begins
at one of them, and the other enters layers from the side: context rows as keys and values (DFlash), or the embedding
beside the state (Eagle-3). Which is which, the graph decides.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import openvino as ov

from ovgraft.decoder.dataflow import Origins, origins
from ovgraft.decoder.embedding import read_embedding
from ovgraft.decoder.layers import find_layers
from ovgraft.decoder.lm_head import read_lm_head
from ovgraft.decoder.types import Embedding, Layer, LayerStack, LmHead
from ovgraft.drafts.contract import Port
from ovgraft.drafts.draft_ir import find_input, find_result
from ovgraft.drafts.fc import HiddenStateFc, find_fc
from ovgraft.errors import Reason, StructureError
from ovgraft.ir.graph import Graph


@dataclass(frozen=True, eq=False)
class DraftTables:
    """What a draft has beside its layers; each is None where there is none of its own.

    Attributes:
        embedding: The token embedding; without one rows come in as ``inputs_embeds``.
        lm_head: The output layer; without one rows leave as ``last_hidden_state``.
        fc: The projection of the target's states; None too when it has moved into the target.
    """

    embedding: Embedding | None
    lm_head: LmHead | None
    fc: HiddenStateFc | None


def read_draft_tables(model: ov.Model, graph: Graph, values: Origins | None = None) -> DraftTables:
    """Find embedding, output layer and FC of a draft.

    Args:
        model: The draft.
        graph: Its indexed view.
        values: What :func:`~ovgraft.decoder.dataflow.origins` says of the graph, when the caller has it.
    """
    embedding = lm_head = fc = None
    if find_input(model, Port.INPUT_IDS) is not None:
        with contextlib.suppress(StructureError):
            embedding = read_embedding(model, graph, values)
    if any(find_result(model, name) is not None for name in (Port.LOGITS, Port.DRAFT_TOKEN_IDS)):
        with contextlib.suppress(StructureError):
            lm_head = read_lm_head(model, graph, values)
    states = find_input(model, Port.HIDDEN_STATES)
    if states is not None:
        fc, _ = find_fc(graph, graph.index(states))
    return DraftTables(embedding, lm_head, fc)


def read_draft_layers(model: ov.Model, graph: Graph, tables: DraftTables) -> LayerStack:
    """Find the layers of a draft; the model is not touched, no weight is read.

    Args:
        model: A DFlash or Eagle-3 draft: as exported, built, grafted, per row or paged.
        graph: Its indexed view.
        tables: What :func:`read_draft_tables` found.

    Raises:
        StructureError: The graph doesn't decide; the reasons say what was found where.
    """
    sink = _sink(model, tables)
    found: list[tuple[ov.Output, tuple[Layer, ...]]] = []
    reasons: list[Reason] = []
    values = origins(graph)
    for source in _sources(model, tables):
        try:
            found.append((source, find_layers(graph, source, sink, values)))
        except StructureError as error:
            reasons += error.reasons
    if not found:
        # an input that enters layers from the side leads nowhere by itself, which says nothing about the layers
        telling = [reason for reason in reasons if reason.code != "no-stream"] or reasons
        raise StructureError("the layers cannot be told apart", reasons=tuple(telling))
    source, layers = max(found, key=lambda each: len(each[1]))  # an input may enter behind some of the layers
    whole = _outputs(graph, layers)
    if any(_outputs(graph, other) != whole[-len(other) :] for _, other in found):
        nodes = tuple(graph.ref(graph.index(start.get_node())) for start, _ in found)
        reason = Reason("several-streams", "tokens and hidden states each lead through layers of their own", nodes)
        raise StructureError("the layers cannot be told apart", reasons=(reason,))
    return LayerStack(model, graph, source, sink, layers)


def _sources(model: ov.Model, tables: DraftTables) -> list[ov.Output]:
    """Where a residual stream may begin: token rows, and the target's states behind the FC."""
    rows, states = (find_input(model, name) for name in (Port.INPUTS_EMBEDS, Port.HIDDEN_STATES))
    found = [] if rows is None else [rows.output(0)]
    if tables.embedding is not None:
        found.append(tables.embedding.output)
    if states is not None:
        found.append(states.output(0) if tables.fc is None else tables.fc.output)
    return found


def _sink(model: ov.Model, tables: DraftTables) -> ov.Output:
    """What enters the output layer; without one what leaves the model."""
    if tables.lm_head is not None:
        return tables.lm_head.hidden
    result = find_result(model, Port.LAST_HIDDEN_STATE)
    if result is None:
        names = ", ".join(sorted(name for port in model.outputs for name in port.get_names())) or "none"
        text = f"neither an output layer of the draft's own nor an output last_hidden_state (outputs: {names})"
        raise StructureError("the layers cannot be told apart", reasons=(Reason("no-output", text),))
    return result.input_value(0)


def _outputs(graph: Graph, layers: tuple[Layer, ...]) -> list[tuple[int, int]]:
    return [(graph.index(layer.output.get_node()), layer.output.get_index()) for layer in layers]
