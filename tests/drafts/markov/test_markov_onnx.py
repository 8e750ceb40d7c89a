"""Graph, numpy formula and an ONNX build of the same head agree."""

from __future__ import annotations

import numpy as np
import pytest

from ovgraft.drafts.markov import HeadRunner, build_head
from ovgraft.drafts.spec import HeadType
from tests.drafts.markov import onnx_heads
from tests.drafts.markov.heads import HIDDEN, RANK, VOCABULARY, WITH_DENSE, WITH_SCORER, random_blocks, random_head


@pytest.mark.parametrize("head", WITH_DENSE)
@pytest.mark.parametrize("draft_vocab", [None, 40])
def test_dense_step(head: HeadType, draft_vocab: int | None) -> None:
    weights = random_head(head, draft_vocab=draft_vocab)
    random = np.random.default_rng(7)
    previous = random.integers(0, VOCABULARY, 6)
    hidden = None if head is HeadType.VANILLA else random.standard_normal((6, HIDDEN)).astype(np.float32)
    state = random.standard_normal((6, RANK)).astype(np.float32) if head is HeadType.RNN else None
    witness = onnx_heads.dense(weights, previous, hidden, state)
    assert (head is HeadType.RNN) == ("next_rnn_state" in witness)
    bias, next_state = HeadRunner(build_head(weights)).dense(previous, hidden, state)
    np.testing.assert_allclose(bias, witness["markov_bias"], atol=2e-5)
    wanted_bias, wanted_state = weights.reference().step(previous, hidden, state)
    np.testing.assert_allclose(wanted_bias, witness["markov_bias"], atol=2e-5)
    if next_state is not None:
        np.testing.assert_allclose(next_state, witness["next_rnn_state"], atol=2e-5)
        np.testing.assert_allclose(wanted_state, witness["next_rnn_state"], atol=2e-5)


@pytest.mark.parametrize("head", WITH_SCORER)
@pytest.mark.parametrize("draft_vocab", [None, 120])
@pytest.mark.parametrize("k", [1, 5, 16, 64, "V"])
def test_scorer(head: HeadType, draft_vocab: int | None, k: int | str) -> None:
    weights = random_head(head, draft_vocab=draft_vocab)
    top_k = weights.max_top_k if isinstance(k, str) else k
    blocks = random_blocks(weights, (1, 7, 2))
    witness = onnx_heads.scorer(weights, *blocks.given, top_k)
    ids, edges = HeadRunner(build_head(weights, top_k=top_k)).score(*blocks.given)
    np.testing.assert_array_equal(ids, witness["candidate_ids"])
    np.testing.assert_allclose(edges, witness["edge_scores"], atol=1e-4)
