"""Checks of numbers: one model alone, two models, two grafts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovgraft._lazy import attach

if TYPE_CHECKING:
    from ovgraft.checks.alone import RunReport, run_alone
    from ovgraft.checks.comparison import Comparison, OutputDifference, compare
    from ovgraft.checks.grafts import Verification, compare_grafts, graft_of
    from ovgraft.checks.heads import checkpoint_head, compare_with_formulas
    from ovgraft.checks.run import PARITY, Runner
    from ovgraft.checks.tolerances import Tolerances

__all__ = [
    "PARITY",
    "Comparison",
    "OutputDifference",
    "RunReport",
    "Runner",
    "Tolerances",
    "Verification",
    "checkpoint_head",
    "compare",
    "compare_grafts",
    "compare_with_formulas",
    "graft_of",
    "run_alone",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "alone": ("RunReport", "run_alone"),
        "comparison": ("Comparison", "OutputDifference", "compare"),
        "grafts": ("Verification", "compare_grafts", "graft_of"),
        "heads": ("checkpoint_head", "compare_with_formulas"),
        "run": ("PARITY", "Runner"),
        "tolerances": ("Tolerances",),
    },
)
