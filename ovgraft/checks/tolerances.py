"""How far apart two numbers may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

ATOL = 1e-5
RTOL = 1e-5


@dataclass(frozen=True)
class Tolerances:
    """``|a - b| <= atol + rtol * |a|``, per output.

    Attributes:
        atol: Absolute limit; None is the default of the comparison.
        rtol: Relative limit; None is the default of the comparison.
        atol_of: Absolute limit of single outputs, by name.
        rtol_of: Relative limit of single outputs, by name.
    """

    atol: float | None = None
    rtol: float | None = None
    atol_of: Mapping[str, float] = field(default_factory=dict)
    rtol_of: Mapping[str, float] = field(default_factory=dict)

    def or_else(self, other: Tolerances) -> Tolerances:
        """The same with the limits of another where none is set."""
        return replace(
            self,
            atol=other.atol if self.atol is None else self.atol,
            rtol=other.rtol if self.rtol is None else self.rtol,
            atol_of={**other.atol_of, **self.atol_of},
            rtol_of={**other.rtol_of, **self.rtol_of},
        )

    def of(self, output: str) -> tuple[float, float]:
        """``(atol, rtol)`` of an output."""
        atol, rtol = self.atol_of.get(output, self.atol), self.rtol_of.get(output, self.rtol)
        return ATOL if atol is None else atol, RTOL if rtol is None else rtol
