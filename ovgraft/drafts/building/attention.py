"""Attention of a draft layer over cached context rows and the rows of its block, in both forms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import openvino as ov

from ovgraft.drafts.building.cache import Cache
from ovgraft.drafts.building.graph import Scope, ints, scalar
from ovgraft.drafts.building.rotary import Rotary, rotate
from ovgraft.drafts.per_row import RowAttention, RowKinds, repeat_heads
from ovgraft.drafts.spec import Backbone
from ovgraft.ir import opset

_END = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Inputs:
    """What every layer's attention reads beside its rows.

    Attributes:
        context: f32 ``[B, context, H]``, the projected hidden states; ``[B, S, H]`` per row.
        rotary: Cosines and sines of all rows of the call.
        cache: Cache variables.
        attention_mask: i64 ``[B, past + rows]``.
        kinds: Row kinds, in the per-row form only.
    """

    context: ov.Output
    rotary: Rotary
    cache: Cache
    attention_mask: ov.Output
    kinds: RowKinds | None


class BlockMasks:
    """Masks of the SDPA form: block rows over cache, context and block; layers of one kind share one.

    Args:
        attention_mask: i64 ``[B, past + context + block]``, 0 for padding.
        block: f32 ``[B, block, H]``.
    """

    def __init__(self, attention_mask: ov.Output, block: ov.Output) -> None:
        self._padding = attention_mask
        self._total = opset.gather(opset.shape_of(attention_mask, output_type="i64"), scalar(1), scalar(0))
        self._rows = opset.gather(opset.shape_of(block, output_type="i64"), scalar(1), scalar(0))
        self._masks: dict[RowAttention, ov.Output] = {}

    def mask(self, attention: RowAttention) -> ov.Output:
        """Additive f32 mask ``[B, 1, block, past + context + block]``."""
        if attention not in self._masks:
            self._masks[attention] = self._make(attention)
        return self._masks[attention]

    def _make(self, attention: RowAttention) -> ov.Output:
        padding = opset.equal(opset.unsqueeze(self._padding, ints(1, 2)), scalar(0))
        hidden = padding
        if attention.window or not attention.bidirectional:
            keys = opset.range(scalar(0), self._total, scalar(1), output_type="i64")
            first = opset.subtract(self._total, self._rows)
            queries = opset.range(first, self._total, scalar(1), output_type="i64")
            distance = opset.subtract(opset.unsqueeze(queries, ints(1)), opset.unsqueeze(keys, ints(0)))
            outside = []
            if attention.window:
                outside.append(opset.greater_equal(distance, scalar(attention.window)))
            if not attention.bidirectional:
                outside.append(opset.less(distance, scalar(0)))
            for rule in outside:
                hidden = opset.logical_or(hidden, opset.unsqueeze(rule, ints(0, 1)))
        lowest = opset.constant(np.array(np.finfo(np.float32).min, np.float32))
        return opset.select(hidden, lowest, opset.constant(np.array(0, np.float32))).output(0)


def attend(
    scope: Scope, layer: int, rows: ov.Output, sees: RowAttention, inputs: Inputs, masks: BlockMasks, backbone: Backbone
) -> ov.Output:
    """One layer's attention, output projection included.

    Args:
        scope: Weights and names.
        layer: Number of the layer.
        rows: f32 ``[B, block, H]`` (per row ``[B, S, H]``), normed.
        sees: Window and causality.
        inputs: What all layers share.
        masks: Masks of the SDPA form.
        backbone: Sizes.

    Returns:
        f32 ``[B, block, H]``.
    """
    prefix = f"layers.{layer}.self_attn"
    heads, kv_heads, size = backbone.num_attention_heads, backbone.num_key_value_heads, backbone.head_dim
    if inputs.kinds is None:
        sources = scope.name(opset.concat([inputs.context, rows], 1), f"{prefix}/Concat")
    else:
        sources = scope.name(inputs.kinds.select(rows, inputs.context).get_node(), f"{prefix}/Select")
    query = _heads(scope, scope.linear(rows, f"{prefix}.q_proj"), heads, size)
    projected = _heads(scope, scope.linear(sources, f"{prefix}.k_proj"), kv_heads, size)
    if backbone.qk_norm:
        query = scope.norm(query, f"{prefix}.q_norm", backbone.rms_norm_eps)
        key = scope.norm(projected, f"{prefix}.k_norm", backbone.rms_norm_eps)
    else:
        key = projected
    value = (
        projected
        if backbone.shared_key_value
        else _heads(scope, scope.linear(sources, f"{prefix}.v_proj"), kv_heads, size)
    )
    if backbone.architecture == "gemma4":
        value = scope.norm(value, f"{prefix}.v_norm", backbone.rms_norm_eps, scaled=False)
    query, key, value = (opset.transpose(part, ints(0, 2, 1, 3)).output(0) for part in (query, key, value))
    cos, sin = (opset.unsqueeze(part, ints(1)).output(0) for part in (inputs.rotary.cos, inputs.rotary.sin))
    key = rotate(key, cos, sin)
    query = (
        rotate(query, *(_last_rows(part, rows) for part in (cos, sin)))
        if inputs.kinds is None
        else rotate(query, cos, sin)
    )
    keys = _cached(inputs, layer, "key", key, kv_heads, size)
    values = _cached(inputs, layer, "value", value, kv_heads, size)
    mask = masks.mask(sees) if inputs.kinds is None else inputs.kinds.mask(sees)
    attention = opset.scaled_dot_product_attention(
        query,
        repeat_heads(keys, heads),
        repeat_heads(values, heads),
        mask,
        scope.number(backbone.attention_scale),
        causal=False,
    )
    scope.name(attention, f"{prefix}/ScaledDotProductAttention")
    merged = opset.reshape(opset.transpose(attention, ints(0, 2, 1, 3)), ints(0, 0, heads * size), special_zero=True)
    return scope.linear(merged.output(0), f"{prefix}.o_proj")


def _heads(scope: Scope, rows: ov.Output, heads: int, size: int) -> ov.Output:
    return opset.reshape(rows, ints(0, 0, heads, size), special_zero=True).output(0)


def _last_rows(part: ov.Output, rows: ov.Output) -> ov.Output:
    """The rows of the block, which are the last of the call."""
    count = opset.gather(opset.shape_of(rows, output_type="i64"), ints(1), scalar(0))
    return opset.slice(part, opset.multiply(count, ints(-1)), ints(_END), ints(1), ints(2)).output(0)


def _cached(inputs: Inputs, layer: int, what: str, rows: ov.Output, heads: int, size: int) -> ov.Output:
    """Cached and new rows; of a block only the context rows stay in the cache."""
    past = inputs.cache.read(layer, what, heads, size)
    if inputs.kinds is not None:
        joined = opset.concat([past, rows], 2).output(0)
        inputs.cache.write(layer, what, joined)
        return joined
    count = opset.gather(opset.shape_of(inputs.context, output_type="i64"), ints(1), scalar(0))
    split = opset.variadic_split(rows, scalar(2), opset.concat([count, ints(-1)], 0))
    kept = opset.concat([past, split.output(0)], 2).output(0)
    inputs.cache.write(layer, what, kept)
    return opset.concat([kept, split.output(1)], 2).output(0)
