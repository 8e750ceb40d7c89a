from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset16 as ops

from ovgraft import inspection, ir
from ovgraft.drafts.contract import Key, RtPath
from ovgraft.inspection.layout import UNICODE, plain
from tests import models
from tests.inspection.resident import resident_weights
from tests.support import DECODERS


def text_of(path: Path) -> str:
    return plain(inspection.render_text(inspection.inspect(path), UNICODE))


def test_a_decoder_in_full() -> None:
    info = inspection.collect_model(models.tiny_decoder(layers=3, hidden=32, vocab=64), "m")
    assert info.kind == "decoder"
    assert [port.names for port in info.inputs] == [
        ("input_ids",),
        ("attention_mask",),
        ("position_ids",),
        ("beam_idx",),
    ]
    assert (info.outputs[0].shape, info.outputs[0].element_type) == ("[?,?,64]", "f32")
    assert [layer.kind for layer in info.layers] == ["attention"] * 3
    assert info.attention == {"ScaledDotProductAttention": 3}
    assert len(info.states) == 6
    assert sum(layer.states != () for layer in info.layers) == 3
    assert info.embedding is not None
    assert (info.embedding.vocab_size, info.embedding.width, info.embedding.bytes) == (64, 32, 64 * 32 * 4)
    assert info.lm_head is not None
    assert not info.lm_head.tied
    assert info.last_hidden_state is not None
    assert info.last_hidden_state.name != info.layers[-1].producer.name
    assert info.annotation is not None
    assert info.annotation.status == "absent"
    assert sum(info.op_counts.values()) == info.ops


def test_the_index_of_a_node_is_its_place_in_topological_order() -> None:
    model = models.tiny_decoder()
    for layer in inspection.collect_model(model, "m").layers:
        node = model.get_ordered_ops()[layer.producer.index]
        assert (node.get_friendly_name(), node.get_type_name()) == (layer.producer.name, layer.producer.type)


def test_tied_tables_scale_and_soft_cap() -> None:
    info = inspection.collect_model(models.tiny_decoder(tied=True, embedding_scale=8.0, softcap=30.0), "m")
    assert info.embedding is not None
    assert info.lm_head is not None
    assert info.lm_head.tied
    assert info.embedding.scale == 8.0
    assert info.lm_head.extras == ("Divide", "Tanh", "Multiply")


@pytest.mark.parametrize(("weights", "main"), [("f16", "f16"), ("int8", "u8"), ("int4", "i4")])
def test_weight_formats_by_bytes(weights: str, main: str, tmp_path: Path) -> None:
    folder = models.write_package(models.tiny_decoder(hidden=64, vocab=128, weights=weights), tmp_path / "p")  # type: ignore[arg-type]
    (package,) = inspection.inspect(folder).packages
    (info,) = package.models
    assert main in [entry.element_type for entry in info.weights[:2]]
    assert list(info.weights) == sorted(info.weights, key=lambda entry: -entry.bytes)
    model = ir.read_model(folder / "openvino_model.xml")
    constants = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
    assert sum(entry.bytes for entry in info.weights) == sum(node.get_byte_size() for node in constants)
    assert sum(entry.constants for entry in info.weights) == len(constants)


def test_states_are_listed_in_natural_order() -> None:
    info = inspection.collect_model(models.tiny_decoder(layers=12), "m")
    numbers = [int(match[0]) for state in info.states if (match := re.search(r"\d+", state.id))]
    assert numbers == sorted(numbers)
    assert max(numbers) >= 10


def test_a_decoder_whose_layers_do_not_show_says_why(tmp_path: Path) -> None:
    ids = ops.parameter([-1, -1], np.int64, name="input_ids")
    ids.output(0).set_names({"input_ids"})
    table = ops.constant([[0.5, 1.0]] * 8, np.float32)
    weight = ops.constant([[0.5, 1.0]] * 8, np.float32)
    logits = ops.matmul(ops.gather(table, ids, ops.constant(0)), weight, False, True)
    result = ops.result(logits)
    result.output(0).set_names({"logits"})
    folder = models.write_package(ov.Model([result], [ids], "m"), tmp_path / "p")
    (package,) = inspection.inspect(folder).packages
    (info,) = package.models
    assert info.kind == "decoder"
    assert info.structure_error
    assert info.lm_head is not None
    assert "not found by structure" in text_of(folder)


def test_kinds() -> None:
    assert inspection.collect_model(models.tiny_dflash_draft(), "m").kind == "dflash draft"
    assert inspection.collect_model(models.tiny_eagle3_draft(), "m").kind == "eagle3 draft"
    assert inspection.collect_model(models.tiny_text_embeddings(), "m").kind == "text embeddings"
    bare = models.tiny_dflash_draft()
    ir.delete(bare, ("dflash_mode",))
    assert inspection.collect_model(bare, "m").kind == "dflash draft"


@pytest.mark.parametrize(
    ("key", "value", "family", "offset"),
    [
        (None, "", "dflash", ("1", "default")),
        (Key.CANDIDATE_POSITION_OFFSET, "0", "dspark", ("0", "rt_info dflash/candidate_position_offset")),
        (Key.MARKOV_HEAD_TYPE, "vanilla", "dspark", ("1", "default")),
        (Key.MARKOV_HEAD_TYPE, "dflash2", "dflash2", ("1", "default")),
        (Key.VERSION, "2", "dflash2", ("1", "default")),
    ],
)
def test_a_block_draft_is_called_by_its_family(
    key: RtPath | None, value: str, family: str, offset: tuple[str, str], tmp_path: Path
) -> None:
    model = models.tiny_dflash_draft()
    if key is not None:
        ir.set_text(model, key, value)
    found = inspection.inspect(models.write_package(model, tmp_path / "draft")).packages[0].models[0]
    facts = {fact.name: fact for fact in found.draft}
    assert (found.kind, found.title, facts["family"].value) == ("dflash draft", f"{family} draft", family)
    assert (facts["candidate offset"].value, facts["candidate offset"].source) == offset


def test_the_model_is_left_alone() -> None:
    model = models.tiny_decoder(annotated=True)
    before = ir.fingerprint(model), ir.flatten(model)
    inspection.collect_model(model, "m")
    assert (ir.fingerprint(model), ir.flatten(model)) == before


def test_the_json_form_survives_a_round_trip(tmp_path: Path) -> None:
    folder = models.write_package(models.tiny_eagle3_draft(), tmp_path / "p")
    data = inspection.inspect(folder).to_dict()
    assert json.loads(json.dumps(data)) == json.loads(json.dumps(inspection.inspect(folder).to_dict()))
    assert next(iter(data)) == "schema"


def test_no_weight_byte_is_read(tmp_path: Path) -> None:
    """The mapped .bin has two tables of 16 MiB; what of it is in memory afterwards is what somebody looked at."""
    folder = models.write_package(models.tiny_decoder(layers=1, hidden=64, vocab=1 << 16), tmp_path / "big")
    assert 0 < resident_weights(folder) < 4096  # of 32 MiB


@pytest.mark.parametrize("name", DECODERS)
def test_every_decoder_of_the_zoo(zoo: Callable[[str], Path], name: str) -> None:
    (package,) = inspection.inspect(zoo(name)).packages
    main = package.models[0]
    assert main.kind == "decoder"
    assert not main.structure_error
    assert main.layers
    assert main.lm_head is not None
    assert package.problems == ()
    assert main.annotation is not None
    assert main.annotation.status in ("valid", "absent")
    assert main.name in ("openvino_model", "openvino_language_model")
    plain(inspection.render_text(inspection.inspect(zoo(name)), UNICODE, everything=True))
