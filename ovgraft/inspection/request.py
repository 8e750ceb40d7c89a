"""What an inspection is asked to find beyond the summary."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """Parts that take time or space, and are therefore only collected when asked for.

    Attributes:
        layers: Boundary, attention and weights of each layer.
        weights: Weights by part of the model.
        states: Which layer updates and which read each state.
        node: Patterns as a shell has them; a node whose name is one of them, or matches one, is described.
        around: A name, or ``#`` and a number: this node and its neighbours are described.
        hops: How far the neighbours go, in edges.
        graph: All nodes and edges in columns, for a report that lets people search.
    """

    layers: bool = False
    weights: bool = False
    states: bool = False
    node: tuple[str, ...] = ()
    around: str | None = None
    hops: int = 1
    graph: bool = False


SUMMARY = Request()
