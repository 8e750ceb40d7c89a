"""The numpy reference against loops that follow the formulas symbol by symbol."""

from __future__ import annotations

from math import exp, tanh

import numpy as np
import pytest

from ovgraft.drafts import reference
from ovgraft.drafts.spec import HeadType
from tests.drafts.markov.heads import ALL, HIDDEN, RANK, VOCABULARY, WITH_DENSE, random_blocks, random_head


def sigma(x: float) -> float:
    return 1 / (1 + exp(-x))


def scalar_step(head: reference.ReferenceHead, token: int, h: list[float], s: list[float]) -> tuple[list[float], ...]:
    """Correction and next state, one number at a time."""
    e = [float(x) for x in head.w1[token]]
    w, b = head.projection, head.projection_bias

    def row(i: int, x: list[float]) -> float:
        assert w is not None
        return sum(float(w[i, j]) * x[j] for j in range(len(x))) + (0.0 if b is None else float(b[i]))

    match head.type:
        case HeadType.VANILLA:
            return e, s
        case HeadType.DFLASH2:
            return [e[i] * row(i, h) for i in range(RANK)], s
        case HeadType.GATED:
            return [e[i] * sigma(row(i, h + e)) for i in range(RANK)], s
    joint = [row(i, s + e + h) for i in range(3 * RANK)]
    gate = [sigma(x) for x in joint[:RANK]]
    kept = [g * old + (1 - g) * tanh(c) for g, old, c in zip(gate, s, joint[RANK : 2 * RANK], strict=True)]
    return [tanh(x) for x in joint[2 * RANK :]], kept


@pytest.mark.parametrize("kind", ALL)
def test_heads_follow_the_formulas(kind: HeadType) -> None:
    head = random_head(kind).reference()
    random = np.random.default_rng(0)
    h, s = random.standard_normal(HIDDEN), random.standard_normal(RANK)
    correction, state = head.corrections(np.array([5]), h[None], s[None])
    wanted, wanted_state = scalar_step(head, 5, list(h), list(s))
    np.testing.assert_allclose(correction[0], wanted, rtol=1e-12)
    np.testing.assert_allclose(state[0], wanted_state, rtol=1e-12)
    bias, _ = head.step(np.array([5]), h[None], s[None])
    np.testing.assert_allclose(bias[0], [sum(w * u for w, u in zip(row, wanted, strict=True)) for row in head.w2])


def test_confidence_follows_the_formula() -> None:
    for markov in (True, False):
        head = random_head(HeadType.VANILLA, confidence=True, markov_confidence=markov).reference()
        h = np.random.default_rng(0).standard_normal(HIDDEN)
        seen = [*h, *head.w1[7]] if markov else list(h)
        assert head.confidence is not None
        score = sum(float(a) * float(b) for a, b in zip(head.confidence, seen, strict=True)) + head.confidence_bias
        np.testing.assert_allclose(head.accept_probability(np.array([7]), h[None]), [sigma(score)])


def test_sigmoid_has_no_overflow() -> None:
    with np.errstate(all="raise"):
        np.testing.assert_allclose(reference.sigmoid(np.array([-1e4, 0.0, 1e4])), [0.0, 0.5, 1.0])


def test_rows_are_multiplied_then_capped() -> None:
    np.testing.assert_allclose(
        reference.scaled_rows(np.array([2.0, -40.0]), 0.5, 30.0), [30 * tanh(1 / 30), 30 * tanh(-20 / 30)]
    )
    for cap in (None, 0.0):
        np.testing.assert_array_equal(reference.scaled_rows(np.array([2.0, -40.0]), 0.5, cap), [1.0, -20.0])


def test_draft_rows_go_to_their_target_ids_in_any_order() -> None:
    d2t = np.array([4, 0, -2])  # draft 0, 1, 2 -> target 4, 1, 0
    np.testing.assert_array_equal(
        reference.to_target_vocabulary(np.array([[7.0, 8.0, 9.0]]), d2t, 6),
        [[9.0, 8.0, -np.inf, -np.inf, 7.0, -np.inf]],
    )


def test_top_k_breaks_ties_by_the_lower_id() -> None:
    np.testing.assert_array_equal(reference.top_k(np.array([1.0, 3.0, -np.inf, 3.0, 1.0]), 5), [1, 3, 0, 4, 2])


@pytest.mark.parametrize("kind", [HeadType.VANILLA, HeadType.GATED, HeadType.DFLASH2])
def test_lattice_with_all_candidates_is_the_dense_walk(kind: HeadType) -> None:
    weights = random_head(kind)
    head, blocks = weights.reference(), random_blocks(weights, (7, 1, 2))
    ids, edges = reference.lattice(head, *blocks.given[:3], VOCABULARY, blocks.hidden)
    for index, anchor in enumerate(blocks.anchors):
        rows = slice(blocks.begins[index], blocks.begins[index + 1])
        along = reference.walk_lattice(ids[rows], edges[rows], VOCABULARY)
        hidden = None if blocks.hidden is None else blocks.hidden[rows]
        dense = reference.walk_dense(head, blocks.logits[rows], int(anchor), hidden)
        assert along.tokens == dense.tokens
        np.testing.assert_array_equal(along.proposals, dense.proposals)


def test_a_greedy_choice_is_a_point_mass() -> None:
    weights = random_head(HeadType.VANILLA)
    walk = reference.walk_dense(weights.reference(), random_blocks(weights, (3,)).logits, 1)
    np.testing.assert_array_equal(walk.proposals, np.eye(VOCABULARY)[walk.tokens])


@pytest.mark.parametrize("kind", WITH_DENSE)
def test_a_sampled_dense_walk_draws_from_the_corrected_rows(kind: HeadType) -> None:
    weights = random_head(kind)
    head, blocks = weights.reference(), random_blocks(weights, (4,))
    walk = reference.walk_dense(head, blocks.logits, 9, blocks.hidden, temperature=0.7, random=np.random.default_rng(0))
    previous, state = 9, None
    for row, token in enumerate(walk.tokens):
        hidden = None if blocks.hidden is None else blocks.hidden[row : row + 1]
        bias, state = head.step(np.array([previous]), hidden, state)
        scores = blocks.logits[row].astype(np.float64) + bias[0]
        np.testing.assert_allclose(walk.proposals[row], np.exp(scores / 0.7) / np.exp(scores / 0.7).sum(), rtol=1e-9)
        previous = token


def test_sampled_lattice_frequencies() -> None:
    ids, edges = (
        np.array([[5, 2, 8], [1, 5, 7]]),
        np.log(np.array([[[1, 2, 5]] * 3, [[4, 4, 2], [8, 1, 1], [1, 1, 8]]])),
    )
    random = np.random.default_rng(0)
    walks = [reference.walk_lattice(ids, edges, 10, temperature=1.0, random=random) for _ in range(4000)]
    first = np.bincount([walk.tokens[0] for walk in walks], minlength=10) / 4000
    np.testing.assert_allclose(first[[5, 2, 8]], [1 / 8, 2 / 8, 5 / 8], atol=0.03)
    after_8 = [walk.tokens[1] for walk in walks if walk.tokens[0] == 8]
    np.testing.assert_allclose(np.bincount(after_8, minlength=10)[[1, 5, 7]] / len(after_8), [0.1, 0.1, 0.8], atol=0.03)
    for walk in walks[:10]:
        assert walk.proposals.shape == (2, 10)
        np.testing.assert_allclose(walk.proposals.sum(axis=1), 1.0)
        assert (np.flatnonzero(walk.proposals[0]) == [2, 5, 8]).all()


def test_a_stop_token_ends_the_block() -> None:
    weights = random_head(HeadType.VANILLA)
    head, logits = weights.reference(), random_blocks(weights, (6,)).logits
    full = reference.walk_dense(head, logits, 1)
    cut = reference.walk_dense(head, logits, 1, stop={full.tokens[2]})
    assert cut.tokens == full.tokens[: full.tokens.index(full.tokens[2]) + 1]
    ids, edges = reference.lattice(head, logits, np.array([1]), np.array([0, 6]), 16)
    along = reference.walk_lattice(ids, edges, VOCABULARY)
    stopped = reference.walk_lattice(ids, edges, VOCABULARY, stop={along.tokens[1]})
    assert stopped.tokens == along.tokens[: along.tokens.index(along.tokens[1]) + 1]


def test_sampling_needs_a_generator() -> None:
    with pytest.raises(ValueError, match="random generator"):
        reference.walk_lattice(np.zeros((1, 1), int), np.zeros((1, 1, 1)), 4, temperature=1.0)
