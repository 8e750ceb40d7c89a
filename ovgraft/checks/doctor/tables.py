"""The two tables a draft borrows: token embedding and output layer."""

from __future__ import annotations

from ovgraft import decoder, drafts, ir
from ovgraft.checks.doctor.copies import OTHER_TABLE, embedding_distance, lm_head_distance
from ovgraft.checks.doctor.facts import PairFacts, is_attached, own_embedding
from ovgraft.checks.doctor.result import Answer, failed, not_applicable, passed, warned
from ovgraft.checks.ports import static_last
from ovgraft.drafts.contract import Port
from ovgraft.drafts.tensors import LM_HEAD
from ovgraft.errors import Reason, StructureError

_FOUR_BITS = ("u4", "i4", "nf4", "f4e2m1")
_SCALE_TOLERANCE = 0.01  # exporters store sqrt(H) rounded to the model's type


def embedding(pair: PairFacts) -> Answer:
    """Rows as wide as the draft computes with, and the target's where they should be."""
    source, draft = pair.embedding, pair.draft
    width = draft.width
    numbers: dict[str, object] = {"target_width": source.width, "draft_width": width}
    distance = embedding_distance(pair)
    if distance is not None:
        numbers["distance"] = distance
    if draft.frozen_copies and distance is not None and distance > OTHER_TABLE:
        return failed(f"the draft's copy of the embedding {_is_other(distance)}", _OTHER_TARGET, **numbers)
    if draft.own_embedding:
        own = own_embedding(draft)
        if own is not None and width is not None and own.width != width:
            text = f"the draft's own embedding is {own.width} wide, its rows {width}"
            return failed(text, "export it again", **numbers)
        if is_attached(draft, "embedding"):
            return passed(f"the target's, attached, {width} wide", **numbers)
        if draft.family == "eagle3" and distance is not None and distance > OTHER_TABLE:
            text = f"the draft's own embedding {_is_other(distance)}"
            advice = "OpenVINO GenAI puts the target's in its place; for other hosts run attach-embedding"
            return warned(text, advice, **numbers)
        return passed(f"the draft has its own, {width} wide", **numbers)
    if width is None:
        return failed("nothing tells how wide the draft's inputs_embeds is", "export the draft again", **numbers)
    if width != source.width:
        text = f"the draft computes with rows of {width}, the target's embedding has {source.width}"
        return failed(text, "take a draft of this target, or one with an embedding of its own", **numbers)
    return passed(f"{source.width} wide", **numbers)


_OTHER_TARGET = (
    "take the draft of this target: it was trained for another one, or for this one before its tables changed; "
    "build-draft{keep-copies=true} keeps the draft's own"
)


def _is_other(distance: float) -> str:
    return f"is not the target's: rows are {distance:.2f} of their length away"


def embedding_scale(pair: PairFacts) -> Answer:
    """The factor on embedding rows: a draft takes bare rows, whatever the target multiplies them by."""
    draft, target_scale = pair.draft, pair.embedding.scale
    applied = (draft.exported.applied or {}).get("embedding") if draft.exported is not None else None
    scale = 1.0
    if applied is not None:
        scale = float(applied.get("input_embedding_scale", 1.0))
    elif draft.own_embedding:
        return not_applicable("the draft embeds by itself")
    elif draft.checkpoint is not None:
        scale = draft.checkpoint.spec.input_embedding_scale
    elif draft.exported is not None:
        scale = draft.exported.input_embedding_scale
    numbers = {"target": target_scale, "draft": scale}
    if target_scale is None or abs(target_scale - scale) <= _SCALE_TOLERANCE * abs(target_scale):
        return passed(f"factor {scale:g} on embedding rows", **numbers)
    text = f"the target multiplies its embedding rows by {target_scale:g}, the draft takes bare rows times {scale:g}"
    advice = "right if it was trained so; else write input_embedding_scale into the draft's config.json"
    return warned(text, advice, **numbers)


def lm_head(pair: PairFacts) -> Answer:
    """The output layer takes rows as wide as the draft gives."""
    head, draft = pair.structure.lm_head, pair.draft
    if draft.frozen_copies and (distance := lm_head_distance(pair)) is not None and distance > OTHER_TABLE:
        return failed(f"the draft's copy of the output layer {_is_other(distance)}", _OTHER_TARGET, distance=distance)
    if is_attached(draft, "lm_head"):
        return passed("the target's, attached", draft_vocab_size=draft.draft_vocab_size)
    if draft.own_lm_head:
        return passed("the draft has its own", draft_vocab_size=draft.draft_vocab_size)
    width = draft.width
    if draft.exported is not None:
        result = drafts.find_result(draft.package.model, Port.LAST_HIDDEN_STATE)
        if result is None:
            return failed("the draft gives neither logits nor last_hidden_state", "export the draft again")
        width = static_last(result.output(0))
    numbers = {"target_width": head.width, "draft_width": width}
    graph = pair.structure.graph
    node = Reason("lm-head", f"{head.vocab_size} x {head.width}", (graph.ref(graph.index(head.matmul)),))
    if width is None:
        return warned("nothing tells how wide the draft's rows are", "export the draft again", node, **numbers)
    if width != head.width:
        text = f"the draft's rows are {width} wide, the target's output layer takes {head.width}"
        return failed(text, "take a draft of this target, or one with an output layer of its own", node, **numbers)
    return passed(f"{width} wide", node, **numbers)


def stored_format(pair: PairFacts) -> Answer:
    """Four bits in an output layer or a draft cost acceptance, more than eight do."""
    draft, found = pair.draft, []
    if draft.checkpoint is not None and LM_HEAD in draft.checkpoint.weights and draft.own_lm_head:
        kind = str(draft.checkpoint.weights.info(LM_HEAD).dtype)
        return passed(f"the draft's own output layer is {kind}", lm_head=kind)
    if draft.own_lm_head and draft.graph is not None:
        try:
            own = decoder.read_lm_head(draft.package.model, draft.graph)
        except StructureError:
            return not_applicable("the draft's output layer is not read")
        whose = "the target's, attached," if is_attached(draft, "lm_head") else "the draft's own"
        graph, weight = draft.graph, ir.weight_root(own.weight)
        found.append(graph.ref(graph.index(own.matmul)))
    else:
        head = pair.structure.lm_head
        graph, weight = pair.structure.graph, ir.weight_root(head.weight)
        whose = "the target's, which the draft shares,"
        found.append(graph.ref(graph.index(head.matmul)))
    kind = "unknown" if weight is None else weight.format
    node = Reason("lm-head", kind, tuple(found))
    if kind in _FOUR_BITS:
        advice = "compress it to 8 bits when you export; drafting stays correct either way"
        text = f"output layer: {whose} is {kind}; acceptance is lower than with 8 bits"
        return warned(text, advice, node, lm_head=kind)
    return passed(f"output layer: {whose} is {kind}", node, lm_head=kind)
