"""Published checkpoints: the head models against the outputs of the published reference code, and against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import openvino as ov
import pytest
from safetensors import safe_open

from ovgraft import ir
from ovgraft.drafts import markov, reference
from ovgraft.drafts.checkpoint import read_checkpoint
from ovgraft.drafts.markov import HeadRunner, build_head, read_head_weights
from ovgraft.drafts.spec import HeadType

WITH_TRUTH = ("deepspec_vanilla", "deepspec_gated", "deepspec_rnn")
HEADS = (*WITH_TRUTH, "speculators_dspark", "minicpm_pruned", "modelopt_flat", "zlab_dflash2")
TABLES = {
    "markov_w1": ("markov_head.markov_w1.weight", "markov_w1.weight", "candidate_selector.predecessor_codebook"),
    "markov_w2": ("markov_head.markov_w2.weight", "markov_w2.weight", "candidate_selector.successor_codebook"),
}


@pytest.fixture(params=HEADS)
def checkpoint(request: pytest.FixtureRequest, shared: Path) -> Path:
    return shared / "zoo" / "checkpoints" / str(request.param)


@pytest.mark.parametrize("name", WITH_TRUTH)
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_dense_walk_is_the_published_codes(name: str, precision: str, shared: Path) -> None:
    weights = read_head_weights(read_checkpoint(shared / "zoo" / "checkpoints" / name))
    truth = np.load(shared / "zoo" / "truth_drafts" / f"{name}.npz")
    logits, hidden = truth["base_logits"], truth["draft_hidden_states"]
    runner = HeadRunner(build_head(weights), config={"INFERENCE_PRECISION_HINT": precision})
    previous, state, reads = truth["anchor_token_ids"], None, weights.type is not HeadType.VANILLA
    for row in range(logits.shape[1]):
        bias, state = runner.dense(previous, hidden[:, row] if reads else None, state)
        corrected = logits[:, row] + bias
        tolerance = 1e-4 if precision == "f32" else 0.1
        np.testing.assert_allclose(corrected, truth["corrected_logits"][:, row], atol=tolerance)
        if precision == "f32":
            np.testing.assert_array_equal(corrected.argmax(axis=1), truth["greedy_tokens"][:, row])
        previous = truth["greedy_tokens"][:, row]


@pytest.mark.parametrize("name", WITH_TRUTH)
def test_reference_walk_is_the_published_codes(name: str, shared: Path) -> None:
    head = read_head_weights(read_checkpoint(shared / "zoo" / "checkpoints" / name)).reference()
    truth = np.load(shared / "zoo" / "truth_drafts" / f"{name}.npz")
    for logits, hidden, anchor, tokens in zip(
        *(truth[key] for key in ("base_logits", "draft_hidden_states", "anchor_token_ids", "greedy_tokens")),
        strict=True,
    ):
        seen = None if head.type is HeadType.VANILLA else hidden
        assert reference.walk_dense(head, logits, int(anchor), seen).tokens == tokens.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deepspec_vanilla", "deepspec_gated"])
def test_a_lattice_over_all_tokens_finds_the_published_codes_tokens(name: str, shared: Path) -> None:
    weights = read_head_weights(read_checkpoint(shared / "zoo" / "checkpoints" / name))
    truth = np.load(shared / "zoo" / "truth_drafts" / f"{name}.npz")
    count, rows, vocab = truth["base_logits"].shape
    hidden = None if weights.type is HeadType.VANILLA else truth["draft_hidden_states"].reshape(count * rows, -1)
    runner = HeadRunner(build_head(weights, top_k=vocab))
    begins = np.arange(0, count * rows + 1, rows)
    ids, edges = runner.score(truth["base_logits"].reshape(-1, vocab), truth["anchor_token_ids"], begins, hidden)
    for block, tokens in enumerate(truth["greedy_tokens"]):
        part = slice(begins[block], begins[block + 1])
        assert reference.walk_lattice(ids[part], edges[part], vocab).tokens == tokens.tolist()


def test_every_head_equals_the_formula(checkpoint: Path) -> None:
    weights = read_head_weights(read_checkpoint(checkpoint))
    with_confidence = weights.confidence is not None
    model = build_head(weights, confidence=with_confidence)
    assert markov.head_reasons(model) == ()
    runner, head = HeadRunner(model), weights.reference()
    random = np.random.default_rng(0)
    vocab, hidden_size = weights.vocab_size, weights.hidden_size
    lengths = (1, 2, 7)
    rows = random.standard_normal((sum(lengths), vocab)).astype(ml_dtypes.bfloat16).astype(np.float32) * 4
    if weights.d2t is not None:
        rows = reference.to_target_vocabulary(rows[:, : len(weights.d2t)], weights.d2t, vocab)
    hidden = random.standard_normal((len(rows), hidden_size or 0)).astype(np.float32)
    seen = None if weights.type is HeadType.VANILLA else hidden
    previous = random.integers(0, vocab, len(rows))
    if markov.Computation.DENSE in runner.computations:
        bias, _ = runner.dense(previous, seen)
        np.testing.assert_allclose(bias, head.step(previous, seen)[0], atol=1e-4)
    if with_confidence:
        np.testing.assert_allclose(
            runner.confidence(hidden, previous), head.accept_probability(previous, hidden), atol=1e-5
        )
    if markov.Computation.SCORER in runner.computations:
        anchors, begins = previous[:3], np.array([0, 1, 3, 10])
        ids, edges = runner.score(rows, anchors, begins, seen)
        assert ids.shape[1] == min(64, weights.draft_vocab_size)
        wanted_ids, wanted = reference.lattice(head, rows, anchors, begins, ids.shape[1], seen)
        np.testing.assert_array_equal(ids, wanted_ids)
        np.testing.assert_allclose(edges, wanted, atol=2e-4)


def test_tables_on_disk_are_the_files_bytes(checkpoint: Path, tmp_path: Path) -> None:
    weights = read_head_weights(read_checkpoint(checkpoint))
    xml = tmp_path / "head.xml"
    ov.save_model(build_head(weights), xml, compress_to_fp16=False)
    constants = {node.get_friendly_name(): node for node in ir.read_model(xml).get_ordered_ops()}
    for name, stored in _raw_tables(checkpoint).items():
        rows = np.asarray(constants[name].data).view(np.uint16)
        assert constants[name].get_element_type() == ov.Type.bf16
        if name == "markov_w2" and weights.d2t is not None:
            tokens = reference.target_ids(weights.d2t)
            assert not np.delete(rows, tokens, axis=0).any()
            rows = rows[tokens]
        np.testing.assert_array_equal(rows, stored)


def test_unsorted_pruned_head_for_every_id(shared: Path) -> None:
    weights = read_head_weights(read_checkpoint(shared / "zoo" / "checkpoints" / "minicpm_pruned"))
    assert weights.d2t is not None
    tokens = reference.target_ids(weights.d2t)
    assert (np.diff(tokens) < 0).any()
    vocab = weights.vocab_size
    bias, _ = HeadRunner(build_head(weights)).dense(np.arange(vocab))
    over_draft_ids = weights.w1.astype(np.float64) @ weights.w2.astype(np.float64).T
    np.testing.assert_allclose(bias[:, tokens], over_draft_ids, atol=1e-4)
    assert (np.delete(bias, tokens, axis=1) == 0).all()


def test_trained_head(shared: Path) -> None:
    weights = read_head_weights(read_checkpoint(shared / "models" / "smollm2-135m-dspark"))
    assert (weights.type, weights.rank, weights.vocab_size) == (HeadType.VANILLA, 64, 49152)
    random = np.random.default_rng(0)
    rows = random.standard_normal((3, weights.vocab_size)).astype(np.float32)
    ids, edges = HeadRunner(build_head(weights)).score(rows, [5], [0, 3])
    wanted_ids, wanted = reference.lattice(weights.reference(), rows, np.array([5]), np.array([0, 3]), 64)
    np.testing.assert_array_equal(ids, wanted_ids)
    np.testing.assert_allclose(edges, wanted, atol=1e-4)


def _raw_tables(checkpoint: Path) -> dict[str, Any]:
    """bf16 bytes as the safetensors package reads them."""
    found = {}
    with safe_open(checkpoint / "model.safetensors", "np") as file:
        names = set(file.keys())
        for ours, theirs in TABLES.items():
            (name,) = names & set(theirs)
            found[ours] = file.get_tensor(name).view(np.uint16)
    return found
