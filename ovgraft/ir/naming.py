"""Names for nodes that nobody named, so that equal inputs give equal files."""

from __future__ import annotations

import openvino as ov

from ovgraft.ir.graph import Graph


def name_by_place(model: ov.Model, prefix: str = "", *, before: Graph | None = None) -> None:
    """Name nodes by type and place in topological order.

    Until it is told otherwise, OpenVINO calls a node by a counter of the process and writes that into the file.

    Args:
        model: The model, all edits done.
        prefix: Put before each name, for example ``fused/``.
        before: View of the model before the edits, whose nodes keep their names; None for a model that was built.
    """
    known = set() if before is None else {id(node) for node in before.nodes}
    nodes = model.get_ordered_ops()
    unnamed = {
        place: node
        for place, node in enumerate(nodes)
        if id(node) not in known and node.get_friendly_name() == node.get_name()
    }
    taken = {node.get_friendly_name() for place, node in enumerate(nodes) if place not in unnamed}
    for place, node in unnamed.items():
        name = f"{prefix}{node.get_type_name()}_{place}"
        while name in taken:
            name += "_"
        taken.add(name)
        node.set_friendly_name(name)
