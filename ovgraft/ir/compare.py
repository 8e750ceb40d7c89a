"""Are two models the same graph? Compared aspect by aspect; the first difference is told in words."""

from __future__ import annotations

from collections.abc import Callable
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
    if len(nodes_a) != len(nodes_b):
        return f"{len(nodes_a)} ops, not {len(nodes_b)}"
    if after == "save":
        nodes_b = _in_order_of(nodes_a, nodes_b)
    # one list per aspect and side: half the time of going node by node
    for what, extract in _ASPECTS:
        found_a, found_b = extract(nodes_a), extract(nodes_b)
        if found_a == found_b:
            continue
        for i, (x, y) in enumerate(zip(found_a, found_b, strict=True)):
            if x != y and not (after == "save" and _saved_alike(what, nodes_a[i], x, y)):
                return f"{node_ref(nodes_a[i])} (#{i}): {what} {x}, not {y}"
    for what in ("parameters", "results", "sinks"):
        ends_a, ends_b = _positions(getattr(a, what), nodes_a), _positions(getattr(b, what), nodes_b)
        if ends_a != ends_b and not (after == "save" and what == "sinks" and sorted(ends_a) == sorted(ends_b)):
            return f"the {what} differ in number or order: {len(ends_a)} and {len(ends_b)}"
    kinds = [node.get_type_name() for node in nodes_a]
    for i in [i for i, kind in enumerate(kinds) if kind == "Constant" or kind in WITH_BODY]:
        difference = _inner_difference(nodes_a[i], nodes_b[i], after)
        if difference is not None:
            return f"{node_ref(nodes_a[i])} (#{i}): {difference}"
    return None


def _types(nodes: list[ov.Node]) -> list[Any]:
    return [node.get_type_info() for node in nodes]


def _friendly_names(nodes: list[ov.Node]) -> list[Any]:
    return [node.get_friendly_name() for node in nodes]


def _attributes(nodes: list[ov.Node]) -> list[Any]:
    return [node.get_attributes() for node in nodes]


def _edges(nodes: list[ov.Node]) -> list[Any]:
    index = {id(node): i for i, node in enumerate(nodes)}
    return [[(index[id(value.get_node())], value.get_index()) for value in node.input_values()] for node in nodes]


def _tensor_names(nodes: list[ov.Node]) -> list[Any]:
    return [
        node.get_output_tensor(0).names
        if node.get_output_size() == 1
        else [output.get_names() for output in node.outputs()]
        for node in nodes
    ]


def _rt_info(nodes: list[ov.Node]) -> list[Any]:
    return [node_info(node) for node in nodes]


_ASPECTS: tuple[tuple[str, Callable[[list[ov.Node]], list[Any]]], ...] = (
    ("op type", _types),
    ("name", _friendly_names),
    ("attributes", _attributes),
    ("inputs", _edges),
    ("tensor names", _tensor_names),
    ("rt_info", _rt_info),
)


def _positions(ends: list[ov.Node], nodes: list[ov.Node]) -> list[int]:
    index = {id(node): i for i, node in enumerate(nodes)}
    return [index[id(node)] for node in ends]


def _in_order_of(nodes: list[ov.Node], others: list[ov.Node]) -> list[ov.Node]:
    """The others in the order of their namesakes; as they are where that is no one-to-one matter."""
    by_name = {other.get_friendly_name(): other for other in others}
    names = [node.get_friendly_name() for node in nodes]
    if len(by_name) == len(others) and len(set(names)) == len(names) and by_name.keys() == set(names):
        return [by_name[name] for name in names]
    return others


def _saved_alike(what: str, node: ov.Node, before: Any, after: Any) -> bool:
    """Whether a difference is one that saving makes."""
    if what == "tensor names":
        return node.get_type_name() not in _PORTS or before <= after
    if what == "rt_info":
        return _user_data(before) == _user_data(after)
    return False


def _user_data(entries: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in entries.items() if key.startswith(USER_DATA)}


def _inner_difference(a: ov.Node, b: ov.Node, after: Journey) -> str | None:
    """What a Constant or an op with a body holds."""
    if a.get_type_name() == "Constant":
        return None if _same_constant(a, b, after) else "other values"
    if port_map(a) != port_map(b):
        return "bodies are connected in another way"
    for body_a, body_b in zip(bodies(a), bodies(b), strict=True):
        difference = same_structure(body_a, body_b, after=after)
        if difference is not None:
            return f"in its body, {difference}"
    return None


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
