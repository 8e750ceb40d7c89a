"""Inputs of a Markov head: packed rows of three requests."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft.drafts.contract import Port

BLOCK_LENGTHS = (2, 1, 3)
"""Rows of each request."""


def head_value(
    name: str, shape: ov.PartialShape, vocab_size: int, ports: Container[str], random: np.random.Generator
) -> NDArray[Any] | None:
    """The value of one port; None for a port the contract does not know.

    Where one port means ``[R, H]`` to the scorer and ``[M, H]`` to the dense step, every request has one row, so that
    both are right.
    """
    packed = Port.DRAFT_HIDDEN_STATES in ports and Port.PREV_TOKEN_IDS in ports
    lengths = (1, 1, 1) if packed else BLOCK_LENGTHS
    rows, requests = sum(lengths), len(lengths)
    width = shape[-1].get_length() if len(shape) and shape[-1].is_static else 1
    match name:
        case Port.DRAFT_LOGITS:
            return random.standard_normal((rows, vocab_size))
        case Port.ANCHOR_TOKEN_IDS | Port.PREV_TOKEN_IDS:
            return random.integers(0, vocab_size, requests)
        case Port.BLOCK_BEGINS:
            return np.cumsum((0, *lengths))
        case Port.DRAFT_HIDDEN_STATES:
            return random.standard_normal((rows, width))
        case Port.RNN_STATE:
            return np.zeros((requests, width))
    return None
