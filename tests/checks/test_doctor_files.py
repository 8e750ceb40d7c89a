"""doctor on what lies beside the models: configs, tokenizers, side files, heads; and on every form a pair can have."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
from safetensors.numpy import save_file

import ovgraft
from ovgraft import decoder, ir
from ovgraft.checks.doctor import diagnose
from ovgraft.drafts.constant_rows import WeightRows
from ovgraft.drafts.contract import FileName
from ovgraft.graft import Graft, Package
from ovgraft.pipeline import preset
from tests import models
from tests.checks.doctor_pairs import CONFIG, only, opened, pair, set_text, statuses
from tests.checks.test_doctor import draft_model, eagle3, target_model, with_checkpoint
from tests.drafts import checkpoints

GRAFT = "expose-hidden-states,move-fc,attach-embedding,attach-lm-head"


def with_config(folder: Path, **keys: Any) -> Graft:
    return pair(folder, config={**CONFIG, **keys})


# metadata against config.json


def test_layer_ids_that_config_json_contradicts(tmp_path: Path) -> None:
    """Two sets of one length: 5, 19, 33 and 1, 16, 31 both fit the FC."""
    found = diagnose(with_config(tmp_path, dflash_config={"block_size": 8, "target_layer_ids": [0, 1, 3]}))
    text = only(found, "layer-ids", "warn")
    assert "the metadata says layers 0, 1, 2, config.json says dflash_config.target_layer_ids 0, 1, 3" in text


def test_speculators_counts_by_inputs(tmp_path: Path) -> None:
    assert statuses(diagnose(with_config(tmp_path, aux_hidden_state_layer_ids=[1, 2, 3]))) == {}
    found = diagnose(with_config(tmp_path / "wrong", aux_hidden_state_layer_ids=[0, 1, 2]))
    assert "aux_hidden_state_layer_ids -1, 0, 1" in only(found, "layer-ids", "warn")


def test_eagle3_layers_that_the_exporter_dropped(tmp_path: Path) -> None:
    model = eagle3()
    ir.delete(model, ("hidden_layers_list",))
    config = {"vocab_size": 64, "eagle_aux_hidden_state_layer_ids": [2, 4, 8]}
    graft = pair(tmp_path, target=models.tiny_decoder(layers=10, annotated=True), draft=model, config=config)
    found = diagnose(graft)
    assert "layers 2, 5, 7: the default" in only(found, "layer-ids", "warn")
    assert "config.json says eagle_aux_hidden_state_layer_ids 1, 3, 7" in found["layer-ids"].answer.text
    assert "set-rt-info{model=draft key=hidden_layers_list value=1,3,7}" in found["layer-ids"].answer.advice


@pytest.mark.parametrize(
    ("key", "value", "check", "said"),
    [
        (
            "mask_token_id",
            9,
            "mask-token",
            "the metadata says mask token 3, config.json says dflash_config.mask_token_id 9",
        ),
        ("block_size", 16, "metadata", "block_size is 8 and config.json says dflash_config.block_size 16"),
    ],
)
def test_numbers_that_config_json_contradicts(tmp_path: Path, key: str, value: int, check: str, said: str) -> None:
    draft = set_text(draft_model(), "dflash", "block_size", value="8")
    found = diagnose(pair(tmp_path, draft=draft, config={"vocab_size": 64, "dflash_config": {key: value}}))
    assert said in only(found, check, "warn")


def test_an_offset_that_config_json_contradicts(tmp_path: Path) -> None:
    draft = set_text(draft_model(), "dflash", "candidate_position_offset", value="1")
    found = diagnose(pair(tmp_path, draft=draft, config={**CONFIG, "candidate_position_offset": 0}))
    assert "metadata says offset 1" in only(found, "candidate-offset", "warn")


def test_a_target_whose_config_counts_other_layers(tmp_path: Path) -> None:
    models.write_package(target_model(), tmp_path / "target", config={"num_hidden_layers": 5})
    models.write_package(draft_model(), tmp_path / "draft", config=CONFIG)
    found = diagnose(opened(tmp_path))
    assert "4 layers, 32 wide, 64 tokens; its config.json speaks of 5 layers" in only(found, "target", "warn")


def test_tokenizers_that_agree_in_length_only(tmp_path: Path) -> None:
    graft = pair(tmp_path)

    def write(package: Package, vocab: dict[str, int], *added: tuple[str, int]) -> None:
        tokens = [{"content": text, "id": number} for text, number in added]
        data = {"model": {"vocab": vocab}, "added_tokens": tokens}
        (package.folder / "tokenizer.json").write_text(json.dumps(data))

    write(graft.target, {"a": 0, "b": 1, "c": 2})
    write(graft.package("draft"), {"a": 0, "b": 1, "c": 2}, ("<|MASK|>", 3))
    assert statuses(diagnose(graft)) == {}
    write(graft.target, {"a": 0, "b": 1, "c": 2}, ("<|MASK|>", 4))
    assert "give 1 token other ids: '<|MASK|>' is 3" in only(diagnose(graft), "vocabulary", "warn")
    write(graft.package("draft"), {"a": 0, "b": 2, "c": 1})
    text = only(diagnose(graft), "vocabulary", "fail")
    assert "give 2 tokens other ids: 'c' is 1 for the draft and 2 for the target" in text
    unigram = {"model": {"vocab": [["a", 0.0], ["c", -1.0]]}}
    (graft.package("draft").folder / "tokenizer.json").write_text(json.dumps(unigram))
    assert "'c' is 1 for the draft" in only(diagnose(graft), "vocabulary", "fail")
    (graft.package("draft").folder / "tokenizer.json").write_text("[")
    assert statuses(diagnose(graft)) == {}


# what layers see


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"layer_types": ["full_attention"] * 2}, ""),
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 8, "use_sliding_window": False}, ""),
        ({"layer_types": ["full_attention"], "sliding_window": None}, "speaks of 1 layers, the graph has 2"),
        ({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}, "layer 1 has no window"),
        ({"layer_types": ["full_attention"] * 2, "is_causal": True}, "sees its block in both directions"),
    ],
)
def test_11_layers_see_what_the_config_says(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    found = diagnose(with_config(tmp_path, **config))
    if said:
        assert said in only(found, "attention", "warn")
        assert found["attention"].answer.evidence[0].code in ("layer-count", "window", "causality")
    else:
        assert statuses(found) == {}


def test_11_a_sliding_layer_in_every_form(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    """The window is there in all of them; the exporter's causality is told each time."""
    graft = ovgraft.load(target=zoo("qwen3"), draft=zoo("qwen3_dflash_draft_sliding"))
    for passes in ("", "per-row-draft", "paged-attention{model=draft}"):
        if passes:
            ovgraft.Pipeline(passes).run(graft)
        answer = diagnose(graft)["attention"].answer
        assert answer.numbers["windows"] == [16, 0]
        assert answer.numbers["bidirectional"] == [True, True]
        assert [reason.code for reason in answer.evidence] == ["causality"]
    checkpoint = diagnose(with_checkpoint(tmp_path, *checkpoints.zlab_dflash2()))["attention"].answer
    assert "causally" in checkpoint.text


# tables


@pytest.mark.parametrize("table", ["embed_tokens.weight", "lm_head.weight"])
def test_24b_copies_of_another_targets_tables(tmp_path: Path, table: str) -> None:
    """Of another model, of one whose residual stream was rotated, or of this one before it was tuned."""
    config, tensors = checkpoints.deepspec_vanilla()
    graft = with_checkpoint(tmp_path, config, dict(tensors))
    other = np.random.default_rng(9).standard_normal(tensors[table].shape).astype(checkpoints.BF16)
    checkpoints.write_checkpoint(tmp_path / "draft", config, tensors | {table: other})
    found = diagnose(opened(tmp_path))
    check = "embedding" if table.startswith("embed") else "lm-head"
    assert "is not the target's: rows are 1." in only(found, check, "fail")
    assert "keep-copies" in found[check].answer.advice
    assert diagnose(graft).good is False


def test_24_a_four_bit_head_under_a_checkpoint(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    """What a DSpark checkpoint shares with its target is the target's, though it carries a copy."""
    target = target_model()
    head = decoder.read_lm_head(target)
    bits = ov.op.Constant(ov.Type.u4, ov.Shape([64, 32]), [7] * 2048)
    weight = ops.multiply(ops.convert(bits, ov.Type.f32), ops.constant(np.ones((64, 1), np.float32)))
    head.matmul.input(1).replace_source_output(weight.output(0))
    target.validate_nodes_and_infer_types()
    found = diagnose(pair(tmp_path, target=target))
    assert "the target's, which the draft shares, is u4" in only(found, "lm-head-format", "warn")
    real = diagnose(Graft(Package(zoo("qwen3")), Package(zoo("checkpoints") / "deepspec_vanilla")))
    assert "the target's, which the draft shares, is f32" in real["lm-head-format"].answer.text


def test_a_scale_that_was_forgotten_is_still_told_when_grafted(tmp_path: Path) -> None:
    graft = pair(tmp_path, target=target_model(embedding_scale=8.0))
    ovgraft.Pipeline(GRAFT).run(graft)
    assert "multiplies its embedding rows by 8" in only(diagnose(graft), "embedding-scale", "warn")


# the mask token's row


def zero_row(graft: Graft, row: int) -> None:
    table = next(n for n in graft.target.model.get_ordered_ops() if "embed_tokens.weight" in n.get_friendly_name())
    values = np.array(table.data)
    values[row] = 0
    other = ir.opset.constant(values)
    for port in list(table.output(0).get_target_inputs()):
        port.replace_source_output(other.output(0))


def test_23a_a_mask_embedding_beside_the_draft(tmp_path: Path) -> None:
    graft = pair(tmp_path)
    zero_row(graft, 3)
    assert "near zero" in only(diagnose(graft), "mask-token", "warn")
    file = graft.package("draft").folder / "mask_embedding.safetensors"
    save_file({"mask_embedding": np.ones(32, np.float32)}, file)
    found = diagnose(graft)
    assert statuses(found) == {}
    assert "with an embedding of its own" in found["mask-token"].answer.text
    ovgraft.Pipeline(GRAFT).run(graft)
    file.unlink()
    assert "with an embedding of its own" in diagnose(graft)["mask-token"].answer.text


def test_23a_attached_without_its_mask_embedding(tmp_path: Path) -> None:
    graft = pair(tmp_path)
    zero_row(graft, 3)
    ovgraft.Pipeline(GRAFT).run(graft)
    assert "near zero" in only(diagnose(graft), "mask-token", "warn")


@pytest.mark.parametrize("name", ["mask_embedding.pt", "mask_embedding.safetensors"])
def test_23a_a_mask_embedding_that_is_not_read(tmp_path: Path, name: str) -> None:
    graft = pair(tmp_path)
    file = graft.package("draft").folder / name
    if name.endswith("pt"):
        file.write_bytes(b"PK\x03\x04")
    else:
        save_file({"mask_embedding": np.ones(31, np.float32)}, file)
    assert "mask_embedding" in only(diagnose(graft), "mask-token", "fail")


# the Markov head


@pytest.fixture
def headed(tmp_path: Path) -> Graft:
    """A package with a head, on disk."""
    graft = with_checkpoint(tmp_path / "made", *checkpoints.deepspec_vanilla())
    ovgraft.Pipeline("build-draft,pack-markov-head").run(graft)
    graft.save(tmp_path / "pair")
    return opened(tmp_path / "pair")


def test_a_sound_head(headed: Graft) -> None:
    found = diagnose(headed)
    assert statuses(found) == {}
    assert "vanilla head of rank" in found["markov-head"].answer.text


def said_of_head(graft: Graft, edit: Callable[[ov.Model, ov.Model], None]) -> str:
    head = graft.package("draft").get(FileName.MARKOV_HEAD)
    assert head is not None
    edit(graft.package("draft").model, head)
    return only(diagnose(graft), "markov-head", "fail")


@pytest.mark.parametrize(
    ("path", "on_head", "value", "said"),
    [
        (("dflash", "markov_rank"), False, "5", "the backbone advertises rank 5, the head has rank"),
        (("dflash", "markov_head_type"), False, "gated", "advertises a gated head, the head is vanilla"),
        (("dflash", "markov_rank"), True, "5", "rank"),
        (("dflash", "vocab_size"), True, "65", "expected"),
        (("dflash", "top_k"), True, "99", "top_k is 99, expected 1 to 64"),
        (("dflash", "markov_head_type"), True, "none", "a head of type none computes nothing"),
    ],
)
def test_a_head_that_does_not_agree(headed: Graft, path: tuple[str, ...], on_head: bool, value: str, said: str) -> None:
    def edit(backbone: ov.Model, head: ov.Model) -> None:
        ir.set_text(head if on_head else backbone, path, value)

    assert said in said_of_head(headed, edit)


def test_a_head_that_nobody_announced(headed: Graft) -> None:
    def edit(backbone: ov.Model, head: ov.Model) -> None:
        for name in ("markov_rank", "markov_head_type"):
            ir.delete(backbone, ("dflash", name))

    assert "the backbone's markov_rank is 0 or missing" in said_of_head(headed, edit)


def test_a_head_that_was_compressed(headed: Graft) -> None:
    def edit(backbone: ov.Model, head: ov.Model) -> None:
        node = next(n for n in head.get_ordered_ops() if n.get_type_name() == "Gather")
        table = ops.constant(np.ones(node.get_input_shape(0), np.int8))
        node.input(0).replace_source_output(ops.convert(table, node.get_input_element_type(0)).output(0))
        head.validate_nodes_and_infer_types()

    assert "weights are compressed to i8" in said_of_head(headed, edit)


def test_a_head_that_is_gone(headed: Graft) -> None:
    folder = headed.package("draft").folder
    for suffix in (".xml", ".bin"):
        (folder / f"{FileName.MARKOV_HEAD}{suffix}").unlink()
    text = only(diagnose(opened(folder.parent)), "markov-head", "fail")
    assert "there is no openvino_markov_head_model" in text


def test_the_head_of_another_folder(headed: Graft, tmp_path: Path) -> None:
    """Ranks, types and widths agree; the config it was packed beside does not."""
    config, tensors = checkpoints.deepspec_vanilla()
    other = with_checkpoint(tmp_path / "other", config | {"block_size": 5}, tensors)
    ovgraft.Pipeline("build-draft,pack-markov-head").run(other)
    other.save(tmp_path / "saved")
    for suffix in (".xml", ".bin"):
        name = f"{FileName.MARKOV_HEAD}{suffix}"
        shutil.copy(tmp_path / "saved" / "draft" / name, headed.package("draft").folder / name)
    found = diagnose(opened(headed.package("draft").folder.parent))
    assert "packed from another config.json" in only(found, "markov-head", "warn")


def test_a_config_of_another_rank(headed: Graft) -> None:
    file = headed.package("draft").folder / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"markov_rank": 99}))
    found = diagnose(opened(file.parent.parent))
    assert "config.json says markov_rank 99" in only(found, "markov-head", "warn")


# grafts


def eagle3_graft(folder: Path, convention: str) -> Graft:
    graft = pair(folder, draft=set_text(eagle3(), "hidden_layers_list", value="1,2,3"), config={"vocab_size": 64})
    ovgraft.Pipeline(f"expose-hidden-states{{layers=1,2,3 layer-convention={convention}}},move-fc").run(graft)
    return graft


@pytest.mark.parametrize("convention", ["output", "input"])
def test_states_exposed_by_either_convention(tmp_path: Path, convention: str) -> None:
    answer = diagnose(eagle3_graft(tmp_path, convention))["exposed-states"].answer
    assert answer.status == "pass"
    assert ("by their inputs" in answer.text) == (convention == "input")


def test_a_dflash_draft_under_states_exposed_by_inputs(tmp_path: Path) -> None:
    """What enters layers 1, 2 and 3 is what leaves 0, 1 and 2."""
    graft = pair(tmp_path)
    ovgraft.Pipeline("expose-hidden-states{layers=1,2,3 layer-convention=input}").run(Graft(graft.target))
    assert diagnose(graft)["exposed-states"].answer.status == "pass"
    ovgraft.Pipeline("expose-hidden-states{layers=0,1,2 layer-convention=input}").run(
        Graft(other := Package(tmp_path / "target"))
    )
    assert diagnose(Graft(other, graft.draft))["exposed-states"].answer.status == "fail"


def test_a_record_that_does_not_tell_what_is_exposed(tmp_path: Path) -> None:
    graft = pair(tmp_path)
    ovgraft.Pipeline("expose-hidden-states").run(graft)
    result = next(r for r in graft.target.model.get_results() if "last_hidden_state" in r.output(0).names)
    joined = result.input_value(0).get_node()
    joined.input(0).replace_source_output(decoder.read_decoder(graft.target.model).layers[2].output)
    text = only(diagnose(graft), "exposed-states", "fail")
    assert (
        "joins the output of layer 2, the output of layer 1, the output of layer 2; its record says layers 0, 1, 2"
        in text
    )


def test_16_an_fc_that_nothing_records(tmp_path: Path) -> None:
    """Grafted by a tool that writes no digest: two drafts of one shape may share a compiled blob."""
    graft = pair(tmp_path)
    ovgraft.Pipeline("expose-hidden-states,move-fc").run(graft)
    for package in graft.packages.values():
        ir.delete(package.model, ("ovgraft", "moved_fc"))
    found = diagnose(graft)
    assert found["exposed-states"].answer.status == "warn"
    assert "an FC that nothing records" in found["exposed-states"].answer.text


def test_runtime_options_are_compared_as_numbers(tmp_path: Path) -> None:
    draft = set_text(draft_model(), "runtime_options", "ACTIVATIONS_SCALE_FACTOR", value="8")
    assert statuses(diagnose(pair(tmp_path, draft=draft))) == {}
    draft = set_text(draft_model(), "runtime_options", "ACTIVATIONS_SCALE_FACTOR", value="16")
    found = diagnose(pair(tmp_path / "other", draft=draft))
    assert "target 8.0, draft 16" in only(found, "runtime-options", "warn")


def test_27_a_dflash2_draft_without_its_activation_scale(tmp_path: Path) -> None:
    draft = set_text(draft_model(), "dflash", "version", value="2")
    found = diagnose(pair(tmp_path, draft=draft))
    assert "DFlash-2 drafts overflow in f16 below 32" in only(found, "metadata", "warn")
    built = with_checkpoint(tmp_path / "built", *checkpoints.zlab_dflash2())
    ovgraft.Pipeline("build-draft").run(built)
    assert diagnose(built)["metadata"].answer.status == "pass"


def test_7_dflash_mode_on_rows_that_mean_the_token_behind(tmp_path: Path) -> None:
    graft = with_checkpoint(tmp_path, *checkpoints.deepspec_headless())
    ovgraft.Pipeline("build-draft").run(graft)
    assert diagnose(graft)["metadata"].answer.status == "pass"
    graft.package("draft").model.set_rt_info("True", ["dflash_mode"])
    assert "mean the one behind (offset 0)" in only(diagnose(graft), "metadata", "warn")


# every form


@pytest.mark.parametrize("name", ["dflash", "dflash-paged"])
def test_finished_pairs_are_sound(tmp_path: Path, name: str) -> None:
    graft = pair(tmp_path)
    ovgraft.Pipeline(preset(name).text).run(graft)
    found = diagnose(graft)
    assert statuses(found) == {}
    assert "the target's, attached" in found["embedding"].answer.text
    assert found["draft"].answer.numbers["form"] == ("paged" if name == "dflash-paged" else "sdpa")


@pytest.mark.parametrize("make", [checkpoints.BUILDERS[name] for name in ("deepspec_gated", "zlab_dflash2")])
def test_finished_pairs_from_checkpoints_are_sound(tmp_path: Path, make: Any) -> None:
    graft = with_checkpoint(tmp_path, *make())
    ovgraft.Pipeline(preset("dspark-paged").text).run(graft)
    assert statuses(diagnose(graft)) == {}


def test_single_files_are_checked_like_folders(tmp_path: Path) -> None:
    graft = pair(tmp_path, draft=set_text(draft_model(), "dflash", "target_layer_ids", value="0,2"))
    by_file = Graft(*(Package(package.xml(package.main_name)) for package in graft.packages.values()))
    one, other = (diagnose(each).to_dict()["checks"] for each in (graft, by_file))
    assert one == other


def test_a_vision_language_package(tmp_path: Path) -> None:
    others = {"openvino_text_embeddings_model": models.tiny_text_embeddings()}
    language = models.tiny_decoder(layers=4, inputs_embeds=True, annotated=True)
    models.write_package(language, tmp_path / "target", name="openvino_language_model", others=others)
    models.write_package(draft_model(), tmp_path / "draft", config=CONFIG)
    assert statuses(diagnose(opened(tmp_path))) == {}
    for suffix in (".xml", ".bin"):
        (tmp_path / "target" / f"openvino_text_embeddings_model{suffix}").unlink()
    found = diagnose(opened(tmp_path))
    assert found["target"].answer.status == "fail"
    assert "the target has no token embedding" in found["target"].answer.text


def test_a_grafted_pair_broken_afterwards(tmp_path: Path) -> None:
    """Widths, layers and vocabulary are asked of what is left of the draft."""
    graft = pair(tmp_path)
    ovgraft.Pipeline(preset("dflash-paged").text).run(graft)
    draft = graft.package("draft").model
    for path, value, check in (
        (("dflash", "target_layer_ids"), "0,1", "fc-width"),
        (("dflash", "target_layer_ids"), "0,1,9", "layer-ids"),
        (("dflash", "mask_token_id"), "64", "mask-token"),
        (("dflash", "candidate_position_offset"), "2", "candidate-offset"),
        (("dflash", "vocab_size"), "65", "vocabulary"),
    ):
        before = ir.get_text(draft, path)
        ir.set_text(draft, path, value)
        assert statuses(diagnose(graft))[check] == "fail"
        ir.delete(draft, path) if before is None else ir.set_text(draft, path, before)
    assert statuses(diagnose(graft)) == {}


@pytest.mark.parametrize(
    ("keys", "check", "said"),
    [
        ({"num_target_layers": 5}, "layer-ids", "trained for 5 target layers, the target has 6"),
        ({"num_target_layers": None, "target_layer_ids": [1, 9]}, "layer-ids", "no layer 9"),
        ({"vocab_size": 65}, "vocabulary", "made for 65 tokens, the target has 64"),
        ({"mask_token_id": 64}, "draft", "mask_token_id"),
        ({"mask_token_id": None}, "draft", "mask_token_id"),
        ({"target_layer_ids": None}, "draft", "target_layer_ids"),
        ({"target_layer_ids": [1, 3, 4]}, "draft", "fc.weight"),
    ],
)
def test_checkpoints_that_do_not_fit(tmp_path: Path, keys: dict[str, Any], check: str, said: str) -> None:
    config, tensors = checkpoints.zlab_dflash()
    nested = dict(config["dflash_config"])
    for key, value in keys.items():
        place = nested if key in nested else config
        if value is None:
            place.pop(key, None)
        else:
            place[key] = value
    found = diagnose(with_checkpoint(tmp_path, config | {"dflash_config": nested}, tensors))
    assert statuses(found)[check] == "fail"
    assert said in found[check].answer.text
    assert found[check].answer.advice


def test_checkpoints_of_another_width(tmp_path: Path) -> None:
    config, tensors = checkpoints.zlab_dflash()
    models.write_package(models.tiny_decoder(6, 32, 64, heads=2, annotated=True), tmp_path / "target")
    checkpoints.write_checkpoint(tmp_path / "draft", config, tensors)
    found = {name: status for name, status in statuses(diagnose(opened(tmp_path))).items() if status == "fail"}
    assert set(found) == {"fc-width", "embedding", "lm-head"}


def test_of_the_tables_some_rows_are_read(zoo: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    real = WeightRows.read

    def counted(self: WeightRows, start: int, stop: int, **options: Any) -> Any:
        read.append(stop - start)
        return real(self, start, stop, **options)

    monkeypatch.setattr(WeightRows, "read", counted)
    assert diagnose(Graft(Package(zoo("qwen3")), Package(zoo("checkpoints") / "deepspec_vanilla"))).good
    assert 0 < sum(read) < 200
