"""Writes ScaledDotProductAttention out the way exporters do, in several styles: what fuse-attention has to undo."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino as ov
from openvino import opset13 as opset

from ovgraft.decoder import fold

Style = Callable[[ov.Output, ov.Output, ov.Output, ov.Output, ov.Output], ov.Output]
"""Query, key, value, mask and scale -> what replaces the attention's output."""


def write_out(model: ov.Model, style: Style, only: set[int] | None = None) -> int:
    """Replace attention ops in place; returns how many."""
    nodes = [node for node in model.get_ordered_ops() if node.get_type_name() == "ScaledDotProductAttention"]
    for count, node in enumerate(nodes):
        if only is not None and count not in only:
            continue
        query, key, value, mask = (node.input_value(port) for port in range(4))
        size = query.get_partial_shape()[3].get_length()
        scale = node.input_value(4) if node.get_input_size() > 4 else opset.constant(np.float32(size**-0.5)).output(0)
        output = style(query, key, value, mask, scale)
        for target in node.output(0).get_target_inputs():
            target.replace_source_output(output)
    model.validate_nodes_and_infer_types()
    return len(nodes)


def ints(*values: int) -> ov.Node:
    return opset.constant(np.array(values, np.int64))


def plain(query: ov.Output, key: ov.Output, value: ov.Output, mask: ov.Output, scale: ov.Output) -> ov.Output:
    scores = opset.multiply(opset.matmul(query, key, False, True), opset.convert(_number(scale), "f32"))
    return opset.matmul(opset.softmax(opset.add(scores, mask), -1), value, False, False).output(0)


def _number(scale: ov.Output) -> ov.Node:
    """The scale as one constant, as exporters fold it."""
    return opset.constant(np.float32(_value(scale)))


def _value(scale: ov.Output) -> float:
    return float(fold(scale).item())


def transposed_key(query: ov.Output, key: ov.Output, value: ov.Output, mask: ov.Output, scale: ov.Output) -> ov.Output:
    flipped = opset.transpose(key, ints(0, 1, 3, 2))
    scores = opset.divide(opset.matmul(query, flipped, False, False), opset.constant(np.float32(1 / _value(scale))))
    return opset.matmul(opset.softmax(opset.add(scores, mask), 3), value, False, False).output(0)


def prescaled(query: ov.Output, key: ov.Output, value: ov.Output, mask: ov.Output, scale: ov.Output) -> ov.Output:
    scaled = opset.multiply(query, _number(scale))
    scores = opset.add(mask, opset.matmul(scaled, key, False, True))
    return opset.matmul(opset.softmax(scores, -1), value, False, False).output(0)


def scaled_after_mask(
    query: ov.Output, key: ov.Output, value: ov.Output, mask: ov.Output, scale: ov.Output
) -> ov.Output:
    unscaled = opset.divide(mask, _number(scale))
    scores = opset.multiply(opset.add(opset.matmul(query, key, False, True), unscaled), _number(scale))
    return opset.matmul(opset.softmax(scores, -1), value, False, False).output(0)


def converts(query: ov.Output, key: ov.Output, value: ov.Output, mask: ov.Output, scale: ov.Output) -> ov.Output:
    scores = opset.add(opset.multiply(opset.matmul(query, key, False, True), _number(scale)), mask)
    weights = opset.convert(opset.softmax(opset.convert(opset.convert(scores, "f64"), "f32"), -1), "f32")
    return opset.matmul(weights, opset.transpose(value, ints(0, 1, 3, 2)), False, True).output(0)


def select_mask(query: ov.Output, key: ov.Output, value: ov.Output, mask: ov.Output, scale: ov.Output) -> ov.Output:
    keep = opset.greater(mask, opset.constant(np.float32(-1)))
    scores = opset.multiply(opset.matmul(query, key, False, True), _number(scale))
    scores = opset.select(keep, scores, opset.constant(np.float32(-65504)))
    return opset.matmul(opset.softmax(scores, -1), value, False, False).output(0)


def merged_heads(query: ov.Output, key: ov.Output, value: ov.Output, mask: ov.Output, scale: ov.Output) -> ov.Output:
    """[batch * heads, rows, size], as torch.bmm wants it; the mask meets the scores unmerged and they are clamped."""
    heads = query.get_partial_shape()[1].get_length()

    def merged(x: ov.Output) -> ov.Node:
        rows = opset.gather(opset.shape_of(x, output_type="i64"), ints(2), ints(0))
        return opset.reshape(x, opset.concat([ints(-1), rows, ints(x.get_partial_shape()[3].get_length())], 0), False)

    q, k, v = merged(opset.multiply(query, _number(scale)).output(0)), merged(key), merged(value)
    scores = opset.matmul(q, opset.transpose(k, ints(0, 2, 1)), False, False)
    rows = opset.gather(opset.shape_of(query, output_type="i64"), ints(2), ints(0))
    keys = opset.gather(opset.shape_of(key, output_type="i64"), ints(2), ints(0))
    rows_and_keys = opset.concat([rows, keys], 0)
    four = opset.reshape(scores, opset.concat([ints(-1, heads), rows_and_keys], 0), False)
    masked = opset.maximum(opset.add(four, mask), opset.constant(np.float32(-3.4e38)))
    three = opset.reshape(masked, opset.concat([ints(-1), rows_and_keys], 0), False)
    product = opset.matmul(opset.softmax(three, -1), v, False, False)
    size = v.get_output_partial_shape(0)[2].get_length()
    return opset.reshape(product, opset.concat([ints(-1, heads), rows, ints(size)], 0), False).output(0)


def grouped_heads(query: ov.Output, key: ov.Output, value: ov.Output, mask: ov.Output, scale: ov.Output) -> ov.Output:
    """[batch, key heads, group, rows, size]: the key is not repeated."""
    node = key.get_node()
    while node.get_type_name() in ("Reshape", "Broadcast", "Unsqueeze"):
        node = node.input_value(0).get_node()
    short_key, node = node.output(0), value.get_node()
    while node.get_type_name() in ("Reshape", "Broadcast", "Unsqueeze"):
        node = node.input_value(0).get_node()
    short_value = node.output(0)
    heads, size = short_key.get_partial_shape()[1].get_length(), query.get_partial_shape()[3].get_length()
    groups = query.get_partial_shape()[1].get_length() // heads
    q = opset.reshape(query, ints(0, heads, groups, -1, size), special_zero=True)
    k, v = opset.unsqueeze(short_key, ints(2)), opset.unsqueeze(short_value, ints(2))
    scores = opset.multiply(opset.matmul(q, k, False, True), _number(scale))
    scores = opset.add(scores, opset.unsqueeze(mask, ints(1)))
    product = opset.matmul(opset.softmax(scores, -1), v, False, False)
    return opset.reshape(product, ints(0, heads * groups, -1, size), special_zero=True).output(0)


STYLES = [plain, transposed_key, prescaled, scaled_after_mask, converts, select_mask, merged_heads, grouped_heads]


def soft_capped(query: ov.Output, key: ov.Output, value: ov.Output, mask: ov.Output, scale: ov.Output) -> ov.Output:
    scores = opset.multiply(opset.matmul(query, key, False, True), _number(scale))
    capped = opset.multiply(
        opset.tanh(opset.divide(scores, opset.constant(np.float32(50)))), opset.constant(np.float32(50))
    )
    return opset.matmul(opset.softmax(opset.add(capped, mask), -1), value, False, False).output(0)


def with_sinks(query: ov.Output, key: ov.Output, value: ov.Output, mask: ov.Output, scale: ov.Output) -> ov.Output:
    scores = opset.add(opset.multiply(opset.matmul(query, key, False, True), _number(scale)), mask)
    column = opset.reduce_max(scores, ints(3), True)
    weights = opset.softmax(opset.concat([scores, column], -1), -1)
    cut = opset.slice(weights, ints(0), ints(-1), ints(1), ints(3))
    return opset.matmul(cut, value, False, False).output(0)


def wrong_axis(query: ov.Output, key: ov.Output, value: ov.Output, mask: ov.Output, scale: ov.Output) -> ov.Output:
    scores = opset.add(opset.multiply(opset.matmul(query, key, False, True), _number(scale)), mask)
    return opset.matmul(opset.softmax(scores, 2), value, False, False).output(0)


def extra_consumer(query: ov.Output, key: ov.Output, value: ov.Output, mask: ov.Output, scale: ov.Output) -> ov.Output:
    scores = opset.add(opset.multiply(opset.matmul(query, key, False, True), _number(scale)), mask)
    weights = opset.softmax(scores, -1)
    bonus = opset.multiply(opset.reduce_max(weights, ints(3), True), opset.constant(np.float32(0)))
    return opset.add(opset.matmul(weights, value, False, False), bonus).output(0)


REFUSED = {
    soft_capped: "soft-capping",
    with_sinks: "sinks",
    wrong_axis: "softmax-axis",
    extra_consumer: "extra-consumer",
}
