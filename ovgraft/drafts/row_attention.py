"""What a block row of a DFlash draft sees, found by running the masks of its attention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import openvino as ov

from ovgraft.decoder.mask_function import MaskFunction, mask_functions
from ovgraft.decoder.paging import read_paged
from ovgraft.decoder.steps import ATTENTION_TYPES
from ovgraft.drafts.cached_rows import CachedRows, read_cached_rows
from ovgraft.drafts.per_row import RowAttention
from ovgraft.ir.graph import Graph
from ovgraft.ir.head_sizes import PAGED_ATTENTION

_CONTEXT, _ROWS = 40, 6
_LONGEST_TRIED = 1 << 15  # context rows


def read_row_attention(graph: Graph, attention: Sequence[int]) -> list[RowAttention | str]:
    """Read the masks of a DFlash draft in any of its forms; no weight is read.

    Args:
        graph: View of the draft.
        attention: Numbers of ScaledDotProductAttention or PagedAttentionExtension ops.

    Returns:
        One entry an op: what a block row sees, or why that cannot be told, in words.
    """
    stateful = [i for i in attention if graph.types[i] != PAGED_ATTENTION]
    try:
        functions = mask_functions([graph.nodes[i] for i in stateful], draft=True)
    except RuntimeError as error:
        return [_not_run(error)] * len(attention)
    # layers that share a mask share the work
    asked = {i: (function, _kept(graph, i)) for i, function in zip(stateful, functions, strict=True)}
    distinct = {(id(function), kept): block_sees(function, kept) for function, kept in asked.values()}
    seen = {i: distinct[id(function), kept] for i, (function, kept) in asked.items()}
    return [seen[i] if i in seen else _paged(graph.nodes[i]) for i in attention]


def read_all_row_attention(graph: Graph) -> list[RowAttention | str]:
    """The same of every attention op of a draft, in topological order; where none is left whole, one entry says so."""
    attention = [i for i, kind in enumerate(graph.types) if kind in ATTENTION_TYPES]
    return read_row_attention(graph, attention) if attention else ["it has no attention op"]


def _kept(graph: Graph, attention: int) -> int:
    """Cache rows attention may read, where the exporter cuts them; 0 is all."""
    rows = read_cached_rows(graph, attention, 1)
    return rows.kept if isinstance(rows, CachedRows) else 0


def _paged(node: ov.Node) -> RowAttention:
    op = read_paged(node)
    return RowAttention(op.window, op.token_types)


def block_sees(mask: MaskFunction | None, kept: int = 0) -> RowAttention | str:
    """What a block row sees, from running the mask over 40 context rows and 6 block rows.

    Args:
        mask: The mask; context and block rows lie on two axes, or on one and are told apart by token_type_ids.
        kept: Cache rows attention may read, where the exporter cuts them for a sliding window; 0 is all.

    Returns:
        Window and causality, or why they cannot be told, in words.
    """
    if mask is None:
        return "the attention has no mask input, or is causal by attribute"
    windows = [kept, *mask.integers] if kept else mask.integers
    context = max([_CONTEXT, *(window + _ROWS for window in windows if window < _LONGEST_TRIED)])
    try:
        bias = _block_rows(mask, context)
    except RuntimeError as error:
        return _not_run(error)
    keys = bias.shape[-1]
    if bias.shape[1] not in (1, _ROWS) or keys not in (1, context + _ROWS, kept + _ROWS):
        return f"the mask has shape {list(bias.shape)} for {context} context rows and {_ROWS} block rows"
    seen = np.isfinite(np.broadcast_to(bias, (bias.shape[0], _ROWS, keys if keys > 1 else context + _ROWS)))
    if (seen != seen[:1]).any() or (bias[np.isfinite(bias)] != 0).any():
        return "the mask treats heads differently or adds a bias"
    seen = seen[0]
    width = seen.shape[1]
    position = np.arange(width) - (width - _ROWS)  # of each key, the first block row being 0
    distance = np.arange(_ROWS)[:, None] - position[None]
    for bidirectional in (True, False):
        for window in [0, *sorted(set(windows) - {0, 1})]:
            wanted = distance < window if window else np.ones_like(distance, bool)
            if not bidirectional:
                wanted = wanted & (distance >= 0)
            if np.array_equal(seen, wanted):
                untried = [number for number in windows if number >= _LONGEST_TRIED]
                if not window and untried:
                    return f"the mask may have a window of {untried[0]}, too long to try"
                return _with_cut(window, kept, bidirectional)
    return "the mask is none that a draft layer is known to have"


def _not_run(error: RuntimeError) -> str:
    return f"the mask could not be run: {str(error).strip().splitlines()[-1]}"


def _block_rows(mask: MaskFunction, context: int) -> npt.NDArray[np.float32]:
    """The mask of the block behind some context rows, ``[heads or 1, block rows or 1, keys]``."""
    if not mask.takes_token_types:
        return mask.run(0, _ROWS, context=context)
    types = np.repeat(np.array([0, 1], np.int64), [context, _ROWS])
    return mask.run(0, len(types), token_types=types)[:, -_ROWS:]


def _with_cut(window: int, kept: int, bidirectional: bool) -> RowAttention | str:
    """The window, where the exporter also cuts the cache to the last ``kept`` rows."""
    if kept and (not window or window > kept):
        return f"the cache is cut to {kept} rows but the mask's window is {window or 'unlimited'}"
    return RowAttention(window, bidirectional)
