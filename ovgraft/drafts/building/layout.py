"""How rows lie: a block behind its context on two axes (SDPA form), or all rows of all requests on one (per-row form).

Layers compute on block rows only, in both: of a context row nothing but its key and value is ever read.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import openvino as ov

from ovgraft.drafts.building.cache import Cache
from ovgraft.drafts.building.graph import Scope, ints, scalar
from ovgraft.drafts.building.rotary import Rotary
from ovgraft.drafts.per_row import RowAttention, RowKinds
from ovgraft.ir import opset

_END = np.iinfo(np.int64).max


class Layout(Protocol):
    """What differs between the forms. Block rows are f32 ``[B, block, W]``, or ``[1, block rows, W]`` per row."""

    def block_rows(self, rows: ov.Output) -> ov.Output:
        """The rows layers compute on, of a tensor with every row of the model's input axis."""

    def output_rows(self, rows: ov.Output) -> ov.Output:
        """Block rows where the model's output has them."""

    def sources(self, block: ov.Output, context: ov.Output) -> ov.Output:
        """Rows that keys and values are made from, in the order of their positions: ``[B, S, H]``."""

    def query_rotary(self, rotary: Rotary) -> Rotary:
        """Cosines and sines of block rows, of those of all rows."""

    def queries(self, query: ov.Output) -> ov.Output:
        """Queries of block rows ``[.., heads, rows, size]`` as attention takes them."""

    def attended(self, rows: ov.Output) -> ov.Output:
        """Block rows of what attention gave, ``[B, .., W]``."""

    def mask(self, sees: RowAttention) -> ov.Output:
        """Additive f32 mask; layers of one kind share it."""

    def cached(self, cache: Cache, layer: int, what: str, rows: ov.Output) -> ov.Output:
        """Append keys or values ``[B, heads, S, size]`` to those in the cache, and keep there what stays."""

    def shifted(self, rows: ov.Output, taps: int) -> ov.Output:
        """Block row ``i - taps`` at row ``i``, zero where that row is not of the same block."""


class SdpaLayout:
    """A batch of equal blocks, ``[B, block, H]``, each behind its context rows ``[B, context, H]``.

    Args:
        block: f32 ``[B, block, H]``.
        context: f32 ``[B, context, H]``.
        attention_mask: i64 ``[B, past + context + block]``, 0 for padding.
    """

    def __init__(self, block: ov.Output, context: ov.Output, attention_mask: ov.Output) -> None:
        self._padding = attention_mask
        self._total = opset.gather(opset.shape_of(attention_mask, output_type="i64"), scalar(1), scalar(0))
        self._rows = opset.gather(opset.shape_of(block, output_type="i64"), scalar(1), scalar(0))
        self._context_rows = opset.gather(opset.shape_of(context, output_type="i64"), ints(1), scalar(0))
        self._masks: dict[RowAttention, ov.Output] = {}

    def block_rows(self, rows: ov.Output) -> ov.Output:
        """Itself: the input axis holds the block alone."""
        return rows

    def output_rows(self, rows: ov.Output) -> ov.Output:
        """Itself."""
        return rows

    def sources(self, block: ov.Output, context: ov.Output) -> ov.Output:
        """Context rows, then the block."""
        return opset.concat([context, block], 1).output(0)

    def query_rotary(self, rotary: Rotary) -> Rotary:
        """Those of the last rows of the call."""
        return Rotary(*(self._last(part) for part in (rotary.cos, rotary.sin)))

    def queries(self, query: ov.Output) -> ov.Output:
        """Itself: only block rows attend."""
        return query

    def attended(self, rows: ov.Output) -> ov.Output:
        """Itself."""
        return rows

    def mask(self, sees: RowAttention) -> ov.Output:
        """f32 ``[B, 1, block or 1, past + context + block]``."""
        if sees not in self._masks:
            self._masks[sees] = self._make_mask(sees)
        return self._masks[sees]

    def cached(self, cache: Cache, layer: int, what: str, rows: ov.Output) -> ov.Output:
        """Of a block nothing stays in the cache."""
        split = opset.variadic_split(rows, scalar(2), opset.concat([self._context_rows, ints(-1)], 0))
        kept = cache.append(layer, what, split.output(0))
        return opset.concat([kept, split.output(1)], 2).output(0)

    def shifted(self, rows: ov.Output, taps: int) -> ov.Output:
        """Axis 1 is the block."""
        shape = opset.shape_of(rows, output_type="i64")
        batch, width = opset.gather(shape, ints(0), scalar(0)), opset.gather(shape, ints(2), scalar(0))
        zeros = opset.broadcast(opset.constant(np.float32(0)), opset.concat([batch, ints(taps), width], 0))
        padded = opset.concat([zeros, rows], 1)
        return opset.slice(padded, ints(0), ints(-taps), ints(1), ints(1)).output(0)

    def _last(self, part: ov.Output) -> ov.Output:
        """The rows of the block, which are the last of the call."""
        first = opset.unsqueeze(opset.multiply(self._rows, scalar(-1)), ints(0))
        return opset.slice(part, first, ints(_END), ints(1), ints(1)).output(0)

    def _make_mask(self, sees: RowAttention) -> ov.Output:
        hidden = opset.equal(opset.unsqueeze(self._padding, ints(1, 2)), scalar(0))
        keys = opset.range(scalar(0), self._total, scalar(1), output_type="i64")
        queries = opset.range(opset.subtract(self._total, self._rows), self._total, scalar(1), output_type="i64")
        distance = opset.subtract(opset.unsqueeze(queries, ints(1)), opset.unsqueeze(keys, ints(0)))
        if sees.window:
            outside = opset.greater_equal(distance, scalar(sees.window))
            hidden = opset.logical_or(hidden, opset.unsqueeze(outside, ints(0, 1)))
        if not sees.bidirectional:
            later = opset.less(distance, scalar(0))
            hidden = opset.logical_or(hidden, opset.unsqueeze(later, ints(0, 1)))
        lowest = opset.constant(np.array(np.finfo(np.float32).min, np.float32))
        return opset.select(hidden, lowest, opset.constant(np.array(0, np.float32))).output(0)


class PerRowLayout:
    """All rows on one axis ``[B, S]``; blocks are runs of ones in ``token_type_ids``, each behind a context row.

    Block rows are gathered, computed on, and written back where attention and the output need every row. The batch axis
    may as well be the row axis, as PagedAttention makes it.

    Args:
        scope: Names the nodes.
        token_type_ids: i64 ``[B, S]``: 0 context, 1 block.
        attention_mask: i64 ``[B, past + S]``; only its length is read.
    """

    def __init__(self, scope: Scope, token_type_ids: ov.Output, attention_mask: ov.Output) -> None:
        self._kinds = RowKinds(token_type_ids, attention_mask)
        self._shape = opset.shape_of(token_type_ids, output_type="i64")
        self._count = opset.reduce_prod(self._shape, ints(0), True)
        types = opset.reshape(token_type_ids, ints(-1), special_zero=False)
        places = opset.non_zero(opset.equal(types, scalar(1)), output_type="i64")
        self._places = scope.name(opset.squeeze(places, ints(0)), "block_rows")
        self._same_block: dict[int, ov.Output] = {}

    def block_rows(self, rows: ov.Output) -> ov.Output:
        """Gathered."""
        return opset.unsqueeze(opset.gather(_flat(rows), self._places, scalar(0)), ints(0)).output(0)

    def output_rows(self, rows: ov.Output) -> ov.Output:
        """Context rows are zero."""
        return self._spread(rows)

    def sources(self, block: ov.Output, context: ov.Output) -> ov.Output:
        """Context rows, block rows written over what they hold where a block is."""
        return self._all(opset.scatter_update(_flat(context), self._places, _flat(block), scalar(0)))

    def query_rotary(self, rotary: Rotary) -> Rotary:
        """Gathered."""
        return Rotary(*(self.block_rows(part) for part in (rotary.cos, rotary.sin)))

    def queries(self, query: ov.Output) -> ov.Output:
        """Context rows ask with zeros; nobody reads what they get."""
        _, heads, _, size = (dim.get_length() if dim.is_static else -1 for dim in query.get_partial_shape())
        merged = opset.reshape(opset.transpose(query, ints(0, 2, 1, 3)), ints(0, 0, heads * size), special_zero=True)
        spread = opset.reshape(self._spread(merged.output(0)), ints(0, 0, heads, size), special_zero=True)
        return opset.transpose(spread, ints(0, 2, 1, 3)).output(0)

    def attended(self, rows: ov.Output) -> ov.Output:
        """Gathered."""
        return self.block_rows(rows)

    def mask(self, sees: RowAttention) -> ov.Output:
        """f32 ``[B, 1, S, past + S]``."""
        return self._kinds.mask(sees)

    def cached(self, cache: Cache, layer: int, what: str, rows: ov.Output) -> ov.Output:
        """A host rolls block rows back."""
        return cache.append(layer, what, rows)

    def shifted(self, rows: ov.Output, taps: int) -> ov.Output:
        """Rows of one block, and no others, lie as far apart among all rows as among block rows."""
        width = opset.gather(opset.shape_of(rows, output_type="i64"), ints(2), scalar(0))
        zeros = opset.broadcast(opset.constant(np.float32(0)), opset.concat([ints(1, taps), width], 0))
        moved = opset.slice(opset.concat([zeros, rows], 1), ints(0), ints(-taps), ints(1), ints(1))
        return opset.select(self._reaches(taps), moved, opset.constant(np.float32(0))).output(0)

    def _reaches(self, taps: int) -> ov.Output:
        """Bool ``[1, block rows, 1]``: the row ``taps`` before is of the same block."""
        if taps not in self._same_block:
            nowhere = opset.constant(np.full(taps, -_END, np.int64))
            earlier = opset.slice(opset.concat([nowhere, self._places], 0), ints(0), ints(-taps), ints(1), ints(0))
            near = opset.equal(opset.subtract(self._places, scalar(taps)), earlier)
            self._same_block[taps] = opset.unsqueeze(near, ints(0, 2)).output(0)
        return self._same_block[taps]

    def _spread(self, rows: ov.Output) -> ov.Output:
        """Block rows ``[1, block rows, W]`` among zeros, ``[B, S, W]``."""
        width = rows.get_partial_shape()[2].get_length()
        zeros = opset.broadcast(opset.constant(np.float32(0)), opset.concat([self._count, ints(width)], 0))
        return self._all(opset.scatter_update(zeros, self._places, _flat(rows), scalar(0)))

    def _all(self, flat: ov.Node) -> ov.Output:
        """``[B * S, W]`` as ``[B, S, W]``."""
        width = flat.get_output_partial_shape(0)[1].get_length()
        return opset.reshape(flat, opset.concat([self._shape, ints(width)], 0), special_zero=False).output(0)


def _flat(rows: ov.Output) -> ov.Output:
    """``[.., W]`` as ``[rows, W]``."""
    width = rows.get_partial_shape()[2].get_length()
    return opset.reshape(rows, ints(-1, width), special_zero=False).output(0)
