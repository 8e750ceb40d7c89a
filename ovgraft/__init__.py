"""Graft speculative-decoding drafts onto OpenVINO LLMs by editing the IR."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovgraft._lazy import attach

if TYPE_CHECKING:
    from ovgraft.errors import OvgraftError
    from ovgraft.graft import Graft, Package, load
    from ovgraft.noderef import NodeRef
    from ovgraft.passbase import Context, Edit, Pass, option
    from ovgraft.pipeline import Pipeline, Report

__version__ = "0.1.0"

__all__ = [
    "Context",
    "Edit",
    "Graft",
    "NodeRef",
    "OvgraftError",
    "Package",
    "Pass",
    "Pipeline",
    "Report",
    "__version__",
    "load",
    "option",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "errors": ("OvgraftError",),
        "graft": ("Graft", "Package", "load"),
        "noderef": ("NodeRef",),
        "passbase": ("Context", "Edit", "Pass", "option"),
        "pipeline": ("Pipeline", "Report"),
    },
)
