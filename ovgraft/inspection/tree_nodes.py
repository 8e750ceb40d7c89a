"""Single nodes of a model, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ovgraft.noderef import NodeRef


@dataclass(frozen=True)
class SourceInfo:
    """What feeds an input of a node: an output of another node; without one where a file leaves it open."""

    node: NodeRef | None
    output_index: int
    element_type: str
    shape: str


@dataclass(frozen=True)
class OutputInfo:
    """An output of a node.

    Attributes:
        names: Tensor names.
        element_type: OpenVINO type name.
        shape: For example ``[?,?,64]``.
        consumers: The nodes it feeds.
    """

    names: tuple[str, ...]
    element_type: str
    shape: str
    consumers: tuple[NodeRef, ...]


@dataclass(frozen=True)
class NodeInfo:
    """One node in full.

    Attributes:
        node: Its name, type and place.
        opset: Where its type is defined.
        attributes: As OpenVINO tells them.
        inputs: In order.
        outputs: In order.
        bytes: Stored size of a constant, None for others.
        bodies: Ops in each subgraph it runs (Loop, TensorIterator, If).
        distance: Edges between it and the node asked for with ``around``.
    """

    node: NodeRef
    opset: str
    attributes: dict[str, Any]
    inputs: tuple[SourceInfo, ...]
    outputs: tuple[OutputInfo, ...]
    bytes: int | None = None
    bodies: tuple[int, ...] = ()
    distance: int | None = None


@dataclass(frozen=True)
class GraphInfo:
    """All nodes and edges in columns, one entry a node; not part of the JSON form.

    Attributes:
        names: Friendly names.
        types: Op types.
        outputs: Element type and shape of the first output, for example ``f32 [?,?,64]``.
        inputs: Producers of the inputs, in order.
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    outputs: tuple[str, ...]
    inputs: tuple[tuple[int, ...], ...]
