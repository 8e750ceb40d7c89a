"""Refuses weights that are NaN or infinite, by their exponent bits, in blocks through one reused buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovgraft.drafts.checkpoint import Checkpoint
from ovgraft.drafts.weight_source import BFLOAT16
from ovgraft.errors import CheckpointError

Progress = Callable[[int, int, str], None]

_BLOCK = 1 << 20
_EXPONENTS: dict[np.dtype[Any], tuple[type[np.unsignedinteger[Any]], int]] = {
    BFLOAT16: (np.uint16, 0x7F80),
    np.dtype(np.float16): (np.uint16, 0x7C00),
    np.dtype(np.float32): (np.uint32, 0x7F800000),
}
"""Type -> unsigned type of its size, and the exponent that means NaN or infinity."""


def check_finite(checkpoint: Checkpoint, progress: Progress = lambda done, total, what: None) -> None:
    """Read all weights once.

    Args:
        checkpoint: The checkpoint.
        progress: Called as ``progress(done, total, name)`` for each tensor.

    Raises:
        CheckpointError: A tensor holds NaN or infinity; it is named, with the first index.
    """
    weights = checkpoint.weights
    buffers: dict[type[np.unsignedinteger[Any]], NDArray[Any]] = {}
    for count, name in enumerate(weights):
        progress(count, len(weights), name)
        info = weights.info(name)
        if info.dtype not in _EXPONENTS:
            continue
        kind, exponent = _EXPONENTS[info.dtype]
        buffer = buffers.setdefault(kind, np.empty(_BLOCK, kind))
        values = weights.tensor(name)
        at = _first_bad(values.reshape(-1).view(kind), kind(exponent), buffer)
        if at is not None:
            index = [int(i) for i in np.unravel_index(at, values.shape)]
            raise CheckpointError(
                f"tensor {name} holds a value that is not finite",
                key=name,
                file=info.file,
                found=f"{float(values.reshape(-1)[at])} at {index}",
            )


def _first_bad(bits: NDArray[Any], exponent: np.unsignedinteger[Any], buffer: NDArray[Any]) -> int | None:
    for start in range(0, len(bits), _BLOCK):
        block = bits[start : start + _BLOCK]
        masked = np.bitwise_and(block, exponent, out=buffer[: len(block)])
        if masked.max() == exponent:
            return start + int(np.argmax(masked == exponent))
    return None
