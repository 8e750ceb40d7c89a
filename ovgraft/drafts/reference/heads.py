"""Markov heads in numpy at f64, from the formulas of the DSpark and DFlash-2 papers' published code.

Letters as in ``ovgraft.drafts.contract``: M steps, R packed rows, H draft hidden width, r rank, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovgraft.drafts.spec import HeadType

Array = NDArray[Any]


def sigmoid(x: Array) -> Array:
    """``1 / (1 + exp(-x))`` without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


@dataclass(frozen=True)
class ReferenceHead:
    """A head whose tables are f64.

    Attributes:
        type: ``vanilla``, ``gated``, ``rnn`` or ``dflash2``.
        w1: ``[V, r]``, a row per previous token.
        w2: ``[V, r]``, a row per next token.
        projection: Gate ``[r, H + r]`` over hidden state and embedding; joint ``[3r, 2r + H]`` over state, embedding
            and hidden state (output rows: gate, candidate, output); or DFlash-2's hidden projection ``[r, H]``.
        projection_bias: Its bias.
        confidence: ``[H]`` or ``[H + r]`` over hidden state and embedding.
        confidence_bias: Its bias.
    """

    type: HeadType
    w1: Array
    w2: Array
    projection: Array | None = None
    projection_bias: Array | None = None
    confidence: Array | None = None
    confidence_bias: float = 0.0

    def corrections(
        self, previous: Array, hidden: Array | None = None, state: Array | None = None
    ) -> tuple[Array, Array]:
        """What is multiplied with the next-token table, and the next state of an rnn head.

        Args:
            previous: Token ids ``[...]``.
            hidden: ``[..., H]`` draft hidden state of the row; None for vanilla.
            state: ``[..., r]``, zeros at a block's start; only rnn reads it.

        Returns:
            ``[..., r]`` and the state, which all heads but rnn pass on.
        """
        embedding = self.w1[previous]
        if state is None:
            state = np.zeros_like(embedding)
        if self.type is HeadType.VANILLA:
            return embedding, state
        assert hidden is not None
        if self.type is HeadType.DFLASH2:
            return embedding * self._project(hidden), state
        if self.type is HeadType.GATED:
            return embedding * sigmoid(self._project(hidden, embedding)), state
        gate, candidate, output = np.split(self._project(state, embedding, hidden), 3, axis=-1)
        gate = sigmoid(gate)
        return np.tanh(output), gate * state + (1.0 - gate) * np.tanh(candidate)

    def step(self, previous: Array, hidden: Array | None = None, state: Array | None = None) -> tuple[Array, Array]:
        """The dense step: bias over the vocabulary after each previous token, and the next state.

        Returns:
            ``[M, V]``, ``[M, r]``.
        """
        correction, state = self.corrections(previous, hidden, state)
        return correction @ self.w2.T, state

    def accept_probability(self, previous: Array, hidden: Array) -> Array:
        """The confidence that a row's drafted token is accepted, ``[M]`` in (0, 1)."""
        assert self.confidence is not None
        seen = hidden
        if self.confidence.shape[-1] > hidden.shape[-1]:
            seen = np.concatenate([hidden, self.w1[previous]], axis=-1)
        return sigmoid(seen @ self.confidence + self.confidence_bias)

    def _project(self, *inputs: Array) -> Array:
        assert self.projection is not None
        projected: Array = np.concatenate(inputs, axis=-1) @ self.projection.T
        return projected if self.projection_bias is None else projected + self.projection_bias
