"""paged-attention: the paged form computes what the stateful one does, or there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as opset

import ovgraft
from ovgraft import decoder, ir
from ovgraft.checks.paged import compare_paged
from ovgraft.checks.paged_runner import PagedRunner, Rows
from ovgraft.errors import StructureError
from ovgraft.graft import Graft
from ovgraft.passbase import Context
from ovgraft.passes import PagedAttention
from tests import models, support
from tests.decoder.masked import MASKS, one_attention

PAGEABLE = [name for name in support.DECODERS if name not in ("mamba", "qwen3_5_text")]


def graft_of(model: ov.Model, folder: Path) -> Graft:
    return ovgraft.load(models.write_package(model, folder / "target"))


def page(graft: Graft, **options: object) -> Context:
    ctx = Context()
    paged = PagedAttention(**options)  # type: ignore[arg-type]
    paged.requires(graft)
    paged.apply(graft, ctx)
    paged.ensures(graft)
    return ctx


def refusal(graft: Graft) -> list[str]:
    with pytest.raises(StructureError) as caught:
        page(graft)
    return [reason.code for reason in caught.value.reasons]


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGEABLE)
def test_paged_equals_stateful(zoo: Callable[[str], Path], name: str) -> None:
    graft = ovgraft.load(zoo(name))
    stateful = graft.target.model.clone()
    ctx = page(graft)
    found = compare_paged(stateful, graft.target.model)
    (logits,) = found.outputs
    assert logits.same, logits.sentence()
    assert logits.max_abs <= 1e-4
    assert bool(ctx.remarks) == (name == "mpt")


def test_fixture_pages(tmp_path: Path) -> None:
    stateful = models.tiny_decoder(layers=2)
    graft = graft_of(models.tiny_decoder(layers=2), tmp_path)
    page(graft)
    assert compare_paged(stateful, graft.target.model, lengths=(40, 3)).same


def test_saved_paged_ir_runs(tmp_path: Path) -> None:
    stateful = models.tiny_decoder(layers=2)
    graft = graft_of(models.tiny_decoder(layers=2), tmp_path)
    page(graft)
    graft.save(tmp_path / "paged")
    loaded = ovgraft.load(tmp_path / "paged").target.model
    assert compare_paged(stateful, loaded, lengths=(40, 3)).same
    graft.save(tmp_path / "again")
    for name in ("openvino_model.xml", "openvino_model.bin"):
        assert (tmp_path / "paged" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_recipe_for_plain_openvino(tmp_path: Path) -> None:
    """The three lines docs/paged-attention.md gives to users who read the IR with OpenVINO alone."""
    graft = graft_of(models.tiny_decoder(layers=1), tmp_path)
    page(graft)
    graft.save(tmp_path / "paged")
    core = ov.Core()
    core.get_property("CPU", "FULL_DEVICE_NAME")
    model = core.read_model(tmp_path / "paged" / "openvino_model.xml")
    with pytest.raises(RuntimeError, match="k_head_size"):
        core.compile_model(model, "CPU")
    for node in (node for node in model.get_ops() if node.get_type_name() == "PagedAttentionExtension"):
        for key in ("k_head_size", "num_k_heads", "v_head_size", "num_v_heads"):
            node.get_rt_info()[key] = int(node.get_rt_info()["user_data" + key].value)
    core.compile_model(model, "CPU")


def test_two_conversions_give_equal_bytes(tmp_path: Path) -> None:
    for turn in ("a", "b"):
        graft = graft_of(models.tiny_decoder(layers=2), tmp_path / turn)
        page(graft)
        graft.save(tmp_path / turn / "paged")
    for name in ("openvino_model.xml", "openvino_model.bin"):
        assert (tmp_path / "a/paged" / name).read_bytes() == (tmp_path / "b/paged" / name).read_bytes()


def test_exposed_states_stay_an_output(zoo: Callable[[str], Path]) -> None:
    graft = ovgraft.load(zoo("qwen3"))
    ovgraft.Pipeline("expose-hidden-states{layers=1,3}").run(graft)
    stateful = graft.target.model.clone()
    page(graft)
    found = {output.output: output for output in compare_paged(stateful, graft.target.model).outputs}
    assert set(found) == {"logits", "last_hidden_state"}
    assert all(output.same for output in found.values())


@pytest.mark.parametrize("name", ["alibi_by_key", "alibi_by_distance", "alibi_of_one_slope"])
def test_alibi_is_filled_in(tmp_path: Path, name: str) -> None:
    graft = graft_of(one_attention(MASKS[name]), tmp_path)
    stateful = graft.target.model.clone()
    ctx = page(graft)
    assert ctx.remarks
    assert "2 ALiBi slopes put back" in ctx.remarks[0]
    assert compare_paged(stateful, graft.target.model, lengths=(40, 3)).same


@pytest.mark.parametrize(("heads", "words"), [(-1, "heads that is not static"), (4, "2 ALiBi slopes for 4 heads")])
def test_slopes_that_the_paged_op_cannot_hold_are_told(heads: int, words: str) -> None:
    model = one_attention(MASKS["alibi_by_key"])
    (node,) = (node for node in model.get_ordered_ops() if node.get_type_name() == decoder.ATTENTION)
    query = opset.parameter([-1, heads, -1, 4], np.float32)
    node.input(0).replace_source_output(query.output(0))
    (facts,) = decoder.attention_facts(ir.Graph(model))
    assert words in str(facts.mask.problem)


@pytest.mark.parametrize("name", ["window_subtract", "window_greater"])
def test_window_is_put_back(tmp_path: Path, name: str) -> None:
    graft = graft_of(one_attention(MASKS[name]), tmp_path)
    stateful = graft.target.model.clone()
    ctx = page(graft)
    assert "sliding window 6 put back" in ctx.remarks[0]
    assert compare_paged(stateful, graft.target.model, lengths=(40, 3)).same


@pytest.mark.parametrize("name", ["runs_of_ones", "runs_of_ones_in_a_window"])
def test_token_types_reach_the_paged_op(tmp_path: Path, name: str) -> None:
    """Two runs of ones in one call: bidirectional inside each, blind to the other."""
    graft = graft_of(one_attention(MASKS[name]), tmp_path)
    stateful = support.compile_parity(graft.target.model.clone()).create_infer_request()
    page(graft)
    types = np.array([0, 1, 1, 1, 0, 1, 1])
    tokens = np.arange(7)
    feeds = {
        "input_ids": tokens[None],
        "attention_mask": np.ones((1, 7), np.int64),
        "position_ids": tokens[None],
        "token_type_ids": types[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    wanted = np.array(stateful.infer(feeds)["logits"][0])
    runner = PagedRunner(graft.target.model, support.PARITY)
    (found,) = runner.step([Rows("a", {"input_ids": tokens, "token_type_ids": types})])
    np.testing.assert_allclose(found["logits"], wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["bidirectional", "prefix", "chunked", "quadratic_bias", "all_ones_of_the_call"])
def test_other_masks_are_refused(tmp_path: Path, name: str) -> None:
    graft = graft_of(one_attention(MASKS[name]), tmp_path)
    before = ir.fingerprint(graft.target.model)
    assert refusal(graft) == ["other-attention"]
    assert ir.fingerprint(graft.target.model) == before


def test_counted_positions_are_refused(zoo: Callable[[str], Path]) -> None:
    assert refusal(ovgraft.load(zoo("qwen3_5_text"))) == ["positions-not-read"]


def test_without_attention(zoo: Callable[[str], Path]) -> None:
    assert refusal(ovgraft.load(zoo("mamba"))) == ["no-attention"]


def test_exported_dflash_draft_names_its_keys(zoo: Callable[[str], Path]) -> None:
    graft = ovgraft.load(zoo("qwen3_dflash_draft"))
    assert set(refusal(graft)) == {"unmatched-state"}


def test_twice_is_once(tmp_path: Path) -> None:
    graft = graft_of(models.tiny_decoder(layers=1), tmp_path)
    page(graft)
    before = ir.fingerprint(graft.target.model)
    ctx = page(graft)
    assert not ctx.edits
    assert "already" in ctx.remarks[0]
    assert ir.fingerprint(graft.target.model) == before


def test_stateless(tmp_path: Path) -> None:
    model = models.tiny_decoder(layers=1)
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ReadValue":
            for target in node.output(0).get_target_inputs():
                target.replace_source_output(node.input_value(0))
    for sink in model.get_sinks():
        model.remove_sink(sink)
    for variable in model.get_variables():
        model.remove_variable(variable)
    assert "stateless" in refusal(graft_of(model, tmp_path))


def test_three_inputs(tmp_path: Path) -> None:
    assert refusal(graft_of(one_attention(None), tmp_path)) == ["no-mask"]


def test_mask_that_is_an_output_too(tmp_path: Path) -> None:
    model = models.tiny_decoder(layers=1)
    port = model.input("attention_mask")
    model.add_results([ir.make_result(opset.convert(port, "f32").output(0), "mask_copy")])
    assert "extra-consumer" in refusal(graft_of(model, tmp_path))


def test_output_that_changes_its_layout(tmp_path: Path) -> None:
    """Keys as an output: heads are the second axis, and tokens become the batch."""
    model = models.tiny_decoder(layers=1)
    (attention,) = [node for node in model.get_ops() if node.get_type_name() == "ScaledDotProductAttention"]
    heads_first = opset.squeeze(attention.input_value(0), opset.constant(np.array([0], np.int64)))
    model.add_results([ir.make_result(heads_first.output(0), "queries")])
    model.validate_nodes_and_infer_types()
    assert refusal(graft_of(model, tmp_path)) == ["output-layout"]


def test_token_input_of_another_name(tmp_path: Path) -> None:
    model = models.tiny_decoder(layers=1)
    model.input("input_ids").set_names({"tokens"})
    assert "no-token-input" in refusal(graft_of(model, tmp_path))


def test_an_input_without_a_name(tmp_path: Path) -> None:
    model = models.tiny_decoder(layers=1)
    model.input("position_ids").set_names(set())
    assert "nameless-input" in refusal(graft_of(model, tmp_path))


def test_friendly_names_follow_tensor_names(tmp_path: Path) -> None:
    model = models.tiny_decoder(layers=1)
    stateful = model.clone()
    for name in ("position_ids", "input_ids"):
        model.input(name).get_node().set_friendly_name(f"{name}_0")
    graft = graft_of(model, tmp_path)
    ctx = page(graft)
    assert len(ctx.remarks) == 2
    names = [name for port in graft.target.model.inputs for name in port.get_names()]
    assert names.count("position_ids") == 1
    assert compare_paged(stateful, graft.target.model, lengths=(9, 3)).same


@pytest.mark.parametrize(
    ("options", "ports"),
    [
        ({"score_outputs": True}, {"scores.0"}),
        ({"score_aggregation": True}, {"score_aggregation_window"}),
        ({"cache_rotation": True}, {"rotated_block_indices.0", "rotation_deltas.0", "model_rotation_trig_lut"}),
        ({"xattention": True}, {"xattention_threshold.0", "xattention_block_size", "xattention_stride"}),
        ({"adaptive_rkv": True}, {"adaptive_rkv_start_size", "adaptive_rkv_evictable_sizes"}),
        ({"qq_bias": True}, {"qq_bias", "qq_bias_begins"}),
        ({"per_layer_block_indices": True}, {"block_indices.0", "block_indices.1"}),
    ],
)
def test_native_options(tmp_path: Path, options: dict[str, bool], ports: set[str]) -> None:
    graft = graft_of(models.tiny_decoder(layers=2), tmp_path)
    page(graft, **options)
    model = graft.target.model
    assert ports <= {name for port in [*model.inputs, *model.outputs] for name in port.get_names()}


def test_head_sizes_are_those_of_the_model(tmp_path: Path) -> None:
    graft = graft_of(models.tiny_decoder(layers=1, hidden=32, heads=4, kv_heads=2), tmp_path)
    page(graft)
    (node,) = [n for n in graft.target.model.get_ops() if n.get_type_name() == "PagedAttentionExtension"]
    assert {key: ir.get_user_data(node, key) for key in ir.HEAD_SIZES} == {
        "k_head_size": "8",
        "num_k_heads": "2",
        "v_head_size": "8",
        "num_v_heads": "2",
    }


def test_odd_rank_of_positions(tmp_path: Path) -> None:
    model = models.tiny_decoder(layers=1)
    port = model.input("position_ids")
    lifted = opset.parameter([-1, -1, -1, -1], np.int64, name="position_ids")
    lifted.output(0).set_names({"position_ids"})
    flat = opset.squeeze(lifted, opset.constant(np.array([0, 1], np.int64)))
    for target in port.get_target_inputs():
        target.replace_source_output(flat.output(0))
    model.remove_parameter(port.get_node())
    model.add_parameters([lifted])
    model.validate_nodes_and_infer_types()
    assert "position-ids-rank" in refusal(graft_of(model, tmp_path))


def test_attention_mask_that_something_else_reads(tmp_path: Path) -> None:
    """OpenVINO says "undeclared parameters"; the node that still reads the mask is named instead."""
    model = models.tiny_decoder(layers=1)
    mask = opset.convert(model.input("attention_mask"), "f32")
    total = opset.reduce_sum(mask, opset.constant(np.array([1], np.int64)), True)
    model.add_results([ir.make_result(opset.multiply(total, total).output(0), "length")])
    graft = graft_of(model, tmp_path)
    with pytest.raises(StructureError) as caught:
        page(graft)
    (reason,) = caught.value.reasons
    assert reason.code == "extra-consumer"
    assert "attention_mask" in reason.message
    assert reason.nodes
