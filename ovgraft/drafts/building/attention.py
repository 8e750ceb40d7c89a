"""Attention of a draft layer over cached context rows and the rows of its block."""

from __future__ import annotations

from dataclasses import dataclass

import openvino as ov

from ovgraft.drafts.building.cache import Cache
from ovgraft.drafts.building.graph import Scope, ints
from ovgraft.drafts.building.layout import Layout
from ovgraft.drafts.building.rotary import Rotary, rotate
from ovgraft.drafts.per_row import RowAttention, repeat_heads
from ovgraft.drafts.spec import Backbone
from ovgraft.ir import opset


@dataclass(frozen=True)
class Inputs:
    """What every layer's attention reads beside its rows.

    Attributes:
        context: f32 ``[B, context, H]``, the projected hidden states; ``[B, S, H]`` per row.
        rotary: Cosines and sines of all rows of the call.
        cache: Cache variables.
        layout: How rows lie.
    """

    context: ov.Output
    rotary: Rotary
    cache: Cache
    layout: Layout


def attend(
    scope: Scope, layer: int, rows: ov.Output, sees: RowAttention, inputs: Inputs, backbone: Backbone
) -> ov.Output:
    """One layer's attention, output projection included.

    Args:
        scope: Weights and names.
        layer: Number of the layer.
        rows: Block rows, normed, f32 ``[.., rows, H]``.
        sees: Window and causality.
        inputs: What all layers share.
        backbone: Sizes.

    Returns:
        f32, the shape of ``rows``.
    """
    prefix, layout = f"layers.{layer}.self_attn", inputs.layout
    heads, kv_heads, size = backbone.num_attention_heads, backbone.num_key_value_heads, backbone.head_dim
    sources = scope.name(layout.sources(rows, inputs.context).get_node(), f"{prefix}/sources")
    query = _heads(scope.linear(rows, f"{prefix}.q_proj"), heads, size)
    projected = _heads(scope.linear(sources, f"{prefix}.k_proj"), kv_heads, size)
    if backbone.qk_norm:
        query = scope.norm(query, f"{prefix}.q_norm", backbone.rms_norm_eps)
        key = scope.norm(projected, f"{prefix}.k_norm", backbone.rms_norm_eps)
    else:
        key = projected
    if backbone.shared_key_value:
        value = projected
    else:
        value = _heads(scope.linear(sources, f"{prefix}.v_proj"), kv_heads, size)
    if backbone.architecture == "gemma4":
        value = scope.norm(value, f"{prefix}.v_norm", backbone.rms_norm_eps, scaled=False)
    query, key, value = (opset.transpose(part, ints(0, 2, 1, 3)).output(0) for part in (query, key, value))
    key = rotate(key, *_by_head(inputs.rotary))
    query = rotate(query, *_by_head(layout.query_rotary(inputs.rotary)))
    attention = opset.scaled_dot_product_attention(
        layout.queries(query),
        repeat_heads(layout.cached(inputs.cache, layer, "key", key), heads),
        repeat_heads(layout.cached(inputs.cache, layer, "value", value), heads),
        layout.mask(sees),
        scope.number(backbone.attention_scale),
        causal=False,
    )
    scope.name(attention, f"{prefix}/ScaledDotProductAttention")
    merged = opset.reshape(opset.transpose(attention, ints(0, 2, 1, 3)), ints(0, 0, heads * size), special_zero=True)
    return scope.linear(layout.attended(merged.output(0)), f"{prefix}.o_proj")


def _heads(rows: ov.Output, heads: int, size: int) -> ov.Output:
    return opset.reshape(rows, ints(0, 0, heads, size), special_zero=True).output(0)


def _by_head(rotary: Rotary) -> tuple[ov.Output, ov.Output]:
    """``[B, rows, size]`` as ``[B, 1, rows, size]``."""
    return opset.unsqueeze(rotary.cos, ints(1)).output(0), opset.unsqueeze(rotary.sin, ints(1)).output(0)
