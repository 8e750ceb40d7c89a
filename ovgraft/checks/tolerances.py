"""How far apart two numbers may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

ATOL = 1e-5
RTOL = 1e-5


@dataclass(frozen=True)
class Tolerances:
    """``|a - b| <= atol + rtol * size``, per output.

    Attributes:
        atol: Absolute limit; None is the default of the comparison.
        rtol: Relative limit; None is the default of the comparison.
        atol_of: Absolute limit of single outputs, by name.
        rtol_of: Relative limit of single outputs, by name.
        by_row: ``size`` is that of the largest number of the row, along the last axis; else each number's own. Where
            sums run in another order, small numbers are off by what large ones beside them are rounded by.
    """

    atol: float | None = None
    rtol: float | None = None
    atol_of: Mapping[str, float] = field(default_factory=dict)
    rtol_of: Mapping[str, float] = field(default_factory=dict)
    by_row: bool = False

    def or_else(self, other: Tolerances) -> Tolerances:
        """The same with the limits of another where none is set."""
        return replace(
            self,
            atol=other.atol if self.atol is None else self.atol,
            rtol=other.rtol if self.rtol is None else self.rtol,
            atol_of={**other.atol_of, **self.atol_of},
            rtol_of={**other.rtol_of, **self.rtol_of},
            by_row=self.by_row or other.by_row,
        )

    def of(self, output: str) -> tuple[float, float]:
        """``(atol, rtol)`` of an output."""
        atol, rtol = self.atol_of.get(output, self.atol), self.rtol_of.get(output, self.rtol)
        return ATOL if atol is None else atol, RTOL if rtol is None else rtol
