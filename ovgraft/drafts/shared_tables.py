"""Are a draft's embedding and output layer the target's? Compared with what the target's IR stores, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import ml_dtypes
import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft.drafts.checkpoint import Checkpoint
from ovgraft.drafts.constant_rows import UnreadableWeightError, WeightRows, weight_rows
from ovgraft.drafts.spec import Source
from ovgraft.drafts.tensors import EMBEDDING, LM_HEAD
from ovgraft.errors import CheckpointError, Reason
from ovgraft.ir.weights import weight_root

_BLOCK = 1 << 17  # elements compared at a time: a block of f32 stays in the cache

# Rounding moves an element by half a quantization step at most; a zero point that is rounded too and a scale stored as
# f16 add up to one more. Tables of another model are several steps away almost everywhere.
_MOST_STEPS = 1.5
_MEAN_STEPS = 0.5

_HALF = 0.5001  # of a spacing: rounding to nearest, and f32 arithmetic here

_HINT = "the draft was trained for another target, or for this one before its tables changed; keep its own to go on"


class Match(StrEnum):
    """How a table of the draft relates to the target's."""

    IDENTICAL = "identical"
    ROUNDED = "rounded"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Outcome of comparing one table.

    Attributes:
        match: ``identical``: equal numbers; ``rounded``: equal up to the rounding of the storage types;
            ``different``: neither.
        format: How the target stores it: ``f32``, ``u8`` and so on.
        detail: The numbers behind ``match``, for people.
    """

    match: Match
    format: str
    detail: str


def compare_table(table: NDArray[Any], target: ov.Output) -> Comparison:
    """Compare a table of the draft with the target's.

    An exported IR stores other bytes than the checkpoint it came from, so numbers are compared after the rounding of
    both storage types. Float tables of one type match when they are equal; of two types, when no element is further
    away than half a spacing of each, while a fine-tune moves what it changes by a whole one. An integer table matches
    when it is a possible rounding of the draft's values: at most 1.5 quantization steps away everywhere, 0.5 on the
    average. A fine-tune that moved by less passes; the target's own table does not show the difference either.

    Args:
        table: ``[rows, H]`` of the draft, in its own type.
        target: The end of the target's weight subgraph, ``[rows, H]`` or ``[H, rows]``.
    """
    weight = weight_root(target)
    shape = tuple(target.get_shape()) if target.get_partial_shape().is_static else ()
    if weight is None or sorted(shape) != sorted(table.shape):
        return Comparison(Match.DIFFERENT, "-", f"a table of {list(table.shape)}, the target has {list(shape)}")
    try:
        rows = weight_rows(weight, axis=0 if shape == table.shape else 1)
        return _compare_compressed(table, rows) if rows.compressed else _compare_floats(table, rows)
    except UnreadableWeightError as error:
        return Comparison(Match.DIFFERENT, weight.format, f"the target stores it in a form that is not read: {error}")


def resolve_shared(
    checkpoint: Checkpoint,
    target_embedding: ov.Output,
    target_lm_head: ov.Output,
    *,
    keep: bool = False,
) -> Checkpoint:
    """Drop frozen copies of the target's tables, so that the draft shares the target's own.

    Only DeepSpec files hold such copies (``spec.frozen_copies``); other checkpoints come back as they are: tables they
    carry were trained or pruned.

    Args:
        checkpoint: The draft.
        target_embedding: ``Embedding.table`` of the target.
        target_lm_head: ``LmHead.weight`` of the target.
        keep: Keep a table that differs, instead of refusing.

    Returns:
        A checkpoint without the tables that match; ``spec.warnings`` says where the target's is a rounding.

    Raises:
        CheckpointError: A table is not the target's, or stored in a form that cannot be compared, and ``keep`` is not
            set.
    """
    spec = checkpoint.spec
    if not spec.frozen_copies:
        return checkpoint
    found = {
        EMBEDDING: compare_table(checkpoint.weights.tensor(EMBEDDING), target_embedding),
        LM_HEAD: compare_table(checkpoint.weights.tensor(LM_HEAD), target_lm_head),
    }
    for name, comparison in found.items():
        if comparison.match is Match.DIFFERENT and not keep:
            raise CheckpointError(
                f"{name} is not the target's",
                key=name,
                file=checkpoint.weights.info(name).file,
                expected=f"the target's table ({comparison.format}), up to its own rounding",
                found=comparison.detail,
                hint=_HINT,
            )
    return _without(checkpoint, found)


def _without(checkpoint: Checkpoint, found: dict[str, Comparison]) -> Checkpoint:
    spec = checkpoint.spec
    shared = {name for name, comparison in found.items() if comparison.match is not Match.DIFFERENT}
    warnings = tuple(
        Reason(
            f"table-{comparison.match}",
            f"the target's {name} ({comparison.format}) is the draft's copy up to rounding: {comparison.detail}"
            if name in shared
            else f"{name} is not the target's and stays with the draft: {comparison.detail}",
        )
        for name, comparison in found.items()
        if comparison.match is not Match.IDENTICAL
    )
    fields = {EMBEDDING: "own_embedding", LM_HEAD: "own_lm_head"}
    sources = dict(spec.sources)
    for name in shared:
        sources[fields[name]] = Source(
            checkpoint.weights.info(name).file.name, name, f"{found[name].match} to the target's {found[name].format}"
        )
    resolved = replace(
        spec,
        own_embedding=EMBEDDING not in shared,
        own_lm_head=LM_HEAD not in shared,
        frozen_copies=False,
        sources=sources,
        warnings=spec.warnings + warnings,
    )
    left = {name: name for name in checkpoint.weights if name not in shared}
    return Checkpoint(checkpoint.path, resolved, checkpoint.weights.renamed(left))


def _blocks(table: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    count = max(1, _BLOCK // max(1, table.shape[1]))
    for start in range(0, len(table), count):
        yield start, table[start : start + count].astype(np.float32)


def _compare_floats(table: NDArray[Any], rows: WeightRows) -> Comparison:
    exact, largest, differing = True, 0.0, 0
    for start, own in _blocks(table):
        target = rows.read(start, start + len(own))
        unequal = own != target
        if not unequal.any():
            continue
        exact = False
        own, target = own[unequal], target[unequal]
        error = np.abs(own - target)
        same = error <= _rounding(own, table.dtype, target, rows.dtype)
        if rows.dtype == np.float16:
            # Converters clamp to the largest f16, and may flush subnormals to zero.
            limits = np.finfo(np.float16)
            same |= (np.abs(own) > limits.max) & (np.abs(target) == limits.max)
            same |= (np.abs(own) < limits.smallest_normal) & (error <= limits.smallest_normal / 1024)
        differing += int(np.count_nonzero(~same))
        largest = max(largest, float(np.max(error)))
    if exact:
        return Comparison(Match.IDENTICAL, rows.weight.format, "equal numbers")
    if not differing:
        return Comparison(Match.ROUNDED, rows.weight.format, f"at most {largest:.3g} away")
    detail = f"{differing} of {table.size} elements differ, by up to {largest:.3g}"
    return Comparison(Match.DIFFERENT, rows.weight.format, detail)


def _rounding(
    own: NDArray[Any], own_type: np.dtype[Any], target: NDArray[Any], target_type: np.dtype[Any]
) -> NDArray[Any] | float:
    """How far two roundings of one number can be apart; equal types round it to the same one."""
    if own_type == target_type:
        return 0.0
    most: NDArray[Any] = (_spacing(own, own_type) + _spacing(target, target_type)) * np.float32(_HALF)
    return most


def _spacing(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Distance of neighbouring numbers of a type around f32 values."""
    limits = ml_dtypes.finfo(dtype)
    exponents = np.frexp(values)[1] - 1
    spacing: NDArray[Any] = np.ldexp(np.float32(1), np.maximum(exponents, limits.minexp) - limits.nmant)
    return spacing


def _compare_compressed(table: NDArray[Any], rows: WeightRows) -> Comparison:
    most, total = 0.0, 0.0
    for start, own in _blocks(table):
        target = rows.read(start, start + len(own))
        step = np.abs(rows.read(start, start + len(own), plus=1) - target)
        error = np.abs(own - target)
        steps = np.divide(error, step, out=np.where(error > 0, np.inf, 0.0).astype(np.float32), where=step > 0)
        most = max(most, float(np.max(steps, initial=0.0)))
        total += float(np.sum(steps, dtype=np.float64))
    mean = total / max(1, table.size)
    # Written so that NaN, which compares false to everything, is a difference.
    rounded = most <= _MOST_STEPS and mean <= _MEAN_STEPS
    detail = f"{mean:.2g} quantization steps away on average, {most:.3g} at most"
    return Comparison(Match.ROUNDED if rounded else Match.DIFFERENT, rows.weight.format, detail)
