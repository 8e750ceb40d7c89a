"""SpecForge DSpark: z-lab's layout, the head's fields in ``dflash_config``, no embedding and no output layer."""

from __future__ import annotations

from ovgraft.drafts.formats.base import Format, Found, LayerIds
from ovgraft.drafts.formats.keys import DFLASH_CONFIG
from ovgraft.drafts.spec import Family

_HEADS = ("markov_head.", "confidence_head.")
_TENSORS = (
    "markov_head.markov_w1.weight",
    "markov_head.markov_w2.weight",
    "markov_head.gate_proj.weight",
    "markov_head.gate_proj.bias",
    "markov_head.joint_proj.weight",
    "markov_head.joint_proj.bias",
    "confidence_head.proj.weight",
    "confidence_head.proj.bias",
)


def _says_dspark(found: Found) -> bool:
    return found.value("projector_type") == "dspark" or "DSpark" in found.architecture


def _matches(found: Found) -> bool:
    return found.has_tensor(*_HEADS, "logit_head.") or _says_dspark(found) or bool(found.value("markov_rank"))


FORMAT = Format(
    name="specforge",
    title="SpecForge DSpark",
    matches=_matches,
    family=lambda found: Family.DSPARK,
    layer_ids=LayerIds(),
    # A DFlash draft that was given a Markov head looks the same and may keep DFlash's rows.
    candidate_position_offset=lambda found, family: 0 if _says_dspark(found) else None,
    sliding_causal=lambda family: True,
    known_keys={"dflash_config": DFLASH_CONFIG},
    # Early checkpoints keep the heads in a container.
    renames={f"logit_head.{name}": name for name in _TENSORS},
)
