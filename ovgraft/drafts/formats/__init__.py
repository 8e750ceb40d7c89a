"""Published checkpoint formats, one a file, and which of them a folder holds."""

from __future__ import annotations

from ovgraft.drafts.formats import (
    deepspec,
    deepspec_pruned,
    modelopt,
    specforge,
    speculators,
    zlab,
    zlab_dflash2,
)
from ovgraft.drafts.formats.base import Format, Found
from ovgraft.errors import CheckpointError

__all__ = ["FORMATS", "Format", "Found", "detect"]

FORMATS: tuple[Format, ...] = (
    speculators.FORMAT,
    zlab_dflash2.FORMAT,
    modelopt.FORMAT,
    deepspec_pruned.FORMAT,
    deepspec.FORMAT,
    specforge.FORMAT,
    zlab.FORMAT,
)
"""In the order they are asked; the last one takes what no other claims."""


def detect(found: Found) -> Format:
    """The format of a checkpoint, told by its tensors and keys.

    Architecture names count only together with them: one name stands for several formats, and one format has several.

    Raises:
        CheckpointError: It is a draft of a family that is not read here.
    """
    _refuse_other_families(found)
    return next(form for form in FORMATS if form.matches(found))


def _refuse_other_families(found: Found) -> None:
    eagle3 = found.has_tensor("midlayer.", "layers.0.hidden_norm.") or "eagle3" in found.architecture.lower()
    if eagle3 or found.config.get("speculators_model_type") == "eagle3":
        raise CheckpointError(
            "an Eagle-3 draft, whose checkpoints are not read",
            key="architectures",
            file=found.file,
            found=found.architecture or "Eagle-3 tensors",
            hint="export it with optimum-intel; ovgraft grafts the exported IR",
        )
    if found.config.get("dspark_target_layer_ids") is not None and found.value("target_layer_ids") is None:
        raise CheckpointError(
            "a whole target model with a draft inside, not a draft",
            key="dspark_target_layer_ids",
            file=found.file,
            found=found.architecture or found.config.get("model_type"),
        )
    projector = found.value("projector_type")
    if projector not in (None, "dflash", "dflash2", "dspark"):
        raise CheckpointError(
            "a draft head that is not read",
            key="projector_type",
            file=found.file,
            expected="dflash, dflash2 or dspark",
            found=repr(projector),
        )
