"""Are two models the same graph? Compared aspect by aspect; the first difference is told in words."""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import openvino as ov

from ovgraft.ir.constants import constant_address, constant_bytes
from ovgraft.ir.refs import node_ref
from ovgraft.ir.rtinfo import LAYOUT, USER_DATA, node_info, port_infos
from ovgraft.ir.subgraphs import WITH_BODY, bodies, port_map

Journey = Literal["clone", "save"]

_PORTS = frozenset({"Parameter", "Result"})

_Constant = ov.op.Constant  # found once: looking it up takes as long as the question it answers

_SMALL = 256  # bytes up to which reading a constant is cheaper than asking for its address
_END = 4096  # bytes looked at on either end of a constant that came back from disk: one page


def op_ids(model: ov.Model) -> tuple[int, ...]:
    """A number for each op of a model, in order, that no other op of this process ever has."""
    return tuple(node.get_instance_id() for node in model.get_ordered_ops())


def same_structure(
    a: ov.Model, b: ov.Model, *, after: Journey = "clone", cloned_from: Sequence[int] = (), bare: bool = False
) -> str | None:
    """Compare two validated models op by op.

    Op types, attributes, edges, friendly names, tensor names, rt_info of nodes and ports, the order of inputs, outputs
    and sinks, and the bodies of Loop, TensorIterator and If all count; element types and shapes follow from these.
    Names of models do not count, nor does model-level rt_info (see :func:`ovgraft.ir.flatten`).

    Args:
        a: One model; differences are told from its side.
        b: The other.
        after: With ``clone`` the order of ops counts, and constants are compared byte by byte unless they share an
            address. With ``save``, ``b`` is what came back from disk: ops are found by name where names are unique;
            tensor names count on inputs and outputs only (OpenVINO renames inner ones that repeat) and may become
            more; of rt_info only ``user_data`` and layouts count; constants are compared by the page at either end,
            which tells a misplaced or cut weight without reading gigabytes.
        cloned_from: :func:`op_ids` of ``a`` when ``b`` was cloned from it. An op that is still the same one has the
            type and the weights it had.
        bare: Nodes and ports of ``b`` are known to have no rt_info that is saved.

    Returns:
        None when they are the same, else the first difference.
    """
    with _uncollected():
        return _difference(a, b, after, cloned_from, bare=bare)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Tens of thousands of small objects, none of them in a cycle: the collector would walk them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _difference(a: ov.Model, b: ov.Model, after: Journey, cloned_from: Sequence[int], *, bare: bool) -> str | None:
    nodes_a, nodes_b = a.get_ordered_ops(), b.get_ordered_ops()
    if len(nodes_a) != len(nodes_b):
        return f"{len(nodes_a)} ops, not {len(nodes_b)}"
    if after == "save":
        nodes_b = _in_order_of(nodes_a, nodes_b)
    same_ops = bool(cloned_from) and tuple(node.get_instance_id() for node in nodes_a) == tuple(cloned_from)
    sides = _Side(nodes_a), _Side(nodes_b)
    # one list per aspect and side: half the time of going node by node
    for what, extract in _ASPECTS[same_ops:]:
        found = [extract(side) for side in sides]
        for i, x, y in _unequal(*found):
            owner = nodes_a[sides[0].owners[i]] if what == _TENSOR_NAMES else nodes_a[i]
            if not (after == "save" and _saved_alike(what, owner, x, y)):
                return _told(nodes_a, owner, what, x, y)
    for read in _INFOS:
        info_a = read(sides[0])
        if bare and not info_a:
            continue
        info_b = read(sides[1])
        for key in sorted(info_a.keys() | info_b.keys()):
            x, y = info_a.get(key, {}), info_b.get(key, {})
            if x != y and not (after == "save" and _saved(x) == _saved(y)):
                return _told(nodes_a, nodes_a[key[0]], " of ".join(["rt_info", *key[1:]]), x, y)
    return _other_ends(a, b, nodes_a, nodes_b, after) or _other_inside(nodes_a, nodes_b, after, same_ops=same_ops)


class _Side:
    """The ops of a model and their outputs, numbered.

    Attributes:
        nodes: All ops, in order.
        tensors: Their outputs, in order.
        owners: For each output the number of its op.
    """

    def __init__(self, nodes: list[ov.Node]) -> None:
        self.nodes = nodes
        counts = [1 if type(node) is _Constant else node.get_output_size() for node in nodes]
        self.owners: list[int] = [i for i, count in enumerate(counts) for _ in range(count)]
        if len(self.owners) == len(nodes) and 0 not in counts:
            self.tensors: list[Any] = [node.get_output_tensor(0) for node in nodes]
        else:
            self.tensors = [
                node.get_output_tensor(port) for node, count in zip(nodes, counts, strict=True) for port in range(count)
            ]

    def types(self) -> list[Any]:
        """Type and opset of each op."""
        return [node.get_type_info() for node in self.nodes]

    def friendly_names(self) -> list[Any]:
        """Friendly name of each op."""
        return [node.get_friendly_name() for node in self.nodes]

    def attributes(self) -> list[Any]:
        """Attributes of each op."""
        return [node.get_attributes() for node in self.nodes]

    def inputs(self) -> list[Any]:
        """For each op the outputs it reads, by number."""
        # one Python object stands for a live tensor, and the list keeps them alive
        number = {id(tensor): j for j, tensor in enumerate(self.tensors)}
        if len(number) == len(self.tensors):
            return [
                ()
                if type(node) is _Constant
                else [number[id(node.get_input_tensor(port))] for port in range(node.get_input_size())]
                for node in self.nodes
            ]
        return self._inputs_by_node()

    def _inputs_by_node(self) -> list[Any]:
        """The same where outputs share a tensor."""
        first: dict[int, int] = {}
        for j, owner in enumerate(self.owners):
            first.setdefault(id(self.nodes[owner]), j)
        return [
            ()
            if type(node) is _Constant
            else [first[id(value.get_node())] + value.get_index() for value in node.input_values()]
            for node in self.nodes
        ]

    def tensor_names(self) -> list[Any]:
        """Names of each output."""
        return [tensor.names for tensor in self.tensors]


_TENSOR_NAMES = "tensor names"

_ASPECTS: tuple[tuple[str, Callable[[_Side], list[Any]]], ...] = (
    ("op type", _Side.types),
    ("name", _Side.friendly_names),
    ("attributes", _Side.attributes),
    ("inputs", _Side.inputs),
    (_TENSOR_NAMES, _Side.tensor_names),
)

_Info = dict[tuple[Any, ...], dict[str, str]]
"""What is there, by number of the op, and for a port by what it is called."""


def _node_infos(side: _Side) -> _Info:
    return {(i,): info for i, node in enumerate(side.nodes) if (info := node_info(node))}


def _port_infos(side: _Side) -> _Info:
    # next to no port has any: looked for first
    bearers = {i for i, tensor in zip(side.owners, side.tensors, strict=True) if len(tensor.get_rt_info())}
    for i, node in enumerate(side.nodes):
        if type(node) is not _Constant and any(len(port.get_rt_info()) for port in node.inputs()):
            bearers.add(i)
    return {(i, port): info for i in bearers for port, info in port_infos(side.nodes[i]).items()}


_INFOS: tuple[Callable[[_Side], _Info], ...] = (_node_infos, _port_infos)


def _unequal(found_a: list[Any], found_b: list[Any]) -> Iterator[tuple[int, Any, Any]]:
    """Where two lists differ; the shorter one goes on with None."""
    if found_a != found_b:
        for i, (x, y) in enumerate(itertools.zip_longest(found_a, found_b)):
            if x != y:
                yield i, x, y


def _told(nodes: list[ov.Node], node: ov.Node, what: str, x: Any, y: Any) -> str:
    i = next(i for i, other in enumerate(nodes) if other is node)
    return f"{node_ref(node)} (#{i}): {what} {x}, not {y}"


def _other_ends(a: ov.Model, b: ov.Model, nodes_a: list[ov.Node], nodes_b: list[ov.Node], after: Journey) -> str | None:
    """Whether inputs, outputs or sinks come in another order."""
    index_a, index_b = ({id(node): i for i, node in enumerate(nodes)} for nodes in (nodes_a, nodes_b))
    for what in ("parameters", "results", "sinks"):
        ends_a = [index_a[id(node)] for node in getattr(a, what)]
        ends_b = [index_b[id(node)] for node in getattr(b, what)]
        if ends_a != ends_b and not (after == "save" and what == "sinks" and sorted(ends_a) == sorted(ends_b)):
            return f"the {what} differ in number or order: {len(ends_a)} and {len(ends_b)}"
    return None


def _other_inside(nodes_a: list[ov.Node], nodes_b: list[ov.Node], after: Journey, *, same_ops: bool) -> str | None:
    """Whether a Constant or an op with a body holds something else."""
    for i, (a, b) in enumerate(zip(nodes_a, nodes_b, strict=True)):
        difference = None
        if type(a) is _Constant:
            if not (same_ops or _same_constant(a, b, after)):
                difference = "other values"
        elif a.get_type_name() in WITH_BODY:
            difference = _other_body(a, b, after)
        if difference is not None:
            return f"{node_ref(a)} (#{i}): {difference}"
    return None


def _in_order_of(nodes: list[ov.Node], others: list[ov.Node]) -> list[ov.Node]:
    """The others in the order of their namesakes; as they are where that is no one-to-one matter."""
    by_name = {other.get_friendly_name(): other for other in others}
    names = [node.get_friendly_name() for node in nodes]
    if len(by_name) == len(others) and len(set(names)) == len(names) and by_name.keys() == set(names):
        return [by_name[name] for name in names]
    return others


def _saved_alike(what: str, node: ov.Node, before: Any, after: Any) -> bool:
    """Whether a difference is one that saving makes."""
    return what == _TENSOR_NAMES and (node.get_type_name() not in _PORTS or before <= after)


def _saved(entries: Mapping[str, str]) -> dict[str, str]:
    """The entries that are written to disk with their values."""
    return {key: value for key, value in entries.items() if key.startswith(USER_DATA) or key == LAYOUT}


def _other_body(a: ov.Node, b: ov.Node, after: Journey) -> str | None:
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
