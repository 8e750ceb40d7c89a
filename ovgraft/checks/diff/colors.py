"""Colours of nodes: equal ones stand in equal surroundings, whatever they are called.

As in Weisfeiler and Lehman's refinement (``networkx.weisfeiler_lehman_subgraph_hashes``), a colour is made of a node's
own label and its neighbours' colours. In an acyclic graph one sweep in topological order refines to the end: the
forward colour of a node stands for everything above it, the backward colour for everything below. Colours are numbers
of a table shared by both models, so that equal means equal, and there are no hashes to collide.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass

import openvino as ov

from ovgraft.ir.graph import Graph
from ovgraft.ir.subgraphs import WITH_BODY, bodies, port_map

_STRUCTURE_BYTES = 256
"""Integer constants up to this size, and single numbers, count by value: axes, shapes, K, scales."""

_ONE = re.compile(r"\[(?:1(?:,1)*)?\]")

_NAMES = ("variable_id", "friendly_name", "name")
"""Attributes that are names."""


class Table:
    """Numbers for hashable things, the same number for equal ones."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable) -> int:
        """The number of ``key``."""
        return self._numbers.setdefault(key, len(self._numbers))


@dataclass(frozen=True)
class Colors:
    """Colours of a graph's nodes, by node number.

    Attributes:
        label: Op type, attributes but names, and values that are structure.
        forward: The label and all there is above.
        backward: The label and all there is below.
    """

    label: list[int]
    forward: list[int]
    backward: list[int]


def color(graph: Graph, table: Table) -> Colors:
    """Colour a graph; two sweeps over its edges."""
    label = [table.number(_label(node, kind, table)) for node, kind in zip(graph.nodes, graph.types, strict=True)]
    forward: list[int] = []
    for i, sources in enumerate(graph.inputs):
        forward.append(table.number((label[i], tuple((forward[producer], port) for producer, port in sources))))
    backward = [0] * len(label)
    for i in range(len(label) - 1, -1, -1):
        below = sorted((port, backward[consumer], at) for port, consumer, at in graph.consumers[i])
        backward[i] = table.number((label[i], "below", tuple(below)))
    return Colors(label, forward, backward)


def _label(node: ov.Node, kind: str, table: Table) -> Hashable:
    if kind == "Constant":
        return kind, _constant(node)
    attributes = node.get_attributes()
    for name in _NAMES:
        attributes.pop(name, None)
    plain = tuple(sorted((name, str(value)) for name, value in attributes.items()))
    if kind not in WITH_BODY:
        return kind, plain
    return kind, plain, str(port_map(node)), tuple(_body(body, table) for body in bodies(node))


def _constant(node: ov.Node) -> Hashable:
    element_type, shape = node.get_output_element_type(0), str(node.get_output_shape(0))
    content: Hashable = None
    if element_type == ov.Type.string:
        content = tuple(node.get_value_strings())
    elif is_structure(node):
        content = node.data.tobytes()
    return element_type.get_type_name(), shape, content


def is_structure(constant: ov.Node) -> bool:
    """Whether a constant counts by value: integers of few bytes, and single numbers."""
    if _ONE.fullmatch(str(constant.get_output_shape(0))):  # as text in a tenth of the time of its numbers
        return True
    small = constant.get_byte_size() <= _STRUCTURE_BYTES
    return bool(small and constant.get_output_element_type(0).is_integral_number())


def _body(body: ov.Model, table: Table) -> Hashable:
    """A whole inner model as one label: all its nodes, and the order of its ends."""
    graph = Graph(body)
    colors = color(graph, table)
    ends = [
        tuple(colors.forward[graph.index(node)] for node in nodes)
        for nodes in (body.get_parameters(), body.get_results())
    ]
    return tuple(sorted(zip(colors.forward, colors.backward, strict=True))), tuple(ends)
