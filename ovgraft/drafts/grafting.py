"""Putting weights and ops of one model into another: free names, digests, ports with their readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from ovgraft import ir
from ovgraft.drafts.contract import WEIGHT_DIGEST_KEY
from ovgraft.errors import PostconditionError, PreconditionError


class NameSpace:
    """Names of nodes and tensors a model has, and names for new ones that clash with none of them.

    Args:
        model: The model that takes the new nodes.
        prefix: Put before a name that is taken, as often as it takes, for example ``draft``.
    """

    def __init__(self, model: ov.Model, prefix: str) -> None:
        self._prefix = prefix
        self._taken: set[str] = set()
        for node in model.get_ordered_ops():
            self._taken.add(node.get_friendly_name())
            for output in node.outputs():
                self._taken |= output.get_names()

    def give(self, node: ov.Node, name: str | None = None) -> ov.Output:
        """Name a node and its one output alike.

        Args:
            node: The new node.
            name: Wanted name; its present friendly name when None.

        Returns:
            Its output.
        """
        free = node.get_friendly_name() if name is None else name
        while free in self._taken:
            free = f"{self._prefix}/{free}"
        self._taken.add(free)
        node.set_friendly_name(free)
        node.output(0).set_names({free})
        return node.output(0)

    def constant(self, value: float | int, element_type: ov.Type, name: str) -> ov.Output:
        """A named scalar."""
        return self.give(ir.opset.constant(np.asarray(value), element_type), name)


def transplant(weight: ov.Output, names: NameSpace) -> tuple[ov.Output, str]:
    """Copy a weight subgraph for another model; its bytes are neither copied nor changed.

    The last node carries the digest as ``user_data``: without it two models that differ in grafted weights alone would
    share one compiled blob wherever ``CACHE_MODEL_PATH`` is set.

    Args:
        weight: Root of the subgraph.
        names: Of the model that takes the copy.

    Returns:
        The copy and its digest.
    """
    (copy,) = ir.clone_subgraph([weight])
    subgraph = ir.weight_root(copy)
    assert subgraph is not None  # it is a copy of one
    for node in subgraph.nodes:
        names.give(node)
    digest = ir.weights_digest(copy)
    ir.set_user_data(copy.get_node(), WEIGHT_DIGEST_KEY, digest)
    return copy, digest


def weight_digest(node: ov.Node) -> str | None:
    """The digest a transplanted weight carries, after checking it against the weight.

    Returns:
        None when there is none or when the weight is another one.
    """
    said = ir.get_user_data(node, WEIGHT_DIGEST_KEY)
    return said if said is not None and said == ir.weights_digest(node.output(0)) else None


def redirect(graph: ir.Graph, source: ov.Output, to: ov.Output) -> None:
    """Let the live readers of an output read another one.

    Args:
        graph: View of the model before the edit.
        source: The output whose readers change.
        to: What they read instead.
    """
    for port, reader, input_port in graph.consumers[graph.index(source.get_node())]:
        if port == source.get_index():
            graph.nodes[reader].input(input_port).replace_source_output(to)


def add_output(model: ov.Model, output: ov.Output, name: str) -> None:
    """Make a value an output of the model.

    The tensor gets this one name: OpenVINO forgets any other name beside a Result's own, but not before the next clone
    or save, and equal edits must give equal models.
    """
    result = ir.make_result(output, name)
    result.input_value(0).set_names({name})
    model.add_results([result])


def drop_name(output: ov.Output, name: str) -> None:
    """Take a name off a tensor that is no output any more; a tensor without another one is named after its node."""
    output.set_names((set(output.get_names()) - {name}) or {output.get_node().get_friendly_name()})


def side_by_side(states: Sequence[ov.Output], names: NameSpace) -> ov.Output:
    """Concat over the last axis; a single state stays what it is, unless it is an input, whose name must not change."""
    if len(states) == 1 and states[0].get_node().get_type_name() != "Parameter":
        return states[0]
    return names.give(ir.opset.concat(list(states), -1), "hidden_states_concat")


def check_width(rows: ov.Output, table: str, width: int, node: ov.Node, file: Path) -> None:
    """Refuse a table of the target that is not as wide as the draft's rows.

    Raises:
        PreconditionError: It is not.
    """
    last = rows.get_partial_shape()[-1]
    if last.is_dynamic or last.get_length() != width:
        raise PreconditionError(
            f"the target's {table} does not fit the draft",
            file=file,
            expected=f"rows of {last}",
            found=f"{width} in {ir.node_ref(node)}",
        )


def check_attached(record: Mapping[str, Any], weight: ov.Output, what: str, file: Path) -> None:
    """Compare what is attached with what would be attached.

    Raises:
        PreconditionError: They differ.
    """
    digest = ir.weights_digest(weight)
    if record.get("digest") != digest:
        raise PreconditionError(
            f"another {what} is attached to the draft already",
            file=file,
            expected=f"digest {digest[:12]}",
            found=f"digest {str(record.get('digest'))[:12]}",
            hint="start from the draft as exported",
        )


def ensure_weight(weight: ov.Output, digest: str) -> None:
    """Check that a transplanted weight is the one on record.

    Raises:
        PostconditionError: It is not.
    """
    found = weight_digest(weight.get_node())
    if found != digest:
        raise PostconditionError("other weights than on record", expected=digest, found=found)
