"""Hand-made decoder graphs of every wiring, too small to mean anything, with the layers they are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
import openvino.opset13 as ops

HIDDEN, VOCAB, HEADS = 8, 16, 2
HEAD_SIZE = HIDDEN // HEADS


def named(model_input: ov.Node, name: str) -> ov.Node:
    model_input.set_friendly_name(name)
    model_input.output(0).get_tensor().set_names({name})
    return model_input


def axis(*numbers: int) -> ov.Node:
    return ops.constant(np.array(numbers, np.int64))


class Net:
    """Collects the parts of one decoder.

    Attributes:
        entries: What enters each layer, in order, as the wiring has it.
        outputs: What each layer yields.
    """

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.ids = named(ops.parameter([-1, -1], np.int64), "input_ids")
        self.beam = named(ops.parameter([-1], np.int32), "beam_idx")
        self.inputs: list[ov.Node] = [self.ids, self.beam]
        self.sinks: list[ov.Node] = []
        self.entries: list[ov.Node] = []
        self.outputs: list[ov.Node] = []
        self.keys_and_values: list[tuple[ov.Node, ov.Node]] = []

    # weights and small ops

    def weights(self, *shape: int) -> ov.Node:
        return ops.constant(self.random.standard_normal(shape).astype(np.float32))

    def input(self, name: str, shape: Sequence[int]) -> ov.Node:
        parameter = named(ops.parameter(list(shape), np.float32), name)
        self.inputs.append(parameter)
        return parameter

    def embed(self, width: int = HIDDEN) -> ov.Node:
        return ops.gather(self.weights(VOCAB, width), self.ids, axis(0))

    def linear(self, x: ov.Node, rows: int = HIDDEN, columns: int = HIDDEN) -> ov.Node:
        return ops.matmul(x, self.weights(rows, columns), False, True)

    def norm(self, x: ov.Node) -> ov.Node:
        """RMSNorm."""
        square = ops.power(x, ops.constant(np.float32(2)))
        mean = ops.reduce_mean(square, axis(-1), keep_dims=True)
        inverse = ops.divide(ops.constant(np.float32(1)), ops.sqrt(ops.add(mean, ops.constant(np.float32(1e-6)))))
        return ops.multiply(self.weights(1, 1, HIDDEN), ops.multiply(x, inverse))

    def layer_norm(self, x: ov.Node) -> ov.Node:
        """LayerNorm written out, so that on a stream of its own it takes two steps."""
        centred = ops.subtract(x, ops.reduce_mean(x, axis(-1), keep_dims=True))
        variance = ops.reduce_mean(ops.multiply(centred, centred), axis(-1), keep_dims=True)
        root = ops.sqrt(ops.add(variance, ops.constant(np.float32(1e-6))))
        return ops.multiply(ops.divide(centred, root), self.weights(1, 1, HIDDEN))

    # branches

    def state(self, name: str, x: ov.Node, along: int) -> ov.Node:
        """``x`` behind its past, which is kept."""
        shape = x.get_output_partial_shape(0)
        sizes = [1 if size.is_dynamic else size.get_length() for size in shape]
        sizes[along] = 0
        past = ops.read_value(ops.constant(np.zeros(sizes, np.float32)), name, ov.Type.f32, shape)
        joined = ops.concat([ops.gather(past, self.beam, axis(0)), x], along)
        self.sinks.append(ops.assign(joined, name))
        return joined

    def split_heads(self, x: ov.Node) -> ov.Node:
        x = ops.reshape(x, axis(0, 0, HEADS, HEAD_SIZE), special_zero=True)
        return ops.transpose(x, axis(0, 2, 1, 3))

    def merge_heads(self, x: ov.Node) -> ov.Node:
        return ops.reshape(ops.transpose(x, axis(0, 2, 1, 3)), axis(0, 0, HIDDEN), special_zero=True)

    def cache(self, x: ov.Node) -> tuple[ov.Node, ov.Node]:
        """Keys and values of ``x`` behind their past."""
        i = len(self.keys_and_values)
        pair = (
            self.state(f"past.{i}.key", self.split_heads(self.linear(x)), 2),
            self.state(f"past.{i}.value", self.split_heads(self.linear(x)), 2),
        )
        self.keys_and_values.append(pair)
        return pair

    def attention(
        self, x: ov.Node, *, cached: tuple[ov.Node, ov.Node] | None = None, written_out: bool = False
    ) -> ov.Node:
        """Self-attention with its own cache, or with another layer's."""
        query = self.split_heads(self.linear(x))
        key, value = cached or self.cache(x)
        if written_out:
            weights = ops.softmax(ops.matmul(query, key, False, True), 3)
            mixed = ops.matmul(weights, value, False, False)
        else:
            mixed = ops.scaled_dot_product_attention(query, key, value, causal=True)
        return self.linear(self.merge_heads(mixed))

    def convolution(self, x: ov.Node) -> ov.Node:
        """Gated short convolution, marked by its state alone."""
        inner = ops.transpose(self.linear(x), axis(0, 2, 1))
        joined = self.state(f"conv.{len(self.sinks)}", inner, 2)
        mixed = ops.group_convolution(joined, self.weights(HIDDEN, 1, 1, 3), [1], [2], [0], [1])
        rows = ops.slice(mixed, axis(0), axis(2**31), axis(1), axis(2))
        gated = ops.multiply(ops.transpose(rows, axis(0, 2, 1)), ops.sigmoid(self.linear(x)))
        return self.linear(gated)

    def recurrence(self, x: ov.Node, name: str) -> ov.Node:
        """A state of one row per sequence, no convolution, no loop."""
        past = ops.read_value(
            ops.constant(np.zeros((1, 1, HIDDEN), np.float32)), name, ov.Type.f32, ov.PartialShape([-1, 1, HIDDEN])
        )
        row = self.linear(x)
        mixed = ops.add(row, ops.gather(past, self.beam, axis(0)))
        self.sinks.append(ops.assign(ops.reduce_mean(mixed, axis(1), keep_dims=True), name))
        return self.linear(mixed)

    def mlp(self, x: ov.Node) -> ov.Node:
        return self.linear(ops.gelu(self.linear(x, 2 * HIDDEN), "TANH"), HIDDEN, 2 * HIDDEN)

    def experts(self, x: ov.Node) -> ov.Node:
        """A mixture of two experts; the router's Softmax is no attention."""
        router = ops.softmax(self.linear(x, 2), 2)
        halves = ops.split(router, ops.constant(2), 2)
        mixed = [ops.multiply(self.mlp(x), halves.output(i)) for i in range(2)]
        return ops.add(*mixed)

    # whole models

    def layer(self, entry: ov.Node, output: ov.Node) -> ov.Node:
        """Note a layer's two ends."""
        self.entries.append(entry)
        self.outputs.append(output)
        return output

    def block(self, x: ov.Node, *, attention: ov.Node | None = None, mlp: ov.Node | None = None) -> ov.Node:
        """A plain pre-norm layer."""
        middle = ops.add(x, attention if attention is not None else self.attention(self.norm(x)))
        return self.layer(x, ops.add(middle, mlp if mlp is not None else self.mlp(self.norm(middle))))

    def finish(self, hidden: ov.Node, width: int = HIDDEN) -> ov.Model:
        """The model whose lm_head takes ``hidden``."""
        logits = ops.matmul(hidden, self.weights(VOCAB, width), False, True)
        logits.output(0).get_tensor().set_names({"logits"})
        used = [ops.result(logits)]
        model = ov.Model(used, self.sinks, self.inputs, "net")
        model.validate_nodes_and_infer_types()
        return model
