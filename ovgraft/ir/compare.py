"""Are two models the same graph? Walked in lockstep; the first difference is told in words."""

from __future__ import annotations

from typing import Literal

import numpy as np
import openvino as ov

from ovgraft.ir.constants import constant_address, constant_bytes
from ovgraft.ir.refs import node_ref
from ovgraft.ir.rtinfo import node_info
from ovgraft.ir.subgraphs import WITH_BODY, bodies, port_map

ConstantCheck = Literal["bytes", "ends"]

_SMALL = 256  # bytes up to which reading a constant is cheaper than asking for its address

_END = 4096  # bytes at either end of a constant that "ends" looks at: one page


def same_structure(a: ov.Model, b: ov.Model, *, constants: ConstantCheck = "bytes") -> str | None:
    """Compare two validated models op by op, in topological order.

    Op types, attributes, edges, friendly names, tensor names, node-level rt_info, the order of inputs, outputs and
    sinks, and the bodies of Loop, TensorIterator and If all count; element types and shapes follow from these. Names
    of models do not count, nor does model-level rt_info (see :func:`ovgraft.ir.flatten`).

    Args:
        a: One model; differences are told from its side.
        b: The other.
        constants: Constants at one address are equal unread. Others are compared byte by byte, or, with ``ends``, by
            the page at either end of each, which tells a misplaced or cut weight without reading gigabytes.

    Returns:
        None when they are the same, else the first difference.
    """
    nodes_a, nodes_b = a.get_ordered_ops(), b.get_ordered_ops()
    twins = {id(node): id(other) for node, other in zip(nodes_a, nodes_b, strict=False)}
    for i, (node, other) in enumerate(zip(nodes_a, nodes_b, strict=False)):
        difference = _node_difference(node, other, twins, constants)
        if difference is not None:
            return f"{node_ref(node)} (#{i}): {difference}"
    if len(nodes_a) != len(nodes_b):
        return f"{len(nodes_a)} ops, not {len(nodes_b)}"
    for what in ("parameters", "results", "sinks"):
        ends_a, ends_b = getattr(a, what), getattr(b, what)
        if [twins[id(node)] for node in ends_a] != [id(node) for node in ends_b]:
            return f"the {what} differ in number or order: {len(ends_a)} and {len(ends_b)}"
    return None


def _node_difference(a: ov.Node, b: ov.Node, twins: dict[int, int], constants: ConstantCheck) -> str | None:
    info = a.get_type_info()
    if info != b.get_type_info():
        return f"op type {_op_type(a)}, not {_op_type(b)}"
    if a.get_friendly_name() != b.get_friendly_name():
        return f"the other is called {b.get_friendly_name()!r}"
    if (attributes := a.get_attributes()) != (others := b.get_attributes()):
        return f"attributes {attributes}, not {others}"
    if not _same_edges(a.input_values(), b.input_values(), twins):
        return "fed by other ops"
    if (names := _tensor_names(a)) != (others := _tensor_names(b)):
        return f"tensor names {names}, not {others}"
    if (entries := node_info(a)) != (others := node_info(b)):
        return f"rt_info {entries}, not {others}"
    if info.name == "Constant":
        return None if _same_constant(a, b, constants) else "other values"
    return _body_difference(a, b, constants) if info.name in WITH_BODY else None


def _op_type(node: ov.Node) -> str:
    info = node.get_type_info()
    return f"{info.version_id}::{info.name}"


def _same_edges(a: list[ov.Output], b: list[ov.Output], twins: dict[int, int]) -> bool:
    if len(a) != len(b):
        return False
    for x, y in zip(a, b, strict=True):  # a loop, because all() over a generator takes twice the time
        if twins.get(id(x.get_node())) != id(y.get_node()) or x.get_index() != y.get_index():
            return False
    return True


def _tensor_names(node: ov.Node) -> list[set[str]]:
    size = node.get_output_size()
    if size == 1:
        return [node.get_output_tensor(0).names]
    return [node.get_output_tensor(port).names for port in range(size)]


def _same_constant(a: ov.Node, b: ov.Node, constants: ConstantCheck) -> bool:
    view_a, view_b = a.data, b.data
    if 0 < view_a.nbytes <= _SMALL:  # a string Constant shows no bytes here
        return bool(view_a.tobytes() == view_b.tobytes())
    if constant_address(view_a) == constant_address(view_b):
        return True
    bytes_a, bytes_b = constant_bytes(a), constant_bytes(b)
    if constants == "ends" and bytes_a.size == bytes_b.size:
        return np.array_equal(bytes_a[:_END], bytes_b[:_END]) and np.array_equal(bytes_a[-_END:], bytes_b[-_END:])
    return np.array_equal(bytes_a, bytes_b)


def _body_difference(a: ov.Node, b: ov.Node, constants: ConstantCheck) -> str | None:
    if port_map(a) != port_map(b):
        return "bodies are connected in another way"
    for body_a, body_b in zip(bodies(a), bodies(b), strict=True):
        difference = same_structure(body_a, body_b, constants=constants)
        if difference is not None:
            return f"in its body, {difference}"
    return None
