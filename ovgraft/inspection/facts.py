"""What drafts, Markov heads and grafted models say about themselves, each value with where it was read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ovgraft.drafts.contract import Key, RtPath
from ovgraft.drafts.kinds import draft_family
from ovgraft.inspection.tree import FactInfo

if TYPE_CHECKING:
    from ovgraft.drafts.draft_ir import DraftIr

_HEAD_FACTS: dict[str, RtPath] = {
    "head type": Key.MARKOV_HEAD_TYPE,
    "head rank": Key.MARKOV_RANK,
    "candidates per row": Key.TOP_K,
    "target vocabulary": Key.VOCAB_SIZE,
    "draft vocabulary": Key.DRAFT_VOCAB_SIZE,
    "hidden width": Key.HIDDEN_SIZE,
}
_GRAFT_FACTS: dict[str, RtPath] = {
    "pipeline": Key.PIPELINE,
    "exposed states": Key.EXPOSED,
    "moved FC": Key.MOVED_FC,
    "attached": Key.APPLIED,
    "weights digest": Key.BIN_DIGEST,
}


_SHORT = 12  # characters of a digest that people compare


def draft_facts(draft: DraftIr, rt_info: Mapping[str, str], config: Mapping[str, Any]) -> tuple[FactInfo, ...]:
    """The facts of a draft IR.

    Args:
        draft: What was read.
        rt_info: Its metadata, paths joined with ``/``.
        config: config.json beside it.
    """

    def source(*keys: RtPath) -> str:
        for key in keys:
            if "/".join(key) in rt_info:
                return f"rt_info {'/'.join(key)}"
        places = {"": config, "dflash_config.": config.get("dflash_config") or {}}
        for key in keys:
            for prefix, place in places.items():
                if place.get(key[-1]) is not None:
                    return f"config.json {prefix}{key[-1]}"
        return "default"

    told_by = source(Key.MARKOV_HEAD_TYPE, Key.VERSION, Key.DFLASH_MODE, Key.EAGLE3_MODE).replace("default", "ports")
    facts = [FactInfo("family", draft_family(draft), told_by)]
    if draft.target_layer_ids is not None:
        layers = ", ".join(map(str, draft.target_layer_ids))
        facts.append(FactInfo("target layers", layers, source(Key.TARGET_LAYER_IDS, Key.HIDDEN_LAYERS_LIST)))
    if draft.hidden_width is not None:
        facts.append(FactInfo("hidden_states width", str(draft.hidden_width), "graph"))
    facts.append(FactInfo("FC", _fc(draft), "graph"))
    if draft.family == "dflash":
        path = "/".join(Key.CANDIDATE_POSITION_OFFSET)
        said = (rt_info[path], f"rt_info {path}") if path in rt_info else ("1", "default")
        facts.append(FactInfo("candidate offset", *said))
    for name, value, key in (
        ("mask token", draft.mask_token_id, Key.MASK_TOKEN_ID),
        ("block size", draft.block_size, Key.BLOCK_SIZE),
        ("target vocabulary", draft.vocab_size, Key.VOCAB_SIZE),
    ):
        if value is not None:
            facts.append(FactInfo(name, str(value), source(key)))
    if draft.draft_vocab_size is not None and (draft.d2t is not None or draft.draft_vocab_size != draft.vocab_size):
        mapped = ", mapped by d2t" if draft.d2t is not None else ""
        facts.append(FactInfo("draft vocabulary", f"{draft.draft_vocab_size}{mapped}", "graph"))
    for name, number, key in (
        ("embedding scale", draft.input_embedding_scale, Key.INPUT_EMBEDDING_SCALE),
        ("output multiplier", draft.output_multiplier, Key.OUTPUT_MULTIPLIER),
        ("logit soft cap", draft.final_logit_softcapping, Key.FINAL_LOGIT_SOFTCAPPING),
    ):
        if source(key) != "default":
            facts.append(FactInfo(name, f"{number:g}", source(key)))
    return (*facts, *head_facts(rt_info, ("head type", "head rank")))


def head_facts(rt_info: Mapping[str, str], names: tuple[str, ...] = tuple(_HEAD_FACTS)) -> tuple[FactInfo, ...]:
    """What is said about a Markov head; keys count with and without their ``dflash/``."""
    facts = []
    for name in names:
        key = _HEAD_FACTS[name]
        for path in ("/".join(key), key[-1]):
            if path in rt_info:
                facts.append(FactInfo(name, rt_info[path], f"rt_info {path}"))
                break
    return tuple(facts)


def graft_facts(rt_info: Mapping[str, str]) -> tuple[FactInfo, ...]:
    """What ovgraft wrote into the model."""
    facts = []
    for name, key in _GRAFT_FACTS.items():
        path = "/".join(key)
        if path in rt_info:
            facts += [FactInfo(part, value, f"rt_info {path}") for part, value in _record(name, rt_info[path])]
    return tuple(facts)


def _fc(draft: DraftIr) -> str:
    if draft.fc is not None:
        bias = ", with bias" if draft.fc.bias is not None else ""
        return f"{draft.fc.in_width} -> {draft.fc.out_width}, {draft.fc.weight.format}{bias}"
    if draft.moved_fc is not None:
        return "moved into the target"
    return "none that could move: " + "; ".join(map(str, draft.fc_reasons))


def _record(name: str, text: str) -> list[tuple[str, str]]:
    """A JSON record in words, as name and value; any other text as it is."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        return [(name, text)]
    if name == "exposed states" and isinstance(record.get("layers"), list):
        layers = ", ".join(map(str, record["layers"]))
        return [(name, f"layers {layers}, convention {record.get('convention', 'output')}")]
    if name == "moved FC" and {"in_width", "out_width", "digest"} <= record.keys():
        return [(name, f"{record['in_width']} -> {record['out_width']}, digest {str(record['digest'])[:_SHORT]}")]
    return [(f"{name} {part}", _values(said)) for part, said in record.items()]


def _values(said: object) -> str:
    if not isinstance(said, dict):
        return str(said)
    return ", ".join(f"{key} {str(value)[:_SHORT]}" for key, value in said.items())
