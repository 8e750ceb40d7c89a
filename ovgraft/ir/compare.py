"""Are two models the same graph? Walked in lockstep; the first difference is told in words."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import openvino as ov

from ovgraft.ir.constants import constant_address, constant_bytes
from ovgraft.ir.refs import node_ref
from ovgraft.ir.rtinfo import USER_DATA, node_info
from ovgraft.ir.subgraphs import WITH_BODY, bodies, port_map

Journey = Literal["clone", "save"]

_PORTS = frozenset({"Parameter", "Result"})

_SMALL = 256  # bytes up to which reading a constant is cheaper than asking for its address
_END = 4096  # bytes looked at on either end of a constant that came back from disk: one page


def same_structure(a: ov.Model, b: ov.Model, *, after: Journey = "clone") -> str | None:
    """Compare two validated models op by op.

    Op types, attributes, edges, friendly names, tensor names, node-level rt_info, the order of inputs, outputs and
    sinks, and the bodies of Loop, TensorIterator and If all count; element types and shapes follow from these. Names
    of models do not count, nor does model-level rt_info (see :func:`ovgraft.ir.flatten`).

    Args:
        a: One model; differences are told from its side.
        b: The other.
        after: With ``clone`` the order of ops counts, and constants are compared byte by byte unless they share an
            address. With ``save``, ``b`` is what came back from disk: ops are found by name where names are unique;
            tensor names count on inputs and outputs only (OpenVINO renames inner ones that repeat) and may become
            more; of rt_info only ``user_data`` counts; constants are compared by the page at either end, which tells
            a misplaced or cut weight without reading gigabytes.

    Returns:
        None when they are the same, else the first difference.
    """
    nodes_a, nodes_b = a.get_ordered_ops(), b.get_ordered_ops()
    if after == "save":
        nodes_b = _in_order_of(nodes_a, nodes_b)
    twins = {id(node): id(other) for node, other in zip(nodes_a, nodes_b, strict=False)}
    for i, (node, other) in enumerate(zip(nodes_a, nodes_b, strict=False)):
        difference = _node_difference(node, other, twins, after)
        if difference is not None:
            return f"{node_ref(node)} (#{i}): {difference}"
    if len(nodes_a) != len(nodes_b):
        return f"{len(nodes_a)} ops, not {len(nodes_b)}"
    for what in ("parameters", "results", "sinks"):
        ends_a, ends_b = [twins[id(node)] for node in getattr(a, what)], [id(node) for node in getattr(b, what)]
        if after == "save" and what == "sinks":
            ends_a, ends_b = sorted(ends_a), sorted(ends_b)
        if ends_a != ends_b:
            return f"the {what} differ in number or order: {len(ends_a)} and {len(ends_b)}"
    return None


def _in_order_of(nodes: list[ov.Node], others: list[ov.Node]) -> list[ov.Node]:
    """The others in the order of their namesakes; as they are where that is no one-to-one matter."""
    by_name = {other.get_friendly_name(): other for other in others}
    names = [node.get_friendly_name() for node in nodes]
    if len(by_name) == len(others) and len(set(names)) == len(names) and by_name.keys() == set(names):
        return [by_name[name] for name in names]
    return others


def _node_difference(a: ov.Node, b: ov.Node, twins: dict[int, int], after: Journey) -> str | None:
    info = a.get_type_info()
    if info != b.get_type_info():
        return f"op type {_op_type(a)}, not {_op_type(b)}"
    if a.get_friendly_name() != b.get_friendly_name():
        return f"the other is called {b.get_friendly_name()!r}"
    attributes, others = a.get_attributes(), b.get_attributes()
    if attributes != others:
        return f"attributes {attributes}, not {others}"
    if not _same_edges(a.input_values(), b.input_values(), twins):
        return "fed by other ops"
    names, other_names = _tensor_names(a), _tensor_names(b)
    if names != other_names and (after == "clone" or (info.name in _PORTS and not _within(names, other_names))):
        return f"tensor names {names}, not {other_names}"
    entries, other_entries = node_info(a), node_info(b)
    if entries != other_entries and (after == "clone" or _user_data(entries) != _user_data(other_entries)):
        return f"rt_info {entries}, not {other_entries}"
    if info.name == "Constant":
        return None if _same_constant(a, b, after) else "other values"
    return _body_difference(a, b, after) if info.name in WITH_BODY else None


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


def _within(names: list[set[str]], others: list[set[str]]) -> bool:
    return len(names) == len(others) and all(some <= more for some, more in zip(names, others, strict=True))


def _user_data(entries: dict[str, str]) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if key.startswith(USER_DATA)}


def _same_constant(a: ov.Node, b: ov.Node, after: Journey) -> bool:
    view_a, view_b = a.data, b.data
    if 0 < view_a.nbytes <= _SMALL:  # a string Constant shows no bytes here
        return bool(view_a.tobytes() == view_b.tobytes())
    if constant_address(view_a) == constant_address(view_b):
        return True
    bytes_a, bytes_b = constant_bytes(a), constant_bytes(b)
    if after == "save" and bytes_a.size == bytes_b.size:
        return np.array_equal(bytes_a[:_END], bytes_b[:_END]) and np.array_equal(bytes_a[-_END:], bytes_b[-_END:])
    return np.array_equal(bytes_a, bytes_b)


def _body_difference(a: ov.Node, b: ov.Node, after: Journey) -> str | None:
    if port_map(a) != port_map(b):
        return "bodies are connected in another way"
    for body_a, body_b in zip(bodies(a), bodies(b), strict=True):
        difference = same_structure(body_a, body_b, after=after)
        if difference is not None:
            return f"in its body, {difference}"
    return None
