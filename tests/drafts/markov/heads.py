"""Random heads and the inputs of a call, small enough for every combination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft.drafts.contract import Port
from ovgraft.drafts.markov import HeadWeights, Projection
from ovgraft.drafts.reference import target_ids
from ovgraft.drafts.spec import HeadType

Array = NDArray[Any]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
VOCABULARY, RANK, HIDDEN = 300, 8, 16
WITH_SCORER = (HeadType.VANILLA, HeadType.GATED, HeadType.DFLASH2)
WITH_DENSE = (HeadType.VANILLA, HeadType.GATED, HeadType.RNN)
ALL = (*WITH_SCORER, HeadType.RNN)


def random_head(
    head: HeadType,
    *,
    vocab: int = VOCABULARY,
    draft_vocab: int | None = None,
    confidence: bool = False,
    markov_confidence: bool = True,
    dtype: Any = BFLOAT16,
    seed: int = 0,
) -> HeadWeights:
    """A head with gaussian weights; a pruned one has an unsorted d2t."""
    random = np.random.default_rng(seed)

    def draw(*shape: int) -> Array:
        return random.standard_normal(shape).astype(dtype)

    d2t = None
    if draft_vocab is not None:
        tokens = random.permutation(vocab)[:draft_vocab]
        assert draft_vocab < 3 or (np.diff(tokens) < 0).any()
        d2t = tokens - np.arange(draft_vocab)
    shapes = {
        HeadType.GATED: (RANK, HIDDEN + RANK),
        HeadType.RNN: (3 * RANK, 2 * RANK + HIDDEN),
        HeadType.DFLASH2: (RANK, HIDDEN),
    }
    projection = None
    if head in shapes:
        bias = None if head is HeadType.DFLASH2 else draw(shapes[head][0])
        projection = Projection(draw(*shapes[head]), bias)
    width = HIDDEN + RANK * markov_confidence
    return HeadWeights(
        type=head,
        vocab_size=vocab,
        w1=draw(vocab, RANK),
        w2=draw(draft_vocab or vocab, RANK),
        d2t=d2t,
        projection=projection,
        confidence=Projection(draw(1, width), draw(1)) if confidence else None,
        hidden_size=HIDDEN,
    )


@dataclass(frozen=True)
class Blocks:
    """Inputs of a scorer call.

    Attributes:
        logits: f32 ``[R, V]``, -inf outside a pruned vocabulary.
        anchors: i64 ``[B]``.
        begins: i64 ``[B + 1]``.
        hidden: f32 ``[R, H]``; None for vanilla.
    """

    logits: Array
    anchors: Array
    begins: Array
    hidden: Array | None

    @property
    def given(self) -> tuple[Array, Array, Array, Array | None]:
        return self.logits, self.anchors, self.begins, self.hidden

    def block(self, index: int) -> Blocks:
        """One request alone."""
        rows = slice(self.begins[index], self.begins[index + 1])
        hidden = None if self.hidden is None else self.hidden[rows]
        length = rows.stop - rows.start
        return Blocks(self.logits[rows], self.anchors[index : index + 1], np.array([0, length]), hidden)


def random_blocks(weights: HeadWeights, lengths: tuple[int, ...] = (7, 1, 2), seed: int = 1) -> Blocks:
    """Rows whose values differ."""
    random = np.random.default_rng(seed)
    rows, vocab = sum(lengths), weights.vocab_size
    logits = np.stack([random.permutation(vocab) for _ in range(rows)]).astype(np.float32) / vocab * 6
    if weights.d2t is not None:
        outside = np.ones(vocab, bool)
        outside[target_ids(weights.d2t)] = False
        logits[:, outside] = -np.inf
    hidden = None if weights.type is HeadType.VANILLA else random.standard_normal((rows, HIDDEN)).astype(np.float32)
    return Blocks(logits, random.integers(0, vocab, len(lengths)), np.concatenate([[0], np.cumsum(lengths)]), hidden)


def names(ports: list[ov.Output]) -> list[str]:
    """Tensor names in model order; each port has one."""
    assert all(len(port.names) == 1 for port in ports)
    return [Port(port.any_name) for port in ports]
