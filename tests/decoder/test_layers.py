"""Layer boundaries of hand-made wirings that the zoo lacks."""

from __future__ import annotations

from collections.abc import Callable

import openvino as ov
import openvino.opset13 as ops
import pytest

from ovgraft import decoder
from tests.decoder.nets import HEAD_SIZE, HEADS, HIDDEN, Net, axis

Wiring = Callable[[Net], ov.Node]
N = 3


def plain(net: Net) -> ov.Node:
    x = net.embed()
    for _ in range(N):
        x = net.block(x)
    return net.norm(x)


def positions_and_layer_norm(net: Net) -> ov.Node:
    """gpt2, opt; bloom's norm behind the embedding."""
    x = ops.add(net.embed(), ops.gather(net.weights(32, HIDDEN), ops.cum_sum(net.ids, axis(1).output(0)), axis(0)))
    x = net.layer_norm(x)
    for _ in range(N):
        x = net.block(x)
    return net.layer_norm(x)


def scaled_embedding(net: Net) -> ov.Node:
    x = ops.multiply(net.embed(), ops.constant([[[8.0]]], ov.Type.f32))
    for _ in range(N):
        x = net.block(x)
    return net.norm(x)


def parallel_one_norm(net: Net) -> ov.Node:
    """gptj, phi, falcon-7b, cohere: one norm, attention and MLP side by side."""
    x = net.embed()
    for _ in range(N):
        normed = net.layer_norm(x)
        x = net.layer(x, ops.add(ops.add(net.attention(normed), net.mlp(normed)), x))
    return net.layer_norm(x)


def parallel_two_norms(net: Net) -> ov.Node:
    """gpt_neox, and the residual added to the attention first."""
    x = net.embed()
    for _ in range(N):
        x = net.layer(x, ops.add(net.mlp(net.norm(x)), ops.add(net.attention(net.norm(x)), x)))
    return net.norm(x)


def sandwich(net: Net) -> ov.Node:
    """gemma2, glm4: norms before and behind each branch."""
    x = net.embed()
    for _ in range(N):
        x = net.block(x, attention=net.norm(net.attention(net.norm(x))))
        x = net.outputs[-1]
    return net.norm(x)


def norm_behind_branches(net: Net) -> ov.Node:
    """olmo2: no norm in front."""
    x = net.embed()
    for _ in range(N):
        middle = ops.add(x, net.norm(net.attention(x)))
        x = net.layer(x, ops.add(middle, net.norm(net.mlp(middle))))
    return net.norm(x)


def norm_on_the_stream(net: Net) -> ov.Node:
    """The first transformers: the norm is on the residual path, and there is no final one."""
    x = net.layer_norm(net.embed())
    for _ in range(N):
        middle = net.layer_norm(ops.add(x, net.attention(x)))
        x = net.layer(x, net.layer_norm(ops.add(middle, net.mlp(middle))))
    return x


def scale_behind_each_layer(net: Net) -> ov.Node:
    x = net.embed()
    for _ in range(N):
        middle = ops.add(x, net.attention(net.norm(x)))
        x = net.layer(x, ops.multiply(ops.add(middle, net.mlp(net.norm(middle))), net.weights(1)))
    return net.norm(x)


def deepstack(net: Net) -> ov.Node:
    """qwen3_vl: visual features are added between the first layers, not as part of them."""
    x = net.embed()
    for i in range(N):
        net.block(x)
        x = ops.add(net.outputs[-1], net.input(f"visual.{i}", [-1, -1, HIDDEN])) if i < 2 else net.outputs[-1]
    return net.norm(x)


def deepstack_by_mask(net: Net) -> ov.Node:
    """The same, only where a mask says so."""
    x = net.embed()
    for i in range(N):
        net.block(x)
        x = net.outputs[-1]
        if i < 2:
            added = ops.add(x, net.input(f"visual.{i}", [-1, -1, HIDDEN]))
            x = ops.select(ops.equal(ops.unsqueeze(net.ids, axis(2)), axis(7)), added, x)
    return net.norm(x)


def three_branches(net: Net) -> ov.Node:
    """gemma4: the embedding, projected, enters every layer."""
    x = embedded = net.embed()
    for _ in range(N):
        middle = ops.add(x, net.attention(net.norm(x)))
        end = ops.add(middle, net.mlp(net.norm(middle)))
        gate = ops.multiply(ops.gelu(net.linear(end), "TANH"), net.norm(net.linear(embedded)))
        x = net.layer(x, ops.add(end, net.norm(net.linear(gate))))
    return net.norm(x)


def embedding_added_before_each_layer(net: Net) -> ov.Node:
    x = embedded = net.embed()
    for i in range(N):
        x = ops.add(x, net.linear(embedded)) if i else x
        x = net.block(x)
    return net.norm(x)


def shared_attention(net: Net) -> ov.Node:
    """zamba2: every other layer begins with one attention over stream and embedding, and has no residual of its own."""
    x = embedded = net.embed()
    for i in range(4):
        entry = x
        if i % 2:
            both = net.linear(ops.concat([x, embedded], 2), HIDDEN, 2 * HIDDEN)
            mixed = net.linear(net.mlp(net.norm(net.attention(both))))
            x = ops.add(x, mixed)
        x = net.layer(entry, ops.add(entry, net.convolution(net.norm(x))))
    return net.norm(x)


def shared_keys_and_values(net: Net) -> ov.Node:
    """gemma3n, YOCO: later layers have no state and read an earlier layer's."""
    x = net.embed()
    for i in range(5):
        cached = None if i < 2 else net.keys_and_values[i % 2]
        x = net.block(x, attention=net.attention(net.norm(x), cached=cached))
    return net.norm(x)


def first_values_everywhere(net: Net) -> ov.Node:
    """Value residuals: each layer mixes the first layer's values into its own."""
    x = net.embed()
    for _ in range(N):
        key, value = net.cache(net.norm(x))
        first = net.keys_and_values[0][1]
        cached = (key, value if value is first else ops.add(value, first))
        x = net.block(x, attention=net.attention(net.norm(x), cached=cached))
    return net.norm(x)


def written_out_attention(net: Net) -> ov.Node:
    x = net.embed()
    for _ in range(N):
        x = net.block(x, attention=net.attention(net.norm(x), written_out=True))
    return net.norm(x)


def stateless(net: Net) -> ov.Node:
    """Past keys and values come in as inputs."""
    x = net.embed()
    for i in range(N):
        normed, shape = net.norm(x), [-1, HEADS, -1, HEAD_SIZE]
        key, value = (
            ops.concat([net.input(f"past_key_values.{i}.{name}", shape), net.split_heads(net.linear(normed))], 2)
            for name in ("key", "value")
        )
        x = net.block(x, attention=net.attention(normed, cached=(key, value)))
    return net.norm(x)


def experts(net: Net) -> ov.Node:
    x = net.embed()
    for i in range(N):
        middle = ops.add(x, net.attention(net.norm(x)))
        x = net.layer(x, ops.add(middle, net.experts(net.norm(middle)) if i else net.mlp(net.norm(middle))))
    return net.norm(x)


def hybrid(net: Net) -> ov.Node:
    x = net.embed()
    for i in range(4):
        x = net.block(x, attention=(net.attention if i % 2 else net.convolution)(net.norm(x)))
    return net.norm(x)


def attention_beside_convolution(net: Net) -> ov.Node:
    """falcon_h1: two mixers in one layer."""
    x = net.embed()
    for _ in range(N):
        normed = net.norm(x)
        x = net.block(x, attention=ops.add(net.attention(normed), net.convolution(normed)))
    return net.norm(x)


def projections_at_both_ends(net: Net) -> ov.Node:
    """opt-350m: embedding and lm_head are narrower than the layers."""
    x = net.linear(net.embed(4), HIDDEN, 4)
    for _ in range(N):
        x = net.block(x)
    return net.linear(net.norm(x), 4, HIDDEN)


def mixers_alone(net: Net) -> ov.Node:
    """mamba: no MLP."""
    x = net.embed()
    for _ in range(N):
        x = net.layer(x, ops.add(x, net.convolution(net.norm(x))))
    return net.norm(x)


READABLE: tuple[Wiring, ...] = (
    *(plain, positions_and_layer_norm, scaled_embedding, parallel_one_norm, parallel_two_norms, sandwich),
    *(norm_behind_branches, norm_on_the_stream, scale_behind_each_layer, deepstack),
    *(deepstack_by_mask, three_branches),
    *(embedding_added_before_each_layer, shared_attention, shared_keys_and_values, first_values_everywhere),
    *(
        stateless,
        written_out_attention,
        experts,
        hybrid,
        attention_beside_convolution,
        projections_at_both_ends,
        mixers_alone,
    ),
)


def read(wiring: Wiring) -> tuple[Net, decoder.Decoder, ov.Node]:
    net = Net()
    hidden = wiring(net)
    width = hidden.get_output_partial_shape(0)[-1].get_length()
    return net, decoder.read_decoder(net.finish(hidden, width)), hidden


@pytest.mark.parametrize("wiring", READABLE, ids=lambda wiring: wiring.__name__)
def test_layers_are_found(wiring: Wiring) -> None:
    net, found, hidden = read(wiring)
    index = found.graph.index
    assert [index(layer.entry.get_node()) for layer in found.layers] == [index(entry) for entry in net.entries]
    assert [index(layer.output.get_node()) for layer in found.layers] == [index(output) for output in net.outputs]
    assert index(found.lm_head.hidden.get_node()) == index(hidden)


@pytest.mark.parametrize("layers", [1, 2, 120])
def test_any_number_of_layers(layers: int) -> None:
    def wiring(net: Net) -> ov.Node:
        x = net.embed()
        for _ in range(layers):
            x = net.block(x)
        return net.norm(x)

    net, found, _ = read(wiring)
    assert [layer.index for layer in found.layers] == list(range(layers))
    assert found.layers[-1].output.get_node().get_friendly_name() == net.outputs[-1].get_friendly_name()


def test_what_a_layer_holds() -> None:
    _, found, _ = read(hybrid)
    assert [layer.kind for layer in found.layers] == ["convolution", "attention"] * 2
    assert [layer.states for layer in found.layers] == [
        *(("conv.0",), ("past.0.key", "past.0.value"), ("conv.3",), ("past.1.key", "past.1.value"))
    ]
    assert [len(layer.residuals) for layer in found.layers] == [2] * 4


@pytest.mark.parametrize(
    ("wiring", "kinds"),
    [
        (written_out_attention, ["attention"] * N),
        (shared_attention, ["convolution", "attention+convolution"] * 2),
        (attention_beside_convolution, ["attention+convolution"] * N),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_kinds(wiring: Wiring, kinds: list[str]) -> None:
    assert [layer.kind for layer in read(wiring)[1].layers] == kinds


def test_layers_that_read_another_layers_state_have_none() -> None:
    _, found, _ = read(shared_keys_and_values)
    owned = [("past.0.key", "past.0.value"), ("past.1.key", "past.1.value"), (), (), ()]
    assert [layer.states for layer in found.layers] == owned


def test_hidden_states_as_exporters_and_runtimes_count() -> None:
    _, found, _ = read(deepstack)
    first, second, last = found.layers
    assert found.hidden_state(0).get_node() is first.output.get_node()
    assert found.hidden_state(1, "input").get_node() is second.entry.get_node()
    assert found.hidden_state(1, "input").get_node() is not first.output.get_node()
    assert found.hidden_state(2).get_node() is found.lm_head.hidden.get_node()
    assert found.hidden_state(2).get_node() is not last.output.get_node()
    with pytest.raises(IndexError, match="layer 3 of a decoder with layers 0 to 2"):
        found.hidden_state(3)
