"""The per-row form of a DFlash layer: one row per token, context and block rows told apart by ``token_type_ids``.

A context row brings the projected hidden state of a committed token and only its keys and values matter; a block row
brings an embedding and attends. Both lie on one row axis, which is what PagedAttention can page. Rows whose type is 1
and that follow each other are one block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import openvino as ov
from openvino import opset13 as opset


@dataclass(frozen=True)
class RowAttention:
    """What a block row of one layer sees.

    Attributes:
        window: Context keys with ``query position - key position < window``; 0 is all.
        bidirectional: Whether it sees the later rows of its block too.
    """

    window: int = 0
    bidirectional: bool = True

    @property
    def in_block(self) -> Literal["causal", "bidirectional"]:
        """In the words of ``build-draft{sliding-in-block}``."""
        return "bidirectional" if self.bidirectional else "causal"


class RowKinds:
    """The row kinds of a per-row draft, computed once for all layers.

    Args:
        token_type_ids: i64 ``[B, S]``: 0 context, 1 block.
        attention_mask: i64 ``[B, past + S]``; only its length is read.
    """

    def __init__(self, token_type_ids: ov.Output, attention_mask: ov.Output) -> None:
        self._types = token_type_ids
        is_block = opset.equal(token_type_ids, _int(1))
        self.is_block = opset.unsqueeze(is_block, _int(2)).output(0)
        """bool ``[B, S, 1]``"""
        rows = opset.gather(opset.shape_of(token_type_ids, output_type="i64"), _int(1), _int(0))
        self._total = opset.gather(opset.shape_of(attention_mask, output_type="i64"), _int(1), _int(0))
        self._past = opset.subtract(self._total, rows)
        self._masks: dict[RowAttention, ov.Output] = {}

    def select(self, block: ov.Output, context: ov.Output) -> ov.Output:
        """Rows ``[B, S, width]``: ``block`` where the type is 1, else ``context``."""
        return opset.select(self.is_block, block, context).output(0)

    def mask(self, attention: RowAttention) -> ov.Output:
        """Additive f32 mask ``[B, 1, S, past + S]``; layers of one kind share it."""
        if attention not in self._masks:
            self._masks[attention] = self._make_mask(attention)
        return self._masks[attention]

    def _make_mask(self, attention: RowAttention) -> ov.Output:
        keys = opset.range(_scalar(0), opset.squeeze(self._total, _int(0)), _scalar(1), output_type="i64")
        key = opset.unsqueeze(keys, _int(0))
        query = opset.unsqueeze(opset.slice(keys, self._past, _int(_END), _int(1), _int(0)), _int(1))
        seen = opset.less_equal(key, query)
        if attention.window:
            inside = opset.less(opset.subtract(query, key), _scalar(attention.window))
            seen = opset.logical_and(seen, inside)
        seen = opset.unsqueeze(seen, _int(0))
        if attention.bidirectional:
            seen = opset.logical_or(seen, self._same_block())
        lowest = opset.constant(np.array(np.finfo(np.float16).min, np.float32))
        bias = opset.select(seen, opset.constant(np.array(0, np.float32)), lowest)
        return opset.unsqueeze(bias, _int(1)).output(0)

    def _same_block(self) -> ov.Node:
        """Bool ``[B, S, past + S]``: key and query are in one run of ones of this call."""
        run = opset.cum_sum(opset.subtract(_int(1), self._types), _scalar(1))  # constant over a run, context counts on
        tag = opset.select(opset.equal(self._types, _int(1)), run, _int(-1))
        batch = opset.gather(opset.shape_of(self._types, output_type="i64"), _int(0), _int(0))
        cached = opset.broadcast(_int(-2), opset.concat([batch, self._past], 0))
        keys = opset.concat([cached, opset.select(opset.equal(self._types, _int(1)), run, _int(-2))], 1)
        return opset.equal(opset.unsqueeze(tag, _int(2)), opset.unsqueeze(keys, _int(1)))


def repeat_heads(rows: ov.Output, heads: int) -> ov.Output:
    """Keys or values ``[B, kv heads, T, size]`` for every query head.

    Unsqueeze, Broadcast, Reshape is the one way of writing it that the PagedAttention transformation sees through.

    Args:
        rows: Cached and new rows.
        heads: Query heads, a multiple of the key heads.
    """
    shape = rows.get_partial_shape()
    kv_heads, size = shape[1].get_length(), shape[3].get_length()
    if kv_heads == heads:
        return rows
    grouped = opset.broadcast(
        opset.unsqueeze(rows, _int(2)), _int(1, 1, heads // kv_heads, 1, 1), broadcast_spec="BIDIRECTIONAL"
    )
    return opset.reshape(grouped, _int(0, heads, -1, size), special_zero=True).output(0)


_END = np.iinfo(np.int64).max


def _int(*values: int) -> ov.Node:
    return opset.constant(np.array(values, np.int64))


def _scalar(value: int) -> ov.Node:
    return opset.constant(np.array(value, np.int64))
