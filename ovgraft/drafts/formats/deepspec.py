"""DeepSpec DSpark: every key at the top, usually frozen copies of the target's embedding and output layer in the file.

``markov_rank`` 0 is the headless draft DeepSpec calls DFlash; its rows are DSpark's.
"""

from __future__ import annotations

from ovgraft.drafts.formats.base import Format, Found, LayerIds
from ovgraft.drafts.formats.keys import DFLASH_CONFIG
from ovgraft.drafts.spec import EMBEDDING_OUTPUT, Family

LAYER_IDS = LayerIds(embedding_output=EMBEDDING_OUTPUT, increasing=True)

_KEYS = ("num_anchors", "markov_rank", "enable_confidence_head")


def is_deepspec(found: Found) -> bool:
    """Layer ids at the top with other keys DeepSpec's model class asks for, or tables with a sign of DSpark.

    Other trainers keep both in ``dflash_config`` and no tables; converted files have the keys in two places.
    """
    if found.value("projector_type") is not None or found.config.get("target_layer_ids") is None:
        return False
    if any(found.config.get(key) is not None for key in _KEYS):
        return True
    return found.own_tables and (found.has_tensor("markov_head.") or "DSpark" in found.architecture)


def offset(found: Found, family: Family) -> int | None:
    """0, unless the file is a DFlash draft that was given a Markov head: nothing tells what its rows mean."""
    trained_by_deepspec = any(found.config.get(key) is not None for key in ("num_anchors", "enable_confidence_head"))
    return 0 if "DSpark" in found.architecture or trained_by_deepspec else None


FORMAT = Format(
    name="deepspec",
    title="DeepSpec DSpark",
    matches=lambda found: is_deepspec(found) and not found.pruned,
    family=lambda found: Family.DSPARK,
    layer_ids=LAYER_IDS,
    candidate_position_offset=offset,
    sliding_causal=lambda family: False,
    known_keys={"dflash_config": DFLASH_CONFIG},
    frozen_copies=True,
)
