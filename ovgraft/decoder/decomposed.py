"""Attention that an exporter wrote out: MatMul, scale, mask, Softmax, MatMul.

The matcher walks from each Softmax to its scores and to its values and returns either what
ScaledDotProductAttention needs or the reason why the op cannot say the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import openvino as ov

from ovgraft.errors import Reason
from ovgraft.ir.graph import Graph

MaskPart = tuple[Literal["add", "select"], ov.Output, float]
"""How a mask meets the scores: added, or a boolean that keeps a score; and the factor applied to it afterwards."""

_LOWEST = -1e4
_MAX_WALK = 16


@dataclass
class Decomposed:
    """One written-out attention.

    Attributes:
        softmax: Number of its Softmax.
        query: ``[batch, heads, rows, size]``, or with a group axis after heads, or ``[batch * heads, rows, size]``.
        key: Like query, ``transposed_key`` when it is ``[..., size, rows]``.
        value: Like query.
        scale: Product of the factors on the scores.
        masks: What meets the scores, nearest to the Softmax first.
        output: What replaces the second MatMul's output.
        element_type: What the scores are when they enter the Softmax.
    """

    softmax: int
    query: ov.Output
    key: ov.Output
    transposed_key: bool
    value: ov.Output
    transposed_value: bool
    output: ov.Output
    element_type: ov.Type
    scale: float = 1.0
    masks: list[MaskPart] = field(default_factory=list)


def find_decomposed(graph: Graph) -> tuple[list[Decomposed], list[Reason]]:
    """All written-out attention of a model.

    A Softmax without a product of two activations before it, such as a mixture-of-experts router's, is no attention.

    Returns:
        What can be fused, and the reasons for what cannot.
    """
    constant = _constant_nodes(graph)
    found, refused = [], []
    for i in graph.find("Softmax"):
        if not _is_attention(graph, i, constant):
            continue
        match = _match(graph, i, constant)
        if isinstance(match, Reason):
            refused.append(match)
        else:
            found.append(match)
    return found, refused


def _constant_nodes(graph: Graph) -> list[bool]:
    """For each node, whether it depends on constants alone."""
    constant: list[bool] = []
    for kind, inputs in zip(graph.types, graph.inputs, strict=True):
        constant.append(kind == "Constant" or (bool(inputs) and all(constant[source] for source, _ in inputs)))
    return constant


def _is_attention(graph: Graph, softmax: int, constant: list[bool]) -> bool:
    """Whether a product of two activations lies on both sides of a Softmax."""
    return _scores(graph, softmax, constant) is not None and _value_path(graph, softmax, constant) is not None


_BEFORE_SOFTMAX = {"Add", "Subtract", "Multiply", "Divide", "Convert", "Reshape", "Select", "Maximum", "Tanh", "Concat"}
_AFTER_SOFTMAX = {"Convert", "Reshape", "Slice", "StridedSlice", "Gather", "VariadicSplit"}


def _scores(graph: Graph, softmax: int, constant: list[bool]) -> int | None:
    """The MatMul that makes the scores, along whichever operand leads to one."""
    stack = [(graph.inputs[softmax][0][0], 0)]
    seen = set()
    while stack:
        i, depth = stack.pop()
        if i in seen or depth > _MAX_WALK or constant[i]:
            continue
        seen.add(i)
        if graph.types[i] == "MatMul":
            if not any(constant[source] for source, _ in graph.inputs[i]):
                return i
        elif graph.types[i] in _BEFORE_SOFTMAX:
            stack.extend((source, depth + 1) for source, _ in reversed(graph.inputs[i]))
    return None


def _value_path(graph: Graph, softmax: int, constant: list[bool]) -> list[int] | None:
    """Nodes from a Softmax to the MatMul with the values, that one last."""
    stack: list[list[int]] = [[softmax]]
    while stack:
        path = stack.pop()
        if len(path) > 6:
            continue
        for _, user, port in graph.consumers[path[-1]]:
            if graph.types[user] == "MatMul":
                if port == 0 and not constant[graph.inputs[user][1][0]]:
                    return [*path[1:], user]
            elif graph.types[user] in _AFTER_SOFTMAX and port == 0:
                stack.append([*path, user])
    return None


def _users(graph: Graph, i: int) -> int:
    """How many nodes read the numbers of node ``i``; a ShapeOf reads none."""
    return sum(graph.types[user] != "ShapeOf" for _, user, _ in graph.consumers[i])


def _refuse(graph: Graph, code: str, message: str, i: int) -> Reason:
    return Reason(code, message, (graph.ref(i),))


def _match(graph: Graph, softmax: int, constant: list[bool]) -> Decomposed | Reason:
    axis = graph.nodes[softmax].get_attributes()["axis"]
    rank = graph.nodes[softmax].get_output_partial_shape(0).rank
    if rank.is_dynamic or axis not in (-1, rank.get_length() - 1):
        return _refuse(graph, "softmax-axis", f"Softmax over axis {axis} is not over the keys", softmax)
    path = _value_path(graph, softmax, constant)
    scores = _scores(graph, softmax, constant)
    assert path is not None
    assert scores is not None
    for i in [softmax, *path[:-1]]:
        if _users(graph, i) != 1:
            return _refuse(graph, "extra-consumer", "the attention weights are used elsewhere too", i)
        if graph.types[i] not in ("Softmax", "Convert", "Reshape"):
            return _refuse(graph, "sinks", "the attention weights are cut before they meet the values", i)
    product = path[-1]
    first, last = graph.nodes[scores], graph.nodes[product]
    if first.get_attributes()["transpose_a"] or last.get_attributes()["transpose_a"]:
        return _refuse(graph, "layout", "queries or weights are transposed in a MatMul", scores)
    match = Decomposed(
        softmax,
        query=first.input_value(0),
        key=first.input_value(1),
        transposed_key=not first.get_attributes()["transpose_b"],
        value=last.input_value(1),
        transposed_value=bool(last.get_attributes()["transpose_b"]),
        output=last.output(0),
        element_type=graph.nodes[softmax].get_input_element_type(0),
    )
    return _read_between(graph, match, scores, constant) or match


def _read_between(graph: Graph, match: Decomposed, scores: int, constant: list[bool]) -> Reason | None:
    """Follow the scores from the Softmax up to their MatMul; fills in scale and masks."""
    reaching = _reaching(graph, scores, match.softmax)
    i = graph.inputs[match.softmax][0][0]
    factor = 1.0  # what is applied to everything further up
    while i != scores:
        if _users(graph, i) != 1:
            return _refuse(graph, "extra-consumer", "the attention scores are used elsewhere too", i)
        on_path = [port for port, (source, _) in enumerate(graph.inputs[i]) if source in reaching]
        if len(on_path) != 1:
            return _refuse(graph, "scores", "the attention scores meet themselves", i)
        port, kind, node = on_path[0], graph.types[i], graph.nodes[i]
        other = node.input_value(1 - port) if kind in ("Add", "Subtract", "Multiply", "Divide", "Maximum") else None
        if kind in ("Multiply", "Divide"):
            value = _scalar(graph, graph.inputs[i][1 - port][0], constant)
            if value is None or (kind == "Divide" and port == 1) or value == 0:
                return _refuse(graph, "scale", f"the scores are {kind.lower()}d by something that is not one number", i)
            step = value if kind == "Multiply" else 1 / value
            factor *= step
        elif kind == "Add":
            assert other is not None
            match.masks.append(("add", other, factor))
        elif kind == "Select":
            keep = _fill_value(graph, i, port, constant)
            if keep is None:
                return _refuse(graph, "mask", "a Select on the scores fills in something else than a masking value", i)
            match.masks.append(("select", node.input_value(0), 1.0 if keep else -1.0))
        elif kind == "Maximum":
            value = _scalar(graph, graph.inputs[i][1 - port][0], constant)
            if value is None or value > _LOWEST:
                return _refuse(graph, "clamp", "the scores are clamped", i)
        elif kind == "Tanh":
            return _refuse(graph, "soft-capping", "soft capping inside the scores cannot be expressed", i)
        elif kind == "Concat":
            return _refuse(graph, "sinks", "something is appended to the scores (attention sinks)", i)
        elif kind not in ("Convert", "Reshape"):
            return _refuse(graph, "scores", f"{kind} on the scores is not understood", i)
        i = graph.inputs[i][port][0]
    if _users(graph, scores) != 1:
        return _refuse(graph, "extra-consumer", "the attention scores are used elsewhere too", scores)
    match.scale = factor
    return None


def _reaching(graph: Graph, scores: int, softmax: int) -> set[int]:
    """Nodes between the scores MatMul and the Softmax."""
    reached = {scores}
    for i in range(scores + 1, softmax):
        if graph.types[i] in _BEFORE_SOFTMAX and any(source in reached for source, _ in graph.inputs[i]):
            reached.add(i)
    return reached


def _scalar(graph: Graph, i: int, constant: list[bool]) -> float | None:
    """The value of a node that is one constant number."""
    for _ in range(4):
        if graph.types[i] == "Constant":
            data = graph.nodes[i].data
            return float(data.item()) if data.size == 1 else None
        if not constant[i] or graph.types[i] not in ("Convert", "ConvertLike", "Reshape", "Unsqueeze", "Squeeze"):
            return None
        i = graph.inputs[i][0][0]
    return None


def _fill_value(graph: Graph, select: int, port: int, constant: list[bool]) -> bool | None:
    """For a Select with the scores at ``port``: True when its condition keeps a score, False when it masks one."""
    if port not in (1, 2):
        return None
    value = _scalar(graph, graph.inputs[select][3 - port][0], constant)
    if value is None or (value > _LOWEST and not np.isneginf(value)):
        return None
    return port == 1
