"""Find the token embedding: the lookup of token ids in a constant table."""

from __future__ import annotations

from math import prod

import openvino as ov

from ovgraft.decoder.dataflow import Origins, Value, origins
from ovgraft.decoder.types import Embedding
from ovgraft.drafts.contract import Port
from ovgraft.errors import Reason, StructureError
from ovgraft.ir.graph import Graph

_ID_RESHAPES = frozenset({"Convert", "Reshape", "Squeeze", "Unsqueeze"})


def read_embedding(
    model: ov.Model,
    graph: Graph | None = None,
    values: Origins | None = None,
    *,
    vocab_size: int | None = None,
    width: int | None = None,
) -> Embedding:
    """Find the token embedding of a decoder, or of an ``openvino_text_embeddings_model``.

    Args:
        model: A model whose token ids come in by an integer parameter.
        graph: Its indexed view, when the caller has one.
        values: What :func:`~ovgraft.decoder.dataflow.origins` says of the graph, when the caller has it.
        vocab_size: Rows the table should have, where several lookups are possible.
        width: Columns the table should have, where several lookups are possible.

    Raises:
        StructureError: There is no lookup of input ids in a constant table, or more than one.
    """
    graph = graph or Graph(model)
    values = values or origins(graph)
    lookups = _token_lookups(graph, values)
    if not lookups:
        raise StructureError(
            "no token embedding found",
            reasons=(Reason("no-embedding", "no Gather looks token ids of an input up in a constant table"),),
        )
    found = [embedding for i in lookups if (embedding := _embedding(graph, values, i)) is not None]
    if not found:
        reason = "no lookup of token ids has a matrix of floating-point numbers as its table"
        raise StructureError(
            "no token embedding found",
            reasons=(Reason("no-embedding", reason, tuple(graph.ref(i) for i in lookups)),),
        )
    best = max(_likeness(embedding, vocab_size, width) for embedding in found)
    likely = [embedding for embedding in found if _likeness(embedding, vocab_size, width) == best]
    if len(likely) > 1:
        nodes = tuple(graph.ref(graph.index(embedding.gather)) for embedding in likely)
        raise StructureError(
            "no token embedding found",
            reasons=(Reason("several-embeddings", "several lookups could be the token embedding", nodes),),
        )
    return likely[0]


def _likeness(embedding: Embedding, vocab_size: int | None, width: int | None) -> tuple[bool, bool]:
    return embedding.width == width, embedding.vocab_size == vocab_size


def _token_lookups(graph: Graph, values: Origins) -> list[int]:
    """Gathers whose table is constant and whose indices are the token ids.

    Positions are looked up too; so the ids must come straight from ``input_ids``. Where that name is absent, or the ids
    are computed from it (masked, clamped), the way may be longer.
    """
    parameters = graph.find("Parameter")
    named = [i for i in parameters if Port.INPUT_IDS in graph.nodes[i].output(0).get_names()]
    other = (Port.POSITION_IDS, Port.ATTENTION_MASK, Port.TOKEN_TYPE_IDS, Port.BEAM_IDX)
    starts = named or [i for i in parameters if not graph.nodes[i].output(0).get_names() & set(other)]
    direct = _reached(graph, starts, _ID_RESHAPES)
    lookups = [i for i in graph.find("Gather") if values.constant[graph.inputs[i][0][0]]]
    straight = [i for i in lookups if graph.inputs[i][1][0] in direct]
    if straight:
        return straight
    computed = _reached(graph, starts, None)
    return [i for i in lookups if graph.inputs[i][1][0] in computed]


def _reached(graph: Graph, starts: list[int], through: frozenset[str] | None) -> set[int]:
    """Nodes that carry integer values of ``starts`` on, through ops of the given types (None: all but ShapeOf)."""
    reached = set(starts)
    waiting = list(starts)
    while waiting:
        node = waiting.pop()
        for port, consumer, _ in graph.consumers[node]:
            op = graph.types[consumer]
            if consumer in reached or op == "ShapeOf" or graph.is_real(node, port):
                continue
            if through is None or op in through:
                reached.add(consumer)
                waiting.append(consumer)
    return reached


def _embedding(graph: Graph, values: Origins, lookup: int) -> Embedding | None:
    """The record of one Gather; None when it is no lookup of rows in a matrix."""
    gather = graph.nodes[lookup]
    table_at, ids_at, axis_at = graph.inputs[lookup]
    table = graph.output(*table_at)
    shape = table.get_partial_shape()
    axis = _scalar(graph, axis_at)
    if shape.is_dynamic or len(shape) < 2 or axis != 0 or not graph.is_real(lookup):
        return None
    rows, *columns = (dimension.get_length() for dimension in shape)
    scale, scaled = _scale(graph, values, lookup)
    return Embedding(
        gather=gather,
        table=table,
        ids=graph.output(*ids_at),
        output=gather.output(0),
        vocab_size=rows,
        width=prod(columns),
        scale=scale,
        scaled=graph.output(*scaled),
    )


def _scale(graph: Graph, values: Origins, lookup: int) -> tuple[float | None, Value]:
    """Scalar constants multiplied onto the lookup, as one factor, and the value after them."""
    value: Value = (lookup, 0)
    scale: float | None = None
    while True:
        consumers = graph.consumers[value[0]]
        if len(consumers) != 1:
            return scale, value
        _, node, port = consumers[0]
        if graph.types[node] not in ("Multiply", "Divide") or (graph.types[node] == "Divide" and port != 0):
            return scale, value
        other = graph.inputs[node][1 - port]
        factor = _scalar(graph, other) if values.constant[other[0]] else None
        if factor is None:
            return scale, value
        scale = (1.0 if scale is None else scale) * (factor if graph.types[node] == "Multiply" else 1.0 / factor)
        value = (node, 0)


def _scalar(graph: Graph, value: Value) -> float | None:
    """The number a one-element constant holds, looking through Converts; None for anything else."""
    node, _ = value
    while graph.types[node] == "Convert":
        node, _ = graph.inputs[node][0]
    if graph.types[node] != "Constant" or prod(graph.nodes[node].get_output_shape(0)) != 1:
        return None
    return float(graph.nodes[node].get_vector()[0])
