"""The two tables a draft borrows: token embedding and output layer."""

from __future__ import annotations

from ovgraft import decoder, drafts, ir
from ovgraft.checks.doctor.facts import PairFacts, own_embedding
from ovgraft.checks.doctor.result import Answer, failed, not_applicable, passed, warned
from ovgraft.checks.ports import static_last
from ovgraft.drafts.contract import FileName, Key, Port
from ovgraft.drafts.tensors import LM_HEAD
from ovgraft.errors import Reason, StructureError

_FOUR_BITS = ("u4", "i4", "nf4", "f4e2m1")
_SCALE_TOLERANCE = 0.01  # exporters store sqrt(H) rounded to the model's type


def embedding(pair: PairFacts) -> Answer:
    """Rows as wide as the draft computes with."""
    source, width = pair.embedding, pair.draft.width
    numbers = {"target_width": source.width, "draft_width": width}
    if pair.draft.own_embedding:
        own = own_embedding(pair.draft)
        if own is None or width is None or own.width == width:
            return passed(f"the draft has its own, {width} wide", **numbers)
        return failed(f"the draft's own embedding is {own.width} wide, its rows {width}", "export it again", **numbers)
    if width is None:
        return failed("nothing tells how wide the draft's inputs_embeds is", "export the draft again", **numbers)
    if width != source.width:
        text = f"the draft computes with rows of {width}, the target's embedding has {source.width}"
        return failed(text, "take a draft of this target, or one with an embedding of its own", **numbers)
    return passed(f"{source.width} wide", **numbers)


def embedding_scale(pair: PairFacts) -> Answer:
    """The factor on embedding rows: a draft takes bare rows, whatever the target multiplies them by."""
    draft, target_scale = pair.draft, pair.embedding.scale
    if draft.own_embedding and draft.checkpoint is None:
        return not_applicable("the draft embeds by itself")
    scale = 1.0
    if draft.checkpoint is not None:
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
        graph, weight, whose = draft.graph, ir.weight_root(own.weight), "the draft's own"
        found.append(graph.ref(graph.index(own.matmul)))
    else:
        head = pair.structure.lm_head
        graph, weight, whose = (
            pair.structure.graph,
            ir.weight_root(head.weight),
            "the target's, which the draft shares,",
        )
        found.append(graph.ref(graph.index(head.matmul)))
    kind = "unknown" if weight is None else weight.format
    node = Reason("lm-head", kind, tuple(found))
    if kind in _FOUR_BITS:
        advice = "compress it to 8 bits when you export; drafting stays correct either way"
        text = f"output layer: {whose} is {kind}; acceptance is lower than with 8 bits"
        return warned(text, advice, node, lm_head=kind)
    return passed(f"output layer: {whose} is {kind}", node, lm_head=kind)


def markov_head(pair: PairFacts) -> Answer:
    """Rank, type and file of the head agree, its ports keep the contract, its tables are not compressed."""
    from ovgraft.drafts import markov
    from ovgraft.drafts.spec import HeadType

    draft = pair.draft
    if draft.checkpoint is not None:
        head = draft.checkpoint.spec.head
        if head.type is HeadType.NONE:
            return not_applicable("the draft has no Markov head")
        return passed(f"{head.type} head of rank {head.rank}", type=str(head.type), rank=head.rank)
    package = draft.package
    reasons = markov.package_reasons(package, pair.structure.lm_head.vocab_size)
    if reasons:
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        advice = "build it again from the draft's checkpoint: pack-markov-head"
        return failed(f"{reasons[0].message}{more}", advice, *reasons)
    model = package.get(FileName.MARKOV_HEAD)
    if model is None:
        config = package.config
        nested = config.get("dflash_config")
        places = [config, nested if isinstance(nested, dict) else {}]
        rank = next((place["markov_rank"] for place in places if place.get("markov_rank")), 0)
        if rank and ir.get_text(package.model, Key.MARKOV_RANK) is None:
            text = f"config.json speaks of a Markov head of rank {rank}; the IR does not and there is no head file"
            return warned(text, "run pack-markov-head on the checkpoint; without it tokens are the plain argmax")
        return not_applicable("the draft has no Markov head")
    facts = markov.read_facts(model)
    text = f"{facts.type} head of rank {facts.rank} over {facts.vocab_size} tokens"
    return passed(text, type=str(facts.type), rank=facts.rank, top_k=facts.top_k)
