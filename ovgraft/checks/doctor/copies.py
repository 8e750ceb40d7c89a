"""Tables a draft shares with its target or has a copy of: some rows of both, held against each other.

A copy was made before training, so a table that has moved since, or of another model, means that the draft was trained
for something else. Only rows are read; build-draft compares all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft.checks.doctor.facts import PairFacts, is_attached, own_embedding
from ovgraft.drafts.constant_rows import UnreadableWeightError, weight_rows
from ovgraft.drafts.tensors import EMBEDDING, LM_HEAD
from ovgraft.ir.weights import weight_root

OTHER_TABLE = 0.5
"""Of a row's length: four bits are some 0.1 away from what they round, rows of another model 1.4."""

_ROWS = 32

Array = NDArray[Any]
ReadRow = Callable[[int], Array]


def embedding_distance(pair: PairFacts) -> float | None:
    """How far the draft's own embedding is from the target's; None without one, or where rows are not read."""
    draft, source = pair.draft, pair.embedding
    if is_attached(draft, "embedding"):
        return None
    if draft.checkpoint is not None:
        own = _stored(pair, EMBEDDING)
        width = None if own is None else len(own(0))
        count = source.vocab_size
    else:
        found = own_embedding(draft)
        own = None if found is None else _rows(found.table, 0)
        width, count = (None, 0) if found is None else (found.width, min(found.vocab_size, source.vocab_size))
    return None if width != source.width else _distance(own, _rows(source.table, 0), count)


def lm_head_distance(pair: PairFacts) -> float | None:
    """How far a checkpoint's copy of the output layer is from the target's."""
    head = pair.structure.lm_head
    own = _stored(pair, LM_HEAD)
    if own is None or len(own(0)) != head.width:
        return None
    return _distance(own, _rows(head.weight, 0 if head.transpose_b else 1), head.vocab_size)


def _stored(pair: PairFacts, name: str) -> ReadRow | None:
    checkpoint = pair.draft.checkpoint
    if checkpoint is None or name not in checkpoint.weights:
        return None
    table = checkpoint.weights.tensor(name)
    return lambda row: table[min(row, len(table) - 1)].astype(np.float32)


def _rows(table: ov.Output, axis: int) -> ReadRow | None:
    weight = weight_root(table)
    if weight is None:
        return None
    try:
        reader = weight_rows(weight, axis)
        reader.read(0, 1)
    except UnreadableWeightError:
        return None
    return lambda row: reader.read(row, row + 1)[0]


def _distance(a: ReadRow | None, b: ReadRow | None, count: int) -> float | None:
    """The middle one of the relative distances of some rows."""
    if a is None or b is None:
        return None
    found = []
    for row in range(0, count, max(1, count // _ROWS)):
        own, target = a(row), b(row)
        length = float(np.linalg.norm(target))
        if length > 0:
            found.append(float(np.linalg.norm(own - target)) / length)
    return float(np.median(found)) if found else None
