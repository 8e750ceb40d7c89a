"""Which of the models ovgraft knows an IR is, told by its ports and metadata; a description, not a promise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import openvino as ov

from ovgraft import ir
from ovgraft.drafts.contract import Key, Port

if TYPE_CHECKING:
    from ovgraft.drafts.draft_ir import DraftIr

ModelKind = Literal["decoder", "dflash draft", "eagle3 draft", "text embeddings", "markov head", "other"]

_HEAD_OUTPUTS = {Port.MARKOV_BIAS, Port.EDGE_SCORES, Port.CANDIDATE_IDS, Port.CONFIDENCE}


def port_names(ports: list[ov.Output]) -> set[str]:
    """All tensor names of some ports."""
    return {name for port in ports for name in port.names}


def model_kind(model: ov.Model) -> ModelKind:
    """The kind of an IR.

    A draft whose metadata is gone is told by ports that only its family has.
    """
    inputs, outputs = port_names(model.inputs), port_names(model.outputs)
    if outputs & _HEAD_OUTPUTS:
        return "markov head"
    if Port.HIDDEN_STATES in inputs:
        if any(ir.get_text(model, key) is not None for key in (Key.DFLASH_MODE, Key.TARGET_LAYER_IDS)):
            return "dflash draft"
        if ir.get_text(model, Key.EAGLE3_MODE) is not None or Port.D2T in outputs:
            return "eagle3 draft"
        if Port.LAST_HIDDEN_STATE in outputs:
            return "dflash draft"
        return "other"
    if Port.LOGITS in outputs and inputs & {Port.INPUT_IDS, Port.INPUTS_EMBEDS}:
        return "decoder"
    return "text embeddings" if _is_text_embeddings(model) else "other"


def draft_family(draft: DraftIr) -> str:
    """``dflash``, ``dflash2``, ``dspark`` or ``eagle3``; DFlash IRs of all kinds have the same ports."""
    if draft.family == "eagle3":
        return "eagle3"
    head = ir.get_text(draft.model, Key.MARKOV_HEAD_TYPE)
    if head == "dflash2" or ir.get_text(draft.model, Key.VERSION) == "2":
        return "dflash2"
    return "dspark" if head or ir.get_text(draft.model, Key.CANDIDATE_POSITION_OFFSET) == "0" else "dflash"


def _is_text_embeddings(model: ov.Model) -> bool:
    if model.get_variables() or len(model.inputs) != 1 or len(model.outputs) != 1:
        return False
    ids, rows = model.inputs[0], model.outputs[0]
    if not ids.get_element_type().is_integral_number() or not rows.get_element_type().is_real():
        return False
    ranks = ids.get_partial_shape().rank, rows.get_partial_shape().rank
    return all(rank.is_static for rank in ranks) and ranks[0].get_length() == 2 and ranks[1].get_length() in (3, 4)
