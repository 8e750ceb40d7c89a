"""Output layers and embeddings in all their forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from ovgraft import decoder
from ovgraft.errors import StructureError
from tests import models
from tests.decoder.nets import HIDDEN, VOCAB, Net, axis


def finish(net: Net, logits: ov.Node, *others: ov.Node, name: str = "logits") -> ov.Model:
    logits.output(0).get_tensor().set_names({name})
    results = [ops.result(node) for node in (logits, *others)]
    return ov.Model(results, net.sinks, net.inputs, "net")


def hidden_of(net: Net) -> ov.Node:
    return net.norm(net.block(net.embed()))


def test_bias_scale_and_soft_cap_are_behind_the_product() -> None:
    net = Net()
    product = ops.matmul(hidden_of(net), net.weights(HIDDEN, VOCAB), False, False)
    biased = ops.add(product, net.weights(1, 1, VOCAB))
    capped = ops.multiply(ops.tanh(ops.divide(biased, net.weights(1))), net.weights(1))
    head = decoder.read_lm_head(finish(net, capped))
    assert (head.vocab_size, head.width, head.transpose_b) == (VOCAB, HIDDEN, False)
    assert [node.get_type_name() for node in head.post_ops] == ["Add", "Divide", "Tanh", "Multiply"]
    assert head.bias is not None
    assert head.bias.get_node() is biased.input_value(1).get_node()


def test_a_factor_is_no_bias() -> None:
    net = Net()
    product = ops.matmul(hidden_of(net), net.weights(VOCAB, HIDDEN), False, True)
    head = decoder.read_lm_head(finish(net, ops.add(product, net.weights(1))))
    assert head.bias is None
    assert len(head.post_ops) == 1


def test_rows_may_be_selected_before_the_product() -> None:
    net = Net()
    hidden = hidden_of(net)
    wanted = ops.parameter([-1], np.int64)
    net.inputs.append(wanted)
    rows = ops.gather(hidden, wanted, axis(1))
    model = finish(net, ops.matmul(rows, net.weights(VOCAB, HIDDEN), False, True))
    found = decoder.read_decoder(model)
    assert found.lm_head.hidden.get_node() is hidden
    assert len(found.layers) == 1


def test_the_right_output_is_found_without_its_name() -> None:
    net = Net()
    hidden = hidden_of(net)
    model = finish(net, ops.matmul(hidden, net.weights(VOCAB, HIDDEN), False, True), hidden, name="scores")
    assert decoder.read_lm_head(model).vocab_size == VOCAB


def test_several_products_without_a_name_are_refused() -> None:
    net = Net()
    hidden = hidden_of(net)
    one, two = (ops.matmul(hidden, net.weights(VOCAB, HIDDEN), False, True) for _ in range(2))
    with pytest.raises(StructureError) as caught:
        decoder.read_lm_head(finish(net, one, two, name="scores"))
    assert [reason.code for reason in caught.value.reasons] == ["several-lm-heads"]


@pytest.mark.parametrize("case", ["weight on the left", "no weight", "no product"])
def test_no_output_layer(case: str) -> None:
    net = Net()
    hidden = hidden_of(net)
    logits = {
        "weight on the left": lambda: ops.matmul(net.weights(VOCAB, HIDDEN), hidden, False, True),
        "no weight": lambda: ops.matmul(hidden, hidden, False, True),
        "no product": lambda: ops.sigmoid(hidden),
    }[case]()
    with pytest.raises(StructureError) as caught:
        decoder.read_lm_head(finish(net, logits))
    assert [reason.code for reason in caught.value.reasons] == ["no-lm-head"]
    assert all(reason.nodes for reason in caught.value.reasons)


def test_rows_may_be_spread_among_empty_ones_behind_the_product() -> None:
    """As a per-row draft does, which computes on the rows of its block alone."""
    net = Net()
    hidden = hidden_of(net)
    product = ops.matmul(hidden, net.weights(VOCAB, HIDDEN), False, True)
    places = ops.parameter([-1], np.int64)
    net.inputs.append(places)
    count = ops.gather(ops.shape_of(net.ids, output_type="i64"), axis(1), axis(0))
    zeros = ops.broadcast(ops.constant(np.float32(0)), ops.concat([count, axis(VOCAB)], 0))
    flat = ops.reshape(product, axis(-1, VOCAB), special_zero=False)
    head = decoder.read_lm_head(finish(net, ops.scatter_update(zeros, places, flat, axis(0))))
    assert head.matmul is product
    assert head.hidden.get_node() is hidden


def test_logits_that_only_tokens_are_chosen_by() -> None:
    net = Net()
    product = ops.matmul(hidden_of(net), net.weights(VOCAB, HIDDEN), False, True)
    best = ops.reduce_max(product, axis(-1), keep_dims=True)
    ids = ops.constant(np.arange(VOCAB, dtype=np.int64))
    places = ops.select(ops.equal(product, best), ids, ops.constant(np.int64(VOCAB)))
    token = ops.reduce_min(places, axis(-1), keep_dims=False)
    head = decoder.read_lm_head(finish(net, token, name="draft_token_ids"))
    assert head.matmul is product
    assert head.logits.get_node() is product


def test_no_floating_point_output() -> None:
    x = ops.parameter([1], np.int64)
    with pytest.raises(StructureError) as caught:
        decoder.read_lm_head(ov.Model([ops.result(ops.add(x, x))], [x], "integers"))
    assert [reason.code for reason in caught.value.reasons] == ["no-logits"]


def test_the_embedding_is_not_the_table_of_positions() -> None:
    net = Net()
    table = net.weights(VOCAB, HIDDEN)
    tokens = ops.gather(table, ops.convert(net.ids, "i32"), axis(0))
    positions = ops.parameter([-1, -1], np.int64)
    positions.output(0).get_tensor().set_names({"position_ids"})
    net.inputs.append(positions)
    learned = ops.gather(net.weights(VOCAB, HIDDEN), positions, axis(0))
    found = decoder.read_decoder(net.finish(net.norm(net.block(ops.add(tokens, learned)))))
    assert found.embedding is not None
    assert found.embedding.gather is tokens
    assert found.embedding.table.get_node() is table
    assert found.layers[0].entry.get_node() is not tokens


@pytest.mark.parametrize(
    ("factors", "scale"),
    [([], None), ([8.0], 8.0), ([4.0, 0.5], 2.0)],
)
def test_scale_of_the_embedding(factors: list[float], scale: float | None) -> None:
    net = Net()
    x = net.embed()
    for factor in factors:
        x = ops.multiply(ops.constant([[[factor]]], ov.Type.f32), x)
    found = decoder.read_decoder(net.finish(net.norm(net.block(x)))).embedding
    assert found is not None
    assert found.scale == scale
    assert found.scaled.get_node() is x


def test_two_equal_lookups_are_refused() -> None:
    net = Net()
    x = ops.add(net.embed(), net.embed())
    with pytest.raises(StructureError) as caught:
        decoder.read_decoder(net.finish(net.norm(net.block(x))))
    assert [reason.code for reason in caught.value.reasons] == ["several-embeddings"]


def test_a_second_table_of_another_width_does_not_disturb() -> None:
    """gemma4's text model looks per-layer inputs up by the same ids."""
    net = Net()
    tokens = net.embed()
    x = ops.add(tokens, net.linear(net.embed(6), HIDDEN, 6))
    found = decoder.read_decoder(net.finish(net.norm(net.block(x))))
    assert found.embedding is not None
    assert found.embedding.gather is tokens


@pytest.mark.parametrize("weights", ["f32", "f16", "int8", "int4"])
@pytest.mark.parametrize("options", [{}, {"tied": True}, {"embedding_scale": 3.0, "softcap": 5.0}], ids=str)
def test_small_models_of_exporter_shape(weights: Any, options: dict[str, Any]) -> None:
    model = models.tiny_decoder(weights=weights, annotated=True, **options)
    found = decoder.read_decoder(model)
    decoder.check_annotation(model, found)
    assert found.embedding is not None
    assert found.embedding.scale == options.get("embedding_scale")
    assert [node.get_type_name() for node in found.lm_head.post_ops] == (
        ["Divide", "Tanh", "Multiply"] if "softcap" in options else []
    )
    same = found.embedding.table.get_node() is found.lm_head.weight.get_node()
    assert same == bool(options.get("tied"))
