"""What a host must make sure of before it calls a head, because OpenVINO does not: it would compute something.

Measured on OpenVINO 2026.4.1, CPU: a Gather with an id past the table and a block that begins past the last row both
run without an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovgraft.drafts.contract import Port
from ovgraft.errors import PreconditionError, Reason

Array = NDArray[Any]


class HeadInputError(PreconditionError, ValueError):
    """Inputs that no head can take; ``reasons`` names the ports and what is wrong with each."""


def block_begins(lengths: Sequence[int]) -> tuple[Array, Array]:
    """Pack requests: which of them have a block, and where the blocks begin.

    Args:
        lengths: Candidate rows of each request; a request with 0 has no block and no anchor.

    Returns:
        Indices of the requests that have a block, and ``block_begins`` i64 ``[B + 1]``.

    Raises:
        HeadInputError: A negative length.
    """
    rows = np.asarray(lengths, np.int64).reshape(-1)
    if (rows < 0).any():
        raise HeadInputError("a block has a negative length", found=rows.tolist())
    drafting = np.flatnonzero(rows)
    return drafting, np.concatenate([[0], np.cumsum(rows[drafting])]).astype(np.int64)


def check(reasons: Iterator[Reason]) -> None:
    """Raise when there is any reason.

    Raises:
        HeadInputError: With all of them.
    """
    found = tuple(reasons)
    if found:
        raise HeadInputError("; ".join(reason.message for reason in found), reasons=found)


def block_reasons(begins: Array, anchors: Array, rows: int) -> Iterator[Reason]:
    """Blocks must cover the rows without holes, one anchor each.

    Args:
        begins: ``block_begins`` i64 ``[B + 1]``.
        anchors: ``anchor_token_ids`` i64 ``[B]``.
        rows: R of the other inputs.
    """
    if begins.ndim != 1 or len(begins) < 2 or not np.issubdtype(begins.dtype, np.integer):
        found = f"{begins.dtype} {list(begins.shape)}"
        yield Reason("block-begins", f"{Port.BLOCK_BEGINS} is {found}, expected integers [B + 1], B above 0")
        return
    if begins[0] != 0:
        yield Reason("block-begins", f"{Port.BLOCK_BEGINS} begins with {begins[0]}, expected 0")
    if begins[-1] != rows:
        yield Reason("block-begins", f"{Port.BLOCK_BEGINS} ends with {begins[-1]}, expected {rows}, the rows given")
    stuck = np.flatnonzero(np.diff(begins) <= 0)
    if len(stuck):
        block = int(stuck[0])
        yield Reason(
            "block-begins",
            f"{Port.BLOCK_BEGINS} does not rise at block {block}: {begins[block]} to {begins[block + 1]}; "
            "a request without rows has no block",
        )
    if anchors.shape != (len(begins) - 1,):
        yield Reason("anchors", f"{Port.ANCHOR_TOKEN_IDS} has shape {list(anchors.shape)} for {len(begins) - 1} blocks")


def token_reasons(port: Port, ids: Array, vocab_size: int) -> Iterator[Reason]:
    """Token ids must be target ids."""
    if ids.ndim != 1 or not len(ids) or not np.issubdtype(ids.dtype, np.integer):
        yield Reason("token-ids", f"{port} is {ids.dtype} {list(ids.shape)}, expected integers of one axis, at least 1")
        return
    outside = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if len(outside):
        place = int(outside[0])
        yield Reason("token-ids", f"{port}[{place}] is {ids[place]}, expected 0 to {vocab_size - 1}")


def logit_reasons(rows: Array, vocab_size: int) -> Iterator[Reason]:
    """Rows of logits must be numbers or -inf, with a number in each."""
    if rows.ndim != 2 or rows.shape[1] != vocab_size:
        yield Reason("shape", f"{Port.DRAFT_LOGITS} has shape {list(rows.shape)}, expected [R, {vocab_size}]")
        return
    # the maximum of a row with NaN is NaN, so one pass tells all cases that a row of numbers and -inf is not
    best = rows.max(axis=1, initial=-np.inf)
    for row in np.flatnonzero(~np.isfinite(best))[:1]:
        what = "NaN" if np.isnan(best[row]) else "+inf" if best[row] > 0 else "no finite logit"
        yield Reason("logits", f"{Port.DRAFT_LOGITS} row {row} has {what}")


def state_reasons(port: Port, values: Array, rows: int, width: int) -> Iterator[Reason]:
    """Hidden states and recurrent states must be finite and match the other inputs."""
    if values.shape != (rows, width):
        yield Reason("shape", f"{port} has shape {list(values.shape)}, expected [{rows}, {width}]")
        return
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        yield Reason("not-finite", f"{port} row {bad[0]} is not finite")
