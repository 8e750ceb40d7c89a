"""Ops that carry models inside: Loop, TensorIterator and If."""

from __future__ import annotations

from typing import Any

import openvino as ov

WITH_BODY = frozenset({"If", "Loop", "TensorIterator"})

_DESCRIPTION_FIELDS = (
    "input_index",
    "output_index",
    "body_parameter_index",
    "body_value_index",
    "start",
    "stride",
    "part_size",
    "end",
    "axis",
    "iteration",
)


def bodies(node: ov.Node) -> list[ov.Model]:
    """The models inside, [] for any other op."""
    kind = node.get_type_name()
    if kind == "If":
        return [node.get_function(0), node.get_function(1)]
    if kind in ("Loop", "TensorIterator"):
        return [node.get_function() if kind == "Loop" else node.get_body()]
    return []


def port_map(node: ov.Node) -> list[Any]:
    """How outer ports meet body ports, as plain data; [] for an op without a body."""
    kind = node.get_type_name()
    if kind == "If":
        return [
            [_description(item) for item in describe(i)]
            for i in (0, 1)
            for describe in (node.get_input_descriptions, node.get_output_descriptions)
        ]
    if kind not in ("Loop", "TensorIterator"):
        return []
    described = [_description(item) for item in (*node.get_input_descriptions(), *node.get_output_descriptions())]
    return [described, list(node.get_special_body_ports()) if kind == "Loop" else []]


def _description(item: Any) -> list[Any]:
    return [type(item).__name__, *(getattr(item, field, None) for field in _DESCRIPTION_FIELDS)]
