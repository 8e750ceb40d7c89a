"""z-lab DFlash v1: ``fc``, ``hidden_norm``, decoder layers; no embedding, no output layer."""

from __future__ import annotations

from ovgraft.drafts.formats.base import Format, Found, LayerIds
from ovgraft.drafts.formats.keys import DFLASH_CONFIG
from ovgraft.drafts.spec import Family


def _offset(found: Found, family: Family) -> int | None:
    # DeepSpec files without a head differ from this format by their tables and their row offset alone.
    return None if found.own_tables and not found.pruned else 1


FORMAT = Format(
    name="zlab_dflash",
    title="z-lab DFlash",
    matches=lambda found: True,
    family=lambda found: Family.DFLASH,
    layer_ids=LayerIds(),
    candidate_position_offset=_offset,
    sliding_causal=lambda family: True,
    known_keys={"dflash_config": DFLASH_CONFIG},
)
