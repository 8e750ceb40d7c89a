"""OpenVINO's own check of the models a pass left behind, its error text read for the node it speaks of."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ovgraft import ir
from ovgraft.errors import Reason, ValidationError
from ovgraft.noderef import NodeRef

if TYPE_CHECKING:
    import openvino as ov

    from ovgraft.graft import Graft

_NODE = re.compile(r"While validating node '(?:\w+::)?(\w+) .*' with friendly_name '(.*)':")


def validate(graft: Graft) -> None:
    """Propagate shapes and types through every IR read so far.

    Raises:
        ValidationError: OpenVINO rejects one; names the node, has OpenVINO's last line as a reason and its whole text
            as the cause.
    """
    for package in graft.packages.values():
        for name, model in package.models.items():
            try:
                model.validate_nodes_and_infer_types()
            except RuntimeError as error:
                raise explain(str(error), model, name) from error


def explain(text: str, model: ov.Model, name: str) -> ValidationError:
    """The error for what OpenVINO said about a model."""
    node = _node(text, model)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = (Reason("openvino-validation", lines[-1], () if node is None else (node,)),) if lines else ()
    return ValidationError(f"OpenVINO rejects {name}", node=node, reasons=reasons)


def _node(text: str, model: ov.Model) -> NodeRef | None:
    named = [(match[1], match[2]) for match in _NODE.finditer(text)]
    for kind, friendly in named:
        nodes = [
            node for node in model.get_ops() if node.get_type_name() == kind and node.get_friendly_name() == friendly
        ]
        if len(nodes) == 1:
            return ir.node_ref(nodes[0], model)
    return NodeRef(named[0][1], named[0][0]) if named else None
