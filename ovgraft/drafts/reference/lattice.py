"""The Top-K candidate lattice in numpy at f64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovgraft.drafts.reference.heads import ReferenceHead

Array = NDArray[Any]


def top_k(rows: Array, k: int) -> Array:
    """Ids of the k best values per row, by value, then by lower id; i64 ``[..., k]``."""
    best: Array = np.argsort(-rows, axis=-1, kind="stable")[..., :k]
    return best


def lattice(
    head: ReferenceHead,
    draft_logits: Array,
    anchor_token_ids: Array,
    block_begins: Array,
    k: int,
    draft_hidden_states: Array | None = None,
) -> tuple[Array, Array]:
    """Score every pair of neighbouring candidates.

    Args:
        head: Any but rnn, whose state depends on the whole path.
        draft_logits: ``[R, V]``, blocks back to back.
        anchor_token_ids: ``[B]``, the token before each block.
        block_begins: ``[B + 1]``, first row of each block, then R.
        k: Candidates per row.
        draft_hidden_states: ``[R, H]``; None for vanilla.

    Returns:
        ``candidate_ids`` i64 ``[R, K]`` and ``edge_scores`` ``[R, K, K]``: row, predecessor, candidate; the row's own
        logit is included, and in a block's first row every predecessor is the anchor.
    """
    rows = np.asarray(draft_logits, np.float64)
    ids = top_k(rows, k)
    edges = np.empty((len(rows), k, k))
    for anchor, begin, end in zip(anchor_token_ids, block_begins[:-1], block_begins[1:], strict=True):
        for row in range(begin, end):
            previous = np.full(k, anchor) if row == begin else ids[row - 1]
            hidden = None if draft_hidden_states is None else np.tile(draft_hidden_states[row], (k, 1))
            correction, _ = head.corrections(previous, hidden)
            edges[row] = rows[row, ids[row]] + correction @ head.w2[ids[row]].T
    return ids, edges
