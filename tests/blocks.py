"""Building blocks of exporter-shaped graphs: weights in every storage format, norms, rotary positions, attention, MLP.

Op order, friendly names and tensor names follow what optimum-intel writes, so that structure read from these graphs is
structure read from real exports. Everything is drawn from one seeded generator: the same arguments give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
import openvino as ov
import openvino.opset13 as ops
from numpy.typing import NDArray

WeightFormat = Literal["f32", "f16", "bf16", "int8", "int4"]
Given = Mapping[str, NDArray[np.float32]]
INT4_GROUP = 32
INT64_MAX = np.iinfo(np.int64).max


def named(node: ov.Node, name: str, *tensor_names: str) -> ov.Node:
    """Give a node its friendly name and its first output its tensor names."""
    node.set_friendly_name(name)
    if tensor_names:
        node.output(0).get_tensor().set_names(set(tensor_names))
    return node


def constant(value: Any, dtype: Any = np.int64) -> ov.Node:
    """An auxiliary constant: axes, shapes, epsilons."""
    return ops.constant(np.asarray(value, dtype=dtype))


class Weights:
    """Draws the weights of one graph.

    Args:
        seed: Of the weight generator.
        weights: How weight matrices are stored. ``f16`` is applied to the finished model, as the exporter does.
        given: Values for weights by name, for example ``self.fc.weight``; the others are drawn.
    """

    def __init__(self, seed: int, weights: WeightFormat = "f32", given: Given | None = None) -> None:
        self.random = np.random.default_rng(seed)
        self.weights = weights
        self.given = given or {}

    @property
    def table_format(self) -> WeightFormat:
        """Storage of the embedding and the output layer: NNCF leaves them at int8 when the rest is int4."""
        return "int8" if self.weights == "int4" else self.weights

    def normal(self, *shape: int, scale: float = 1.0) -> NDArray[np.float32]:
        """Gaussian numbers."""
        return (self.random.standard_normal(shape) * scale).astype(np.float32)

    def weight(self, name: str, values: NDArray[np.float32], weights: WeightFormat | None = None) -> ov.Node:
        """A weight matrix ``[rows, columns]`` as constants and, for compressed formats, the ops that decompress it."""
        values = self.given.get(name, values)
        match weights or self.weights:
            case "bf16":
                tensor = ov.Tensor(ov.Type.bf16, ov.Shape(values.shape))
                tensor.data.view(np.uint16)[:] = values.astype(ml_dtypes.bfloat16).view(np.uint16)
                stored = named(ops.constant(tensor), f"{name}_compressed")
                return named(ops.convert(stored, ov.Type.f32), name, name)
            case "int8":
                return self._int8(name, values)
            case "int4":
                return self._int4(name, values)
            case _:
                return named(ops.constant(values), name, name)

    def _int8(self, name: str, values: NDArray[np.float32]) -> ov.Node:
        low, high = values.min(1, keepdims=True), values.max(1, keepdims=True)
        scale = np.maximum((high - low) / 255, 1e-6).astype(np.float16)
        zero = np.clip(np.round(-low / scale.astype(np.float32)), 0, 255)
        quantized = np.clip(np.round(values / scale.astype(np.float32)) + zero, 0, 255).astype(np.uint8)
        stored = named(ops.constant(quantized), name)
        return self.decompressed(name, stored, zero.astype(np.uint8), scale)

    def decompressed(self, name: str, stored: ov.Node, zero: NDArray[np.uint8], scale: NDArray[np.float16]) -> ov.Node:
        """What NNCF puts behind asymmetric int8 codes ``[rows, columns]``; zero and scale are ``[rows, 1]``."""
        point = named(ops.constant(zero), f"{name}/zero_point")
        centred = ops.subtract(ops.convert(stored, ov.Type.f16), ops.convert(point, ov.Type.f16))
        return self._scaled(name, named(centred, f"{name}/zero_point/subtract"), scale)

    def _int4(self, name: str, values: NDArray[np.float32]) -> ov.Node:
        rows, columns = values.shape
        grouped = values.reshape(rows, columns // INT4_GROUP, INT4_GROUP)
        scale = np.maximum(np.abs(grouped).max(2, keepdims=True) / 7, 1e-6).astype(np.float16)
        quantized = np.clip(np.round(grouped / scale.astype(np.float32)), -8, 7).astype(np.int8)
        nibbles = (quantized.reshape(-1) & 0xF).astype(np.uint8)
        packed = nibbles[0::2] | (nibbles[1::2] << 4)
        tensor = ov.Tensor(ov.Type.i4, ov.Shape(grouped.shape))
        tensor.data.view(np.uint8)[:] = packed
        stored = named(ops.constant(tensor), name)
        return self._scaled(name, ops.convert(stored, ov.Type.f16), scale, (rows, columns))

    def _scaled(
        self, name: str, codes: ov.Node, scale: NDArray[np.float16], shape: tuple[int, int] | None = None
    ) -> ov.Node:
        factor = named(ops.constant(scale), f"{name}/scale")
        weight = named(ops.multiply(codes, factor), f"{name}/fq_weights_1")
        if shape is not None:
            weight = ops.reshape(weight, constant(shape), special_zero=False)
        return named(ops.convert(weight, ov.Type.f32), f"{name}/fq_weights_1/convert", name)


def linear(
    weights: Weights, scope: str, x: ov.Node, rows: int, columns: int, *tensor_names: str, bias: bool = False
) -> ov.Node:
    """``x W^T (+ b)`` with W ``[rows, columns]``; ``scope`` is a module path such as ``model.layers.0.mlp.up_proj``."""
    weight = weights.weight(f"self.{scope}.weight", weights.normal(rows, columns, scale=columns**-0.5))
    product = ops.matmul(x, weight, transpose_a=False, transpose_b=True)
    if not bias:
        return named(product, f"__module.{scope}/aten::linear/MatMul", *tensor_names)
    offset = named(ops.constant(weights.normal(1, 1, rows, scale=0.1)), f"self.{scope}.bias")
    inner = named(product, f"__module.{scope}/aten::linear/MatMul")
    return named(ops.add(inner, offset), f"__module.{scope}/aten::linear/Add", *tensor_names)


def rms_norm(
    weights: Weights, scope: str, x: ov.Node, width: int, *, epsilon: float = 1e-6, weighted: bool = True
) -> ov.Node:
    """RMSNorm as the exporter decomposes it. ``weighted=False``: the weight was folded into the following matrices."""
    ones = (1,) * len(x.get_output_partial_shape(0))
    path = f"__module.{scope}"
    square = named(ops.power(x, constant(np.full(ones, 2.0), np.float32)), f"{path}/aten::pow/Power")
    mean = named(ops.reduce_mean(square, constant([-1]), keep_dims=True), f"{path}/aten::mean/ReduceMean")
    shifted = named(ops.add(mean, constant(np.full(ones, epsilon), np.float32)), f"{path}/aten::add/Add")
    root = named(ops.sqrt(shifted), f"{path}/aten::rsqrt/Sqrt")
    inverse = named(ops.divide(constant(np.ones(ones), np.float32), root), f"{path}/aten::rsqrt/Divide")
    normed = named(ops.multiply(x, inverse), f"{path}/aten::mul/Multiply")
    if not weighted:
        return normed
    gain = 1 + weights.normal(width, scale=0.2)
    gain = weights.given.get(f"self.{scope}.weight", gain).reshape(*ones[:-1], width)
    return named(ops.multiply(constant(gain, np.float32), normed), f"{path}/aten::mul/Multiply_1")


def size(x: ov.Node, axis: int, *, scalar: bool = False) -> ov.Node:
    """One dimension of ``x``: i64 ``[1]``, or ``[]``."""
    shape = ops.shape_of(x, output_type="i64")
    index = constant(axis if scalar else [axis])
    return ops.gather(shape, index, constant(0))


def rotary_tables(scope: str, position_ids: ov.Node, head_dim: int) -> tuple[ov.Node, ov.Node]:
    """Cosine and sine ``[B, 1, S, head_dim]`` of i64 positions ``[B, S]``, base 10000."""
    path = f"__module.{scope}"
    frequencies = (10000.0 ** (-np.arange(0, head_dim, 2) / head_dim)).astype(np.float32).reshape(1, -1, 1)
    inverse = named(ops.constant(frequencies), f"{path}/aten::to/Convert")
    positions = named(ops.unsqueeze(position_ids, constant(1)), f"{path}/aten::unsqueeze/Unsqueeze_2")
    positions = named(ops.convert(positions, ov.Type.f32), f"{path}/aten::to/Convert_3")
    angles = named(ops.matmul(inverse, positions, False, False), f"{path}/aten::matmul/MatMul")
    order = constant([0, 2, 1], np.int32)
    angles = named(ops.transpose(angles, order), f"{path}/aten::transpose/Transpose", "freqs")
    both = named(ops.concat([angles, angles], -1), f"{path}/aten::cat/Concat", "emb")
    cosine = named(ops.cos(both), f"{path}/aten::cos/Cos", "cos.1")
    sine = named(ops.sin(both), f"{path}/aten::sin/Sin", "sin.1")
    axis = constant(1)
    return ops.unsqueeze(cosine, axis), ops.unsqueeze(sine, axis)


def slice_axis(x: ov.Node, start: Any, stop: Any, axis: int) -> ov.Node:
    """``x[start:stop]`` along one axis; bounds are numbers or i64 ``[1]`` outputs."""
    bounds = [bound if isinstance(bound, ov.Node) else constant([bound]) for bound in (start, stop)]
    return ops.slice(x, *bounds, constant([1]), constant([axis]))


def rotate(x: ov.Node, cosine: ov.Node, sine: ov.Node, head_dim: int) -> ov.Node:
    """Rotary embedding of ``[B, heads, S, head_dim]``, halves rotated."""
    half = head_dim // 2
    direct = ops.multiply(x, cosine)
    second = slice_axis(x, half, INT64_MAX, 3)
    negated = ops.multiply(second, constant(-1, np.float32))
    turned = ops.concat([negated, slice_axis(x, 0, half, 3)], -1)
    return ops.add(direct, ops.multiply(turned, sine))


def split_heads(weights: Weights, scope: str, x: ov.Node, heads: int, head_dim: int, *, norm: bool) -> ov.Node:
    """``[B, S, heads*head_dim]`` to ``[B, heads, S, head_dim]``, with the per-head norm of Qwen3 if asked."""
    x = ops.reshape(x, constant([0, 0, heads, head_dim]), special_zero=True)
    if norm:
        x = rms_norm(weights, scope, x, head_dim)
    return ops.transpose(x, constant([0, 2, 1, 3], np.int32))


def read_state(variable_id: str, batch: ov.Node, beam_idx: ov.Node, kv_heads: int, head_dim: int) -> ov.Node:
    """Past keys or values ``[B, kv_heads, past, head_dim]``, reordered by ``beam_idx``; empty at the start."""
    port = variable_id.partition("present.")[0]
    shape = ops.concat([batch, constant([kv_heads]), constant([0]), constant([head_dim])], 0)
    empty = ops.broadcast(constant(0.0, np.float32), shape)
    read = ops.read_value(empty, variable_id, ov.Type.f32, ov.PartialShape([-1, kv_heads, -1, head_dim]))
    read.output(0).get_tensor().set_names({port})
    past = read
    return ops.gather(past, beam_idx, constant(0))


def repeat_heads(x: ov.Node, batch: ov.Node, total: ov.Node, heads: int, kv_heads: int, head_dim: int) -> ov.Node:
    """Grouped-query expansion: Unsqueeze, Broadcast, Reshape to ``[B, heads, total, head_dim]``."""
    expanded = ops.unsqueeze(x, constant(2))
    parts: Sequence[ov.Node] = [
        batch,
        constant([kv_heads]),
        constant([heads // kv_heads]),
        total,
        constant([head_dim]),
    ]
    shape = ops.concat(list(parts), 0)
    wide = ops.broadcast(expanded, shape, broadcast_spec="BIDIRECTIONAL")
    return ops.reshape(wide, constant([0, heads, -1, head_dim]), special_zero=True)


def merge_heads(x: ov.Node, width: int) -> ov.Node:
    """``[B, heads, S, head_dim]`` to ``[B, S, width]``."""
    x = ops.transpose(x, constant([0, 2, 1, 3], np.int32))
    return ops.reshape(x, constant([0, 0, width]), special_zero=True)


def causal_mask(scope: str, attention_mask: ov.Node, past: ov.Node, total: ov.Node) -> ov.Node:
    """Additive mask f32 ``[B, 1, S, total]`` of i64 ``attention_mask`` ``[B, total]``; past, total: i64 ``[]``."""
    path = f"__module.{scope}"
    step = constant(1, np.int32)
    keys = ops.range(constant(0, np.int32), total, step, output_type="i64")
    keys = ops.unsqueeze(keys, constant([0, 1, 2]))
    rows = ops.range(past, total, step, output_type="i64")
    rows = ops.unsqueeze(rows, constant([0, 1, 3]))
    causal = named(ops.less_equal(keys, rows), f"{path}/aten::le/LessEqual")
    kept = named(ops.convert(attention_mask, ov.Type.boolean), f"{path}/aten::to/Convert_3")
    kept = ops.unsqueeze(kept, constant([1, 2]))
    mask = named(ops.bitwise_and(causal, kept), f"{path}/aten::__and__/BitwiseAnd_1", "mask")
    zero = constant(0.0, np.float32)
    lowest = constant(-65504.0, np.float32)
    return named(ops.select(mask, zero, lowest), f"{path}/aten::where/Select", "attention_mask_1")


def mlp(weights: Weights, scope: str, x: ov.Node, hidden: int, intermediate: int) -> ov.Node:
    """SwiGLU."""
    gate = linear(weights, f"{scope}.gate_proj", x, intermediate, hidden)
    gate = named(ops.swish(gate), f"__module.{scope}.act_fn/aten::silu/Swish")
    up = linear(weights, f"{scope}.up_proj", x, intermediate, hidden)
    product = named(ops.multiply(gate, up), f"__module.{scope}/aten::mul/Multiply")
    return linear(weights, f"{scope}.down_proj", product, hidden, intermediate)


@dataclass(frozen=True)
class Attention:
    """What all layers of one model share."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    batch: ov.Node
    beam_idx: ov.Node
    cosine: ov.Node
    sine: ov.Node


def cached(shared: Attention, layer: int, kind: str, current: ov.Node, sinks: list[ov.Node]) -> tuple[ov.Node, ov.Node]:
    """Past of one state and past + current, which becomes the state."""
    variable = f"past_key_values.{layer}.{kind}present.{layer}.{kind}"
    past = read_state(variable, shared.batch, shared.beam_idx, shared.kv_heads, shared.head_dim)
    merged = ops.concat([past, current], -2)
    sinks.append(ops.assign(merged, variable))
    return past, merged


def project(
    weights: Weights, scope: str, x: ov.Node, shared: Attention, heads: int, which: str, *, norm: bool, width: int
) -> ov.Node:
    """Query, key or value ``[B, heads, S, head_dim]`` of ``x`` ``[B, S, width]``."""
    projected = linear(weights, f"{scope}.{which}_proj", x, heads * shared.head_dim, width)
    return split_heads(weights, f"{scope}.{which}_norm", projected, heads, shared.head_dim, norm=norm)


def attend(
    weights: Weights, scope: str, query: ov.Node, key: ov.Node, value: ov.Node, mask: ov.Node, shared: Attention
) -> ov.Node:
    """Attention and its output projection, ``[B, S, hidden]``."""
    scale = named(
        ops.constant(np.float32(shared.head_dim**-0.5)),
        f"__module.{scope}/aten::scaled_dot_product_attention/ConvertLike",
    )
    path = f"__module.{scope}/aten::scaled_dot_product_attention/ScaledDotProductAttention"
    attended = named(ops.scaled_dot_product_attention(query, key, value, mask, scale), path)
    merged = merge_heads(attended, shared.heads * shared.head_dim)
    return linear(weights, f"{scope}.o_proj", merged, shared.hidden, shared.heads * shared.head_dim)


def residual(scope: str, x: ov.Node, branch: ov.Node, number: int) -> ov.Node:
    """The ``number``-th residual Add of a layer."""
    suffix = f"_{number}" if number else ""
    return named(ops.add(x, branch), f"__module.{scope}/aten::add/Add{suffix}")


def feed_forward(weights: Weights, scope: str, x: ov.Node, hidden: int) -> ov.Node:
    """Norm, MLP and the residual Add that ends a layer."""
    normed = rms_norm(weights, f"{scope}.post_attention_layernorm", x, hidden)
    return residual(scope, x, mlp(weights, f"{scope}.mlp", normed, hidden, 2 * hidden), 1)


@dataclass
class Causal:
    """Lengths and mask of a causal decoder, known once its first key state is read."""

    mask: ov.Node
    total: ov.Node


def causal_lengths(past_state: ov.Node, normed: ov.Node, attention_mask: ov.Node) -> Causal:
    """Lengths of past and present, as the exporter takes them: from the first key state and the first normed rows."""
    past = size(past_state, 2, scalar=True)
    current = size(normed, 1, scalar=True)
    total = ops.add(past, current)
    row = constant([1])
    parts = [ops.reshape(length, row, special_zero=False) for length in (past, current)]
    mask = causal_mask("model", attention_mask, past, total)
    return Causal(mask, ops.add(*parts))
