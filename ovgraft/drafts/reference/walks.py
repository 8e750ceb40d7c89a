"""How a host chooses a block's tokens from a head's scores: greedy or sampled, dense or along the lattice."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovgraft.drafts.reference.heads import ReferenceHead

Array = NDArray[Any]


@dataclass(frozen=True)
class Walk:
    """The tokens of one block.

    Attributes:
        tokens: Token ids, target vocabulary.
        proposals: ``[tokens, V]``, the distribution each token was drawn from; a greedy choice is a point mass, since
            recording its softmax would bias rejection sampling.
    """

    tokens: list[int]
    proposals: Array


def softmax(scores: Array, temperature: float) -> Array:
    """f64 probabilities; -inf has none."""
    exponents = np.exp((scores - np.max(scores)) / temperature)
    probabilities: Array = exponents / exponents.sum()
    return probabilities


def walk_dense(
    head: ReferenceHead,
    draft_logits: Array,
    anchor_token_id: int,
    draft_hidden_states: Array | None = None,
    *,
    temperature: float = 0.0,
    random: np.random.Generator | None = None,
    stop: Container[int] = (),
) -> Walk:
    """Row by row over the whole vocabulary.

    Args:
        head: Any but dflash2 in practice, whose published form is a lattice; the formula holds for it too.
        draft_logits: ``[L, V]`` of one block.
        anchor_token_id: The token before the block.
        draft_hidden_states: ``[L, H]``; None for vanilla.
        temperature: 0 is greedy.
        random: Needed unless greedy.
        stop: A token of these ends the block.
    """
    walk = _Chooser(draft_logits.shape[-1], temperature, random)
    previous, state = anchor_token_id, None
    for row, logits in enumerate(np.asarray(draft_logits, np.float64)):
        hidden = None if draft_hidden_states is None else draft_hidden_states[row : row + 1]
        bias, state = head.step(np.array([previous]), hidden, state)
        previous = walk.choose(logits + bias[0], np.arange(len(logits)))[1]
        if previous in stop:
            break
    return walk.result()


def walk_lattice(
    candidate_ids: Array,
    edge_scores: Array,
    vocab_size: int,
    *,
    temperature: float = 0.0,
    random: np.random.Generator | None = None,
    stop: Container[int] = (),
) -> Walk:
    """Along the best, or drawn, edges of one block.

    Args:
        candidate_ids: ``[L, K]`` of one block.
        edge_scores: ``[L, K, K]``.
        vocab_size: V, for the proposals.
        temperature: 0 is greedy.
        random: Needed unless greedy.
        stop: A token of these ends the block.
    """
    walk = _Chooser(vocab_size, temperature, random)
    predecessor = 0  # in the first row all predecessors are the anchor
    for ids, edges in zip(candidate_ids, np.asarray(edge_scores, np.float64), strict=True):
        predecessor, token = walk.choose(edges[predecessor], ids)
        if token in stop:
            break
    return walk.result()


class _Chooser:
    def __init__(self, vocab_size: int, temperature: float, random: np.random.Generator | None) -> None:
        if temperature > 0.0 and random is None:
            raise ValueError("sampling needs a random generator")
        self._vocab_size, self._temperature, self._random = vocab_size, temperature, random
        self._tokens: list[int] = []
        self._proposals: list[Array] = []

    def choose(self, scores: Array, ids: Array) -> tuple[int, int]:
        """Index and id of the next token; of equal scores the first wins."""
        proposal = np.zeros(self._vocab_size)
        if self._temperature > 0.0 and self._random is not None:
            weights = softmax(scores, self._temperature)
            index = int(self._random.choice(len(weights), p=weights))
            proposal[ids] = weights
        else:
            index = int(np.argmax(scores))
            proposal[ids[index]] = 1.0
        self._tokens.append(int(ids[index]))
        self._proposals.append(proposal)
        return index, self._tokens[-1]

    def result(self) -> Walk:
        return Walk(self._tokens, np.array(self._proposals).reshape(-1, self._vocab_size))
