"""speculators (DFlash, DSpark, DFlash-2): the transformer config nested and without its defaults, layer ids as inputs.

Embedding and output layer are saved only by some versions; ``t2d`` and ``d2t`` only with a draft vocabulary.
"""

from __future__ import annotations

from ovgraft.drafts.formats.base import Format, Found, LayerIds
from ovgraft.drafts.formats.keys import SPECULATORS
from ovgraft.drafts.formats.zlab_dflash2 import SELECTOR_RENAMES
from ovgraft.drafts.spec import Family
from ovgraft.errors import CheckpointError


def _matches(found: Found) -> bool:
    keys = ("speculators_model_type", "speculators_config", "transformer_layer_config")
    return any(key in found.config for key in keys)


def _family(found: Found) -> Family:
    name = found.config.get("speculators_model_type")
    if name not in list(Family):
        raise CheckpointError(
            "a speculators draft of a family that is not read",
            key="speculators_model_type",
            file=found.file,
            expected=", ".join(Family),
            found=repr(name),
        )
    return Family(name)


def _offset(found: Found, family: Family) -> int | None:
    """What holds without ``sample_from_anchor``, which is younger than the first files of this format.

    Trainer and servers agree that DFlash and DFlash-2 do not sample from the anchor; for DSpark their defaults differ.
    The number of proposed tokens settles it: ``block_size`` when the anchor row is a candidate, else one less.
    """
    convention = 0 if family is Family.DSPARK else 1
    stated = found.config.get("speculators_config")
    methods = stated.get("proposal_methods") if isinstance(stated, dict) else None
    first = methods[0] if isinstance(methods, list) and methods else None
    count = first.get("speculative_tokens") if isinstance(first, dict) else None
    block = found.config.get("block_size")
    if type(count) is not int or type(block) is not int:
        return None if family is Family.DSPARK else convention
    return convention if block - count == convention else None


FORMAT = Format(
    name="speculators",
    title="speculators",
    matches=_matches,
    family=_family,
    layer_ids=LayerIds(
        key="aux_hidden_state_layer_ids", meaning="input of layer i", first_output=1, embedding_output=0
    ),
    candidate_position_offset=_offset,
    # The trainer's defaults of `sliding_window_non_causal`.
    sliding_causal=lambda family: family is not Family.DFLASH2,
    sections=("transformer_layer_config",),
    known_keys={"": SPECULATORS},
    renames=SELECTOR_RENAMES,
    class_defaults=True,
)
