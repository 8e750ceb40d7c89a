"""Graphs that don't say where their layers are: refused with reasons, never guessed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from ovgraft import decoder
from ovgraft.errors import StructureError
from tests.decoder.nets import HIDDEN, Net, axis

Wiring = Callable[[Net], ov.Node]


def scalar(value: float) -> ov.Node:
    return ops.constant(np.float32(value))


def skips_like_a_u_net(net: Net) -> ov.Node:
    x = net.embed()
    ends: list[ov.Node] = []
    for i in range(4):
        if i >= 2:
            x = ops.add(x, ends[3 - i])
        x = net.block(x)
        ends.append(x)
    return net.norm(x)


def skip_over_one_layer(net: Net) -> ov.Node:
    x = net.embed()
    ends = [x]
    for _ in range(4):
        x = net.block(x)
        ends.append(x)
        x = ops.add(x, ends[-2])
    return net.norm(x)


def all_layers_averaged(net: Net) -> ov.Node:
    """DenseFormer: each layer reads a weighted sum of all before it."""
    ends = [net.embed()]
    for _ in range(4):
        x = ops.multiply(ends[0], scalar(0.5))
        for end in ends[1:]:
            x = ops.add(x, ops.multiply(end, scalar(0.3)))
        ends.append(net.block(x))
    return net.norm(ends[-1])


def two_streams(net: Net) -> ov.Node:
    """Hyper-connections written with a tensor for each stream."""
    one = two = net.embed()
    for _ in range(3):
        read = ops.add(ops.multiply(one, scalar(0.7)), ops.multiply(two, scalar(0.3)))
        mixed = net.attention(net.norm(read))
        one, two = ops.add(ops.multiply(two, scalar(0.9)), mixed), ops.add(one, ops.multiply(mixed, scalar(0.2)))
        read = ops.add(one, ops.multiply(two, scalar(0.4)))
        mixed = net.mlp(net.norm(read))
        one, two = ops.add(one, mixed), ops.add(two, ops.multiply(mixed, scalar(0.2)))
    return net.norm(ops.add(one, two))


def streams_in_one_more_dimension(net: Net) -> ov.Node:
    """Hyper-connections and AltUp: four streams stacked."""
    x = ops.multiply(ops.unsqueeze(net.embed(), axis(0)), net.weights(4, 1, 1, 1))
    for _ in range(3):
        for branch in (net.attention, net.mlp):
            read = ops.reduce_sum(ops.multiply(x, net.weights(4, 1, 1, 1)), axis(0))
            x = ops.add(x, ops.multiply(ops.unsqueeze(branch(net.norm(read)), axis(0)), net.weights(4, 1, 1, 1)))
    return net.norm(ops.reduce_mean(x, axis(0)))


def streams_in_the_batch(net: Net) -> ov.Node:
    """Streams folded into the batch: between layers the shape looks innocent."""
    x = ops.concat([net.embed()] * 4, 0)
    for _ in range(3):
        x = net.block(x)
    stacked = ops.reshape(x, axis(4, -1, 3, HIDDEN), special_zero=False)
    return net.norm(ops.reduce_sum(stacked, axis(0)))


def streams_in_the_width(net: Net) -> ov.Node:
    wide = 2 * HIDDEN
    x = ops.concat([net.embed()] * 2, 2)
    for _ in range(3):
        read = net.linear(x, HIDDEN, wide)
        x = ops.add(x, net.linear(net.attention(net.norm(read)), wide, HIDDEN))
        x = ops.add(x, net.linear(net.mlp(net.norm(net.linear(x, HIDDEN, wide))), wide, HIDDEN))
    halves = ops.split(x, ops.constant(2), 2)
    return net.norm(ops.add(halves.output(0), halves.output(1)))


def two_towers(net: Net) -> ov.Node:
    """A second stack of layers over the same tokens feeds each layer of the first."""
    x = other = net.embed()
    for _ in range(3):
        other = ops.add(other, net.attention(net.norm(other)))
    for _ in range(3):
        x = net.block(x, mlp=net.mlp(ops.add(net.norm(other), net.norm(x))))
    return net.norm(x)


def mlp_before_attention(net: Net) -> ov.Node:
    """Macaron layers: half an MLP on either side."""
    x = net.embed()
    for _ in range(3):
        x = ops.add(x, net.mlp(net.norm(x)))
        x = ops.add(x, net.attention(net.norm(x)))
        x = ops.add(x, net.mlp(net.norm(x)))
    return net.norm(x)


def layers_of_mlp_alone(net: Net) -> ov.Node:
    """nemotron_h, pruned models: MLPs that are layers of their own."""
    x = net.embed()
    for letter in "M-MM-*-":
        branch = {"M": net.convolution, "-": net.mlp, "*": net.attention}[letter]
        x = ops.add(x, branch(net.norm(x)))
    return net.norm(x)


def cross_attention(net: Net) -> ov.Node:
    """Encoder-decoder: two attentions a layer."""
    encoded = net.input("encoder_hidden_states", [-1, -1, HIDDEN])
    x = net.embed()
    for _ in range(3):
        x = ops.add(x, net.attention(net.norm(x)))
        cached = (net.split_heads(net.linear(encoded)), net.split_heads(net.linear(encoded)))
        x = ops.add(x, net.attention(net.norm(x), cached=cached))
        x = ops.add(x, net.mlp(net.norm(x)))
    return net.norm(x)


def shortcut_experts(net: Net) -> ov.Node:
    """longcat: two attentions and two MLPs a layer, experts beside the second half."""
    x = net.embed()
    for _ in range(3):
        x = ops.add(x, net.attention(net.norm(x)))
        shortcut = net.experts(net.norm(x))
        x = ops.add(x, net.mlp(net.norm(x)))
        x = ops.add(x, net.attention(net.norm(x)))
        x = ops.add(ops.add(x, net.mlp(net.norm(x))), shortcut)
    return net.norm(x)


def embedding_mixed_in_with_a_scale(net: Net) -> ov.Node:
    """Whether the scale belongs to the layer before or behind is a matter of taste."""
    x = embedded = net.embed()
    for i in range(3):
        if i:
            x = ops.add(ops.multiply(x, scalar(0.9)), ops.multiply(embedded, scalar(0.1)))
        x = net.block(x)
    return net.norm(x)


def projection_between_layers(net: Net) -> ov.Node:
    x = net.embed()
    for i in range(3):
        x = net.linear(net.block(x)) if i == 1 else net.block(x)
    return net.norm(x)


def norm_behind_an_add_of_other_inputs(net: Net) -> ov.Node:
    x = net.embed()
    for i in range(3):
        x = net.block(x)
        x = net.norm(ops.add(x, net.input(f"visual.{i}", [-1, -1, HIDDEN]))) if i < 2 else x
    return net.norm(x)


def hidden_states_from_elsewhere(net: Net) -> ov.Node:
    """The tokens feed something, but not the output layer."""
    net.recurrence(net.embed(), "aside")
    return net.norm(net.block(net.input("features", [-1, -1, HIDDEN])))


def time_and_channel_mixing(net: Net) -> ov.Node:
    """RWKV: the channel mix has a state as well, but is no layer."""
    x = net.embed()
    for i in range(3):
        time = ops.add(net.recurrence(net.norm(x), f"shift.{i}"), net.recurrence(net.norm(x), f"wkv.{i}"))
        x = ops.add(x, time)
        x = ops.add(x, net.recurrence(net.norm(x), f"channel.{i}"))
    return net.norm(x)


def convolution_without_state(net: Net) -> ov.Node:
    """A stateless hybrid: nothing marks its convolutions."""
    x = net.embed()
    for i in range(4):
        if i % 2:
            inner = ops.transpose(net.linear(net.norm(x)), axis(0, 2, 1))
            mixed = ops.group_convolution(inner, net.weights(HIDDEN, 1, 1, 3), [1], [2], [0], [1])
            branch = net.linear(ops.transpose(mixed, axis(0, 2, 1)))
        else:
            branch = net.attention(net.norm(x))
        x = ops.add(x, branch)
        x = ops.add(x, net.mlp(net.norm(x)))
    return net.norm(x)


def no_residuals(net: Net) -> ov.Node:
    x = net.embed()
    for _ in range(3):
        x = net.mlp(net.norm(net.attention(net.norm(x))))
    return net.norm(x)


def no_attention(net: Net) -> ov.Node:
    x = net.embed()
    for _ in range(3):
        x = ops.add(x, net.mlp(net.norm(x)))
    return net.norm(x)


def one_odd_layer(net: Net) -> ov.Node:
    """A layer whose MLP was pruned away."""
    x = net.embed()
    for i in range(4):
        x = ops.add(x, net.attention(net.norm(x)))
        x = ops.add(x, net.mlp(net.norm(x))) if i != 2 else x
    return net.norm(x)


UNDECIDABLE: tuple[tuple[Wiring, str], ...] = (
    (skips_like_a_u_net, "skip-across-layers"),
    (skip_over_one_layer, "skip-across-layers"),
    (all_layers_averaged, "skip-across-layers"),
    (two_streams, "skip-across-layers"),
    (streams_in_one_more_dimension, "several-streams"),
    (streams_in_the_batch, "several-streams"),
    (streams_in_the_width, "several-streams"),
    (two_towers, "several-streams"),
    (mlp_before_attention, "branch-before-attention"),
    (layers_of_mlp_alone, "irregular-layers"),
    (cross_attention, "irregular-layers"),
    (shortcut_experts, "skip-across-layers"),
    (embedding_mixed_in_with_a_scale, "irregular-layers"),
    (projection_between_layers, "projection-between-layers"),
    (norm_behind_an_add_of_other_inputs, "op-between-layers"),
    (hidden_states_from_elsewhere, "no-stream"),
    (time_and_channel_mixing, "irregular-layers"),
    (convolution_without_state, "loop-without-state"),
    (no_residuals, "no-residual"),
    (no_attention, "no-layers"),
    (one_odd_layer, "irregular-layers"),
)


@pytest.mark.parametrize(("wiring", "code"), UNDECIDABLE, ids=lambda value: getattr(value, "__name__", ""))
def test_refused_with_reasons(wiring: Wiring, code: str) -> None:
    net = Net()
    hidden = wiring(net)
    model = net.finish(hidden)
    with pytest.raises(StructureError) as caught:
        decoder.read_decoder(model)
    assert code in {reason.code for reason in caught.value.reasons}
    assert all(reason.nodes for reason in caught.value.reasons)
