"""The embedding row of the mask token: in some tables it was never trained, and some drafts bring their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft.drafts.constant_rows import UnreadableWeightError, weight_rows
from ovgraft.drafts.weight_source import open_mask_embedding
from ovgraft.errors import CheckpointError, Reason
from ovgraft.ir.weights import weight_root

_SAMPLES = 64
_NEAR_ZERO = 1e-3  # of a typical row's norm


def read_mask_embedding(folder: Path, width: int) -> NDArray[np.float32] | None:
    """The vector of a draft's side file, f32 ``[width]``; None without one.

    Raises:
        CheckpointError: It is pickled, holds more than one vector, or is of another width.
    """
    stored = open_mask_embedding(folder)
    if stored is None:
        return None
    if stored.shape not in ((width,), (1, width)):
        raise CheckpointError(
            "the mask embedding does not fit the draft",
            key=stored.name,
            file=stored.file,
            expected=f"one vector of {width}",
            found=list(stored.shape),
        )
    vector: NDArray[np.float32] = stored.read().reshape(width).astype(np.float32)
    return vector


def mask_row_warning(table: ov.Output, mask_token_id: int) -> Reason | None:
    """A warning when the mask token's row in a target's embedding is near zero.

    Args:
        table: Root of the weight subgraph ``[V, H]``, compressed or not.
        mask_token_id: The row.
    """
    root = weight_root(table)
    if root is None:
        return None
    try:
        rows = weight_rows(root, 0)
        count = int(table.get_shape()[0])
        norms = [_norm(rows.read(i, i + 1)) for i in range(0, count, max(1, count // _SAMPLES))]
        norm = _norm(rows.read(mask_token_id, mask_token_id + 1))
    except UnreadableWeightError:
        return None
    typical = sorted(norms)[len(norms) // 2]
    if norm > _NEAR_ZERO * typical:
        return None
    return Reason(
        "mask-row-near-zero",
        f"the target's embedding of mask token {mask_token_id} is near zero (norm {norm:.3g}, others {typical:.3g}); "
        "the draft may have been trained with a mask embedding of its own",
    )


def _norm(row: NDArray[Any]) -> float:
    return float(np.linalg.norm(row))
