"""Digest of weights: what makes two drafts of one shape two different models."""

from __future__ import annotations

import json

import openvino as ov
from blake3 import blake3

from ovgraft.ir.constants import constant_bytes
from ovgraft.ir.refs import node_ref
from ovgraft.ir.weights import weight_root


def weights_digest(output: ov.Output) -> str:
    """blake3 over a weight subgraph: constants (element type, shape, bytes) and the ops between them.

    Names and rt_info do not count; scale and zero point do, being constants of the subgraph. Bytes are read where they
    lie, not copied.

    Args:
        output: Root of a subgraph that hangs on constants alone.

    Returns:
        64 hex digits.

    Raises:
        ValueError: The output depends on an input or a state.
    """
    weights = weight_root(output)
    if weights is None:
        raise ValueError(f"{node_ref(output.get_node())} is not made of constants alone")
    position = {id(node): index for index, node in enumerate(weights.nodes)}
    hasher = blake3()
    for node in weights.nodes:
        edges = [(position[id(value.get_node())], value.get_index()) for value in node.input_values()]
        hasher.update(json.dumps([node.get_type_name(), node.get_attributes(), edges], sort_keys=True).encode())
        if node.get_type_name() == "Constant":
            hasher.update(constant_bytes(node).data)
    hasher.update(str(output.get_index()).encode())
    return hasher.hexdigest()
