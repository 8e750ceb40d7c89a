"""Rows of draft logits as a head sees them: scaled, capped, over the target vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def scaled_rows(logits: Array, output_multiplier: float = 1.0, final_logit_softcapping: float | None = None) -> Array:
    """Multiplier first, then ``tanh(z / cap) * cap``; 0 or None is no cap.

    Args:
        logits: ``[..., V or Dv]`` as the output layer gives them.
        output_multiplier: Factor.
        final_logit_softcapping: The cap.

    Returns:
        f64, the same shape.
    """
    scaled: Array = np.asarray(logits, np.float64) * output_multiplier
    cap = final_logit_softcapping
    return np.tanh(scaled / cap) * cap if cap else scaled


def target_ids(d2t: Array) -> Array:
    """Target id of each draft id, i64 ``[Dv]``: ``i + d2t[i]``, in any order."""
    ids: Array = np.arange(len(d2t)) + np.asarray(d2t, np.int64)
    return ids


def to_target_vocabulary(rows: Array, d2t: Array, vocab_size: int) -> Array:
    """Rows over the draft vocabulary put where their tokens are in the target's; -inf elsewhere.

    Args:
        rows: ``[..., Dv]``.
        d2t: Offsets, ``[Dv]``.
        vocab_size: V.

    Returns:
        ``[..., V]`` of the rows' type.
    """
    wide = np.full((*rows.shape[:-1], vocab_size), -np.inf, rows.dtype)
    wide[..., target_ids(d2t)] = rows
    return wide
