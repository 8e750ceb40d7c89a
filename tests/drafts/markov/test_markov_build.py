from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from ovgraft import ir
from ovgraft.drafts import markov, reference
from ovgraft.drafts.contract import MARKOV_PORTS, Key, Port
from ovgraft.drafts.markov import Computation, HeadRunner, build_head
from ovgraft.drafts.spec import HeadType
from ovgraft.errors import PreconditionError
from tests.drafts.markov.heads import (
    ALL,
    HIDDEN,
    RANK,
    VOCABULARY,
    WITH_DENSE,
    WITH_SCORER,
    names,
    random_blocks,
    random_head,
)

INPUTS = {
    HeadType.VANILLA: ["draft_logits", "anchor_token_ids", "block_begins", "prev_token_ids"],
    HeadType.GATED: ["draft_logits", "anchor_token_ids", "block_begins", "prev_token_ids", "draft_hidden_states"],
    HeadType.RNN: ["prev_token_ids", "draft_hidden_states", "rnn_state"],
    HeadType.DFLASH2: ["draft_logits", "anchor_token_ids", "block_begins", "draft_hidden_states"],
}
OUTPUTS = {
    HeadType.VANILLA: ["markov_bias", "candidate_ids", "edge_scores"],
    HeadType.GATED: ["markov_bias", "candidate_ids", "edge_scores"],
    HeadType.RNN: ["markov_bias", "next_rnn_state"],
    HeadType.DFLASH2: ["candidate_ids", "edge_scores"],
}


@pytest.mark.parametrize("head", ALL)
def test_ports_are_the_contract(head: HeadType) -> None:
    model = build_head(random_head(head), top_k=None if head is HeadType.RNN else 16)
    assert names(model.inputs) == INPUTS[head]
    assert names(model.outputs) == OUTPUTS[head]
    sizes = {"V": VOCABULARY, "r": RANK, "H": HIDDEN, "K": 16}
    for port in (*model.inputs, *model.outputs):
        kind = MARKOV_PORTS[Port(port.any_name)]
        assert port.get_element_type().get_type_name() == kind.element_type
        dims = ",".join(str(sizes.get(dim, "?")) for dim in kind.dims)
        assert str(port.partial_shape) == f"[{dims}]"
        assert port.get_node().get_friendly_name() == port.any_name


@pytest.mark.parametrize("head", ALL)
@pytest.mark.parametrize("draft_vocab", [None, 40])
def test_metadata(head: HeadType, draft_vocab: int | None) -> None:
    model = build_head(random_head(head, draft_vocab=draft_vocab))
    wanted = {
        Key.MARKOV_HEAD_TYPE: str(head),
        Key.MARKOV_RANK: "8",
        Key.TOP_K: "0" if head is HeadType.RNN else "64" if draft_vocab is None else "40",
        Key.VOCAB_SIZE: "300",
    }
    if head is not HeadType.VANILLA:
        wanted[Key.HIDDEN_SIZE] = "16"
    if draft_vocab is not None:
        wanted[Key.DRAFT_VOCAB_SIZE] = "40"
    if head is HeadType.GATED:
        wanted[Key.SELECT_COMPUTATION] = '{"draft_hidden_states": {"dense": "[M, H]", "scorer": "[R, H]"}}'
    assert ir.flatten(model) == wanted
    assert markov.head_reasons(model) == ()


@pytest.mark.parametrize("head", WITH_DENSE)
@pytest.mark.parametrize("draft_vocab", [None, 40])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_dense_step_equals_the_formula(head: HeadType, draft_vocab: int | None, dtype: str, precision: str) -> None:
    weights = random_head(head, draft_vocab=draft_vocab, dtype=dtype)
    runner = HeadRunner(build_head(weights), config={"INFERENCE_PRECISION_HINT": precision})
    random = np.random.default_rng(3)
    previous = random.integers(0, VOCABULARY, 9)
    hidden = None if head is HeadType.VANILLA else random.standard_normal((9, HIDDEN)).astype(np.float32)
    state = random.standard_normal((9, RANK)).astype(np.float32) if head is HeadType.RNN else None
    bias, next_state = runner.dense(previous, hidden, state)
    wanted, wanted_state = weights.reference().step(previous, hidden, state)
    tolerance = 2e-5 if precision == "f32" else 0.2
    np.testing.assert_allclose(bias, wanted, atol=tolerance)
    assert (head is HeadType.RNN) == (next_state is not None)
    if next_state is not None:
        np.testing.assert_allclose(next_state, wanted_state, atol=tolerance)
    if weights.d2t is not None:
        outside = np.setdiff1d(np.arange(VOCABULARY), reference.target_ids(weights.d2t))
        assert (bias[:, outside] == 0).all()


@pytest.mark.parametrize("head", WITH_SCORER)
@pytest.mark.parametrize("draft_vocab", [None, 120])
@pytest.mark.parametrize("k", [1, 5, 16, 64, "V"])
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_scorer_equals_the_formula(head: HeadType, draft_vocab: int | None, k: int | str, precision: str) -> None:
    weights = random_head(head, draft_vocab=draft_vocab)
    top_k = weights.max_top_k if isinstance(k, str) else k
    blocks = random_blocks(weights)
    runner = HeadRunner(build_head(weights, top_k=top_k), config={"INFERENCE_PRECISION_HINT": precision})
    ids, edges = runner.score(*blocks.given)
    wanted_ids, wanted = reference.lattice(weights.reference(), *blocks.given[:3], top_k, blocks.hidden)
    np.testing.assert_array_equal(ids, wanted_ids)
    np.testing.assert_allclose(edges, wanted, atol=1e-4 if precision == "f32" else 1.0)
    assert edges.shape == (10, top_k, top_k)
    for begin in blocks.begins[:-1]:
        assert (edges[begin] == edges[begin, :1]).all()  # every predecessor is the anchor


@pytest.mark.parametrize("head", [HeadType.VANILLA, HeadType.GATED, HeadType.RNN])
@pytest.mark.parametrize("markov_confidence", [True, False])
def test_confidence_is_a_third_computation(head: HeadType, markov_confidence: bool) -> None:
    weights = random_head(head, confidence=True, markov_confidence=markov_confidence)
    assert "confidence" not in names(build_head(weights).outputs)
    model = build_head(weights, confidence=True)
    assert names(model.outputs) == [*OUTPUTS[head], "confidence"]
    assert markov.head_reasons(model) == ()
    random = np.random.default_rng(4)
    hidden = random.standard_normal((5, HIDDEN)).astype(np.float32)
    previous = random.integers(0, VOCABULARY, 5)
    found = HeadRunner(model).confidence(hidden, previous if markov_confidence else None)
    np.testing.assert_allclose(found, weights.reference().accept_probability(previous, hidden), atol=1e-6)


def test_confidence_needs_a_confidence_head() -> None:
    with pytest.raises(PreconditionError, match="no confidence head"):
        build_head(random_head(HeadType.VANILLA), confidence=True)


@pytest.mark.parametrize("head", WITH_SCORER)
def test_packed_blocks_equal_each_block_alone(head: HeadType) -> None:
    weights = random_head(head)
    blocks = random_blocks(weights, (1, 7, 2, 1))
    runner = HeadRunner(build_head(weights))
    ids, edges = runner.score(*blocks.given)
    for index in range(4):
        rows = slice(blocks.begins[index], blocks.begins[index + 1])
        alone = runner.score(*blocks.block(index).given)
        np.testing.assert_array_equal(ids[rows], alone[0])
        np.testing.assert_allclose(edges[rows], alone[1], atol=2e-6)


def test_a_request_without_a_block_is_left_out() -> None:
    weights = random_head(HeadType.VANILLA)
    drafting, begins = markov.block_begins((7, 0, 2))
    np.testing.assert_array_equal(drafting, [0, 2])
    np.testing.assert_array_equal(begins, [0, 7, 9])
    anchors = np.array([11, 12, 13])
    blocks = random_blocks(weights, (7, 2))
    ids, edges = HeadRunner(build_head(weights)).score(blocks.logits, anchors[drafting], begins)
    wanted = reference.lattice(weights.reference(), blocks.logits, np.array([11, 13]), np.array([0, 7, 9]), 64)
    np.testing.assert_array_equal(ids, wanted[0])
    np.testing.assert_allclose(edges, wanted[1], atol=1e-4)


@pytest.mark.parametrize("head", [HeadType.VANILLA, HeadType.GATED])
@pytest.mark.parametrize("draft_vocab", [None, 48])
def test_a_lattice_over_all_tokens_is_the_dense_walk(head: HeadType, draft_vocab: int | None) -> None:
    weights = random_head(head, draft_vocab=draft_vocab)
    blocks = random_blocks(weights, (7,))
    runner = HeadRunner(build_head(weights, top_k=weights.max_top_k))
    ids, edges = runner.score(*blocks.given)
    along = reference.walk_lattice(ids, edges, VOCABULARY)
    previous, tokens = blocks.anchors, []
    for row in range(7):
        bias, _ = runner.dense(previous, None if blocks.hidden is None else blocks.hidden[row : row + 1])
        tokens.append(int(np.argmax(blocks.logits[row] + bias[0])))
        previous = np.array(tokens[-1:])
    assert along.tokens == tokens
    dense = reference.walk_dense(weights.reference(), blocks.logits, int(blocks.anchors[0]), blocks.hidden)
    assert along.tokens == dense.tokens


@pytest.mark.parametrize("head", [HeadType.VANILLA, HeadType.GATED])
def test_pruned_head_equals_one_over_draft_tokens(head: HeadType) -> None:
    """Every id: a draft-vocabulary head is fed previous tokens by target id and gives rows over draft ids."""
    weights = random_head(head, draft_vocab=120)
    assert weights.d2t is not None
    tokens = reference.target_ids(weights.d2t)
    random = np.random.default_rng(5)
    hidden = None
    if head is HeadType.GATED:
        hidden = random.standard_normal((VOCABULARY, HIDDEN)).astype(np.float32)
    bias, _ = HeadRunner(build_head(weights)).dense(np.arange(VOCABULARY), hidden)
    correction, _ = weights.reference().corrections(np.arange(VOCABULARY), hidden)
    over_draft_ids = correction @ weights.w2.astype(np.float64).T
    for draft_id, token in enumerate(tokens):
        np.testing.assert_allclose(bias[:, token], over_draft_ids[:, draft_id], atol=1e-5)


@pytest.mark.parametrize("head", WITH_SCORER)
def test_pruned_lattice_equals_one_over_draft_tokens(head: HeadType) -> None:
    weights = random_head(head, draft_vocab=120)
    assert weights.d2t is not None
    tokens, formula, k = reference.target_ids(weights.d2t), weights.reference(), 16
    blocks = random_blocks(weights)
    ids, edges = HeadRunner(build_head(weights, top_k=k)).score(*blocks.given)
    over_draft_ids = blocks.logits[:, tokens].astype(np.float64)
    w2 = weights.w2.astype(np.float64)
    best = reference.top_k(over_draft_ids, k)
    np.testing.assert_array_equal(ids, tokens[best])
    for anchor, begin, end in zip(blocks.anchors, blocks.begins[:-1], blocks.begins[1:], strict=True):
        for row in range(begin, end):
            previous = np.full(k, anchor) if row == begin else tokens[best[row - 1]]
            hidden = None if blocks.hidden is None else np.tile(blocks.hidden[row], (k, 1))
            correction, _ = formula.corrections(previous, hidden)
            wanted = over_draft_ids[row, best[row]] + correction @ w2[best[row]].T
            np.testing.assert_allclose(edges[row], wanted, atol=1e-4)


def test_coarse_logits_keep_the_order_of_ids() -> None:
    weights = random_head(HeadType.VANILLA)
    blocks = random_blocks(weights)
    coarse = np.round(blocks.logits)
    coarse[3] = 1.0
    coarse[4, 10:] = -np.inf
    ids, edges = HeadRunner(build_head(weights, top_k=16)).score(coarse, blocks.anchors, blocks.begins)
    wanted = reference.lattice(weights.reference(), coarse, blocks.anchors, blocks.begins, 16)
    np.testing.assert_array_equal(ids, wanted[0])
    np.testing.assert_allclose(edges, wanted[1], atol=1e-4)
    assert not np.isnan(edges).any()


@pytest.mark.parametrize("head", ALL)
def test_the_same_head_gives_the_same_file(head: HeadType, tmp_path: Path) -> None:
    for name in ("a", "b"):
        ov.save_model(build_head(random_head(head)), tmp_path / f"{name}.xml", compress_to_fp16=False)
    for suffix in ("xml", "bin"):
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


@pytest.mark.parametrize("k", [0, -1, 121])
def test_k_is_at_most_the_draft_vocabulary(k: int) -> None:
    with pytest.raises(PreconditionError, match="top-k out of range: expected 1 to 120, the draft vocabulary"):
        build_head(random_head(HeadType.VANILLA, draft_vocab=120), top_k=k)


def test_rnn_has_no_scorer_to_size() -> None:
    with pytest.raises(PreconditionError, match="rnn heads have no scorer"):
        build_head(random_head(HeadType.RNN), top_k=4)


@pytest.mark.parametrize("head", ALL)
def test_a_packed_model_runs_as_it_is_unless_it_says_otherwise(head: HeadType) -> None:
    weights = random_head(head)
    model = build_head(weights)
    blocks = random_blocks(weights, (2, 1))
    feeds = {
        "draft_logits": blocks.logits,
        "anchor_token_ids": blocks.anchors,
        "block_begins": blocks.begins,
        "prev_token_ids": blocks.anchors,
        "draft_hidden_states": np.zeros((3 if head is HeadType.DFLASH2 else 2, HIDDEN), np.float32),
        "rnn_state": np.zeros((2, RANK), np.float32),
    }
    compiled = ir.core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    given = {name: feeds[name] for name in names(model.inputs)}
    if ir.get_text(model, Key.SELECT_COMPUTATION) is None:
        compiled(given)
    else:
        assert head is HeadType.GATED
        with pytest.raises(RuntimeError):
            compiled(given)
    assert set(markov.present_computations(model)) == set(markov.computations_of(head))
    assert Computation.CONFIDENCE not in markov.computations_of(head)
