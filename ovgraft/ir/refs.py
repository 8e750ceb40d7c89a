"""Node references: how a node is named to people and in reports."""

from __future__ import annotations

import openvino as ov

from ovgraft.noderef import NodeRef


def node_ref(node: ov.Node, model: ov.Model | None = None) -> NodeRef:
    """Name a node.

    Args:
        node: Any node.
        model: The model it lives in; with it the reference carries the topological position (one walk over the model).

    Returns:
        The reference; ``index`` is -1 without ``model`` or when the node is not part of it.
    """
    index = -1
    if model is not None:
        # identity, never ==: comparing nodes builds an Equal op
        index = next((i for i, other in enumerate(model.get_ordered_ops()) if other is node), -1)
    return NodeRef(node.get_friendly_name(), node.get_type_name(), index)
