"""Find the output layer: from the logits back to the product with a constant weight."""

from __future__ import annotations

import openvino as ov

from ovgraft.decoder.dataflow import Origins, Value, origins
from ovgraft.decoder.types import LmHead
from ovgraft.drafts.contract import Port
from ovgraft.errors import Reason, StructureError
from ovgraft.ir.graph import Graph

_SHAPING = frozenset({"Convert", "Reshape", "Squeeze", "Transpose", "Unsqueeze", "Tanh", "Clamp"})
_WITH_CONSTANT = frozenset({"Add", "Divide", "Multiply", "Subtract"})
_SELECTION = frozenset({"Gather", "Slice", "StridedSlice"})
_UPDATES = 2


def read_lm_head(model: ov.Model, graph: Graph | None = None, values: Origins | None = None) -> LmHead:
    """Find the output layer of a model.

    Args:
        model: Any model with a ``logits`` output, or with one output that ends in a product with a constant weight; a
            draft that gives out the best token of each row instead counts too.
        graph: Its indexed view, when the caller has one.
        values: What :func:`~ovgraft.decoder.dataflow.origins` says of the graph, when the caller has it.

    Raises:
        StructureError: There is no such product, or more than one.
    """
    graph = graph or Graph(model)
    values = values or origins(graph)
    found: list[LmHead] = []
    reasons: list[Reason] = []
    for result, logits in _logits(graph, values):
        head = _behind(graph, values, result, logits)
        if isinstance(head, LmHead):
            found.append(head)
        else:
            reasons.append(head)
    if not found:
        raise StructureError(
            "no output layer found",
            reasons=tuple(reasons) or (Reason("no-logits", "the model has no floating-point output"),),
        )
    if len(found) > 1:
        nodes = tuple(graph.ref(graph.index(head.matmul)) for head in found)
        raise StructureError(
            "no output layer found",
            reasons=(Reason("several-lm-heads", "several outputs end in a product with a constant weight", nodes),),
            hint="name the right output 'logits'",
        )
    return found[0]


def _logits(graph: Graph, values: Origins) -> list[tuple[int, Value]]:
    """Results and the logits behind them: the Result named ``logits``, else what tokens are chosen by, else all."""
    results = [i for i in graph.find("Result") if graph.is_real(i)]
    named = [i for i in results if _is_called(graph, i, Port.LOGITS)]
    chosen = [i for i in graph.find("Result") if _is_called(graph, i, Port.DRAFT_TOKEN_IDS)]
    if chosen and not named:
        return [(i, value) for i in chosen for value in _compared(graph, values, i)]
    return [(i, graph.inputs[i][0]) for i in named or results]


def _is_called(graph: Graph, result: int, name: Port) -> bool:
    return name in graph.nodes[result].input_value(0).get_names() | graph.nodes[result].output(0).get_names()


def _compared(graph: Graph, values: Origins, result: int) -> list[Value]:
    """The first real-typed value above the integers of a Result, where the others come from."""
    found: set[Value] = set()
    seen: set[int] = set()
    waiting = [result]
    while waiting:
        for value in graph.inputs[waiting.pop()]:
            if graph.is_real(*value):
                found |= {value} if values.fed[value[0]] else set()
            elif value[0] not in seen:
                seen.add(value[0])
                waiting.append(value[0])
    return sorted(found)[:1]


def _behind(graph: Graph, values: Origins, result: int, logits: Value) -> LmHead | Reason:
    """The output layer behind one Result, or why there is none."""
    node, _ = logits
    after: list[int] = []
    while graph.types[node] != "MatMul":
        operand = _data_operand(graph, values, node)
        if operand is None:
            return Reason(
                "no-lm-head",
                "this output does not come from a product with a constant weight; going back from it ends at",
                (graph.ref(result), graph.ref(node)),
            )
        after.append(node)
        node, _ = operand
    left, right = graph.inputs[node]
    if values.constant[left[0]] or not values.constant[right[0]]:
        return Reason("no-lm-head", "the last product has no constant weight on its right side", (graph.ref(node),))
    matmul = graph.nodes[node]
    attributes = matmul.get_attributes()
    weight = graph.output(*right)
    shape = weight.get_partial_shape()
    if shape.is_dynamic or len(shape) != 2 or attributes["transpose_a"]:
        return Reason("no-lm-head", f"the last product has a weight of shape {shape}, not a matrix", (graph.ref(node),))
    rows, columns = (dimension.get_length() for dimension in shape)
    transpose_b = bool(attributes["transpose_b"])
    vocab_size, width = (rows, columns) if transpose_b else (columns, rows)
    post_ops = after[::-1]
    return LmHead(
        matmul=matmul,
        weight=weight,
        hidden=graph.output(*_before_selection(graph, left, width)),
        logits=graph.output(*logits),
        vocab_size=vocab_size,
        width=width,
        transpose_b=transpose_b,
        bias=_bias(graph, values, post_ops, vocab_size),
        post_ops=tuple(graph.nodes[i] for i in post_ops),
    )


def _data_operand(graph: Graph, values: Origins, node: int) -> Value | None:
    """The one operand that carries the logits through an op that may stand behind the product; None for other ops."""
    sources = graph.inputs[node]
    if graph.types[node] in _SHAPING | _SELECTION and not values.constant[sources[0][0]]:
        return sources[0]
    if graph.types[node] == "ScatterUpdate" and not values.fed[sources[0][0]]:
        return sources[_UPDATES]  # rows written among rows of nothing, where a draft computes on its block alone
    if graph.types[node] in _WITH_CONSTANT:
        varying = [source for source in sources if not values.constant[source[0]]]
        if len(varying) == 1:
            return varying[0]
    return None


def _bias(graph: Graph, values: Origins, post_ops: list[int], vocab_size: int) -> ov.Output | None:
    """The constant of an Add directly behind the product, one number per word."""
    if not post_ops or graph.types[post_ops[0]] != "Add":
        return None
    for producer, port in graph.inputs[post_ops[0]]:
        if values.constant[producer]:
            output = graph.output(producer, port)
            shape = output.get_partial_shape()
            if len(shape) and shape[-1] == vocab_size:
                return output
    return None


def _before_selection(graph: Graph, hidden: Value, width: int) -> Value:
    """``hidden`` before rows were selected for the product; a selection keeps the last dimension."""
    while graph.types[hidden[0]] in _SELECTION:
        source = graph.inputs[hidden[0]][0]
        shape = graph.output(*source).get_partial_shape()
        if shape.rank.is_dynamic or len(shape) < 2 or shape[-1] != width or not graph.is_real(*source):
            break
        hidden = source
    return hidden
