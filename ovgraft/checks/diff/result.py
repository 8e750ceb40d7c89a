"""What a comparison of structures finds, as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ovgraft.noderef import NodeRef

SCHEMA = 1

Kind = Literal["added", "removed", "changed", "rewired"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One node that is not the same.

    Attributes:
        kind: ``changed``: other attributes or values; ``rewired``: it reads something else.
        a: The node in A; None when added.
        b: The node in B; None when removed.
        text: What is different.
    """

    kind: Kind
    a: NodeRef | None
    b: NodeRef | None
    text: str = ""

    def to_dict(self) -> dict[str, object]:
        """The JSON form."""
        sides = {"a": self.a, "b": self.b}
        nodes = {side: None if ref is None else ref.to_dict() for side, ref in sides.items()}
        return {"kind": self.kind, **nodes, "text": self.text}


@dataclass(frozen=True, slots=True)
class WeightDifference:
    """A constant whose bytes differ; both have one type and shape.

    Attributes:
        a: The constant in A.
        b: The constant in B.
        bytes: Its size.
        digest_a: blake3 of its bytes in A, hex.
        digest_b: The same of B.
    """

    a: NodeRef
    b: NodeRef
    bytes: int
    digest_a: str
    digest_b: str

    def to_dict(self) -> dict[str, object]:
        """The JSON form."""
        digests = {"bytes": self.bytes, "digest_a": self.digest_a, "digest_b": self.digest_b}
        return {"a": self.a.to_dict(), "b": self.b.to_dict(), **digests}


@dataclass(frozen=True)
class ModelDiff:
    """Two models compared.

    Attributes:
        name: Which models, for example ``target``.
        same: Nodes that are in both, with the same attributes and inputs.
        renamed: Of all nodes in both, how many have another friendly name; that is no difference.
        nodes: Nodes that are not the same.
        ports: What is different in inputs and outputs, a sentence each.
        metadata: rt_info path -> value in A and in B; None where it is missing.
        weights: Constants with other bytes; None when bytes were not compared.
        compared_bytes: Bytes of constants that were compared.
        words: The differences as a person would tell them.
    """

    name: str
    same: int
    renamed: int
    nodes: tuple[Difference, ...]
    ports: tuple[str, ...]
    metadata: Mapping[str, tuple[str | None, str | None]]
    weights: tuple[WeightDifference, ...] | None
    compared_bytes: int
    words: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Nothing is different."""
        return not (self.nodes or self.ports or self.metadata or self.weights)

    def count(self, kind: Kind) -> int:
        """Nodes of one kind of difference."""
        return sum(node.kind == kind for node in self.nodes)

    @property
    def summary(self) -> dict[str, int]:
        """Numbers of nodes."""
        kinds: tuple[Kind, ...] = ("removed", "added", "changed", "rewired")
        counts = {kind: self.count(kind) for kind in kinds}
        weights = {} if self.weights is None else {"weights": len(self.weights)}
        return {**counts, **weights, "same": self.same, "renamed": self.renamed}

    def to_dict(self, *, stat: bool = False) -> dict[str, object]:
        """The JSON form; ``stat`` leaves the nodes out."""
        data: dict[str, object] = {
            "name": self.name,
            "equal": self.equal,
            "summary": self.summary,
            "words": list(self.words),
        }
        if stat:
            return data
        data["ports"] = list(self.ports)
        data["metadata"] = {key: {"a": a, "b": b} for key, (a, b) in self.metadata.items()}
        data["nodes"] = [node.to_dict() for node in self.nodes]
        if self.weights is not None:
            data["weights"] = [weight.to_dict() for weight in self.weights]
            data["compared_bytes"] = self.compared_bytes
        return data


@dataclass(frozen=True)
class GraftDiff:
    """Two models, packages or grafts compared.

    Attributes:
        models: One entry per model both have.
        only_a: Models B has not.
        only_b: Models A has not.
    """

    models: tuple[ModelDiff, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Nothing is different."""
        return not (self.only_a or self.only_b) and all(model.equal for model in self.models)

    @property
    def summary(self) -> dict[str, int]:
        """Numbers of nodes, all models together."""
        total: dict[str, int] = {}
        for name, count in self._counts():
            total[name] = total.get(name, 0) + count
        return total

    def _counts(self) -> Iterator[tuple[str, int]]:
        for model in self.models:
            yield from model.summary.items()

    def to_dict(self, *, stat: bool = False) -> dict[str, object]:
        """The JSON form."""
        return {
            "schema": SCHEMA,
            "equal": self.equal,
            "summary": self.summary,
            "models": [model.to_dict(stat=stat) for model in self.models],
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
        }
