"""A hash of everything a pass could change."""

from __future__ import annotations

import json
from typing import Any

import openvino as ov
from blake3 import blake3

from ovgraft.ir.constants import constant_address, constant_bytes
from ovgraft.ir.rtinfo import leaves, node_info, port_infos
from ovgraft.ir.subgraphs import bodies, port_map

_SMALL = 1024  # bytes up to which a constant counts by value: shapes, axes, scalars


def fingerprint(model: ov.Model) -> str:
    """Hash a model without reading its weights; equal before and after means nothing was changed.

    Op types, attributes, edges, shapes, all names, rt_info of ports, nodes and model, the order of inputs, outputs
    and sinks, and loop bodies count. Constants count by element type and shape, up to 1 KiB by value, above that by
    address: a model and its clone agree, two reads of one file do not.

    Returns:
        64 hex digits, comparable within one process.
    """
    hasher = blake3()
    _update(hasher, model)
    return hasher.hexdigest()


def _update(hasher: blake3, model: ov.Model) -> None:
    nodes = model.get_ordered_ops()
    index = {id(node): i for i, node in enumerate(nodes)}
    ends = [[index[id(node)] for node in ends] for ends in (model.parameters, model.results, model.sinks)]
    info = sorted((path, str(value)) for path, value in leaves(model).items())
    described = [_describe(node, index) for node in nodes]
    # one text for all: the encoder's start costs more than a node
    text = json.dumps([model.get_friendly_name(), ends, info, described], sort_keys=True, default=str)
    hasher.update(text.encode() + b"\n")
    for node in nodes:
        if node.get_type_name() == "Constant":
            if node.get_byte_size() <= _SMALL:
                hasher.update(constant_bytes(node).data)
            else:
                hasher.update(constant_address(node.data).to_bytes(8, "little"))
        for body in bodies(node):
            _update(hasher, body)


def _describe(node: ov.Node, index: dict[int, int]) -> list[Any]:
    """What a node is besides the bytes of a constant and the models inside."""
    return [
        node.get_type_name(),
        node.get_type_info().version_id,
        node.get_friendly_name(),
        node.get_attributes(),
        [(index[id(value.get_node())], value.get_index()) for value in node.input_values()],
        [
            (output.get_element_type().get_type_name(), str(output.get_partial_shape()), sorted(output.get_names()))
            for output in node.outputs()
        ],
        node_info(node),
        port_infos(node),
        port_map(node),
    ]
