"""What the host has to catch because OpenVINO does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgraft import ir
from ovgraft.drafts import markov
from ovgraft.drafts.markov import HeadInputError, HeadRunner, build_head
from ovgraft.drafts.spec import HeadType
from ovgraft.errors import PreconditionError
from tests.drafts.markov.heads import HIDDEN, RANK, VOCABULARY, names, random_blocks, random_head


@pytest.fixture(scope="module")
def vanilla() -> HeadRunner:
    return HeadRunner(build_head(random_head(HeadType.VANILLA), top_k=4))


@pytest.fixture(scope="module")
def gated() -> HeadRunner:
    return HeadRunner(build_head(random_head(HeadType.GATED), top_k=4))


def rows(count: int = 10) -> Any:
    return random_blocks(random_head(HeadType.VANILLA), (count,)).logits


@pytest.mark.parametrize(
    ("begins", "message"),
    [
        ([0, 7, 8, 12], "ends with 12, expected 10"),
        ([0, 7, 8, 9], "ends with 9, expected 10"),
        ([1, 7, 8, 10], "begins with 1, expected 0"),
        ([0, 7, 7, 10], "does not rise at block 1: 7 to 7"),
        ([0, 8, 7, 10], "does not rise at block 1: 8 to 7"),
        ([0, 10], r"anchor_token_ids has shape \[3\] for 1 blocks"),
        ([0], "block_begins is int64"),
        ([[0, 7, 8, 10]], "block_begins is int64"),
        ([0.0, 7.0, 8.0, 10.0], "block_begins is float64"),
    ],
)
def test_blocks_must_cover_the_rows(vanilla: HeadRunner, begins: Any, message: str) -> None:
    with pytest.raises(HeadInputError, match=message):
        vanilla.score(rows(), [1, 2, 3], begins)


def test_openvino_itself_runs_with_such_bounds_and_ids() -> None:
    """The reason for all of this; when it starts to fail, the checks can be thought over."""
    model = build_head(random_head(HeadType.VANILLA), top_k=4)
    markov.select_computation(model, markov.Computation.SCORER)
    compiled = ir.core().compile_model(model, "CPU")
    feeds = {"draft_logits": rows(), "anchor_token_ids": np.array([1, 2, 3]), "block_begins": np.array([0, 7, 8, 12])}
    compiled(feeds)
    feeds["block_begins"], feeds["anchor_token_ids"] = np.array([0, 7, 8, 10]), np.array([1, 2, VOCABULARY + 3])
    compiled(feeds)


@pytest.mark.parametrize("token", [-1, VOCABULARY, 2**40])
def test_token_ids_must_be_target_ids(vanilla: HeadRunner, token: int) -> None:
    with pytest.raises(HeadInputError, match=rf"anchor_token_ids\[1\] is {token}, expected 0 to 299"):
        vanilla.score(rows(), [1, token, 3], [0, 7, 8, 10])
    with pytest.raises(HeadInputError, match=rf"prev_token_ids\[0\] is {token}"):
        vanilla.dense([token])


@pytest.mark.parametrize("ids", [[1.5], [[1]], [True], []])
def test_token_ids_must_be_a_list_of_integers(vanilla: HeadRunner, ids: Any) -> None:
    with pytest.raises(HeadInputError, match="prev_token_ids is"):
        vanilla.dense(ids)


@pytest.mark.parametrize(
    ("value", "message"), [(np.nan, "row 2 has NaN"), (np.inf, r"row 2 has \+inf"), (None, "row 2 has no finite logit")]
)
def test_rows_must_be_numbers(vanilla: HeadRunner, value: float | None, message: str) -> None:
    logits = rows(4)
    if value is None:
        logits[2] = -np.inf
    else:
        logits[2, 5] = value
    with pytest.raises(HeadInputError, match=message) as caught:
        vanilla.score(logits, [1], [0, 4])
    assert [reason.code for reason in caught.value.reasons] == ["logits"]


def test_shapes_of_rows_and_states(gated: HeadRunner) -> None:
    logits, hidden = rows(3), np.zeros((3, HIDDEN), np.float32)
    with pytest.raises(HeadInputError, match=r"draft_logits has shape \[3, 299\]"):
        gated.score(logits[:, 1:], [1], [0, 3], hidden)
    with pytest.raises(HeadInputError, match=r"draft_hidden_states has shape \[2, 16\], expected \[3, 16\]"):
        gated.score(logits, [1], [0, 3], hidden[1:])
    with pytest.raises(HeadInputError, match="draft_hidden_states is missing"):
        gated.score(logits, [1], [0, 3])
    hidden[1, 2] = np.nan
    with pytest.raises(HeadInputError, match="draft_hidden_states row 1 is not finite"):
        gated.score(logits, [1], [0, 3], hidden)
    with pytest.raises(HeadInputError, match=r"expected \[1, 16\]"):
        gated.dense([1], hidden)


def test_inputs_of_another_computation(vanilla: HeadRunner) -> None:
    with pytest.raises(HeadInputError, match="draft_hidden_states is no input of this computation"):
        vanilla.dense([1], np.zeros((1, HIDDEN)))
    with pytest.raises(HeadInputError, match="rnn_state is no input of this computation"):
        vanilla.dense([1], rnn_state=np.zeros((1, RANK)))
    with pytest.raises(PreconditionError, match="has no confidence computation: found dense, scorer"):
        vanilla.confidence(np.zeros((1, HIDDEN)), [1])


def test_all_findings_come_at_once(vanilla: HeadRunner) -> None:
    with pytest.raises(HeadInputError) as caught:
        vanilla.score(np.full((2, VOCABULARY), np.nan), [-4], [0, 3])
    assert [reason.code for reason in caught.value.reasons] == ["logits", "token-ids", "block-begins"]
    assert isinstance(caught.value, ValueError)


def test_negative_lengths() -> None:
    with pytest.raises(HeadInputError, match="negative"):
        markov.block_begins((3, -1))
    drafting, begins = markov.block_begins((0, 0))
    assert len(drafting) == 0
    np.testing.assert_array_equal(begins, [0])


def test_state_of_a_block_begins_with_zeros() -> None:
    weights = random_head(HeadType.RNN)
    runner = HeadRunner(build_head(weights))
    hidden = np.random.default_rng(0).standard_normal((2, HIDDEN)).astype(np.float32)
    bias, state = runner.dense([3, 4], hidden)
    again, _ = runner.dense([3, 4], hidden, np.zeros((2, RANK)))
    np.testing.assert_array_equal(bias, again)
    assert state is not None
    bias_2, _ = runner.dense([5, 6], hidden, state)
    reference = weights.reference()
    _, wanted_state = reference.step(np.array([3, 4]), hidden)
    np.testing.assert_allclose(bias_2, reference.step(np.array([5, 6]), hidden, wanted_state)[0], atol=2e-5)


def test_the_model_given_is_left_alone() -> None:
    model = build_head(random_head(HeadType.GATED))
    before = ir.fingerprint(model)
    HeadRunner(model).dense([1], np.zeros((1, HIDDEN)))
    assert ir.fingerprint(model) == before
    assert len(names(model.inputs)) == 5


def test_a_model_that_breaks_the_contract_is_not_run() -> None:
    model = build_head(random_head(HeadType.VANILLA))
    ir.delete(model, ("dflash", "top_k"))
    with pytest.raises(PreconditionError, match="not a usable Markov head"):
        HeadRunner(model)
