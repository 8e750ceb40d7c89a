"""One attention op under a mask of choice, stateful as exporters write it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import openvino as ov
from openvino import opset13 as opset

HEADS, SIZE = 2, 4


def number(value: float | list[int], kind: type = np.int64) -> ov.Node:
    return opset.constant(np.array(value, kind))


def named_parameter(name: str, shape: list[int], kind: type) -> ov.op.Parameter:
    parameter = opset.parameter(shape, kind, name=name)
    parameter.output(0).set_names({name})
    return parameter


@dataclass
class Lengths:
    """What masks are made of: positions of queries [S, 1] and keys [1, T], and the raw inputs."""

    query: ov.Node
    key: ov.Node
    positions: ov.Node
    token_types: ov.Node
    past: ov.Node
    ids: ov.Node

    @property
    def distance(self) -> ov.Node:
        return opset.subtract(self.query, self.key)

    @property
    def causal(self) -> ov.Node:
        return opset.less_equal(self.key, self.query)


Mask = Callable[[Lengths], ov.Node]


def one_attention(mask: Mask | None) -> ov.Model:
    """input_ids -> embedding -> one attention with a cache -> logits."""
    rng = np.random.default_rng(0)
    ids = named_parameter("input_ids", [-1, -1], np.int64)
    attention_mask = named_parameter("attention_mask", [-1, -1], np.int64)
    position_ids = named_parameter("position_ids", [-1, -1], np.int64)
    token_types = named_parameter("token_type_ids", [-1, -1], np.int64)
    beam_idx = named_parameter("beam_idx", [-1], np.int32)
    width = HEADS * SIZE
    table = opset.constant(rng.standard_normal((32, width)).astype(np.float32))
    hidden = opset.gather(table, ids, number(0))
    angle = opset.multiply(opset.convert(position_ids, "f32"), opset.constant(np.float32(0.3)))
    hidden = opset.add(hidden, opset.unsqueeze(opset.sin(angle), number([2])))
    batch = opset.gather(opset.shape_of(ids, output_type="i64"), number([0]), number(0))

    def heads() -> ov.Node:
        weight = opset.constant(rng.standard_normal((width, width)).astype(np.float32))
        split = opset.reshape(opset.matmul(hidden, weight, False, True), number([0, 0, HEADS, SIZE]), special_zero=True)
        return opset.transpose(split, number([0, 2, 1, 3]))

    assigns = []

    def cached(rows: ov.Node, name: str) -> ov.Node:
        empty = opset.broadcast(opset.constant(np.float32(0)), opset.concat([batch, number([HEADS, 0, SIZE])], 0))
        past = opset.read_value(empty, name, ov.Type.f32, ov.PartialShape([-1, HEADS, -1, SIZE]))
        joined = opset.concat([opset.gather(past, beam_idx, number(0)), rows], 2)
        assigns.append(opset.assign(joined, name))
        return joined

    query, key, value = heads(), cached(heads(), "past.key"), cached(heads(), "past.value")
    total = opset.gather(opset.shape_of(attention_mask, output_type="i64"), number(1), number(0))
    rows = opset.gather(opset.shape_of(ids, output_type="i64"), number(1), number(0))
    past = opset.subtract(total, rows)
    every = opset.range(number(0), total, number(1), output_type="i64")
    lengths = Lengths(
        opset.unsqueeze(opset.range(past, total, number(1), output_type="i64"), number([1])),
        opset.unsqueeze(every, number([0])),
        position_ids,
        token_types,
        past,
        ids,
    )
    if mask is None:
        attention = opset.scaled_dot_product_attention(query, key, value, causal=False)
    else:
        attention = opset.scaled_dot_product_attention(query, key, value, mask(lengths), causal=False)
    merged = opset.reshape(opset.transpose(attention, number([0, 2, 1, 3])), number([0, 0, width]), special_zero=True)
    logits = opset.matmul(opset.add(hidden, merged), table, False, True)
    result = opset.result(logits)
    result.output(0).set_names({"logits"})
    used = [ids, attention_mask, position_ids, beam_idx]
    if mask is not None and "ones" in mask.__name__:
        used.append(token_types)
    return ov.Model([result], assigns, used, "one attention")


def additive(seen: ov.Node, bias: ov.Node | None = None) -> ov.Node:
    four = opset.unsqueeze(seen, number([0, 1]))
    zero = opset.constant(np.float32(0)) if bias is None else bias
    return opset.select(four, zero, opset.constant(np.float32(-3.4028235e38)))


def causal(x: Lengths) -> ov.Node:
    return additive(x.causal)


def causal_bool(x: Lengths) -> ov.Node:
    return opset.unsqueeze(x.causal, number([0, 1]))


def window_subtract(x: Lengths) -> ov.Node:
    return additive(opset.logical_and(x.causal, opset.less(x.distance, number(6))))


def window_greater(x: Lengths) -> ov.Node:
    return additive(opset.logical_and(x.causal, opset.greater(x.key, opset.add(x.query, number(-6)))))


def window_from_positions(x: Lengths) -> ov.Node:
    query = opset.unsqueeze(opset.squeeze(x.positions, number([0])), number([1]))
    inside = opset.greater_equal(x.key, opset.subtract(query, number(5)))
    return additive(opset.logical_and(opset.less_equal(x.key, query), inside))


def slopes() -> ov.Node:
    return opset.constant(np.array([0.5, 0.25], np.float32).reshape(1, 2, 1, 1))


def alibi_by_key(x: Lengths) -> ov.Node:
    return additive(x.causal, opset.multiply(opset.convert(opset.unsqueeze(x.key, number([0, 1])), "f32"), slopes()))


def alibi_by_distance(x: Lengths) -> ov.Node:
    distance = opset.convert(opset.unsqueeze(opset.subtract(x.key, x.query), number([0, 1])), "f32")
    return additive(x.causal, opset.multiply(distance, slopes()))


def alibi_of_one_slope(x: Lengths) -> ov.Node:
    key = opset.convert(opset.unsqueeze(x.key, number([0, 1])), "f32")
    return additive(x.causal, opset.multiply(key, opset.constant(np.float32(0.5))))


def alibi_by_length(x: Lengths) -> ov.Node:
    total = opset.add(opset.convert(x.past, "f32"), opset.constant(np.float32(1)))
    key = opset.convert(opset.unsqueeze(x.key, number([0, 1])), "f32")
    return additive(x.causal, opset.multiply(opset.divide(key, total), slopes()))


def quadratic_bias(x: Lengths) -> ov.Node:
    distance = opset.convert(opset.unsqueeze(x.distance, number([0, 1])), "f32")
    return additive(x.causal, opset.multiply(opset.multiply(distance, distance), opset.constant(np.float32(-0.01))))


def _runs(x: Lengths) -> ov.Node:
    types = opset.squeeze(x.token_types, number([0]))
    run = opset.cum_sum(opset.subtract(number(1), types), number(0))
    mine = opset.select(opset.equal(types, number(1)), run, number(-1))
    other = opset.select(opset.equal(types, number(1)), run, number(-2))
    cached = opset.broadcast(number(-2), opset.unsqueeze(x.past, number([0])))
    keys = opset.concat([cached, other], 0)
    return opset.equal(opset.unsqueeze(mine, number([1])), opset.unsqueeze(keys, number([0])))


def runs_of_ones(x: Lengths) -> ov.Node:
    return additive(opset.logical_or(x.causal, _runs(x)))


def runs_of_ones_in_a_window(x: Lengths) -> ov.Node:
    inside = opset.logical_and(x.causal, opset.less(x.distance, number(6)))
    return additive(opset.logical_or(inside, _runs(x)))


def all_ones_of_the_call(x: Lengths) -> ov.Node:
    types = opset.squeeze(x.token_types, number([0]))
    keys = opset.concat([opset.broadcast(number(0), opset.unsqueeze(x.past, number([0]))), types], 0)
    both = opset.logical_and(
        opset.equal(opset.unsqueeze(types, number([1])), number(1)),
        opset.equal(opset.unsqueeze(keys, number([0])), number(1)),
    )
    return additive(opset.logical_or(x.causal, both))


def bidirectional(x: Lengths) -> ov.Node:
    return additive(opset.greater_equal(opset.add(x.key, opset.multiply(x.query, number(0))), number(0)))


def prefix(x: Lengths) -> ov.Node:
    return additive(opset.logical_or(x.causal, opset.less(x.key, number(3))))


def chunked(x: Lengths) -> ov.Node:
    same = opset.equal(opset.divide(x.query, number(4)), opset.divide(x.key, number(4)))
    return additive(opset.logical_and(x.causal, same))


def strided(x: Lengths) -> ov.Node:
    even = opset.equal(opset.floor_mod(x.distance, number(2)), number(0))
    return additive(opset.logical_and(x.causal, even))


def heads_differ(x: Lengths) -> ov.Node:
    window = opset.constant(np.array([6, 3], np.int64).reshape(1, 2, 1, 1))
    inside = opset.less(opset.unsqueeze(x.distance, number([0, 1])), window)
    seen = opset.logical_and(opset.unsqueeze(x.causal, number([0, 1])), inside)
    unit = opset.constant(np.float32(0))
    longest = opset.multiply(opset.convert(number(6), "f32"), unit)  # the probe takes its lengths from scalars
    return opset.add(opset.select(seen, unit, opset.constant(np.float32(-3.4028235e38))), longest)


def image_tokens(x: Lengths) -> ov.Node:
    """Tokens with id 7 see all later rows; ids 0, as a careless probe feeds them, look causal."""
    image = opset.unsqueeze(opset.equal(opset.squeeze(x.ids, number([0])), number(7)), number([1]))
    return additive(opset.logical_or(x.causal, image))


MASKS: dict[str, Mask] = {
    mask.__name__: mask
    for mask in (
        *(causal, causal_bool, window_subtract, window_greater, window_from_positions, alibi_by_key),
        *(alibi_by_distance, quadratic_bias, runs_of_ones, runs_of_ones_in_a_window, all_ones_of_the_call),
        *(bidirectional, prefix, chunked, strided, heads_differ, image_tokens, alibi_by_length),
        alibi_of_one_slope,
    )
}
