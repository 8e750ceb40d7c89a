"""How a graph node is named to people and in reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeRef:
    """One node of one model.

    Friendly names repeat in real IRs, so the op type and the position in topological order come along.

    Attributes:
        name: Friendly name, untrusted text.
        type: OpenVINO op type, for example ``MatMul``.
        index: Position in ``Model.get_ordered_ops()``; -1 when the order was not computed.
    """

    name: str
    type: str
    index: int = -1

    def __str__(self) -> str:
        position = f" (#{self.index})" if self.index >= 0 else ""
        return f"{self.type} '{self.name}'{position}"

    def to_dict(self) -> dict[str, object]:
        """The JSON form: ``{"name", "type", "index"}``."""
        return {"name": self.name, "type": self.type, "index": self.index}
