"""What kind of layer a step with marks is, and which layer updates which state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ovgraft.decoder.dataflow import Origins, Stream, Value
from ovgraft.decoder.steps import (
    ATTENTION_TYPES,
    CONVOLUTION_TYPES,
    LINEAR_ATTENTION_TYPES,
    STATE_SPACE_TYPES,
    StateReads,
    Step,
)
from ovgraft.ir.graph import Graph

RECURRENCE = "recurrence"
"""A state that is met by no op known to belong to attention, convolution or state spaces."""


def layer_kind(graph: Graph, values: Origins, ways: Stream, reads: StateReads, block: Step) -> str:
    """How a step mixes positions.

    A convolution in front of linear attention or of a state space belongs to it and is not named. Rows moved along
    their axis and summed with factors are one too, as DFlash-2 has it around its branches.
    """
    marks = {graph.types[node] for node in block.marks}
    has_convolution = any(graph.types[node] in CONVOLUTION_TYPES for node in block.nodes)
    variables = {variable for node in block.marks for variable in reads.get(node, ())}
    kinds: list[str] = []
    if marks & ATTENTION_TYPES or _softmax_meets_values(graph, values, ways, block):
        kinds.append("attention")
    if marks & LINEAR_ATTENTION_TYPES:
        kinds.append("linear_attention")
    elif marks & STATE_SPACE_TYPES or (has_convolution and not kinds and len(variables) > 1):
        kinds.append("state_space")
    elif has_convolution:
        # Beside attention, keys and values are states too, so the number of states tells nothing here.
        kinds.append("convolution" if not kinds or len(variables) <= 3 else "state_space")
    elif kinds and any(_moves_rows(graph, values, node) for node in block.nodes):
        kinds.append("convolution")
    return "+".join(kinds) or RECURRENCE


def _moves_rows(graph: Graph, values: Origins, node: int) -> bool:
    """Whether a node puts rows behind others that no data feeds, as zeros in front of a block."""
    if graph.types[node] != "Concat" or graph.nodes[node].get_attributes()["axis"] not in (1, -2):
        return False
    rank = graph.nodes[node].get_output_partial_shape(0).rank
    first, *others = (producer for producer, _ in graph.inputs[node])
    is_rows = rank.is_static and rank.get_length() == 3
    return is_rows and not values.fed[first] and any(values.fed[other] for other in others)


def _softmax_meets_values(graph: Graph, values: Origins, ways: Stream, block: Step) -> bool:
    """Whether a Softmax goes into a product with data: attention written out. A router's goes into no such product."""
    for softmax in (node for node in block.nodes if graph.types[node] == "Softmax"):
        waiting = list(ways.successors[softmax])
        while waiting:
            node = waiting.pop()
            if graph.types[node] == "MatMul":
                if not any(values.constant[producer] for producer, _ in graph.inputs[node]):
                    return True
            elif graph.types[node] in ("Convert", "Multiply", "Reshape", "Slice", "StridedSlice", "VariadicSplit"):
                waiting += ways.successors[node]
    return False


def layer_of_nodes(graph: Graph, entries: Sequence[Value]) -> list[int]:
    """The last layer whose entry each node depends on, by data and not by shape; -1 for none.

    Args:
        graph: The model.
        entries: The value that enters each layer, in order.
    """
    begins = {node: i for i, (node, _) in enumerate(entries)}
    layers: list[int] = []
    for node in range(len(graph)):
        if node in begins:
            layers.append(begins[node])
        elif graph.types[node] == "ShapeOf":
            layers.append(-1)
        else:
            last = -1
            for producer, _ in graph.inputs[node]:
                last = max(last, layers[producer])
            layers.append(last)
    return layers


def state_owners(graph: Graph, entries: Sequence[Value], readers: Mapping[str, Collection[int]]) -> dict[str, int]:
    """The layer that updates each variable; variables no layer updates are left out.

    Args:
        graph: The model.
        entries: The value that enters each layer, in order.
        readers: The layers that read each variable. What is kept of rows that enter from the side alone, as a context
            or the output of an encoder, depends on no layer, and belongs to the one that reads it.
    """
    layers = layer_of_nodes(graph, entries)
    owners: dict[str, int] = {}
    for node in graph.find("Assign"):
        variable = graph.nodes[node].get_variable_id()
        found = {layers[node]} if layers[node] >= 0 else set(readers.get(variable, ()))
        if len(found) == 1:
            owners[variable] = found.pop()
    return owners
