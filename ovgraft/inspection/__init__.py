"""What a model is made of: one tree of plain data, one collector, and renderers that read nothing but the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovgraft._lazy import attach

if TYPE_CHECKING:
    from ovgraft.inspection.as_text import render_text
    from ovgraft.inspection.collect import collect_model
    from ovgraft.inspection.packages import inspect, is_graft
    from ovgraft.inspection.request import Request
    from ovgraft.inspection.tree import Inspection, ModelInfo, PackageInfo

__all__ = ["Inspection", "ModelInfo", "PackageInfo", "Request", "collect_model", "inspect", "is_graft", "render_text"]

__getattr__, __dir__ = attach(
    __name__,
    {
        "as_text": ("render_text",),
        "collect": ("collect_model",),
        "packages": ("inspect", "is_graft"),
        "request": ("Request",),
        "tree": ("Inspection", "ModelInfo", "PackageInfo"),
    },
)
