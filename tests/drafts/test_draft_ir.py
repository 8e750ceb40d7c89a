"""Facts of exported drafts, and what is said when one is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from ovgraft import drafts
from ovgraft.errors import PreconditionError
from ovgraft.graft import Package
from tests import models, support


def draft_package(tmp_path: Path, model: ov.Model | None = None, **config: Any) -> Package:
    """A DFlash draft (or ``model``) on disk, opened."""
    return Package(models.write_package(model or models.tiny_dflash_draft(), tmp_path / "draft", config=config))


@pytest.mark.parametrize("name", support.DFLASH_DRAFTS)
def test_dflash_drafts_of_the_zoo(zoo: Callable[[str], Path], name: str) -> None:
    draft = drafts.read_draft(Package(zoo(name)))
    assert draft.family == "dflash"
    assert draft.target_layer_ids == ((0, 1, 2) if "agree" in name else (1, 3, 4))
    assert (draft.mask_token_id, draft.block_size, draft.vocab_size) == (3, 8, 2048)
    assert draft.fc is not None
    assert (draft.hidden_width, draft.fc.in_width, draft.fc.out_width) == (192, 192, 64)
    assert (draft.draft_vocab_size, draft.d2t) == (None, None)
    assert (draft.input_embedding_scale, draft.output_multiplier, draft.final_logit_softcapping) == (1, 1, 0)
    formats = {"qwen3_dflash_draft-int8": "u8", "qwen3_dflash_draft-int4": "i4", "qwen3_dflash_draft_sliding": "f16"}
    assert draft.fc.weight.format == formats.get(name, "f32")


def test_eagle3_draft_of_the_zoo(zoo: Callable[[str], Path]) -> None:
    draft = drafts.read_draft(Package(zoo("qwen3_12l_eagle3_draft")))
    assert (draft.family, draft.target_layer_ids, draft.mask_token_id) == ("eagle3", None, None)
    assert draft.hidden_width == 192  # the port is dynamic: told by the FC
    assert draft.draft_vocab_size == 512
    assert draft.d2t is not None
    np.testing.assert_array_equal(draft.d2t, 3 * np.arange(512))


def test_trained_draft(shared: Path) -> None:
    draft = drafts.read_draft(Package(shared / "models" / "smollm2-135m-dflash-ir"))
    assert draft.target_layer_ids == (1, 8, 14, 21, 27)
    assert draft.fc is not None
    assert (draft.fc.in_width, draft.fc.out_width, draft.fc.weight.format) == (2880, 576, "bf16")


@pytest.mark.parametrize("text", ["1,3,4", "1, 3, 4", "1 3 4", "[1, 3, 4]", "1,3,4,"])
def test_layer_ids_in_every_spelling(tmp_path: Path, text: str) -> None:
    model = models.tiny_dflash_draft()
    model.set_rt_info(text, ["dflash", "target_layer_ids"])
    assert drafts.read_draft(draft_package(tmp_path, model)).target_layer_ids == (1, 3, 4)


def test_layer_ids_as_openvino_writes_a_list(tmp_path: Path) -> None:
    model = models.tiny_eagle3_draft()
    model.set_rt_info([2, 6, 9], ["hidden_layers_list"])
    assert drafts.read_draft(draft_package(tmp_path, model)).target_layer_ids == (2, 6, 9)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["dflash", "target_layer_ids"], "one,3", ["dflash/target_layer_ids", "layer ids such as 1,3,4", "'one,3'"]),
        (["dflash", "target_layer_ids"], "[]", ["dflash/target_layer_ids", "'[]'"]),
        (["dflash", "mask_token_id"], "-1", ["dflash/mask_token_id", "whole number", "'-1'"]),
        (["dflash", "block_size"], "8.5", ["dflash/block_size", "whole number", "'8.5'"]),
        (["dflash", "output_multiplier"], "nan", ["dflash/output_multiplier", "finite", "'nan'"]),
        (["dflash", "final_logit_softcapping"], "-30", ["dflash/final_logit_softcapping", "0 or more", "'-30'"]),
        (["dflash_mode"], "perhaps", ["dflash_mode", "True or False", "perhaps"]),
        (["eagle3_mode"], "True", ["two draft families", "dflash and eagle3"]),
        (["ovgraft", "moved_fc"], "{", ["ovgraft/moved_fc", "JSON object"]),
    ],
)
def test_wrong_metadata_is_named(tmp_path: Path, path: list[str], value: str, words: list[str]) -> None:
    model = models.tiny_dflash_draft()
    model.set_rt_info(value, path)
    with pytest.raises(PreconditionError) as raised:
        drafts.read_draft(draft_package(tmp_path, model))
    for word in [*words, "draft"]:
        assert word in str(raised.value)


@pytest.mark.parametrize("name", ["mask_token_id", "target_layer_ids"])
def test_missing_metadata_is_named(tmp_path: Path, name: str) -> None:
    model = models.tiny_dflash_draft()
    rest = {key: model.get_rt_info(["dflash", key]).value for key in ("mask_token_id", "target_layer_ids")}
    del model.get_rt_info()["dflash"], rest[name]
    for key, value in rest.items():
        model.set_rt_info(value, ["dflash", key])
    # ids are never taken from config.json: speculators checkpoints count inputs of layers there
    package = draft_package(tmp_path, model, target_layer_ids=[0, 1, 2])
    with pytest.raises(PreconditionError, match=f"dflash/{name} is missing"):
        drafts.read_draft(package)


def test_factors_and_block_size_fall_back_to_config(tmp_path: Path) -> None:
    model = models.tiny_dflash_draft()
    model.set_rt_info("0.25", ["dflash", "output_multiplier"])
    nested = {"block_size": 7, "input_embedding_scale": 8.0, "output_multiplier": 3.0}
    draft = drafts.read_draft(
        draft_package(tmp_path, model, dflash_config=nested, final_logit_softcapping=30, vocab_size=64)
    )
    assert (draft.block_size, draft.input_embedding_scale, draft.output_multiplier) == (7, 8, 0.25)
    assert (draft.final_logit_softcapping, draft.vocab_size) == (30, 64)


def test_config_that_contradicts_itself(tmp_path: Path) -> None:
    package = draft_package(tmp_path, block_size=8, dflash_config={"block_size": 7})
    with pytest.raises(PreconditionError, match=r"block_size is 8, dflash_config\.block_size is 7"):
        drafts.read_draft(package)


@pytest.mark.parametrize(
    ("build", "family"), [(models.tiny_dflash_draft, "dflash"), (models.tiny_eagle3_draft, "eagle3")]
)
def test_family_without_its_flag(tmp_path: Path, build: Callable[[], ov.Model], family: str) -> None:
    model = build()
    del model.get_rt_info()[f"{family}_mode"]
    assert drafts.read_draft(draft_package(tmp_path, model)).family == family


def test_a_decoder_is_no_draft(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match="no input hidden_states: found inputs attention_mask, beam_idx"):
        drafts.read_draft(draft_package(tmp_path, models.tiny_decoder()))


def test_ports_of_neither_family(tmp_path: Path) -> None:
    states = ops.parameter([-1, -1, 8], ov.Type.f32, "hidden_states")
    states.output(0).set_names({"hidden_states"})
    result = ops.result(ops.relu(states))
    result.output(0).set_names({"something"})
    with pytest.raises(PreconditionError, match=r"cannot tell the draft's family.*outputs something"):
        drafts.read_draft(draft_package(tmp_path, ov.Model([result], [states])))


@pytest.mark.parametrize(
    ("shift", "count", "words"), [(-1, 16, "below 0.*-1"), (0, 15, r"expected \[16\], found \(15,\)")]
)
def test_wrong_d2t(tmp_path: Path, shift: int, count: int, words: str) -> None:
    model = models.tiny_eagle3_draft(draft_vocab=16)
    old = next(result for result in model.get_results() if "d2t" in result.output(0).names)
    table = ops.constant(np.full(count, shift, np.int64))
    old.input(0).replace_source_output(table.output(0))
    old.output(0).set_names({"d2t"})
    with pytest.raises(PreconditionError, match=words):
        drafts.read_draft(draft_package(tmp_path, model))
