"""Pipelines of passes: their forms, the registry of names, the run loop, hooks and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovgraft._lazy import attach

if TYPE_CHECKING:
    from ovgraft.pipeline.hooks import Dump, Hook, PassRun, Progress, Reproducer, Sizes, Timing, Verify
    from ovgraft.pipeline.options import OptionInfo, describe_options
    from ovgraft.pipeline.pipeline import Pipeline, parse
    from ovgraft.pipeline.presets import Preset, list_presets, preset
    from ovgraft.pipeline.registry import Listed, get_pass, list_passes, pass_names
    from ovgraft.pipeline.report import PassRecord, Report, Size
    from ovgraft.pipeline.run import execute
    from ovgraft.pipeline.toml import PipelineFile

__all__ = [
    "Dump",
    "Hook",
    "Listed",
    "OptionInfo",
    "PassRecord",
    "PassRun",
    "Pipeline",
    "PipelineFile",
    "Preset",
    "Progress",
    "Report",
    "Reproducer",
    "Size",
    "Sizes",
    "Timing",
    "Verify",
    "describe_options",
    "execute",
    "get_pass",
    "list_passes",
    "list_presets",
    "parse",
    "pass_names",
    "preset",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "hooks": ("Dump", "Hook", "PassRun", "Progress", "Reproducer", "Sizes", "Timing", "Verify"),
        "options": ("OptionInfo", "describe_options"),
        "pipeline": ("Pipeline", "parse"),
        "presets": ("Preset", "list_presets", "preset"),
        "registry": ("Listed", "get_pass", "list_passes", "pass_names"),
        "report": ("PassRecord", "Report", "Size"),
        "run": ("execute",),
        "toml": ("PipelineFile",),
    },
)
