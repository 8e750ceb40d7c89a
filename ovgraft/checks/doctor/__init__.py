"""Does a draft fit a target? Checks in the order in which one finding makes the next ones meaningless."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovgraft._lazy import attach

if TYPE_CHECKING:
    from ovgraft.checks.doctor.numbers import RunOptions
    from ovgraft.checks.doctor.questions import CHECKS, diagnose
    from ovgraft.checks.doctor.result import Answer, Check, Diagnosis

__all__ = ["CHECKS", "Answer", "Check", "Diagnosis", "RunOptions", "diagnose"]

__getattr__, __dir__ = attach(
    __name__,
    {
        "questions": ("CHECKS", "diagnose"),
        "numbers": ("RunOptions",),
        "result": ("Answer", "Check", "Diagnosis"),
    },
)
