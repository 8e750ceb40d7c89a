from __future__ import annotations

import pytest

from ovgraft import ir
from ovgraft.drafts import markov
from ovgraft.drafts.contract import Key
from ovgraft.drafts.markov import Computation, build_head, select_computation, set_top_k
from ovgraft.drafts.spec import HeadType
from ovgraft.errors import PreconditionError, StructureError
from tests.drafts.markov.heads import names, random_head

SHARED = ["draft_logits", "anchor_token_ids", "block_begins"]
CASES = [
    (HeadType.VANILLA, "dense", ["prev_token_ids"], ["markov_bias"]),
    (HeadType.VANILLA, "scorer", SHARED, ["candidate_ids", "edge_scores"]),
    (HeadType.VANILLA, "confidence", ["prev_token_ids", "draft_hidden_states"], ["confidence"]),
    (HeadType.GATED, "dense", ["prev_token_ids", "draft_hidden_states"], ["markov_bias"]),
    (HeadType.GATED, "scorer", [*SHARED, "draft_hidden_states"], ["candidate_ids", "edge_scores"]),
    (
        *(HeadType.RNN, "dense"),
        *(["prev_token_ids", "draft_hidden_states", "rnn_state"], ["markov_bias", "next_rnn_state"]),
    ),
    (HeadType.DFLASH2, "scorer", [*SHARED, "draft_hidden_states"], ["candidate_ids", "edge_scores"]),
]


@pytest.mark.parametrize(("head", "keep", "inputs", "outputs"), CASES)
def test_one_computation_and_nothing_dead(head: HeadType, keep: str, inputs: list[str], outputs: list[str]) -> None:
    with_confidence = head is not HeadType.DFLASH2
    model = build_head(random_head(head, confidence=with_confidence), confidence=with_confidence)
    before = {*names(model.inputs), *names(model.outputs)}
    gone = select_computation(model, Computation(keep))
    assert names(model.inputs) == inputs
    assert names(model.outputs) == outputs
    assert set(gone) == before - {*inputs, *outputs}
    assert markov.head_reasons(model) == ()
    facts = ir.flatten(model)
    assert facts[Key.TOP_K] == ("64" if keep == "scorer" else "0")
    assert (Key.HIDDEN_SIZE in facts) == ("draft_hidden_states" in inputs)
    assert Key.SELECT_COMPUTATION not in facts
    kept = {node.get_friendly_name() for node in model.get_ordered_ops()}
    assert (markov.TOP_K_CONSTANT in kept) == (keep == "scorer")
    assert ("markov_w2" in kept) == (keep != "confidence")
    assert select_computation(model, Computation(keep)) == []


def test_a_computation_the_head_does_not_have() -> None:
    with pytest.raises(PreconditionError, match="no dense computation: found scorer"):
        select_computation(build_head(random_head(HeadType.DFLASH2)), Computation.DENSE)
    with pytest.raises(PreconditionError, match="no scorer computation"):
        select_computation(build_head(random_head(HeadType.RNN)), Computation.SCORER)


@pytest.mark.parametrize("vocab", [300, 6400])
@pytest.mark.parametrize("k", [1, 16, 300])
def test_shapes_follow_k(vocab: int, k: int) -> None:
    model = build_head(random_head(HeadType.VANILLA, vocab=vocab))
    assert set_top_k(model, k) == 64
    assert str(model.output("candidate_ids").partial_shape) == f"[?,{k}]"
    assert str(model.output("edge_scores").partial_shape) == f"[?,{k},{k}]"
    assert ir.get_text(model, Key.TOP_K) == str(k)
    assert markov.head_reasons(model) == ()
    assert set_top_k(model, k) == k


@pytest.mark.parametrize("k", [0, -3, 41])
def test_k_out_of_range_changes_nothing(k: int) -> None:
    model = build_head(random_head(HeadType.VANILLA, draft_vocab=40))
    with pytest.raises(PreconditionError, match="1 to 40, the draft vocabulary"):
        set_top_k(model, k)
    assert ir.get_text(model, Key.TOP_K) == "40"


def test_no_scorer_no_k() -> None:
    with pytest.raises(PreconditionError, match="has no scorer"):
        set_top_k(build_head(random_head(HeadType.RNN)), 4)
    model = build_head(random_head(HeadType.VANILLA))
    select_computation(model, Computation.DENSE)
    with pytest.raises(PreconditionError, match="has no scorer"):
        set_top_k(model, 4)


def test_an_unnamed_k_is_not_guessed() -> None:
    model = build_head(random_head(HeadType.VANILLA))
    for node in model.get_ordered_ops():
        if node.get_friendly_name() == markov.TOP_K_CONSTANT:
            node.set_friendly_name("k")
    with pytest.raises(StructureError, match="markov_head_top_k"):
        set_top_k(model, 4)
