"""The exporter's record: every way it can be damaged is told apart, with layer, producer and what was found."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openvino as ov
import pytest

from ovgraft import decoder, ir
from ovgraft.drafts.contract import Key
from ovgraft.errors import PreconditionError
from tests import models

LAYERS = 4
Record = dict[str, Any]


@pytest.fixture(scope="module")
def annotated() -> ov.Model:
    return models.tiny_decoder(layers=LAYERS, annotated=True)


def producer(i: int) -> str:
    return f"__module.model.layers.{i}/aten::add/Add_1"


def checked(model: ov.Model, text: str) -> PreconditionError:
    """What the check says of a copy of the model with another record."""
    clone = model.clone()
    ir.delete(clone, Key.HIDDEN_STATES_DECODER_LAYERS)
    ir.set_text(clone, Key.HIDDEN_STATES_DECODER_LAYERS, text)
    with pytest.raises(PreconditionError) as caught:
        decoder.check_annotation(clone, decoder.read_decoder(clone))
    assert "replace=true" in (caught.value.hint or "")
    return caught.value


def edited(model: ov.Model, edit: Callable[[Record], None]) -> PreconditionError:
    record = json.loads(ir.get_text(model, Key.HIDDEN_STATES_DECODER_LAYERS) or "")
    edit(record["layers"])
    return checked(model, json.dumps(record))


def test_a_valid_record_resolves_to_the_layers(annotated: ov.Model) -> None:
    found = decoder.read_decoder(annotated)
    outputs = decoder.check_annotation(annotated, found)
    assert [o.get_node().get_friendly_name() for o in outputs[:-1]] == [producer(i) for i in range(LAYERS - 1)]
    assert [o.get_node() is found.hidden_state(i).get_node() for i, o in enumerate(outputs)] == [True] * LAYERS
    assert decoder.annotation_text(found) == ir.get_text(annotated, Key.HIDDEN_STATES_DECODER_LAYERS)


def test_layout_and_order_do_not_matter(annotated: ov.Model) -> None:
    record = json.loads(ir.get_text(annotated, Key.HIDDEN_STATES_DECODER_LAYERS) or "")
    record["layers"] = dict(reversed(record["layers"].items()))
    clone = annotated.clone()
    ir.set_text(clone, Key.HIDDEN_STATES_DECODER_LAYERS, json.dumps(record, indent=2))
    decoder.check_annotation(clone, decoder.read_decoder(clone))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ('{"layers":{"0":', "not valid JSON"),
        ('{"layers":{},"layers":{}}', "key 'layers' repeats"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "no object 'layers'"),
        ("7", "no object 'layers'"),
        ("{}", "no object 'layers'"),
        ('{"layers":[]}', "no object 'layers'"),
        ('{"layers":{}}', "no entry for layer 0"),
    ],
)
def test_malformed_text(annotated: ov.Model, text: str, words: str) -> None:
    error = checked(annotated, text)
    assert "malformed" in error.message
    assert words in error.message


def entry(key: str, **fields: Any) -> Callable[[Record], None]:
    def edit(layers: Record) -> None:
        layers[key] = {"producer": producer(1), "output_index": 0, **fields}

    return edit


def without(key: str, field: str | None = None) -> Callable[[Record], None]:
    def edit(layers: Record) -> None:
        del (layers[key] if field else layers)[field or key]

    return edit


@pytest.mark.parametrize(
    ("edit", "words", "found"),
    [
        (entry("one"), "a layer id is no whole number", "'one'"),
        (entry("01"), "a layer id is no whole number", "'01'"),
        (entry("-1"), "a layer id is no whole number", "'-1'"),
        (entry("1.0"), "a layer id is no whole number", "'1.0'"),
        (entry("²"), "a layer id is no whole number", "'²'"),
        (entry("6"), "no entry for layer 4, 5", "layers [0, 1, 2, 3, 6]"),
        (without("1"), "no entry for layer 1", "layers [0, 2, 3]"),
        (without("1", "producer"), "layer 1 has no text 'producer'", '{"output_index": 0}'),
        (without("1", "output_index"), f"layer 1, producer '{producer(1)}': 'output_index' is no port number", "null"),
        (entry("1", producer=7), "layer 1 has no text 'producer'", '{"producer": 7, "output_index": 0}'),
        (entry("1", output_index=-1), "'output_index' is no port number", "-1"),
        (entry("1", output_index="0"), "'output_index' is no port number", '"0"'),
        (entry("1", output_index=True), "'output_index' is no port number", "true"),
        (entry("1", output_index=0.0), "'output_index' is no port number", "0.0"),
        (lambda layers: layers.update({"1": producer(1)}), "layer 1 is no object", repr(producer(1))),
    ],
)
def test_malformed_entries(annotated: ov.Model, edit: Callable[[Record], None], words: str, found: str) -> None:
    error = edited(annotated, edit)
    assert words in error.message
    assert error.found == found


def test_a_tree_in_place_of_the_text(annotated: ov.Model) -> None:
    clone = annotated.clone()
    ir.delete(clone, Key.HIDDEN_STATES_DECODER_LAYERS)
    ir.set_text(clone, (*Key.HIDDEN_STATES_DECODER_LAYERS, "layers"), "{}")
    with pytest.raises(PreconditionError, match="not text but a tree"):
        decoder.check_annotation(clone, decoder.read_decoder(clone))


def test_no_record() -> None:
    model = models.tiny_decoder(layers=1)
    with pytest.raises(PreconditionError, match="the model has no hidden_states_decoder_layers"):
        decoder.check_annotation(model, decoder.read_decoder(model))


def set_producer(key: str, name: str, port: int = 0) -> Callable[[Record], None]:
    return lambda layers: layers[key].update(producer=name, output_index=port)


def shift(layers: Record) -> None:
    producers = [layers[str(i)]["producer"] for i in range(LAYERS)]
    for i, name in enumerate(["__module.model.embed_tokens/aten::embedding/Gather", *producers[:-1]]):
        layers[str(i)]["producer"] = name


@pytest.mark.parametrize(
    ("edit", "code", "words"),
    [
        (set_producer("1", "no/such"), "no-producer", "layer 1: no node is named 'no/such'"),
        (set_producer("1", producer(1), 7), "no-producer", f"layer 1: producer '{producer(1)}' has no output 7"),
        (
            set_producer("1", "__module.model.layers.1/aten::add/Add"),
            "wrong-producer",
            "layer 1: producer '__module.model.layers.1/aten::add/Add' is the post-attention residual of layer 1, "
            f"shape [?,?,32]; the structure says '{producer(1)}'",
        ),
        (
            set_producer("1", "__module.model.layers.1.self_attn.q_proj/aten::linear/MatMul"),
            "wrong-producer",
            "is a value inside the attention branch of layer 1, shape [?,?,32]",
        ),
        (
            set_producer("1", "__module.model.layers.1.mlp.gate_proj/aten::linear/MatMul"),
            "wrong-producer",
            "is a value inside branch 2 of layer 1, shape",
        ),
        (set_producer("3", producer(3)), "wrong-producer", "is the output of layer 3, before the final norm"),
        (set_producer("1", producer(2)), "wrong-producer", "is the output of layer 2, shape"),
        (
            shift,
            "wrong-producer",
            "layer 0: producer '__module.model.embed_tokens/aten::embedding/Gather' is the token",
        ),
    ],
)
def test_producers_that_are_not_the_layers(
    annotated: ov.Model, edit: Callable[[Record], None], code: str, words: str
) -> None:
    error = edited(annotated, edit)
    assert [reason.code for reason in error.reasons] == [code] * (LAYERS if edit is shift else 1)
    assert words in error.reasons[0].message
    assert words in str(error)


def test_fewer_layers_than_there_are(annotated: ov.Model) -> None:
    error = edited(annotated, without("3"))
    assert "disagrees with the structure" in error.message
    assert (error.expected, error.found) == ("4 layers", "3 layers")


def test_a_name_that_two_nodes_bear(annotated: ov.Model) -> None:
    clone = annotated.clone()
    names = {node.get_friendly_name(): node for node in clone.get_ops()}
    names["__module.model.layers.2.mlp/aten::mul/Multiply"].set_friendly_name(producer(1))
    found = decoder.read_decoder(clone)
    with pytest.raises(PreconditionError) as caught:
        decoder.check_annotation(clone, found)
    (reason,) = caught.value.reasons
    assert reason.code == "ambiguous-producer"
    assert reason.message == f"layer 1: 2 nodes are named '{producer(1)}'"
    assert sorted(node.type for node in reason.nodes) == ["Add", "Multiply"]
    with pytest.raises(PreconditionError, match="friendly names repeat") as refused:
        decoder.annotation_text(found)
    assert [reason.code for reason in refused.value.reasons] == ["ambiguous-producer"]


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ({}, None),
        ({"num_hidden_layers": 12}, 12),
        ({"n_layer": 4}, 4),
        ({"text_config": {"num_hidden_layers": 3}, "num_hidden_layers": 9}, 3),
        ({"text_config": None, "n_layers": 2}, 2),
        ({"num_hidden_layers": True}, None),
        ({"num_hidden_layers": "12"}, None),
    ],
)
def test_layer_count_of_a_config(config: dict[str, Any], count: int | None) -> None:
    assert decoder.configured_layer_count(config) == count


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("__module.model.layers.11/aten::add/Add_1", 11),
        ("__module.transformer.h.0.mlp/aten::add/Add", 0),
        ("__module.transformer.blocks.3.ffn/aten::add/Add", 3),
        ("model.layers.self_attn.add1.layer29", 29),
        ("Add_300", None),
        ("graph7", None),
        ("players.4", None),
    ],
)
def test_numbers_in_names(name: str, number: int | None) -> None:
    model = models.tiny_decoder(layers=1)
    decoder.read_decoder(model).layers[0].output.get_node().set_friendly_name(name)
    assert decoder.numbers_in_names(decoder.read_decoder(model)) == (number,)
