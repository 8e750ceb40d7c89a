"""What a host reads in a draft's config.json is true after a pass: no factor is applied twice, no width is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

import ovgraft
from ovgraft import ir
from ovgraft.drafts.contract import Key
from ovgraft.errors import ModelFileError, OvgraftError
from ovgraft.graft import Graft
from ovgraft.passes import AttachEmbedding, BuildDraft
from ovgraft.pipeline import Pipeline
from tests import models, pairs
from tests.drafts import checkpoints
from tests.drafts.building import running

ATTACH = "attach-embedding,attach-lm-head"
CONFIG: dict[str, Any] = {
    "vocab_size": 60,  # the target's tables are padded to 64
    "architectures": ["DFlashDraftModel"],
    "input_embedding_scale": 3.0,
    "tie_word_embeddings": True,
    "dflash_config": {"output_multiplier": 0.5, "final_logit_softcapping": 30.0, "block_size": 8},
    "hidden_size": 32,
}
TRUE: dict[str, Any] = {
    "vocab_size": 64,
    "architectures": ["DFlashDraftModel"],
    "input_embedding_scale": 1.0,
    "tie_word_embeddings": False,
    "dflash_config": {"output_multiplier": 1.0, "final_logit_softcapping": None, "block_size": 8},
    "hidden_size": 32,
}


def graft_of(root: Path, config: dict[str, Any] | None, **decoder: Any) -> Graft:
    models.write_package(models.tiny_decoder(**decoder), root / "target", config={"vocab_size": 60})
    models.write_package(models.tiny_dflash_draft(), root / "draft", config=config)
    return ovgraft.load(target=root / "target", draft=root / "draft")


def config_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text()))


def edits(graft: Graft, text: str) -> list[str]:
    records = Pipeline(text).run(graft, strict=True).records
    return [edit.text for record in records for edit in record.edits]


@pytest.mark.parametrize("in_place", [False, True])
def test_factors_that_are_in_the_graph_are_left_to_no_host(tmp_path: Path, in_place: bool) -> None:
    graft = graft_of(tmp_path, CONFIG)
    told = [text for text in edits(graft, ATTACH) if text.startswith("config.json: ")]
    assert told == [
        "config.json: input_embedding_scale 3.0 is 1.0 now",
        "config.json: tie_word_embeddings True is False now, vocab_size 60 is 64 now, "
        "dflash_config.output_multiplier 0.5 is 1.0 now, dflash_config.final_logit_softcapping 30.0 is null now",
    ]
    assert config_of(tmp_path / "draft") == CONFIG
    saved = graft.save(None if in_place else tmp_path / "out", in_place=in_place)
    out = tmp_path if in_place else tmp_path / "out"
    assert config_of(out / "draft") == TRUE
    assert list(config_of(out / "draft")) == list(CONFIG)
    assert config_of(out / "target") == {"vocab_size": 60}
    assert any(name.endswith("config.json") for name in saved.files)
    again = ovgraft.load(target=out / "target", draft=out / "draft")
    assert edits(again, ATTACH) == []
    if in_place:
        assert edits(graft, ATTACH) == []
        assert graft.save(in_place=True).files == ()


def test_one_table_for_both_is_tied(tmp_path: Path) -> None:
    graft = graft_of(tmp_path, {"tie_word_embeddings": False}, tied=True)
    assert "config.json: tie_word_embeddings False is True now" in edits(graft, ATTACH)


def test_a_graft_of_before_is_put_right(tmp_path: Path) -> None:
    graft = graft_of(tmp_path, CONFIG)
    Pipeline(ATTACH).run(graft)
    graft.save(tmp_path / "out")
    (tmp_path / "out" / "draft" / "config.json").write_text(json.dumps(CONFIG))
    again = ovgraft.load(target=tmp_path / "out" / "target", draft=tmp_path / "out" / "draft")
    assert len(edits(again, ATTACH)) == 2
    again.save(in_place=True)
    assert config_of(tmp_path / "out" / "draft") == TRUE


@pytest.mark.parametrize(
    "config",
    [None, {"model_type": "qwen3"}, {"vocab_size": 64, "final_logit_softcapping": 0, "output_multiplier": None}],
)
def test_what_is_true_keeps_its_bytes(tmp_path: Path, config: dict[str, Any] | None) -> None:
    graft = graft_of(tmp_path, config)
    assert not [text for text in edits(graft, ATTACH) if "config.json" in text]
    graft.save(tmp_path / "out")
    files = [root / "draft" / "config.json" for root in (tmp_path, tmp_path / "out")]
    assert files[0].exists() == files[1].exists()
    if files[0].exists():
        assert files[0].read_bytes() == files[1].read_bytes()


def test_a_pass_that_fails_takes_it_back(tmp_path: Path) -> None:
    graft = graft_of(tmp_path, CONFIG)
    Pipeline("attach-embedding").run(graft)
    with pytest.raises(OvgraftError, match="no layer 99"):
        Pipeline("attach-lm-head,expose-hidden-states{layers=99}").run(graft)
    assert graft.package("draft").config == TRUE
    snapshot = graft.snapshot()
    graft.package("draft").config_file.change({"other": 1})
    graft.restore(snapshot)
    assert graft.package("draft").config == TRUE
    Pipeline(ATTACH).run(fresh := ovgraft.load(target=tmp_path / "target", draft=tmp_path / "draft"), dry_run=True)
    assert fresh.package("draft").config == CONFIG


def test_a_config_that_somebody_else_changed_is_not_replaced(tmp_path: Path) -> None:
    graft = graft_of(tmp_path, CONFIG)
    Pipeline(ATTACH).run(graft)
    os.utime(tmp_path / "draft" / "config.json", ns=(0, 0))
    for out in (None, tmp_path / "out"):
        with pytest.raises(ModelFileError, match=r"config\.json changed on disk"):
            graft.save(out, in_place=out is None)
    assert config_of(tmp_path / "draft") == CONFIG
    assert not (tmp_path / "out").exists()


def test_the_config_beside_a_single_xml_is_not_its_own(tmp_path: Path) -> None:
    graft_of(tmp_path, CONFIG)
    graft = ovgraft.load(target=tmp_path / "target", draft=tmp_path / "draft" / "openvino_model.xml")
    assert not [text for text in edits(graft, ATTACH) if "config.json" in text]


def test_a_built_draft_with_tables_of_its_own(tmp_path: Path) -> None:
    def scaled(config: checkpoints.Config, tensors: checkpoints.Tensors) -> None:
        config["final_logit_softcapping"] = 30.0

    folder = running.tiny(tmp_path, "deepspec_gemma4", scaled).path
    graft = pairs.open_pair(folder)
    pairs.run_passes(graft, BuildDraft(keep_copies=True))
    graft.save(tmp_path / "out")
    said = config_of(tmp_path / "out")
    assert config_of(folder)["final_logit_softcapping"] == 30.0
    assert said["final_logit_softcapping"] is None
    assert said.get("input_embedding_scale") in (None, 1.0)


def test_a_head_still_knows_the_config_beside_it(tmp_path: Path) -> None:
    """Its record has the digest of the file; doctor would take it for another draft's."""

    def scaled(config: checkpoints.Config, tensors: checkpoints.Tensors) -> None:
        config["input_embedding_scale"] = 3.0

    def is_its_own(folder: Path) -> bool:
        head = ir.read_model(folder / "openvino_markov_head_model.xml")
        record = json.loads(ir.get_text(head, Key.MARKOV_HEAD_SOURCE) or "")
        assert record["checkpoint"] == "."
        return bool(record["config_blake3"] == blake3((folder / "config.json").read_bytes()).hexdigest())

    folder = running.tiny(tmp_path, "speculators_dspark", scaled).path
    for run, passes in enumerate(("pack-markov-head,build-draft", "build-draft,pack-markov-head")):
        graft = pairs.open_pair(folder)
        assert [text for text in edits(graft, passes) if "input_embedding_scale 3.0 is 1.0 now" in text]
        graft.save(tmp_path / f"out{run}")
        assert is_its_own(tmp_path / f"out{run}")
        assert config_of(tmp_path / f"out{run}")["input_embedding_scale"] == 1.0


def test_an_argmax_in_place_of_logits_leaves_nothing_to_scale(tmp_path: Path) -> None:
    config = {"output_multiplier": 0.5, "dflash_config": {"block_size": 8}}
    draft = models.write_package(models.tiny_eagle3_draft(), tmp_path / "draft", config=config)
    graft = pairs.open_pair(draft)
    told = edits(graft, "fold-draft-argmax")
    assert not [text for text in told if "config.json" in text]
    graft = pairs.open_pair(draft)
    assert "config.json: output_multiplier 0.5 is 1.0 now" in edits(graft, "fold-draft-argmax{keep-logits=false}")


def test_only_the_embedding(tmp_path: Path) -> None:
    graft = graft_of(tmp_path, CONFIG)
    pairs.run_passes(graft, AttachEmbedding())
    assert graft.package("draft").config == {**CONFIG, "input_embedding_scale": 1.0}
