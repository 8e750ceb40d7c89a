"""move-fc: the grafted pair computes what the ungrafted one does, with the very same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from ovgraft import drafts, ir
from ovgraft.drafts.contract import WEIGHT_DIGEST_KEY, Key
from ovgraft.errors import PostconditionError, PreconditionError, StructureError
from ovgraft.graft import Graft, Package
from ovgraft.passes.expose_draft_hidden import ExposeDraftHidden
from ovgraft.passes.expose_hidden_states import ExposeHiddenStates
from ovgraft.passes.move_fc import MoveFc
from tests import models, pairs, support
from tests.blocks import WeightFormat

GRAFT = (ExposeHiddenStates(), MoveFc())
FORMATS: tuple[WeightFormat, ...] = ("f32", "f16", "bf16", "int8", "int4")


def tiny_pair(tmp_path: Path, *, ids: tuple[int, ...] = (2, 0, 3), **draft: Any) -> Graft:
    target = models.write_package(models.tiny_decoder(layers=4, annotated=True), tmp_path / "target")
    model = models.tiny_dflash_draft(n=len(ids), target_layer_ids=ids, **draft)
    return pairs.open_pair(target, models.write_package(model, tmp_path / "draft", config={}))


def reopen(graft: Graft) -> Graft:
    assert graft.draft is not None
    return pairs.open_pair(graft.target.path, graft.draft.path)


def compare(grafted: Graft, *, vocabulary: int = 2048) -> None:
    """Run both pairs: the target in three calls, the draft in two, the second with past, for blocks of 1, 2 and 8."""
    plain = reopen(grafted)
    assert plain.draft is not None
    assert grafted.draft is not None
    draft = drafts.read_draft(plain.draft)
    assert draft.target_layer_ids is not None
    tokens, split = pairs.tokens(12, vocabulary=vocabulary), (7, 8)
    states = pairs.target_states(plain.target.model, draft.target_layer_ids, tokens, split)
    outputs = support.run_decoder(grafted.target.model, tokens, split=split)
    logits = support.run_decoder(plain.target.model, tokens, split=split)["logits"]
    np.testing.assert_array_equal(outputs["logits"], logits)
    projected = outputs["last_hidden_state"]
    width = draft.model.input("inputs_embeds").partial_shape[2].get_length()
    assert projected.shape == (1, 12, width)
    ungrafted, ours = (pairs.compiled(package.model) for package in (plain.draft, grafted.draft))
    for block in (1, 2, 8):
        blocks = [pairs.rows(block, width, seed) for seed in (1, 2)]
        expected = pairs.run_draft(ungrafted, [(states[:, :8], blocks[0]), (states[:, 8:], blocks[1])])
        found = pairs.run_draft(ours, [(projected[:, :8], blocks[0]), (projected[:, 8:], blocks[1])])
        for a, b in zip(expected, found, strict=True):
            assert a["last_hidden_state"].shape == (1, block - 1, width)
            np.testing.assert_allclose(b["last_hidden_state"], a["last_hidden_state"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        *(("qwen3", draft) for draft in ("", "-int8", "-int4", "_sliding")),
        *(("qwen3-int8", "-int8"), ("qwen3-int4_sym_g32", "-int4")),
    ],
)
def test_zoo_pairs(zoo: Callable[[str], Path], target: str, draft: str) -> None:
    graft = pairs.open_pair(zoo(target), zoo(f"qwen3_dflash_draft{draft}"))
    pairs.run_passes(graft, *GRAFT)
    compare(graft)


@pytest.mark.parametrize(("weights", "fc_bias"), [*((each, True) for each in FORMATS), ("f32", False)])
def test_own_pairs(tmp_path: Path, weights: WeightFormat, fc_bias: bool) -> None:
    graft = tiny_pair(tmp_path, weights=weights, fc_bias=fc_bias)
    pairs.run_passes(graft, *GRAFT)
    compare(graft, vocabulary=64)


@pytest.mark.parametrize("layer", [1, 3])
def test_a_single_layer(tmp_path: Path, layer: int) -> None:
    graft = tiny_pair(tmp_path, ids=(layer,))
    pairs.run_passes(graft, *GRAFT)
    compare(graft, vocabulary=64)
    named = [node for node in graft.target.model.get_ordered_ops() if "last_hidden_state" in node.output(0).names]
    assert [node.get_type_name() for node in named] == ["MatMul", "Result"]


@pytest.mark.parametrize("weights", FORMATS)
def test_weights_move_as_they_are_stored(tmp_path: Path, weights: WeightFormat) -> None:
    graft = tiny_pair(tmp_path, weights=weights, fc_bias=True)
    assert graft.draft is not None
    before = pairs.weights(graft.draft.model)
    pairs.run_passes(graft, *GRAFT)
    moved, left = pairs.weights(graft.target.model), pairs.weights(graft.draft.model)
    gone = sorted(set(before) - set(left))
    assert any(name.startswith("self.fc.weight") for name in gone)
    assert all(moved[name] == before[name] for name in gone if name.startswith("self.fc"))
    assert all(left[name] == before[name] for name in left)
    for node in graft.target.model.get_ordered_ops():
        if "fc." in node.get_friendly_name():
            assert "WeightlessCacheAttribute_0" not in node.get_rt_info().keys()  # noqa: SIM118


@pytest.mark.parametrize("name", ["qwen3_dflash_draft-int8", "qwen3_dflash_draft-int4"])
def test_memory_is_shared(zoo: Callable[[str], Path], name: str) -> None:
    graft = pairs.open_pair(zoo("qwen3"), zoo(name))
    assert graft.draft is not None

    def address(model: ov.Model) -> int:
        return int(pairs.node(model, "self.fc.weight").data.__array_interface__["data"][0])

    before = address(graft.draft.model)
    pairs.run_passes(graft, *GRAFT)
    assert address(graft.target.model) == before


class TestEagle3:
    """The exported draft always projects; only behind the graft can it read what it drafted itself."""

    @pytest.fixture
    def grafted(self, zoo: Callable[[str], Path]) -> Graft:
        graft = pairs.open_pair(zoo("qwen3_12l"), zoo("qwen3_12l_eagle3_draft"))
        pairs.run_passes(graft, *GRAFT, ExposeDraftHidden())
        return graft

    def states(self, graft: Graft, tokens: Any) -> tuple[Any, Any]:
        plain = reopen(graft)
        states = pairs.target_states(plain.target.model, (2, 6, 9), tokens, (7, 8))
        outputs = support.run_decoder(graft.target.model, tokens, split=(7, 8))
        logits = support.run_decoder(plain.target.model, tokens, split=(7, 8))["logits"]
        np.testing.assert_array_equal(outputs["logits"], logits)
        return states, outputs["last_hidden_state"]

    def test_steps_on_target_states(self, grafted: Graft) -> None:
        assert grafted.draft is not None
        plain = reopen(grafted).draft
        assert plain is not None
        tokens = pairs.tokens(12)
        states, projected = self.states(grafted, tokens)
        ungrafted, ours = pairs.compiled(plain.model), pairs.compiled(grafted.draft.model)
        for block in (1, 2, 8):
            cuts = slice(0, 4), slice(4, 4 + block)
            expected = pairs.run_eagle3(ungrafted, [(tokens[:, rows], states[:, rows]) for rows in cuts])
            found = pairs.run_eagle3(ours, [(tokens[:, rows], projected[:, rows]) for rows in cuts])
            for a, b in zip(expected, found, strict=True):
                np.testing.assert_allclose(b["logits"], a["logits"], rtol=0, atol=1e-5)
                np.testing.assert_array_equal(b["d2t"], a["d2t"])

    def test_drafted_step(self, grafted: Graft) -> None:
        """The exported draft, fed states that its FC maps to the wanted row, is the witness."""
        assert grafted.draft is not None
        plain = reopen(grafted).draft
        assert plain is not None
        tokens = pairs.tokens(5)
        states, projected = self.states(grafted, tokens)
        first = pairs.run_eagle3(grafted.draft.model, [(tokens[:, :4], projected[:, :4])])[0]
        drafted = first["last_hidden_state"][:, -1:]
        assert drafted.shape == (1, 1, 64)
        fc = pairs.node(plain.model, "self.model.fc.weight_compressed").data.astype(np.float64)
        inverse = np.linalg.pinv(fc)
        wide = (drafted.astype(np.float64) @ inverse.T).astype(np.float32)
        calls = [(tokens[:, :4], states[:, :4]), (tokens[:, 4:], wide)]
        expected = pairs.run_eagle3(plain.model, calls)[1]["logits"]
        calls = [(tokens[:, :4], projected[:, :4]), (tokens[:, 4:], drafted)]
        found = pairs.run_eagle3(grafted.draft.model, calls)[1]["logits"]
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4 * np.abs(expected).max())

    def test_own_pair(self, tmp_path: Path) -> None:
        target = models.write_package(models.tiny_decoder(layers=4, annotated=True), tmp_path / "target")
        draft = models.write_package(models.tiny_eagle3_draft(), tmp_path / "draft", config={})
        graft = pairs.open_pair(target, draft)
        pairs.run_passes(graft, ExposeHiddenStates(layers=(0, 1, 3)), MoveFc())
        plain = reopen(graft)
        assert graft.draft is not None
        assert plain.draft is not None
        tokens = pairs.tokens(6, vocabulary=64)
        states = pairs.target_states(plain.target.model, (0, 1, 3), tokens)
        projected = support.run_decoder(graft.target.model, tokens)["last_hidden_state"]
        cuts = [(tokens[:, :4], slice(0, 4)), (tokens[:, 4:], slice(4, None))]
        expected = pairs.run_eagle3(plain.draft.model, [(ids, states[:, rows]) for ids, rows in cuts])
        found = pairs.run_eagle3(graft.draft.model, [(ids, projected[:, rows]) for ids, rows in cuts])
        for a, b in zip(expected, found, strict=True):
            np.testing.assert_allclose(b["logits"], a["logits"], rtol=0, atol=1e-5)


def test_ports_names_and_records(tmp_path: Path) -> None:
    graft = tiny_pair(tmp_path, weights="int8", fc_bias=True)
    assert graft.draft is not None
    contexts = pairs.run_passes(graft, *GRAFT)
    target, draft = graft.target.model, graft.draft.model
    assert [port.any_name for port in target.outputs] == ["logits", "last_hidden_state"]
    assert target.output("last_hidden_state").names == {"last_hidden_state"}
    assert target.output("last_hidden_state").partial_shape == ov.PartialShape([-1, -1, 32])
    assert draft.input("hidden_states").partial_shape == ov.PartialShape([-1, -1, 32])
    assert [port.any_name for port in draft.inputs][:2] == ["inputs_embeds", "hidden_states"]
    assert [(edit.kind, edit.model) for edit in contexts[1].edits] == [("add", "target"), ("remove", "draft")]
    record = drafts.read_record(target, Key.MOVED_FC)
    assert record == drafts.read_record(draft, Key.MOVED_FC)
    assert record is not None
    assert (record["in_width"], record["out_width"]) == (96, 32)
    root = pairs.node(target, "self.fc.weight/fq_weights_1/convert")
    assert ir.get_user_data(root, WEIGHT_DIGEST_KEY) == record["digest"] == ir.weights_digest(root.output(0))
    bias = pairs.node(target, "self.fc.bias")
    assert ir.get_user_data(bias, WEIGHT_DIGEST_KEY) == record["bias_digest"]
    live = [each for each in target.get_ordered_ops() if each.get_type_name() != "Result"]
    names = [name for each in live for out in each.outputs() for name in out.names]
    assert len(names) == len(set(names))
    moved = ("fc", "hidden_states_concat")
    for each in target.get_ordered_ops():
        if any(word in each.get_friendly_name() for word in moved):
            assert each.output(0).names


@pytest.mark.parametrize("part", ["self.fc.weight", "self.fc.bias"])
def test_promise_is_checked(tmp_path: Path, part: str) -> None:
    graft = tiny_pair(tmp_path, fc_bias=True)
    pairs.run_passes(graft, *GRAFT)
    weight = pairs.node(graft.target.model, part)
    other = ops.constant(weight.data + 1)
    ir.set_user_data(other, WEIGHT_DIGEST_KEY, str(ir.get_user_data(weight, WEIGHT_DIGEST_KEY)))
    for reader in weight.output(0).get_target_inputs():
        reader.replace_source_output(other.output(0))
    with pytest.raises(PostconditionError, match="other FC weights"):
        MoveFc().ensures(graft)


def test_names_that_are_taken(tmp_path: Path) -> None:
    graft = tiny_pair(tmp_path)
    taken = pairs.node(graft.target.model, "__module.model.layers.1.mlp.act_fn/aten::silu/Swish")
    taken.set_friendly_name("__module.fc/aten::linear/MatMul")
    pairs.node(graft.target.model, "__module.model.layers.1/aten::add/Add").output(0).set_names({"self.fc.weight"})
    pairs.run_passes(graft, *GRAFT)
    names = {each.get_friendly_name(): each.get_type_name() for each in graft.target.model.get_ordered_ops()}
    assert names["__module.fc/aten::linear/MatMul"] == "Swish"
    assert names["draft/__module.fc/aten::linear/MatMul"] == "MatMul"
    assert names["draft/self.fc.weight"] == "Constant"
    assert "self.fc.weight" not in names
    compare(graft, vocabulary=64)


def test_shape_readers_follow(tmp_path: Path) -> None:
    """Newer exports may take the number of context rows from hidden_states itself."""
    graft = tiny_pair(tmp_path)
    assert graft.draft is not None
    model = graft.draft.model
    states = next(node for node in model.get_parameters() if node.get_friendly_name() == "hidden_states")
    context = pairs.node(model, "__module.hidden_norm/aten::mul/Multiply_1")
    moved = 0
    for reader in context.output(0).get_target_inputs():
        if reader.get_node().get_type_name() == "ShapeOf":
            reader.replace_source_output(states.output(0))
            moved += 1
    assert moved == 1
    expected = model.clone()
    pairs.run_passes(graft, *GRAFT)
    block = pairs.rows(4, 32)
    weight = pairs.node(expected, "self.fc.weight").data
    wide = pairs.rows(6, 96)
    narrow = (wide @ weight.T).astype(np.float32)
    a = pairs.run_draft(expected, [(wide, block), (wide[:, :2], block)])
    b = pairs.run_draft(graft.draft.model, [(narrow, block), (narrow[:, :2], block)])
    for want, got in zip(a, b, strict=True):
        np.testing.assert_allclose(got["last_hidden_state"], want["last_hidden_state"], rtol=0, atol=1e-5)


class TestRefused:
    def refused(self, graft: Graft, error: type[PreconditionError], words: str, *passes: Any) -> None:
        """The last pass refuses and leaves both models as they were."""
        assert graft.draft is not None
        *first, last = passes or GRAFT
        pairs.run_passes(graft, *first)
        before = graft.target.model.clone(), graft.draft.model.clone()
        with pytest.raises(error, match=words):
            pairs.run_passes(graft, last)
        assert ir.same_structure(graft.target.model, before[0]) is None
        assert ir.same_structure(graft.draft.model, before[1]) is None

    def test_second_consumer(self, tmp_path: Path) -> None:
        graft = tiny_pair(tmp_path)
        assert graft.draft is not None
        model = graft.draft.model
        states = next(node for node in model.get_parameters() if node.get_friendly_name() == "hidden_states")
        other = ops.reduce_mean(states, ops.constant(np.array([-1])), keep_dims=True)
        model.add_results([ir.make_result(other.output(0), "mean")])
        self.refused(graft, StructureError, "hidden_states feeds a ReduceMean, not an FC")

    def test_norm_before_fc(self, tmp_path: Path) -> None:
        graft = tiny_pair(tmp_path)
        assert graft.draft is not None
        matmul = pairs.node(graft.draft.model, "__module.fc/aten::linear/MatMul")
        matmul.input(0).replace_source_output(ops.relu(matmul.input_value(0)).output(0))
        graft.draft.model.validate_nodes_and_infer_types()
        self.refused(graft, StructureError, "hidden_states feeds a Relu, not an FC")

    def test_target_of_another_width(self, tmp_path: Path) -> None:
        self.refused(tiny_pair(tmp_path, target_width=64), PreconditionError, "expected 192 columns, found 96")

    @pytest.mark.parametrize("layers", [(0, 2, 3), (3, 0, 2)])
    def test_layers_in_another_order(self, tmp_path: Path, layers: tuple[int, ...]) -> None:
        words = r"other layers than the draft reads: expected \[2, 0, 3\]"
        self.refused(tiny_pair(tmp_path), PreconditionError, words, ExposeHiddenStates(layers=layers), MoveFc())

    def test_inputs_of_those_layers(self, tmp_path: Path) -> None:
        first = ExposeHiddenStates(layers=(2, 0, 3), layer_convention="input")
        self.refused(tiny_pair(tmp_path), PreconditionError, "by convention input", first, MoveFc())

    def test_not_exposed(self, tmp_path: Path) -> None:
        self.refused(tiny_pair(tmp_path), PreconditionError, "exposes no hidden states", MoveFc())

    def test_exposed_by_someone_else(self, tmp_path: Path) -> None:
        graft = tiny_pair(tmp_path)
        pairs.run_passes(graft, ExposeHiddenStates())
        ir.delete(graft.target.model, Key.EXPOSED)
        self.refused(graft, PreconditionError, "nothing says which layers", MoveFc())

    def test_draft_of_another_vocabulary(self, tmp_path: Path) -> None:
        target = models.write_package(models.tiny_decoder(layers=4), tmp_path / "target", config={"vocab_size": 60})
        draft = models.write_package(models.tiny_dflash_draft(), tmp_path / "draft", config={"vocab_size": 128})
        words = "another vocabulary: expected 60 or 64, found 128"
        self.refused(pairs.open_pair(target, draft), PreconditionError, words)

    def test_d2t_out_of_range(self, tmp_path: Path) -> None:
        target = models.write_package(models.tiny_decoder(layers=4, vocab=40), tmp_path / "target", config={})
        draft = models.write_package(models.tiny_eagle3_draft(), tmp_path / "draft", config={})
        passes = ExposeHiddenStates(layers=(0, 1, 2)), MoveFc()
        words = "d2t leads out of the target's vocabulary: expected ids below 40, found 60 for draft token 15"
        self.refused(pairs.open_pair(target, draft), PreconditionError, words, *passes)

    def test_target_with_another_fc(self, tmp_path: Path) -> None:
        grafted = tiny_pair(tmp_path)
        pairs.run_passes(grafted, *GRAFT)
        other = models.tiny_dflash_draft(target_layer_ids=(2, 0, 3), seed=9)
        grafted.draft = Package(models.write_package(other, tmp_path / "other", config={}))
        self.refused(grafted, PreconditionError, "not two halves of one graft.*found digest", MoveFc())

    def test_draft_whose_fc_is_elsewhere(self, tmp_path: Path) -> None:
        grafted = tiny_pair(tmp_path)
        pairs.run_passes(grafted, *GRAFT)
        grafted.target = Package(grafted.target.path)
        self.refused(grafted, PreconditionError, "found no FC in the target")


def test_twice(tmp_path: Path) -> None:
    graft = tiny_pair(tmp_path)
    assert graft.draft is not None
    pairs.run_passes(graft, *GRAFT)
    before = graft.target.model.clone(), graft.draft.model.clone()
    contexts = pairs.run_passes(graft, *GRAFT)
    assert not any(map(pairs.changed, contexts))
    assert contexts[1].remarks == ["unchanged: the FC has moved already"]
    assert ir.same_structure(graft.target.model, before[0]) is None
    assert ir.same_structure(graft.draft.model, before[1]) is None


@pytest.mark.parametrize("weights", FORMATS)
def test_digest_survives_save_load_save(tmp_path: Path, weights: WeightFormat) -> None:
    graft = tiny_pair(tmp_path, weights=weights)
    pairs.run_passes(graft, *GRAFT)
    record = drafts.read_record(graft.target.model, Key.MOVED_FC)
    assert record is not None
    model = graft.target.model
    for step in ("first", "second"):
        ov.save_model(model, tmp_path / f"{step}.xml", compress_to_fp16=False)
        model = ir.read_model(tmp_path / f"{step}.xml")
        assert drafts.read_record(model, Key.MOVED_FC) == record
        carried = [each for each in model.get_ordered_ops() if ir.get_user_data(each, WEIGHT_DIGEST_KEY) is not None]
        assert [drafts.weight_digest(each) for each in carried] == [record["digest"]]
    assert (tmp_path / "first.xml").read_bytes() == (tmp_path / "second.xml").read_bytes()


def test_same_bytes_twice(tmp_path: Path) -> None:
    first = tiny_pair(tmp_path, weights="int4", fc_bias=True)
    second = reopen(first)
    written = []
    for graft, folder in ((first, tmp_path / "a"), (second, tmp_path / "b")):
        assert graft.draft is not None
        pairs.run_passes(graft, *GRAFT)
        folder.mkdir()
        for role, model in (("target", graft.target.model), ("draft", graft.draft.model)):
            ov.save_model(model, folder / f"{role}.xml", compress_to_fp16=False)
        written.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert written[0] == written[1]
