"""What is different between two models? Matched by structure, told in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovgraft._lazy import attach

if TYPE_CHECKING:
    from ovgraft.checks.diff.alignment import Alignment, align
    from ovgraft.checks.diff.grafts import diff_grafts
    from ovgraft.checks.diff.models import diff_models
    from ovgraft.checks.diff.result import Difference, GraftDiff, ModelDiff, WeightDifference

__all__ = [
    "Alignment",
    "Difference",
    "GraftDiff",
    "ModelDiff",
    "WeightDifference",
    "align",
    "diff_grafts",
    "diff_models",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "alignment": ("Alignment", "align"),
        "grafts": ("diff_grafts",),
        "models": ("diff_models",),
        "result": ("Difference", "GraftDiff", "ModelDiff", "WeightDifference"),
    },
)
