"""ModelOpt DSpark: z-lab's layout, the tensors of the Markov head named without ``markov_head``."""

from __future__ import annotations

from ovgraft.drafts.formats.base import Format, LayerIds
from ovgraft.drafts.formats.keys import DFLASH_CONFIG
from ovgraft.drafts.spec import Family

_RENAMES = {
    "markov_w1.weight": "markov_head.markov_w1.weight",
    "markov_w2.weight": "markov_head.markov_w2.weight",
    "gate_proj.weight": "markov_head.gate_proj.weight",
    "gate_proj.bias": "markov_head.gate_proj.bias",
    "joint_proj.weight": "markov_head.joint_proj.weight",
    "joint_proj.bias": "markov_head.joint_proj.bias",
    "confidence_proj.weight": "confidence_head.proj.weight",
    "confidence_proj.bias": "confidence_head.proj.bias",
}

FORMAT = Format(
    name="modelopt",
    title="ModelOpt DSpark",
    matches=lambda found: any(name in found.weights for name in _RENAMES),
    family=lambda found: Family.DSPARK,
    layer_ids=LayerIds(),
    # A file without `shift_label` is told by its head: ModelOpt trains DSpark heads with shifted labels only.
    candidate_position_offset=lambda found, family: 0,
    sliding_causal=lambda family: True,
    known_keys={"dflash_config": DFLASH_CONFIG},
    renames=_RENAMES,
    renames_always=True,
)
