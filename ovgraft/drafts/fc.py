"""The FC of a draft: the one projection of the captured target states, found by what it is connected to."""

from __future__ import annotations

from dataclasses import dataclass

import openvino as ov

from ovgraft import ir
from ovgraft.errors import Reason


@dataclass(frozen=True)
class HiddenStateFc:
    """``hidden_states [..., in_width] -> [..., out_width]``, the first thing a draft does with the target's states.

    Attributes:
        nodes: The data path in order: Converts if any, ``matmul``, the bias Add if any.
        matmul: The MatMul; the states are its input 0.
        weight: Its weights, decompression included.
        bias: What the Add behind it adds; None without one.
        in_width: Columns of the weights, n * Ht.
        out_width: Rows of the weights, H.
        shape_readers: ShapeOf nodes on ``hidden_states``; none of them reads the last dimension.
    """

    nodes: tuple[ov.Node, ...]
    matmul: ov.Node
    weight: ir.WeightSubgraph
    bias: ir.WeightSubgraph | None
    in_width: int
    out_width: int
    shape_readers: tuple[ov.Node, ...] = ()

    @property
    def output(self) -> ov.Output:
        """The projected states."""
        return self.nodes[-1].output(0)


def find_fc(graph: ir.Graph, hidden_states: int) -> tuple[HiddenStateFc | None, tuple[Reason, ...]]:
    """Find the FC that consumes an input.

    Args:
        graph: View of the draft.
        hidden_states: Number of the Parameter.

    Returns:
        The FC and no reason, or None and every reason against it.
    """
    reasons: list[Reason] = []
    shape_readers: list[int] = []
    readers: list[tuple[int, int]] = []
    for _, consumer, port in graph.consumers[hidden_states]:
        if graph.types[consumer] == "ShapeOf":
            shape_readers.append(consumer)
            reasons.extend(_last_dimension_readers(graph, hidden_states, consumer))
        else:
            readers.append((consumer, port))
    if not readers:
        reasons.append(Reason("unused-hidden-states", "nothing reads the values of hidden_states"))
    paths = [_follow(graph, hidden_states, consumer, port) for consumer, port in readers]
    for path in paths:
        if isinstance(path, Reason):
            reasons.append(path)
    found = [path for path in paths if isinstance(path, HiddenStateFc)]
    if len(found) > 1:
        nodes = tuple(graph.ref(graph.index(fc.matmul)) for fc in found)
        reasons.append(Reason("several-fcs", f"hidden_states feeds {len(found)} projections", nodes))
    if reasons:
        return None, tuple(reasons)
    fc = found[0]
    kept = tuple(graph.nodes[i] for i in shape_readers)
    return HiddenStateFc(fc.nodes, fc.matmul, fc.weight, fc.bias, fc.in_width, fc.out_width, kept), ()


def _follow(graph: ir.Graph, hidden_states: int, node: int, port: int) -> HiddenStateFc | Reason:
    """The FC at the end of a chain of Converts that starts at input ``port`` of ``node``."""
    start = graph.ref(node)
    path: list[ov.Node] = []
    while graph.types[node] == "Convert":
        path.append(graph.nodes[node])
        if len(graph.consumers[node]) != 1:
            message = "hidden_states is converted and then read more than once"
            return Reason("second-consumer", message, (graph.ref(node),))
        _, node, port = graph.consumers[node][0]
    matmul = graph.nodes[node]
    refs = (graph.ref(node),) if graph.ref(node) == start else (start, graph.ref(node))
    if graph.types[node] != "MatMul":
        return Reason("second-consumer", f"hidden_states feeds a {graph.types[node]}, not an FC", refs)
    weight = ir.weight_root(matmul.input_value(1)) if port == 0 else None
    if weight is None:
        return Reason("no-fc", "the MatMul behind hidden_states has no constant weights on its second input", refs)
    attributes = matmul.get_attributes()
    shape = weight.output.get_partial_shape()
    if attributes["transpose_a"] or shape.is_dynamic or len(shape) != 2:
        found = f"weights {shape}, transpose_a {attributes['transpose_a']}"
        return Reason("no-fc", f"the MatMul behind hidden_states is no FC over its last axis: {found}", refs)
    rows, columns = (shape[i].get_length() for i in ((0, 1) if attributes["transpose_b"] else (1, 0)))
    path.append(matmul)
    bias = _bias(graph, node, rows)
    if bias is not None:
        path.append(graph.nodes[bias[0]])
    wanted = graph.nodes[hidden_states].get_output_element_type(0)
    if path[-1].get_output_element_type(0) != wanted and (back := _convert_to(graph, path[-1], wanted)) is not None:
        path.append(back)
    if (computed := path[-1].get_output_element_type(0)) != wanted:
        message = f"the FC gives {computed.to_string()} where hidden_states is {wanted.to_string()}"
        return Reason("fc-type", message, refs)
    return HiddenStateFc(tuple(path), matmul, weight, bias[1] if bias else None, columns, rows)


def _convert_to(graph: ir.Graph, node: ov.Node, element_type: ov.Type) -> ov.Node | None:
    """The Convert to ``element_type`` that is the only reader of ``node``."""
    readers = graph.consumers[graph.index(node)]
    if len(readers) != 1:
        return None
    reader = graph.nodes[readers[0][1]]
    fits = reader.get_type_name() == "Convert" and reader.get_output_element_type(0) == element_type
    return reader if fits else None


def _bias(graph: ir.Graph, matmul: int, width: int) -> tuple[int, ir.WeightSubgraph] | None:
    """The Add of a constant row behind the FC; not one when something else reads the bare product."""
    if len(graph.consumers[matmul]) != 1:
        return None
    _, add, port = graph.consumers[matmul][0]
    if graph.types[add] != "Add":
        return None
    added = ir.weight_root(graph.nodes[add].input_value(1 - port))
    if added is None or added.output.get_partial_shape().is_dynamic:
        return None
    shape = tuple(added.output.get_shape())
    return (add, added) if shape[-1:] == (width,) and all(size == 1 for size in shape[:-1]) else None


def _last_dimension_readers(graph: ir.Graph, hidden_states: int, shape_of: int) -> list[Reason]:
    """Whoever may read the last dimension of ``hidden_states``, which changes when the FC moves."""
    rank = graph.nodes[hidden_states].get_output_partial_shape(0).rank
    reasons = []
    for _, reader, port in graph.consumers[shape_of]:
        if rank.is_dynamic or port != 0 or not _gathers_leading(graph.nodes[reader], rank.get_length()):
            nodes = (graph.ref(shape_of), graph.ref(reader))
            reasons.append(Reason("reads-width", "the last dimension of hidden_states may be read as a number", nodes))
    return reasons


def _gathers_leading(node: ov.Node, rank: int) -> bool:
    """Whether ``node`` is a Gather of constant indices that leave the last dimension of the shape out."""
    if node.get_type_name() != "Gather" or node.input_value(1).get_node().get_type_name() != "Constant":
        return False
    indices = node.input_value(1).get_node().data.reshape(-1).tolist()
    return all(index % rank != rank - 1 for index in indices)
