"""Head weights that do not fit together are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ovgraft.drafts.markov import HeadWeights, Projection
from ovgraft.drafts.spec import Confidence, HeadType
from ovgraft.errors import CheckpointError
from tests.drafts.markov.heads import HIDDEN, RANK, random_head


def test_padding_rows_are_left_out() -> None:
    weights = random_head(HeadType.VANILLA)
    padded = HeadWeights(HeadType.VANILLA, 290, weights.w1, weights.w2)
    assert padded.next_token_table().shape == (290, RANK)
    assert padded.next_token_table().base is not None
    assert padded.max_top_k == 290


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": HeadType.NONE}, "without a head"),
        ({"w1": np.zeros((300, 9), np.float32)}, r"differ in rank \(markov_w2\): expected 9, found 8"),
        ({"w1": np.zeros(300, np.float32)}, "markov_w1 is no table"),
        ({"w1": np.zeros((300, 8), np.int8)}, "never weight-compressed"),
        ({"w1": np.zeros((299, 8), np.float32)}, "markov_w1 does not have a row per target token"),
        ({"w2": np.zeros((299, 8), np.float32)}, "expected 300 rows, found 299 rows and no d2t"),
        ({"d2t": np.zeros(40, np.int64)}, "markov_w2 does not have a row per draft token: expected 40 rows"),
        ({"projection": Projection(np.zeros((8, 24), np.float32))}, "gate_proj|hidden_projection"),
        ({"confidence": Projection(np.zeros((1, 5), np.float32))}, "confidence_proj of a vanilla head"),
        ({"confidence": Projection(np.zeros((1, 16), np.float32)), "hidden_size": None}, "reads hidden states"),
    ],
)
def test_vanilla(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        replace(random_head(HeadType.VANILLA), **change)


@pytest.mark.parametrize("head", [HeadType.GATED, HeadType.RNN, HeadType.DFLASH2])
def test_projection(head: HeadType) -> None:
    weights = random_head(head)
    assert weights.projection is not None
    transposed = np.ascontiguousarray(weights.projection.weight.T)
    for change in ({"projection": None}, {"projection": Projection(transposed)}, {"hidden_size": HIDDEN + 1}):
        with pytest.raises(CheckpointError, match="wrong shape"):
            replace(weights, **change)
    with pytest.raises(CheckpointError, match="reads hidden states"):
        replace(weights, hidden_size=None)
    with pytest.raises(CheckpointError, match="bias"):
        replace(weights, projection=Projection(weights.projection.weight, np.zeros(3, np.float32)))


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 299, 0], r"sends draft token 1 outside the target vocabulary: expected 0 to 299, found 300"),
        ([0, -2, 0], "sends draft token 1 outside the target vocabulary: expected 0 to 299, found -1"),
        ([1, 0, 0], "two draft tokens stand for one target token"),
        ([0.0, 1.0, 2.0], "d2t is no list of offsets"),
        ([[0, 0, 0]], "d2t is no list of offsets"),
    ],
)
def test_d2t(offsets: Any, message: str) -> None:
    weights = random_head(HeadType.VANILLA, draft_vocab=3)
    with pytest.raises(CheckpointError, match=message):
        replace(weights, d2t=np.array(offsets))


def test_what_the_confidence_head_reads() -> None:
    for markov_confidence, wanted in ((True, Confidence.MARKOV), (False, Confidence.HIDDEN)):
        weights = random_head(HeadType.VANILLA, confidence=True, markov_confidence=markov_confidence)
        assert weights.confidence_input is wanted
    assert random_head(HeadType.VANILLA).confidence_input is Confidence.NONE
