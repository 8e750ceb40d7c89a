"""annotate-hidden-states: writes the exporter's record, keeps a valid one, refuses a wrong one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openvino as ov
import pytest

from ovgraft import ir
from ovgraft.drafts.contract import Key
from ovgraft.errors import PostconditionError, PreconditionError, StructureError
from ovgraft.graft import Graft, Package
from ovgraft.passbase import Context
from ovgraft.passes.annotate_hidden_states import AnnotateHiddenStates
from tests import models, pairs, support
from tests.decoder.nets import Net
from tests.decoder.test_undecidable import layers_of_mlp_alone

KEY = Key.HIDDEN_STATES_DECODER_LAYERS
LAYERS = 4


def package(tmp_path: Path, model: ov.Model, config: dict[str, Any] | None = None) -> Graft:
    return pairs.open_pair(models.write_package(model, tmp_path / "target", config=config or {}))


def run(graft: Graft, **options: Any) -> Context:
    (context,) = pairs.run_passes(graft, AnnotateHiddenStates(**options))
    return context


@pytest.mark.parametrize("weights", ["f32", "f16", "int8", "int4"])
@pytest.mark.parametrize("inputs_embeds", [False, True])
def test_writes_what_the_exporter_writes(tmp_path: Path, weights: Any, inputs_embeds: bool) -> None:
    exported = models.tiny_decoder(weights=weights, inputs_embeds=inputs_embeds, annotated=True)
    text = ir.get_text(exported, KEY)
    graft = package(tmp_path, models.tiny_decoder(weights=weights, inputs_embeds=inputs_embeds))
    context = run(graft)
    assert ir.get_text(graft.target.model, KEY) == text
    assert [(edit.kind, edit.model) for edit in context.edits] == [("metadata", "target")]
    assert context.edits[0].text == "hidden_states_decoder_layers written: 3 layers"


@pytest.mark.parametrize("name", support.ANNOTATED)
def test_the_exporters_own_record_is_kept(zoo: Callable[[str], Path], name: str) -> None:
    graft = Graft(Package(zoo(name)))
    before = ir.get_text(graft.target.model, KEY)
    context = run(graft)
    assert context.edits == []
    assert [remark.partition(":")[0] for remark in context.remarks] == ["unchanged"]
    assert ir.get_text(graft.target.model, KEY) == before


@pytest.mark.parametrize("name", support.DECODERS)
def test_every_decoder_of_the_zoo(zoo: Callable[[str], Path], name: str) -> None:
    graft = Graft(Package(zoo(name)))
    model = graft.target.model
    ir.delete(model, KEY)
    before = ir.fingerprint(model)
    run(graft)
    record = json.loads(ir.get_text(model, KEY) or "")
    assert list(record["layers"]) == [str(i) for i in range(len(record["layers"]))]
    ir.delete(model, KEY)
    assert ir.fingerprint(model) == before


def test_twice_changes_nothing_more(tmp_path: Path) -> None:
    graft = package(tmp_path, models.tiny_decoder())
    run(graft)
    for options in ({}, {"replace": True}):
        again = run(graft, **options)
        assert again.edits == []
        assert again.remarks == ["unchanged: the annotation of 3 layers is valid"]


@pytest.mark.parametrize("text", ["", "[]", '{"layers":{"0":{"producer":"x","output_index":0}}}', "shifted"])
def test_a_wrong_record_is_refused_and_replaced_on_demand(tmp_path: Path, text: str) -> None:
    model = models.tiny_decoder(layers=LAYERS, annotated=True)
    right = ir.get_text(model, KEY)
    record = json.loads(right or "")["layers"]
    if text == "shifted":
        shifted = {str(i): record[str((i + 1) % LAYERS)] for i in range(LAYERS)}
        text = json.dumps({"layers": shifted}, separators=(",", ":"))
    ir.delete(model, KEY)
    ir.set_text(model, KEY, text)
    graft = package(tmp_path, model)
    stored = ir.get_text(graft.target.model, KEY)
    with pytest.raises(PreconditionError) as caught:
        run(graft)
    assert "hidden_states_decoder_layers" in caught.value.message
    assert ir.get_text(graft.target.model, KEY) == stored
    context = run(graft, replace=True)
    assert context.edits[0].text == "hidden_states_decoder_layers replaced: 4 layers"
    assert ir.get_text(graft.target.model, KEY) == right


def test_a_tree_in_place_of_the_text_is_replaced(tmp_path: Path) -> None:
    model = models.tiny_decoder()
    ir.set_text(model, (*KEY, "layers"), "{}")
    graft = package(tmp_path, model)
    with pytest.raises(PreconditionError, match="not text but a tree"):
        run(graft)
    run(graft, replace=True)
    assert ir.get_text(graft.target.model, KEY) == ir.get_text(models.tiny_decoder(annotated=True), KEY)


def test_names_that_repeat_are_refused(tmp_path: Path) -> None:
    model = models.tiny_decoder()
    for node in model.get_ops():
        if node.get_type_name() == "Add":
            node.set_friendly_name("add")
    with pytest.raises(PreconditionError, match="friendly names repeat") as caught:
        run(package(tmp_path, model))
    assert [reason.message.partition(":")[0] for reason in caught.value.reasons] == ["layer 0", "layer 1"]


def test_what_the_structure_does_not_decide_changes_nothing(tmp_path: Path) -> None:
    net = Net()
    graft = package(tmp_path, net.finish(layers_of_mlp_alone(net)))
    with pytest.raises(StructureError) as caught:
        run(graft, replace=True)
    assert [reason.code for reason in caught.value.reasons] == ["irregular-layers"]
    assert not graft.target.model.has_rt_info(list(KEY))


def test_a_config_that_counts_otherwise_is_heard(tmp_path: Path) -> None:
    graft = package(tmp_path, models.tiny_decoder(), {"num_hidden_layers": 6})
    with pytest.raises(StructureError) as caught:
        run(graft)
    assert str(caught.value.expected) == "6 layers, as config.json says"
    assert str(caught.value.found) == "3 in the graph"
    assert not graft.target.model.has_rt_info(list(KEY))
    run(package(tmp_path / "right", models.tiny_decoder(), {"num_hidden_layers": 3}))


def test_names_that_count_otherwise_are_heard(tmp_path: Path) -> None:
    model = models.tiny_decoder()
    for node in model.get_ops():
        node.set_friendly_name(node.get_friendly_name().replace("layers.1", "layers.7"))
    context = run(package(tmp_path, model))
    assert context.remarks == ["names number the layers otherwise than the graph orders them: 0, 7, 2"]
    assert [edit.kind for edit in context.edits] == ["metadata"]


def test_drafts_are_refused(zoo: Callable[[str], Path]) -> None:
    with pytest.raises(StructureError, match="draft model"):
        run(Graft(Package(zoo("qwen3_dflash_draft"))))


def test_the_promise_is_checked(tmp_path: Path) -> None:
    graft = package(tmp_path, models.tiny_decoder(annotated=True))
    nodes = {node.get_friendly_name(): node for node in graft.target.model.get_ops()}
    nodes["__module.model.layers.1/aten::add/Add_1"].set_friendly_name("renamed")
    with pytest.raises(PostconditionError, match="does not resolve") as caught:
        AnnotateHiddenStates().ensures(graft)
    assert [reason.code for reason in caught.value.reasons] == ["no-producer"]


def test_survives_save_and_load(tmp_path: Path) -> None:
    graft = package(tmp_path, models.tiny_decoder())
    run(graft)
    folder = tmp_path / "saved"
    shutil.copytree(tmp_path / "target", folder)
    ov.save_model(graft.target.model, folder / "openvino_model.xml", compress_to_fp16=False)
    assert run(Graft(Package(folder))).edits == []
