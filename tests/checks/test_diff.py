"""diff: the same under every renaming, exact about edits, and told in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

import ovgraft
from ovgraft import ir
from ovgraft.checks.diff import ModelDiff, align, diff_grafts, diff_models
from ovgraft.graft import Graft, Package
from tests import models, support
from tests.blocks import WeightFormat
from tests.checks.doctor_pairs import opened, pair


def renamed(model: ov.Model) -> ov.Model:
    """A copy in which nothing inside is called what it was."""
    copy = model.clone()
    for place, node in enumerate(copy.get_ordered_ops()):
        node.set_friendly_name(f"n{place * 7919 % 99991}")
        if node.get_type_name() not in ("Parameter", "Result"):
            for output in node.outputs():
                if not any(t.get_node().get_type_name() == "Result" for t in output.get_target_inputs()):
                    output.set_names({f"t{place}"})
    return copy


def counts(found: ModelDiff) -> dict[str, int]:
    return {kind: count for kind, count in found.summary.items() if count and kind not in ("same", "renamed")}


def insert(model: ov.Model, name: str, seed: int, count: int) -> ov.Model:
    """A copy with ``count`` ops put onto edges out of MatMuls, by chance."""
    copy = model.clone()
    products = [node for node in copy.get_ordered_ops() if node.get_type_name() == "MatMul"]
    for at in np.random.default_rng(seed).choice(len(products), count, replace=False):
        output = products[at].output(0)
        readers = list(output.get_target_inputs())
        new = getattr(ir.opset, name)(output)
        for reader in readers:
            reader.replace_source_output(new.output(0))
    copy.validate_nodes_and_infer_types()
    return copy


@pytest.mark.parametrize("weights", ["f32", "f16", "int8", "int4"])
def test_names_do_not_count(weights: WeightFormat) -> None:
    model = models.tiny_decoder(layers=3, weights=weights)
    found = diff_models(model, renamed(model), weights=True)
    assert found.equal
    assert found.words == ()
    assert found.renamed > 100


def test_names_of_variables_do_not_count(tmp_path: Path) -> None:
    models.write_package(models.tiny_decoder(layers=2), tmp_path)
    xml = tmp_path / "openvino_model.xml"
    a = ir.read_model(xml)
    names = [variable.info.variable_id for variable in a.get_variables()]
    xml.write_text(xml.read_text().replace('variable_id="past_key_values.', 'variable_id="cache.'))
    b = ir.read_model(xml)
    assert not set(names) & {variable.info.variable_id for variable in b.get_variables()}
    assert diff_models(a, b, weights=True).equal


@pytest.mark.parametrize("name", support.DECODERS)
def test_zoo_against_itself(zoo: Callable[[str], Path], name: str) -> None:
    model = ir.read_model(support.model_file(zoo(name)))
    other = renamed(model)
    found = align(ir.Graph(model), ir.Graph(other))
    assert all(j >= 0 for j in found.to_b)
    assert not list(found.relabeled())
    assert not list(found.rewired())


@pytest.mark.parametrize("count", [1, 3, 9])
@pytest.mark.parametrize("seed", range(3))
def test_inserted_ops_and_nothing_else(seed: int, count: int) -> None:
    model = models.tiny_decoder(layers=3)
    edited = renamed(insert(model, "relu", seed, count))
    found = diff_models(model, edited)
    assert found.summary["added"] == count
    assert found.summary["removed"] == found.summary["changed"] == 0
    assert {node.b.type for node in found.nodes if node.kind == "added" and node.b} == {"Relu"}
    back = diff_models(edited, model)
    assert back.summary["removed"] == count
    assert back.summary["added"] == 0
    assert found.summary["rewired"] == back.summary["rewired"] > 0


def replaced(model: ov.Model, old: ov.Node, new: ov.Node) -> ov.Model:
    for reader in list(old.output(0).get_target_inputs()):
        reader.replace_source_output(new.output(0))
    model.validate_nodes_and_infer_types()
    return model


def test_an_attribute() -> None:
    a, b = models.tiny_decoder(layers=2), models.tiny_decoder(layers=2)
    product = next(node for node in b.get_ordered_ops() if node.get_type_name() == "MatMul")
    turned = ir.opset.constant(np.ascontiguousarray(product.input_value(1).get_node().data.T))
    replaced(
        b, product, ir.opset.matmul(product.input_value(0), turned, product.get_attributes()["transpose_a"], False)
    )
    texts = [node.text for node in diff_models(a, b).nodes]
    assert "transpose_b True became False" in texts


def test_a_value() -> None:
    a, b = models.tiny_decoder(layers=2), models.tiny_decoder(layers=2)
    mean = [node for node in b.get_ordered_ops() if node.get_type_name() == "ReduceMean"][1]
    axis = mean.input_value(1).get_node()
    mean.input(1).replace_source_output(ir.opset.constant(np.full_like(axis.data, 1)).output(0))
    (node,) = diff_models(a, b).nodes
    assert (node.kind, node.text) == ("changed", f"{axis.data.tolist()} became {np.full_like(axis.data, 1).tolist()}")


def test_weights_count_when_asked_for() -> None:
    a, b = models.tiny_decoder(seed=0), models.tiny_decoder(seed=1)
    assert diff_models(a, b).equal
    found = diff_models(a, b, weights=True)
    assert not found.equal
    assert found.weights
    assert found.weights[0].digest_a != found.weights[0].digest_b
    assert any(text.startswith(f"other values in {len(found.weights)} constants") for text in found.words)
    assert found.compared_bytes > sum(weight.bytes for weight in found.weights) // 2


def test_one_weight(tmp_path: Path) -> None:
    a = models.tiny_decoder()
    b = a.clone()
    old = next(node for node in b.get_ordered_ops() if node.get_friendly_name().endswith("layers.1.mlp.up_proj.weight"))
    new = ir.opset.constant(old.data + np.float32(1))
    for reader in list(old.output(0).get_target_inputs()):
        reader.replace_source_output(new.output(0))
    found = diff_models(a, b, weights=True)
    assert found.weights is not None
    (weight,) = found.weights
    assert weight.a.name.endswith("layers.1.mlp.up_proj.weight")
    assert counts(found) == {"weights": 1}


def test_ports_and_metadata() -> None:
    a = models.tiny_decoder()
    b = a.clone()
    b.output(0).get_tensor().set_names({"scores"})
    b.set_rt_info("x", ["note"])
    found = diff_models(a, b)
    assert found.ports == ("output logits removed", "output scores added: f32 [?,?,64]")
    assert dict(found.metadata) == {"note": (None, "x")}
    assert "rt_info note added: x" in found.words
    assert counts(found) == {}
    assert not found.equal


def test_a_body(zoo: Callable[[str], Path]) -> None:
    a = ir.read_model(support.model_file(zoo("qwen3_next")))
    b = a.clone()
    loop = next(node for node in b.get_ordered_ops() if node.get_type_name() in ("Loop", "TensorIterator"))
    body = loop.get_function() if loop.get_type_name() == "Loop" else loop.get_body()
    multiply = next(node for node in body.get_ordered_ops() if node.get_type_name() == "Multiply")
    other = ir.opset.maximum(multiply.input_value(0), multiply.input_value(1))
    for reader in list(multiply.output(0).get_target_inputs()):
        reader.replace_source_output(other.output(0))
    found = diff_models(a, b)
    assert counts(found) == {"changed": 1}
    assert found.nodes[0].text == "another body"


def test_models_of_next_to_nothing() -> None:
    parameter = ir.make_parameter("x", "f32", [-1])
    a = ov.Model([ir.make_result(ir.opset.relu(parameter).output(0), "y")], [parameter])
    assert diff_models(a, a.clone()).equal
    assert not diff_models(a, models.tiny_text_embeddings()).equal


def test_what_a_graft_changed(tmp_path: Path) -> None:
    graft = pair(tmp_path)
    ovgraft.Pipeline("expose-hidden-states,move-fc,attach-embedding,attach-lm-head").run(graft)
    found = diff_grafts(opened(tmp_path), graft, weights=True)
    target, draft = found.models
    assert target.words == (
        "output last_hidden_state added after layers 0, 1, 2",
        "MatMul fc moved in, f32, 1 constant",
        "4 nodes added: 1 Concat, 1 Constant, 1 MatMul, 1 Result",
        "passes on record: expose-hidden-states,move-fc",
    )
    assert draft.words[:3] == (
        "FC moved out: input hidden_states is 32 wide instead of 96",
        "the target's embedding attached: reads input_ids, 64 x 32 f32",
        "the target's output layer attached: gives logits, 64 x 32 f32",
    )
    assert counts(target) == {"added": 4}
    assert json.loads(json.dumps(found.to_dict()))["summary"]["added"] == found.summary["added"]


def test_an_int8_fc(tmp_path: Path) -> None:
    graft = pair(tmp_path, draft=models.tiny_dflash_draft(n=3, target_layer_ids=(0, 1, 2), weights="int8"))
    ovgraft.Pipeline("expose-hidden-states,move-fc").run(graft)
    words = diff_grafts(opened(tmp_path), graft).models[0].words
    assert words[1] == "MatMul fc moved in, int8, 3 constants"


def test_states_exposed_without_a_record(tmp_path: Path) -> None:
    graft = pair(tmp_path)
    ovgraft.Pipeline("expose-hidden-states{layers=1,2}").run(Graft(graft.target))
    for key in (("ovgraft",),):
        ir.delete(graft.target.model, key)
    words = diff_grafts(Graft(Package(tmp_path / "target")), Graft(graft.target)).models[0].words
    assert words[0] == "output last_hidden_state added: the output of layer 1, the output of layer 2"


def test_an_annotation(tmp_path: Path) -> None:
    graft = pair(tmp_path, target=models.tiny_decoder(layers=4))
    ovgraft.Pipeline("annotate-hidden-states").run(graft)
    target, draft = diff_grafts(opened(tmp_path), graft).models
    assert target.words == (
        "rt_info hidden_states_decoder_layers added: 4 layers",
        "passes on record: annotate-hidden-states",
    )
    assert counts(target) == {}
    assert not target.equal
    assert draft.equal


def test_what_only_one_side_has(tmp_path: Path) -> None:
    graft = pair(tmp_path)
    found = diff_grafts(Graft(graft.target), graft)
    assert found.only_b == ("draft",)
    assert not found.equal
    assert [model.equal for model in found.models] == [True]
