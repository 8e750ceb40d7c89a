"""z-lab DFlash-2: DFlash v1 plus convolutions in every layer and a candidate selector."""

from __future__ import annotations

from ovgraft.drafts.formats.base import Format, Found, LayerIds
from ovgraft.drafts.formats.keys import DFLASH_CONFIG
from ovgraft.drafts.spec import Family


def is_dflash2(found: Found) -> bool:
    """Any sign of DFlash-2 counts: read as v1, such a file would lose its convolutions or selector silently."""
    convolutions = any(".attention_conv." in name or ".mlp_conv." in name for name in found.weights)
    keys = ("selector_rank", "selector_top_k", "conv_kernel_size", "conv_group_size")
    return (
        convolutions
        or found.has_tensor("candidate_selector.")
        or any(found.value(key) is not None for key in keys)
        or "DFlash2" in found.architecture
    )


SELECTOR_RENAMES = {
    # Embedding modules in some trainers, plain parameters in the published files.
    "candidate_selector.predecessor_codebook.weight": "candidate_selector.predecessor_codebook",
    "candidate_selector.successor_codebook.weight": "candidate_selector.successor_codebook",
}

FORMAT = Format(
    name="zlab_dflash2",
    title="z-lab DFlash-2",
    matches=is_dflash2,
    family=lambda found: Family.DFLASH2,
    layer_ids=LayerIds(),
    candidate_position_offset=lambda found, family: 1,
    sliding_causal=lambda family: True,
    known_keys={"dflash_config": DFLASH_CONFIG},
    renames=SELECTOR_RENAMES,
)
