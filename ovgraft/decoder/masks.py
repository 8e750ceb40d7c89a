"""What an attention mask does, found by running its subgraph instead of recognising its shape.

Exporters write the same mask in many ways, and a matcher that misses one drops a window or a bias without a word. The
mask of a ScaledDotProductAttention depends on lengths, positions and perhaps token types, never on large
weights, so its subgraph is cut out of a clone, the cache variables become inputs of any length, and a few small runs
say what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import openvino as ov

from ovgraft.decoder.mask_function import Array, MaskFunction, mask_functions

_ROWS = 6
_PASTS = (0, 9)


@dataclass(frozen=True)
class MaskFacts:
    """What one attention mask lets through.

    Attributes:
        causal: No row sees a later row, unless ``token_type_ids`` joins them.
        window: A key is seen if ``query position - key position < window``; 0 means no window.
        alibi_slopes: The bias grows by the head's slope from each key to the next; empty without such a bias.
        token_types: Rows whose ``token_type_ids`` is 1 see their whole run of ones.
        problem: Why the mask is none of these, in words; None when the fields above say all of it.
    """

    causal: bool = True
    window: int = 0
    alibi_slopes: tuple[float, ...] = ()
    token_types: bool = False
    problem: str | None = None


def read_masks(attention: Sequence[ov.Node]) -> list[MaskFacts]:
    """Read the masks of a stateful decoder's attention.

    Args:
        attention: ScaledDotProductAttention ops of one model, which is left as it is.

    Returns:
        One entry an op. Layers that share a mask share the work.
    """
    functions = mask_functions(attention)
    distinct = {id(function): function for function in functions if function is not None}
    facts = {key: _classify(function) for key, function in distinct.items()}
    return [
        facts[id(function)] if function is not None else _without_mask(node)
        for node, function in zip(attention, functions, strict=True)
    ]


def _without_mask(node: ov.Node) -> MaskFacts:
    if node.get_attributes().get("causal"):
        return MaskFacts()
    return MaskFacts(causal=False, problem="the attention has no mask: every row sees every row")


def _classify(mask: MaskFunction) -> MaskFacts:
    if mask.content:
        return MaskFacts(causal=False, problem=f"the mask depends on {mask.content}")
    try:
        samples = [mask(past, _ROWS) for past in _PASTS]
    except RuntimeError as error:
        return MaskFacts(causal=False, problem=f"the mask could not be run: {str(error).strip().splitlines()[-1]}")
    window, problem = _window(mask)
    if problem is not None:
        return MaskFacts(causal=False, problem=problem)
    readings: list[tuple[float, ...]] = []
    for past, bias in zip(_PASTS, samples, strict=True):
        if not np.array_equal(np.isfinite(bias), _expected(past, _ROWS, window, bias.shape[0])):
            what = "rows see later rows" if _sees_later(past, bias) else "rows do not see all earlier rows"
            return MaskFacts(causal=False, window=window, problem=f"the mask is not causal: {what}")
        found = _alibi(bias)
        if found is None:
            return MaskFacts(window=window, problem="the mask adds a bias that is not linear in the distance")
        readings.append(found)
    slopes = readings[0]
    if any(len(other) != len(slopes) or not np.allclose(other, slopes, rtol=1e-3) for other in readings[1:]):
        return MaskFacts(window=window, problem="the slope of the mask's bias changes with the length")
    if not mask.takes_token_types:
        return MaskFacts(window=window, alibi_slopes=slopes)
    return _with_token_types(mask, window, slopes)


def _expected(past: int, rows: int, window: int, heads: int) -> npt.NDArray[np.bool_]:
    distance = np.arange(past, past + rows)[:, None] - np.arange(past + rows)[None]
    seen = (distance >= 0) & (distance < window if window else True)
    return np.broadcast_to(seen, (heads, rows, past + rows))


def _sees_later(past: int, bias: Array) -> bool:
    rows = bias.shape[1]
    later = np.arange(past + rows)[None] > np.arange(past, past + rows)[:, None]
    return bool(np.isfinite(bias[:, later]).any())


def _window(mask: MaskFunction) -> tuple[int, str | None]:
    """The sliding window, from single rows long enough to pass every integer the subgraph holds."""
    found = set()
    lengths = [value + extra for value in mask.integers if value > 1 for extra in (2, 7)] or [_ROWS]
    for length in sorted(lengths):
        try:
            row = mask(length - 1, 1)
        except RuntimeError:
            break  # a table of limited length ends here, and so does every sequence the model can take
        seen = np.isfinite(row[:, 0])
        if not np.array_equal(seen, np.broadcast_to(seen[:1], seen.shape)):
            return 0, "the mask shows each head other keys"
        count = int(seen[0].sum())
        if not seen[0, length - count :].all():
            return 0, "the mask hides keys inside what a row sees"
        found.add(count if count < length else 0)
    windows = sorted(found - {0})
    if len(windows) > 1:
        return 0, f"what a row sees changes with its position (last {windows} keys): chunked attention"
    return (windows[0] if windows else 0), None


def _alibi(bias: Array) -> tuple[float, ...] | None:
    """Slopes of a bias that is linear in the key position; () when there is no bias, None when it is another one."""
    slopes = []
    for head in bias:
        row = head[-1][np.isfinite(head[-1])]
        slope = float(row[-1] - row[0]) / max(len(row) - 1, 1)
        for line in head:
            seen = line[np.isfinite(line)]
            if not np.allclose(np.diff(seen), slope, rtol=1e-3, atol=1e-6):
                return None
        slopes.append(slope)
    return tuple(slopes) if any(slopes) else ()


def _with_token_types(mask: MaskFunction, window: int, slopes: tuple[float, ...]) -> MaskFacts:
    """A mask that reads ``token_type_ids``: ones must join exactly their own run."""
    types = (1, 1, 0, 1, 1, 0)
    past = _PASTS[1]
    bias = mask(past, len(types), types)
    wanted = _expected(past, len(types), window, bias.shape[0]).copy()
    for begin, end in ((0, 2), (3, 5)):
        wanted[:, begin:end, past + begin : past + end] = True
    seen = np.isfinite(bias)
    if np.array_equal(seen, wanted):
        return MaskFacts(window=window, alibi_slopes=slopes, token_types=True)
    if np.array_equal(seen, _expected(past, len(types), window, bias.shape[0])):
        return MaskFacts(window=window, alibi_slopes=slopes)
    return MaskFacts(causal=False, window=window, problem="token_type_ids joins other rows than runs of ones")
