"""Draft vocabularies: the map from draft ids to target ids, and whether it is one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovgraft.drafts.reference.rows import target_ids
from ovgraft.drafts.spec import Vocabulary
from ovgraft.drafts.tensors import D2T, T2D
from ovgraft.drafts.weight_source import WeightSource
from ovgraft.errors import CheckpointError, Reason


def check_token_map(vocabulary: Vocabulary, weights: WeightSource) -> tuple[Vocabulary, tuple[Reason, ...]]:
    """Check ``d2t`` and ``t2d`` against each other and the vocabulary; shapes are known to be right.

    Args:
        vocabulary: What the config says.
        weights: Tensors under canonical names.

    Returns:
        The vocabulary with what was found in the map, and warnings.

    Raises:
        CheckpointError: An entry leaves ``[0, V)``, ``t2d`` marks other tokens, or a full vocabulary is permuted.
    """
    if T2D in weights and not vocabulary.pruned and not weights.tensor(T2D).all():
        raise CheckpointError(
            "t2d leaves out tokens of a vocabulary that is not pruned",
            key=T2D,
            file=weights.info(T2D).file,
            expected=f"{vocabulary.size} tokens",
            found=f"{np.count_nonzero(weights.tensor(T2D))}",
        )
    if D2T not in weights:
        return vocabulary, ()
    info = weights.info(D2T)
    ids = target_ids(info.read())
    if not vocabulary.pruned:
        moved = np.flatnonzero(ids[: vocabulary.size] != np.arange(vocabulary.size))
        if len(moved):
            raise CheckpointError(
                "d2t moves tokens of a vocabulary that is not pruned",
                key=D2T,
                file=info.file,
                expected="0 everywhere, or draft_vocab_size below vocab_size",
                found=f"draft id {moved[0]} -> {ids[moved[0]]}",
            )
        return vocabulary, ()
    outside = np.flatnonzero((ids < 0) | (ids >= vocabulary.size))
    if len(outside):
        first = int(outside[0])
        raise CheckpointError(
            "d2t leaves the target vocabulary",
            key=D2T,
            file=info.file,
            expected=f"i + d2t[i] in [0, {vocabulary.size})",
            found=f"{first} + {int(ids[first]) - first} = {int(ids[first])}",
        )
    if T2D in weights:
        _compare(ids, weights, vocabulary.size)
    unique, first_uses = np.unique(ids, return_index=True)
    duplicates = len(ids) - len(unique)
    checked = replace(vocabulary, d2t_sorted=bool(np.all(ids[1:] >= ids[:-1])), duplicate_tokens=duplicates)
    if not duplicates:
        return checked, ()
    repeated = int(np.setdiff1d(np.arange(len(ids)), first_uses)[0])
    return checked, (
        Reason(
            "duplicate-draft-tokens",
            f"d2t gives {duplicates} draft ids the token of another (draft id {repeated}: token {ids[repeated]}); "
            "greedy drafting is unaffected, sampled drafting is not exact",
        ),
    )


def _compare(ids: NDArray[Any], weights: WeightSource, size: int) -> None:
    info = weights.info(T2D)
    mapped = np.zeros(size, dtype=bool)
    mapped[ids] = True
    different = np.flatnonzero(mapped != info.read())
    if len(different):
        token = int(different[0])
        raise CheckpointError(
            "t2d and d2t mark different tokens",
            key=T2D,
            file=info.file,
            expected=f"t2d[{token}] = {bool(mapped[token])}, as d2t says",
            found=f"{len(different)} tokens differ",
        )
