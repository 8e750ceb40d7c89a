"""expose-hidden-states: the right states in the right order, under one name, and nothing else moves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from ovgraft import drafts, ir
from ovgraft.drafts.contract import Key
from ovgraft.errors import OvgraftError, PostconditionError, PreconditionError
from ovgraft.graft import Graft, Package
from ovgraft.passes.expose_hidden_states import ExposeHiddenStates
from tests import models, pairs, support

LAYERS = 4
NORM = "__module.model.norm/aten::mul/Multiply_1"
PRODUCERS = [*(f"__module.model.layers.{i}/aten::add/Add_1" for i in range(LAYERS - 1)), NORM]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return models.write_package(models.tiny_decoder(layers=LAYERS, annotated=True), tmp_path / "target")


def package(tmp_path: Path, model: ov.Model, name: str = "draft") -> Path:
    return models.write_package(model, tmp_path / name, config={})


def outputs(model: ov.Model, tokens: Any) -> dict[str, Any]:
    return support.run_decoder(model, tokens, split=(5, 6))


@pytest.mark.parametrize("layers", [(0, 1, 2), (2, 0, 1), (3, 1), (1,), (3,), (0, 1, 2, 3)])
def test_states_are_the_layers_in_order(target: Path, layers: tuple[int, ...]) -> None:
    tokens = pairs.tokens(9, vocabulary=64)
    plain = Package(target).model
    graft = pairs.open_pair(target)
    (context,) = pairs.run_passes(graft, ExposeHiddenStates(layers=layers))
    found = outputs(graft.target.model, tokens)
    expected = pairs.target_states(plain, layers, tokens, split=(5, 6))
    np.testing.assert_array_equal(found["last_hidden_state"], expected)
    np.testing.assert_array_equal(found["logits"], outputs(plain, tokens)["logits"])
    assert [edit.kind for edit in context.edits] == ["add"]
    assert "layer convention output" in context.remarks[0]


@pytest.mark.parametrize("lost", ["record", "output"])
def test_what_is_missing_afterwards_is_named(target: Path, lost: str) -> None:
    graft, step = pairs.open_pair(target), ExposeHiddenStates(layers=(1, 2))
    pairs.run_passes(graft, step)
    model = graft.target.model
    if lost == "record":
        ir.delete(model, Key.EXPOSED)
    else:
        model.remove_result(drafts.find_result(model, "last_hidden_state"))
    said = {"record": "found no rt_info ovgraft/exposed_hidden_states$", "output": "found no output last_hidden_state$"}
    with pytest.raises(PostconditionError, match=said[lost]):
        step.ensures(graft)


def test_inputs_of_layers(target: Path) -> None:
    tokens = pairs.tokens(9, vocabulary=64)
    plain = Package(target).model
    graft = pairs.open_pair(target)
    (context,) = pairs.run_passes(graft, ExposeHiddenStates(layers=(0, 3, 1), layer_convention="input"))
    found = outputs(graft.target.model, tokens)["last_hidden_state"]
    names = ["__module.model.embed_tokens/aten::embedding/Gather", PRODUCERS[2], PRODUCERS[0]]
    tapped = outputs(pairs.tap(plain.clone(), names), tokens)
    np.testing.assert_array_equal(found, np.concatenate([tapped[f"state_{i}"] for i in range(3)], axis=-1))
    assert "layer convention input" in context.remarks[0]


def test_results_and_names(target: Path) -> None:
    graft = pairs.open_pair(target)
    pairs.run_passes(graft, ExposeHiddenStates(layers=(3, 1)))
    model = graft.target.model
    assert [result.get_friendly_name() for result in model.get_results()] == ["Result_logits", "last_hidden_state"]
    assert model.output("last_hidden_state").names == {"last_hidden_state"}
    sources = [
        (r.input_value(0).get_node().get_instance_id(), r.input_value(0).get_index()) for r in model.get_results()
    ]
    assert len(set(sources)) == 2
    assert ir.get_text(model, Key.EXPOSED) == '{"convention":"output","layers":[3,1]}'


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ((1, 4), "no layer 4: the target has layers 0 to 3"),
        ((-1, 1), "no layer -1"),
        ((1, 2, 1), "layer 1 is named more than once"),
        ((), "the list of layer ids is empty"),
        ((9, 9), "no layer 9, 9.*named more than once"),
    ],
)
def test_wrong_ids(target: Path, layers: tuple[int, ...], words: str) -> None:
    graft = pairs.open_pair(target)
    before = graft.target.model.clone()
    with pytest.raises(PreconditionError, match=words):
        pairs.run_passes(graft, ExposeHiddenStates(layers=layers))
    assert ir.same_structure(graft.target.model, before) is None


def test_no_ids_without_a_draft(target: Path) -> None:
    with pytest.raises(PreconditionError, match="no layer ids"):
        pairs.run_passes(pairs.open_pair(target), ExposeHiddenStates())


def test_ids_of_a_dflash_draft(target: Path, tmp_path: Path) -> None:
    draft = package(tmp_path, models.tiny_dflash_draft(target_layer_ids=(2, 0, 1)))
    graft = pairs.open_pair(target, draft)
    (context,) = pairs.run_passes(graft, ExposeHiddenStates())
    assert drafts.read_record(graft.target.model, Key.EXPOSED) == {"layers": [2, 0, 1], "convention": "output"}
    assert "draft metadata dflash/target_layer_ids" in context.remarks[0]


def test_dflash_ids_are_outputs_only(target: Path, tmp_path: Path) -> None:
    graft = pairs.open_pair(target, package(tmp_path, models.tiny_dflash_draft()))
    with pytest.raises(PreconditionError, match="expected layer-convention=output, found layer-convention=input"):
        pairs.run_passes(graft, ExposeHiddenStates(layer_convention="input"))


def test_nothing_is_guessed_for_dflash(tmp_path: Path) -> None:
    target = models.write_package(models.tiny_decoder(layers=12), tmp_path / "deep")
    model = models.tiny_dflash_draft()
    del model.get_rt_info()["dflash"]
    model.set_rt_info("3", ["dflash", "mask_token_id"])
    graft = pairs.open_pair(target, package(tmp_path, model))
    with pytest.raises(PreconditionError, match="dflash/target_layer_ids is missing"):
        pairs.run_passes(graft, ExposeHiddenStates())


def test_option_beside_other_metadata_is_told(target: Path, tmp_path: Path) -> None:
    graft = pairs.open_pair(target, package(tmp_path, models.tiny_dflash_draft(target_layer_ids=(0, 1, 2))))
    (context,) = pairs.run_passes(graft, ExposeHiddenStates(layers=(1, 2, 3)))
    assert "the draft's metadata says 0, 1, 2" in context.remarks[0]


class TestEagle3:
    def expose(self, tmp_path: Path, count: int, *, listed: str | None = None, **options: Any) -> Graft:
        target = models.write_package(models.tiny_decoder(layers=count), tmp_path / "target")
        model = models.tiny_eagle3_draft()
        if listed is not None:
            model.set_rt_info(listed, ["hidden_layers_list"])
        graft = pairs.open_pair(target, package(tmp_path, model))
        pairs.run_passes(graft, ExposeHiddenStates(**options))
        return graft

    def layers(self, graft: Graft) -> list[int]:
        record = drafts.read_record(graft.target.model, Key.EXPOSED)
        assert record is not None
        return list(record["layers"])

    @pytest.mark.parametrize(("count", "expected"), [(10, [2, 5, 7]), (13, [2, 6, 10])])
    def test_default(self, tmp_path: Path, count: int, expected: list[int]) -> None:
        assert self.layers(self.expose(tmp_path, count)) == expected

    def test_too_shallow_for_the_default(self, tmp_path: Path) -> None:
        with pytest.raises(PreconditionError, match="expected 10 layers or more, found 9"):
            self.expose(tmp_path, 9)

    def test_metadata_first(self, tmp_path: Path) -> None:
        assert self.layers(self.expose(tmp_path, 4, listed="0 1 3")) == [0, 1, 3]

    def test_option_before_metadata(self, tmp_path: Path) -> None:
        assert self.layers(self.expose(tmp_path, 4, listed="0 1 3", layers=(0, 1, 2))) == [0, 1, 2]

    def test_inputs(self, tmp_path: Path) -> None:
        graft = self.expose(tmp_path, 10, layer_convention="input")
        assert drafts.read_record(graft.target.model, Key.EXPOSED) == {"layers": [2, 5, 7], "convention": "input"}


class TestTwice:
    def test_same_layers(self, target: Path) -> None:
        graft = pairs.open_pair(target)
        pairs.run_passes(graft, ExposeHiddenStates(layers=(1, 2)))
        before = graft.target.model.clone()
        (context,) = pairs.run_passes(graft, ExposeHiddenStates(layers=(1, 2)))
        assert not pairs.changed(context)
        assert "unchanged" in context.remarks[-1]
        assert ir.same_structure(graft.target.model, before) is None

    def test_without_any_ids(self, target: Path) -> None:
        graft = pairs.open_pair(target)
        pairs.run_passes(graft, ExposeHiddenStates(layers=(1, 2)))
        (context,) = pairs.run_passes(graft, ExposeHiddenStates())
        assert context.remarks == ["unchanged: layers [1, 2] are exposed already"]

    @pytest.mark.parametrize("again", [{"layers": (2, 1)}, {"layers": (1, 2), "layer_convention": "input"}])
    def test_other_layers(self, target: Path, again: dict[str, Any]) -> None:
        graft = pairs.open_pair(target)
        pairs.run_passes(graft, ExposeHiddenStates(layers=(1, 2)))
        with pytest.raises(PreconditionError, match=r"exposes hidden states already.*found \[1, 2\]"):
            pairs.run_passes(graft, ExposeHiddenStates(**again))

    @pytest.mark.parametrize("layers", [(1, 2), (1,)])
    def test_someone_else_exposed_the_same(self, target: Path, layers: tuple[int, ...]) -> None:
        graft = pairs.open_pair(target)
        pairs.run_passes(graft, ExposeHiddenStates(layers=layers))
        ir.delete(graft.target.model, Key.EXPOSED)
        (context,) = pairs.run_passes(graft, ExposeHiddenStates(layers=layers))
        assert [edit.kind for edit in context.edits] == ["metadata"]
        assert len(graft.target.model.outputs) == 2

    def test_someone_else_exposed_something_else(self, target: Path) -> None:
        graft = pairs.open_pair(target)
        model = graft.target.model
        other = ops.relu(pairs.node(model, PRODUCERS[0]))
        model.add_results([ir.make_result(other.output(0), "last_hidden_state")])
        with pytest.raises(PreconditionError, match="an output last_hidden_state of something else, Relu"):
            pairs.run_passes(graft, ExposeHiddenStates(layers=(1, 2)))

    def test_record_without_output(self, target: Path) -> None:
        graft = pairs.open_pair(target)
        pairs.run_passes(graft, ExposeHiddenStates(layers=(1, 2)))
        model = graft.target.model
        model.remove_result(model.get_results()[-1])
        with pytest.raises(PreconditionError, match="a record of it but no output"):
            pairs.run_passes(graft, ExposeHiddenStates(layers=(1, 2)))


def test_someone_else_joined_along_another_axis(target: Path) -> None:
    graft = pairs.open_pair(target)
    model = graft.target.model
    names = PRODUCERS[:2]
    joined = ops.concat([pairs.node(model, name).output(0) for name in names], 1)
    model.add_results([ir.make_result(joined.output(0), "last_hidden_state")])
    with pytest.raises(PreconditionError, match="something else, Concat"):
        pairs.run_passes(graft, ExposeHiddenStates(layers=(0, 1)))


def test_input_of_the_first_layer_alone(tmp_path: Path) -> None:
    """It is the model's own input, which must keep its name."""
    model = models.tiny_decoder(inputs_embeds=True)
    graft = pairs.open_pair(models.write_package(model, tmp_path / "target", name="openvino_language_model"))
    pairs.run_passes(graft, ExposeHiddenStates(layers=(0,), layer_convention="input"))
    assert graft.target.model.input("inputs_embeds").names == {"inputs_embeds"}
    embeds = pairs.rows(5, 32)
    found = support.run_decoder(graft.target.model, pairs.tokens(5), embeds=embeds)
    np.testing.assert_array_equal(found["last_hidden_state"], embeds)


def test_last_layer_is_told(target: Path) -> None:
    (context,) = pairs.run_passes(pairs.open_pair(target), ExposeHiddenStates(layers=(0, 3)))
    assert context.remarks[1] == "layer 3 is the last: its value after the final norm, as the exporter annotates it"


def test_draft_of_a_deeper_target(target: Path, tmp_path: Path) -> None:
    draft = models.write_package(models.tiny_dflash_draft(), tmp_path / "draft", config={"num_target_layers": 36})
    with pytest.raises(PreconditionError, match="another depth: expected a target of 36 layers, found 4 layers"):
        pairs.run_passes(pairs.open_pair(target, draft), ExposeHiddenStates())


def test_wrong_annotation_is_not_believed(tmp_path: Path) -> None:
    model = models.tiny_decoder(layers=LAYERS, annotated=True)
    text = ir.get_text(model, Key.HIDDEN_STATES_DECODER_LAYERS)
    assert text is not None
    shifted = text.replace("layers.0/aten::add/Add_1", "layers.0/aten::add/Add")
    assert shifted != text
    ir.set_text(model, Key.HIDDEN_STATES_DECODER_LAYERS, shifted)
    graft = pairs.open_pair(models.write_package(model, tmp_path / "target"))
    with pytest.raises(OvgraftError, match="layer 0"):
        pairs.run_passes(graft, ExposeHiddenStates(layers=(0, 1)))


def test_not_a_language_model(tmp_path: Path) -> None:
    graft = pairs.open_pair(models.write_package(models.tiny_text_embeddings(), tmp_path / "target"))
    with pytest.raises(PreconditionError):
        pairs.run_passes(graft, ExposeHiddenStates(layers=(0, 1)))


@pytest.mark.parametrize("name", ["qwen3", "qwen3-int8", "qwen3-int4_sym_g32", "qwen3_5_text", "qwen3_moe"])
def test_annotated_targets_of_the_zoo(zoo: Callable[[str], Path], name: str) -> None:
    tokens, layers = pairs.tokens(11), (2, 0, 3)
    plain = Package(zoo(name)).model
    graft = pairs.open_pair(zoo(name))
    pairs.run_passes(graft, ExposeHiddenStates(layers=layers))
    found = outputs(graft.target.model, tokens)
    np.testing.assert_array_equal(found["last_hidden_state"], pairs.target_states(plain, layers, tokens, (5, 6)))
    np.testing.assert_array_equal(found["logits"], outputs(plain, tokens)["logits"])
