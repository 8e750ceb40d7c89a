"""The MiniCPM mixture: DeepSpec keys, but an own output layer over a draft vocabulary, and ``d2t``."""

from __future__ import annotations

from ovgraft.drafts.formats.base import Format
from ovgraft.drafts.formats.deepspec import LAYER_IDS, is_deepspec, offset
from ovgraft.drafts.formats.keys import DFLASH_CONFIG
from ovgraft.drafts.spec import Family

FORMAT = Format(
    name="deepspec_pruned",
    title="DeepSpec DSpark with a draft vocabulary",
    matches=lambda found: is_deepspec(found) and found.pruned,
    family=lambda found: Family.DSPARK,
    layer_ids=LAYER_IDS,
    candidate_position_offset=offset,
    sliding_causal=lambda family: False,
    known_keys={"dflash_config": DFLASH_CONFIG},
)
