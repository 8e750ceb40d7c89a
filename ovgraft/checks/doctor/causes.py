"""Why is nothing accepted? The usual causes, measured where they can be and named where not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ovgraft import ir
from ovgraft.checks.doctor.facts import PairFacts
from ovgraft.checks.doctor.offset import cut_rows
from ovgraft.checks.grafts import graft_of
from ovgraft.checks.pair import Taps
from ovgraft.checks.speculate import Acceptance, Speculator, Text, rows_cut
from ovgraft.drafts import find_result, read_draft, redirect
from ovgraft.drafts.contract import Key, Port
from ovgraft.errors import OvgraftError, Reason
from ovgraft.graft import Graft

_CLEARLY = 0.2
"""How much more must agree, or be accepted per step, for another reading to be the likely one."""


def shifted_rows(found: Acceptance) -> tuple[Reason, ...]:
    """Candidates that are right for the token before or behind the one they stand for."""
    right = found.agreement(0)
    for shift, offset in ((1, 0), (-1, 1)):
        if found.agreement(shift) >= right + _CLEARLY:
            where = "behind" if shift > 0 else "before"
            text = (
                f"{found.agreement(shift):.0%} of the candidates are the token {where} the one they stand for "
                f"({right:.0%} are right): the draft is read with offset {1 - offset}, its rows mean offset {offset}"
            )
            return (Reason("wrong-offset", text),)
    return ()


def try_out(graft: Graft, pair: PairFacts, texts: Sequence[Text], candidates: int, device: str) -> tuple[Reason, ...]:
    """Measure the pair again, read in other ways; those that get more accepted come back."""
    reasons = []
    for code, what, other, taps in _readings(graft, pair):
        try:
            found = Speculator(other, taps, candidates, device=device).measure(texts)
        except OvgraftError:
            continue  # this reading is none
        if found.tokens_per_step >= 1 + _CLEARLY:
            reasons.append(Reason(code, f"with {what} {found.tokens_per_step:.3f} tokens per step are accepted"))
    return tuple(reasons)


def _readings(graft: Graft, pair: PairFacts) -> Iterator[tuple[str, str, Graft, Taps]]:
    layers, count = pair.layers() or (), len(pair.structure.layers)
    if find_result(graft.target.model, Port.LAST_HIDDEN_STATE) is None:
        for shift in (1, -1):
            moved = tuple(layer + shift for layer in layers)
            if all(0 <= layer < count for layer in moved):
                listed = ", ".join(map(str, moved))
                yield (
                    "wrong-layer",
                    f"layers {listed}, one further {'up' if shift > 0 else 'down'},",
                    graft,
                    Taps(moved),
                )
        reverse = tuple(reversed(layers))
        if len(layers) > 1:
            yield "wrong-order", "the layers in reverse order", graft, Taps(reverse)
    if pair.draft.family != "eagle3" and (other := _other_offset(graft)) is not None:
        offset = ir.get_text(other.package("draft").model, Key.CANDIDATE_POSITION_OFFSET)
        yield "wrong-offset", f"candidate offset {offset} instead of {'10'[int(offset or 0)]}", other, Taps(layers)
    scale = pair.embedding.scale
    for factor in (scale, 1.0):
        if factor is None or pair.draft.own_embedding or factor == _scale(graft):
            continue
        other = graft_of(graft.snapshot(), graft)
        ir.set_text(other.package("draft").model, Key.INPUT_EMBEDDING_SCALE, repr(factor))
        yield "wrong-scale", f"embedding rows times {factor:g}", other, Taps(layers)


def _other_offset(graft: Graft) -> Graft | None:
    """The same draft, its rows read with the other offset."""
    other = graft_of(graft.snapshot(), graft)
    draft = read_draft(other.package("draft"))
    offset = rows_cut(draft)
    if offset == 1:
        graph = ir.Graph(draft.model)
        cut = cut_rows(graph)
        if cut is None:
            return None
        kept, names = graph.output(*graph.inputs[cut[0]][0]), graph.output(cut[0]).get_names()
        redirect(graph, graph.output(cut[0]), kept)
        graph.output(cut[0]).set_names(set())
        kept.add_names(names)
        draft.model.validate_nodes_and_infer_types()
    ir.set_text(draft.model, Key.CANDIDATE_POSITION_OFFSET, str(1 - offset))
    return other


def _scale(graft: Graft) -> float:
    return float(ir.get_text(graft.package("draft").model, Key.INPUT_EMBEDDING_SCALE) or 1)


def advice(measured: Sequence[Reason], pair: PairFacts) -> str:
    """What to do: the measured cause, else what is left once the checks before have excluded the rest."""
    fixes = {
        "wrong-offset": "correct candidate_position_offset",
        "wrong-layer": "correct the layer ids: they are counted by another convention",
        "wrong-order": "correct the order of the layer ids",
        "wrong-scale": "correct input_embedding_scale",
    }
    if measured:
        return "; ".join(dict.fromkeys(fixes[reason.code] for reason in measured))
    head = ", a Markov head that is left out here" if _has_head(pair) else ""
    return (
        "likely causes: layer ids of another convention, another candidate offset, another embedding scale, another "
        f"mask token, a draft of another target or of another chat template{head}; random prompts or an untrained "
        "draft also give 1.000: try --prompts with real text"
    )


def _has_head(pair: PairFacts) -> bool:
    checkpoint = pair.draft.checkpoint
    if checkpoint is not None:
        return checkpoint.spec.head.rank > 0
    return ir.get_text(pair.draft.package.model, Key.MARKOV_RANK) not in (None, "0")
