"""How far apart two numbers may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ATOL = 1e-5
RTOL = 1e-5


@dataclass(frozen=True)
class Tolerances:
    """``|a - b| <= atol + rtol * |a|``, per output.

    Attributes:
        atol: Absolute limit.
        rtol: Relative limit.
        atol_of: Absolute limit of single outputs, by name.
        rtol_of: Relative limit of single outputs, by name.
    """

    atol: float = ATOL
    rtol: float = RTOL
    atol_of: Mapping[str, float] = field(default_factory=dict)
    rtol_of: Mapping[str, float] = field(default_factory=dict)

    def of(self, output: str) -> tuple[float, float]:
        """``(atol, rtol)`` of an output."""
        return self.atol_of.get(output, self.atol), self.rtol_of.get(output, self.rtol)
