"""doctor: every field report it can see, one thing wrong at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

import ovgraft
from ovgraft import ir
from ovgraft.checks.doctor import CHECKS, diagnose
from ovgraft.errors import ModelFileError
from ovgraft.graft import Graft, Package
from tests import models, support
from tests.checks.doctor_pairs import CONFIG, edited, only, opened, pair, set_text, statuses
from tests.drafts import checkpoints


def draft_model(**options: Any) -> ov.Model:
    return models.tiny_dflash_draft(n=3, target_layer_ids=options.pop("ids", (0, 1, 2)), **options)


def without(model: ov.Model, *path: str) -> ov.Model:
    ir.delete(model, path)
    return model


def target_model(**options: Any) -> ov.Model:
    return models.tiny_decoder(layers=4, annotated=True, **options)


def test_a_sound_pair(tmp_path: Path) -> None:
    found = diagnose(pair(tmp_path))
    assert statuses(found) == {}
    assert found.good
    assert [check.id for check in found.checks] == [question.id for question in CHECKS]
    assert json.loads(json.dumps(found.to_dict()))["schema"] == 1


def test_nothing_is_changed(tmp_path: Path) -> None:
    graft = pair(tmp_path, draft=without(draft_model(), "dflash", "mask_token_id"))
    before = [ir.fingerprint(package.model) for package in graft.packages.values()]
    diagnose(graft)
    assert before == [ir.fingerprint(package.model) for package in graft.packages.values()]


@pytest.mark.parametrize("name", [name for name in support.DFLASH_DRAFTS if "agree" not in name])
def test_zoo(zoo: Callable[[str], Path], name: str) -> None:
    found = diagnose(Graft(Package(zoo("qwen3")), Package(zoo(name))))
    assert found.good
    # z-lab trains sliding layers causally inside the block, the exporter makes them bidirectional
    assert set(statuses(found)) - {"runtime-options"} == ({"attention"} if "sliding" in name else set())
    producers = [reason.nodes[0].name for reason in found["locators"].answer.evidence]
    assert producers == [f"__module.model.layers.{layer}/aten::add/Add_1" for layer in (1, 3, 4)]


def test_zoo_eagle3(zoo: Callable[[str], Path]) -> None:
    found = diagnose(Graft(Package(zoo("qwen3_12l")), Package(zoo("qwen3_12l_eagle3_draft"))))
    assert statuses(found) == {"layer-ids": "warn", "embedding": "warn"}
    assert "layers 2, 6, 9" in found["layer-ids"].answer.text
    assert "not the target's" in found["embedding"].answer.text  # the exporter leaves it random


CHECKPOINTS = (
    *("deepspec_gated", "deepspec_headless", "deepspec_rnn", "deepspec_vanilla", "minicpm_pruned", "modelopt_flat"),
    *("qwen3_dflash_draft", "speculators_dflash", "speculators_dspark", "zlab_dflash2"),
)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_zoo_checkpoints_are_read_and_held_against_a_target(zoo: Callable[[str], Path], name: str) -> None:
    found = diagnose(Graft(Package(zoo("qwen3")), Package(zoo("checkpoints") / name)))
    assert statuses(found) == {}


# 6.1 wrong hidden state, wrong row


def test_1_shifted_ids_print_the_producer_of_each(tmp_path: Path) -> None:
    found = diagnose(pair(tmp_path, draft=draft_model(ids=(1, 2, 3))))
    assert "the last one is ambiguous" in only(found, "layer-ids", "warn")
    assert [reason.message for reason in found["locators"].answer.evidence] == [
        "layer 1: the output of layer 1",
        "layer 2: the output of layer 2",
        "layer 3: the value that enters lm_head",
    ]


def test_3_ids_are_never_guessed(tmp_path: Path) -> None:
    found = diagnose(pair(tmp_path, draft=without(draft_model(), "dflash", "target_layer_ids")))
    assert "never guessed" in only(found, "layer-ids", "fail")
    for name in ("fc-width", "locators", "exposed-states"):
        assert found[name].answer.status == "not-checked"


def test_3_two_sets_of_ids_of_one_length_are_told_by_the_depth(tmp_path: Path) -> None:
    config = {**CONFIG, "num_target_layers": 6}
    found = diagnose(pair(tmp_path, config=config))
    assert "trained for 6 target layers, the target has 4" in only(found, "layer-ids", "fail")


def test_3_fc_width_is_n_times_hidden(tmp_path: Path) -> None:
    found = diagnose(pair(tmp_path, draft=set_text(draft_model(), "dflash", "target_layer_ids", value="0,2")))
    text = only(found, "fc-width", "fail")
    assert "reads 96 numbers per row, 2 layers of 32 are 64" in text
    assert "made for 3 layers" in found["fc-width"].answer.advice
    assert found["fc-width"].answer.evidence[0].nodes[0].type == "MatMul"


def test_4_a_locator_at_the_post_attention_residual(tmp_path: Path) -> None:
    target = target_model()
    annotation = json.loads(ir.get_text(target, ("hidden_states_decoder_layers",)) or "")
    annotation["layers"]["1"]["producer"] = "__module.model.layers.1/aten::add/Add"
    found = diagnose(
        pair(tmp_path, target=set_text(target, "hidden_states_decoder_layers", value=json.dumps(annotation)))
    )
    assert "the post-attention residual of layer 1" in only(found, "locators", "fail")


@pytest.mark.parametrize(("shift", "word"), [(1, "late"), (-1, "early")])
def test_2_locators_one_layer_off(tmp_path: Path, shift: int, word: str) -> None:
    target = models.tiny_decoder(layers=6, annotated=True)
    layers = json.loads(ir.get_text(target, ("hidden_states_decoder_layers",)) or "")["layers"]
    start = {"producer": "__module.model.embed_tokens/aten::embedding/Gather", "output_index": 0}
    moved = {str(layer): layers.get(str(layer + shift), start if layer == 0 else layers["5"]) for layer in range(6)}
    text = json.dumps({"layers": moved})
    found = diagnose(pair(tmp_path, target=set_text(target, "hidden_states_decoder_layers", value=text)))
    assert f"every locator is 1 layer too {word}" in only(found, "locators", "fail")


def test_a_wrong_locator_that_nobody_reads_is_a_warning(tmp_path: Path) -> None:
    target = target_model()
    annotation = json.loads(ir.get_text(target, ("hidden_states_decoder_layers",)) or "")
    annotation["layers"]["3"]["producer"] = "__module.model.layers.3/aten::add/Add_1"
    found = diagnose(
        pair(tmp_path, target=set_text(target, "hidden_states_decoder_layers", value=json.dumps(annotation)))
    )
    assert "layers the draft does not read" in only(found, "locators", "warn")


def test_a_target_without_locators(tmp_path: Path) -> None:
    found = diagnose(pair(tmp_path, target=models.tiny_decoder(layers=4)))
    assert "older exporter" in only(found, "locators", "warn")
    assert "annotate-hidden-states" in found["locators"].answer.advice
    assert len(found["locators"].answer.evidence) == 3


def test_5_a_target_that_is_no_decoder(tmp_path: Path) -> None:
    found = diagnose(pair(tmp_path, target=models.tiny_text_embeddings()))
    assert statuses(found)["target"] == "fail"
    asked = {name for name, status in statuses(found).items() if status != "not-checked"}
    assert asked <= {"target", "candidate-offset", "metadata", "draft"}


def test_7_an_offset_that_nothing_tells(tmp_path: Path) -> None:
    model = draft_model()
    (slice_op,) = [n for n in model.get_ordered_ops() if n.get_friendly_name() == "aten::slice/Slice_4"]
    result = model.get_results()[0]
    rows = slice_op.input_value(0)
    result.input(0).replace_source_output(rows)
    rows.get_tensor().add_names({"last_hidden_state"})
    slice_op.output(0).get_tensor().set_names(set())
    model.validate_nodes_and_infer_types()
    found = diagnose(pair(tmp_path, draft=model))
    assert "drops no row" in only(found, "candidate-offset", "fail")
    set_text(model, "dflash", "candidate_position_offset", value="0")
    assert diagnose(pair(tmp_path / "said", draft=model)).good
    set_text(model, "dflash", "candidate_position_offset", value="1")
    found = diagnose(pair(tmp_path / "wrong", draft=model))
    assert "offset 1" in only(found, "candidate-offset", "fail")


@pytest.mark.parametrize("ids", ["-2,0,1", "0,1,4", "0,1,1", "0,1,99"])
def test_12b_ids_out_of_range_or_twice(tmp_path: Path, ids: str) -> None:
    found = diagnose(pair(tmp_path, draft=set_text(draft_model(), "dflash", "target_layer_ids", value=ids)))
    text = only(found, "layer-ids", "fail")
    assert ("more than once" in text) == (ids == "0,1,1")
    assert ("layers 0 to 3" in text) == (ids != "0,1,1")
    if ids == "0,1,4":
        assert "shifted" in found["layer-ids"].answer.advice


def test_12d_an_unknown_tensor_is_no_small_thing(tmp_path: Path) -> None:
    config, tensors = checkpoints.zlab_dflash()
    tensors["layers.0.self_attn.gate.weight"] = tensors["fc.weight"]
    found = diagnose(with_checkpoint(tmp_path, config, tensors))
    assert "layers.0.self_attn.gate.weight" in only(found, "draft", "fail")


# 6.3 vocabulary


def with_checkpoint(folder: Path, config: dict[str, Any], tensors: dict[str, Any]) -> Graft:
    """A checkpoint and a target whose tables are those it has copies of."""
    names = {"embed_tokens.weight": "self.model.embed_tokens.weight", "lm_head.weight": "self.lm_head.weight"}
    shape = (checkpoints.VOCAB, checkpoints.HIDDEN)
    copies = {name: tensors[own] for own, name in names.items() if own in tensors and tensors[own].shape == shape}
    given = {name: table.astype(np.float32) for name, table in copies.items()}
    target = models.tiny_decoder(6, checkpoints.HIDDEN, checkpoints.VOCAB, heads=2, annotated=True, given=given)
    models.write_package(target, folder / "target")
    checkpoints.write_checkpoint(folder / "draft", config, tensors)
    return opened(folder)


@pytest.mark.parametrize("make", checkpoints.BUILDERS.values(), ids=checkpoints.BUILDERS.keys())
def test_sound_checkpoints(tmp_path: Path, make: Any) -> None:
    found = diagnose(with_checkpoint(tmp_path, *make()))
    assert found.good, statuses(found)
    assert found["candidate-offset"].answer.status == "pass"


def test_another_vocabulary(tmp_path: Path) -> None:
    found = diagnose(pair(tmp_path, config={**CONFIG, "vocab_size": 128}))
    assert "made for 128 tokens, the target has 64" in only(found, "vocabulary", "fail")
    assert found["mask-token"].answer.status == "not-checked"


def eagle3(d2t: list[int] | None = None, vocab: int = 64, **options: Any) -> ov.Model:
    """An Eagle-3 draft that embeds as the target of these tests does."""
    shared = next(n for n in target_model().get_ordered_ops() if "embed_tokens.weight" in n.get_friendly_name())
    table = np.vstack([shared.data, np.ones((vocab - 64, 32), np.float32)])
    model = models.tiny_eagle3_draft(vocab=vocab, given={"self.model.embed_tokens.weight": table}, **options)
    model.set_rt_info("0,1,2", ["hidden_layers_list"])
    if d2t is not None:
        result = next(r for r in model.get_results() if "d2t" in r.output(0).names)
        table = ops.constant(np.array(d2t, np.int64))
        table.output(0).get_tensor().set_names({"d2t"})
        result.input(0).replace_source_output(table.output(0))
        model.validate_nodes_and_infer_types()
    return model


def test_19_an_unsorted_map_is_a_map(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).permutation(64)[:16]
    found = diagnose(pair(tmp_path, draft=eagle3((ids - np.arange(16)).tolist())))
    assert found.good
    assert found["d2t"].answer.numbers["rising"] is False


@pytest.mark.parametrize(
    ("d2t", "status", "said"),
    [
        ([0] * 15, "fail", "shape [15], the draft's logits are 16 wide"),
        ([0] * 15 + [49], "fail", "draft token 15 becomes 64"),
        ([-1] + [0] * 15, "fail", "draft token 0 becomes -1"),
        ([0] * 14 + [1, 0], "warn", "gives 1 draft tokens the target token of another"),
    ],
)
def test_23_a_map_that_is_none(tmp_path: Path, d2t: list[int], status: str, said: str) -> None:
    assert said in only(diagnose(pair(tmp_path, draft=eagle3(d2t))), "d2t", status)


def test_21_22_padding_rows_propose_tokens_that_do_not_exist(tmp_path: Path) -> None:
    model = eagle3(draft_vocab=128, vocab=128)
    model.remove_result(next(r for r in model.get_results() if "d2t" in r.output(0).names))
    found = diagnose(pair(tmp_path, draft=model, config={"model_type": "llama", "vocab_size": 64}))
    assert "64 rows beyond the target's 64 tokens" in only(found, "d2t", "warn")


def test_a_map_that_is_computed(tmp_path: Path) -> None:
    model = eagle3()
    result = next(r for r in model.get_results() if "d2t" in r.output(0).names)
    computed = ops.add(result.input_value(0), ops.convert(ops.reduce_sum(model.inputs[0].get_node(), 0), ov.Type.i64))
    computed.output(0).get_tensor().set_names({"d2t"})
    result.input_value(0).get_tensor().set_names(set())
    result.input(0).replace_source_output(computed.output(0))
    model.validate_nodes_and_infer_types()
    assert "no table" in only(diagnose(pair(tmp_path, draft=model)), "d2t", "fail")


def test_12b_the_embeddings_output_in_deepspec_only(tmp_path: Path) -> None:
    config, tensors = checkpoints.deepspec_vanilla()
    found = diagnose(with_checkpoint(tmp_path, config | {"target_layer_ids": [-1, 4]}, tensors))
    assert "-1 is the embedding's output" in only(found, "layer-ids", "warn")


def test_25_a_pruned_draft_without_a_map(tmp_path: Path) -> None:
    model = eagle3()
    model.remove_result(next(r for r in model.get_results() if "d2t" in r.output(0).names))
    found = diagnose(pair(tmp_path, draft=model))
    assert "16 wide, the target's 64, and there is no d2t" in only(found, "d2t", "fail")


def test_25_a_pruned_checkpoint_without_lm_head(tmp_path: Path) -> None:
    config, tensors = checkpoints.minicpm_pruned()
    del tensors["lm_head.weight"]
    assert "lm_head.weight" in only(diagnose(with_checkpoint(tmp_path, config, tensors)), "draft", "fail")


def test_26_the_mask_token_does_not_fall_back_to_pad(tmp_path: Path) -> None:
    found = diagnose(pair(tmp_path, draft=without(draft_model(), "dflash", "mask_token_id")))
    assert "never guessed" in only(found, "mask-token", "fail")
    found = diagnose(pair(tmp_path / "high", draft=draft_model(mask_token_id=64)))
    assert "no row in the target's embedding of 64 rows" in only(found, "mask-token", "fail")


def test_23a_a_mask_row_that_was_never_trained(tmp_path: Path) -> None:
    table = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    table[3] *= 1e-5
    found = diagnose(pair(tmp_path, target=target_model(given={"self.model.embed_tokens.weight": table})))
    assert "near zero" in only(found, "mask-token", "warn")


def test_24a_a_four_bit_output_layer(tmp_path: Path) -> None:
    from openvino import opset13

    model = draft_model()
    hidden = model.get_results()[0].input_value(0)
    bits = opset13.constant(np.random.default_rng(0).integers(0, 15, (64, 32)).astype(np.uint8))
    packed = ov.op.Constant(ov.Type.u4, ov.Shape([64, 32]), bits.data.ravel().tolist())
    weight = opset13.multiply(opset13.convert(packed, ov.Type.f32), opset13.constant(np.ones((64, 1), np.float32)))
    logits = opset13.matmul(hidden, weight, False, True)
    logits.output(0).get_tensor().set_names({"logits"})
    model.add_results([opset13.result(logits)])
    found = diagnose(pair(tmp_path, draft=edited(model, lambda _: None)))
    assert "u4" in only(found, "lm-head-format", "warn")


def test_widths(tmp_path: Path) -> None:
    found = diagnose(pair(tmp_path, draft=draft_model(hidden=16)))
    assert statuses(found) == {"embedding": "fail", "lm-head": "fail"}
    assert "rows of 16, the target's embedding has 32" in found["embedding"].answer.text


def test_a_scaled_embedding_is_not_inherited(tmp_path: Path) -> None:
    graft = pair(tmp_path, target=target_model(embedding_scale=8.0))
    assert "multiplies its embedding rows by 8" in only(diagnose(graft), "embedding-scale", "warn")
    draft = graft.package("draft").model
    draft.set_rt_info("8.0", ["dflash", "input_embedding_scale"])
    assert "GenAI 2026.4.1 embeds with the bare table" in only(diagnose(graft), "metadata", "warn")
    ir.delete(draft, ("dflash_mode",))
    draft.set_rt_info("1", ["dflash", "version"])
    assert statuses(diagnose(graft)) == {}


# 6.6 configs


def test_35_a_block_size_that_contradicts_itself(tmp_path: Path) -> None:
    found = diagnose(pair(tmp_path, config={**CONFIG, "block_size": 16}))
    assert "block_size is 16, dflash_config.block_size is 8" in only(found, "draft", "fail")


def test_metadata_that_nothing_tells(tmp_path: Path) -> None:
    found = diagnose(pair(tmp_path, draft=without(draft_model(), "dflash_mode"), config={}))
    assert set(statuses(found)) == {"metadata", "vocabulary"}
    codes = [reason.code for reason in found["metadata"].answer.evidence]
    assert codes == ["no-mode", "no-block-size", "no-vocab-size"]


def test_runtime_options_that_differ(tmp_path: Path) -> None:
    draft = set_text(draft_model(), "runtime_options", "KV_CACHE_PRECISION", value="u8")
    assert "KV_CACHE_PRECISION: target f16, draft u8" in only(
        diagnose(pair(tmp_path, draft=draft)), "runtime-options", "warn"
    )


def test_31a_a_state_that_nobody_sets(tmp_path: Path) -> None:
    graft = pair(tmp_path)
    model = graft.package("draft").model
    read = next(node for node in model.get_ordered_ops() if node.get_type_name() == "ReadValue")
    bare = ops.read_value(read.get_variable_id(), ov.Type.f32, read.get_output_partial_shape(0))
    for port in list(read.output(0).get_target_inputs()):
        port.replace_source_output(bare.output(0))
    found = diagnose(graft)
    only(found, "states", "warn")
    assert "no-initial-value" in [reason.code for reason in found["states"].answer.evidence]


# grafts


@pytest.fixture
def grafted(tmp_path: Path) -> Graft:
    graft = pair(tmp_path)
    ovgraft.Pipeline("expose-hidden-states,move-fc,attach-embedding,attach-lm-head").run(graft)
    return graft


def test_a_grafted_pair(grafted: Graft) -> None:
    found = diagnose(grafted)
    assert statuses(found) == {}
    assert "layers 0, 1, 2 through the moved FC" in found["exposed-states"].answer.text
    assert found["candidate-offset"].answer.numbers["rows_cut"] == 1


def test_another_drafts_half(grafted: Graft, tmp_path: Path) -> None:
    other = pair(tmp_path / "other", draft=draft_model(seed=9))
    ovgraft.Pipeline("expose-hidden-states,move-fc").run(other)
    mixed = Graft(grafted.target, other.draft)
    assert "not two halves of one graft" in only(diagnose(mixed), "exposed-states", "fail")


def test_states_of_other_layers_are_exposed(tmp_path: Path) -> None:
    graft = pair(tmp_path)
    ovgraft.Pipeline("expose-hidden-states{layers=2,1,0}").run(Graft(graft.target))
    text = only(diagnose(graft), "exposed-states", "fail")
    assert "joins the output of layer 2, the output of layer 1, the output of layer 0" in text


def test_an_fc_that_moved_elsewhere(grafted: Graft, tmp_path: Path) -> None:
    fresh = pair(tmp_path / "fresh")
    found = diagnose(Graft(fresh.target, grafted.draft))
    assert "not into this target" in only(found, "exposed-states", "fail")


def test_a_tokenizer_that_is_none_says_nothing(tmp_path: Path) -> None:
    graft = pair(tmp_path)
    for package in graft.packages.values():
        (package.folder / "tokenizer.json").write_text('{"model": {"vocab": [[["a"], 0.5], [], null, ["b", -1]]}}')
    assert statuses(diagnose(graft)) == {}


def test_no_draft_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no draft"):
        diagnose(Graft(pair(tmp_path).target))


def test_a_model_that_is_no_draft(tmp_path: Path) -> None:
    found = diagnose(pair(tmp_path, draft=models.tiny_decoder()))
    assert "not a draft" in only(found, "draft", "fail")


def test_a_head_that_is_announced_and_not_there(tmp_path: Path) -> None:
    draft = set_text(draft_model(), "dflash", "markov_rank", value="4")
    set_text(draft, "dflash", "markov_head_type", value="vanilla")
    found = diagnose(pair(tmp_path, draft=draft))
    assert "there is no openvino_markov_head_model" in only(found, "markov-head", "fail")
