"""pack-markov-head: from a checkpoint folder to a package that a runtime can draft with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from blake3 import blake3

import ovgraft
from ovgraft import ir
from ovgraft.drafts import markov
from ovgraft.drafts.checkpoint import read_checkpoint
from ovgraft.drafts.contract import FileName, Key
from ovgraft.errors import CheckpointError, ModelFileError, OvgraftError, PreconditionError
from ovgraft.graft import Graft
from ovgraft.passes.pack_markov_head import PackMarkovHead
from tests import models, pairs
from tests.drafts import checkpoints

HEADS = {
    "deepspec_vanilla": ("vanilla", ["dense", "scorer"]),
    "deepspec_gated": ("gated", ["dense", "scorer"]),
    "deepspec_rnn": ("rnn", ["dense"]),
    "minicpm_pruned": ("vanilla", ["dense", "scorer"]),
    "modelopt": ("gated", ["dense", "scorer"]),
    "speculators_dspark": ("vanilla", ["dense", "scorer"]),
    "zlab_dflash2": ("dflash2", ["scorer"]),
}


def checkpoint(folder: Path, name: str = "deepspec_vanilla", **config: Any) -> Path:
    content, tensors = getattr(checkpoints, name)()
    return checkpoints.write_checkpoint(folder / name, content | config, tensors)


def graft(folder: Path, *, vocab: int = checkpoints.VOCAB, mask: int = checkpoints.MASK, **draft: Any) -> Graft:
    """A target and a backbone of the checkpoints' sizes."""
    target = models.tiny_decoder(layers=checkpoints.TARGET_LAYERS, vocab=vocab)
    backbone = models.tiny_dflash_draft(
        1,
        n=len(checkpoints.LAYER_IDS),
        hidden=draft.pop("hidden", checkpoints.HIDDEN),
        target_layer_ids=draft.pop("layers", checkpoints.LAYER_IDS),
        mask_token_id=mask,
    )
    for key, value in draft.items():
        ir.set_text(backbone, getattr(Key, key), value)
    return pairs.open_pair(
        models.write_package(target, folder / "target"), models.write_package(backbone, folder / "draft", config={})
    )


def head_of(graft: Graft) -> ov.Model:
    head = graft.package("draft").get(FileName.MARKOV_HEAD)
    assert head is not None
    return head


@pytest.mark.parametrize("name", HEADS)
def test_packs_and_announces(name: str, tmp_path: Path) -> None:
    kind, computations = HEADS[name]
    pair = graft(tmp_path)
    (context,) = pairs.run_passes(pair, PackMarkovHead(checkpoint=str(checkpoint(tmp_path, name))))
    head, backbone = head_of(pair), pair.package("draft").model
    assert list(markov.present_computations(head)) == computations
    assert ir.get_text(backbone, Key.MARKOV_HEAD_TYPE) == kind
    assert ir.get_text(backbone, Key.MARKOV_RANK) == str(checkpoints.RANK)
    assert markov.package_reasons(pair.package("draft"), checkpoints.VOCAB) == ()
    assert [edit.kind for edit in context.edits] == ["add", "metadata"]
    assert f"{kind} head of rank {checkpoints.RANK}" in context.edits[0].text


def test_saved_package_runs(tmp_path: Path) -> None:
    source = checkpoint(tmp_path, "speculators_dspark")
    pair = graft(tmp_path)
    pairs.run_passes(pair, PackMarkovHead(checkpoint=str(source), top_k=5))
    pair.save(tmp_path / "out")
    head = ir.read_model(tmp_path / "out" / "draft" / "openvino_markov_head_model.xml")
    weights = markov.read_head_weights(read_checkpoint(source))
    runner = markov.HeadRunner(head)
    assert runner.facts.top_k == 5
    assert runner.facts.draft_vocab_size == checkpoints.DRAFT_VOCAB
    bias, _ = runner.dense([1, 2])
    np.testing.assert_allclose(bias, weights.reference().step(np.array([1, 2]))[0], atol=1e-5)


def test_the_record_has_no_machine_path(tmp_path: Path) -> None:
    pair = graft(tmp_path)
    source = checkpoint(tmp_path)
    pairs.run_passes(pair, PackMarkovHead(checkpoint=str(source)))
    record = json.loads(ir.get_text(head_of(pair), Key.MARKOV_HEAD_SOURCE) or "")
    digest = blake3((source / "config.json").read_bytes()).hexdigest()
    assert record == {"checkpoint": "deepspec_vanilla", "config_blake3": digest}
    for model in (head_of(pair), pair.package("draft").model):
        assert all(str(tmp_path) not in text for text in ir.flatten(model).values())


def test_a_draft_that_is_a_checkpoint_is_its_own_source(tmp_path: Path) -> None:
    target = models.write_package(
        models.tiny_decoder(layers=checkpoints.TARGET_LAYERS, vocab=checkpoints.VOCAB), tmp_path / "target"
    )
    pair = pairs.open_pair(target, checkpoint(tmp_path))
    (context,) = pairs.run_passes(pair, PackMarkovHead())
    assert markov.head_reasons(head_of(pair)) == ()
    assert json.loads(ir.get_text(head_of(pair), Key.MARKOV_HEAD_SOURCE) or "")["checkpoint"] == "."
    assert any("no backbone" in remark for remark in context.remarks)
    # a backbone that joins later in the same run is announced on
    backbone = models.tiny_dflash_draft(1, n=2, hidden=checkpoints.HIDDEN, target_layer_ids=checkpoints.LAYER_IDS)
    pair.package("draft").model = backbone
    (context,) = pairs.run_passes(pair, PackMarkovHead())
    assert markov.read_advertised(backbone)[1] == checkpoints.RANK
    assert [edit.kind for edit in context.edits] == ["metadata"]


def test_packing_twice_changes_nothing(tmp_path: Path) -> None:
    source = checkpoint(tmp_path)
    pair = graft(tmp_path)
    pairs.run_passes(pair, PackMarkovHead(checkpoint=str(source)))
    pair.save(tmp_path / "out")
    again = pairs.open_pair(tmp_path / "out" / "target", tmp_path / "out" / "draft")
    (context,) = pairs.run_passes(again, PackMarkovHead(checkpoint=str(source)))
    assert not pairs.changed(context)
    assert context.remarks == ["unchanged: this head is packed already"]
    with pytest.raises(PreconditionError, match="has another Markov head already"):
        pairs.run_passes(again, PackMarkovHead(checkpoint=str(source), top_k=3))


@pytest.mark.parametrize(("precision", "kind"), [("checkpoint", "bf16"), ("f16", "f16"), ("f32", "f32")])
def test_precision(precision: Any, kind: str, tmp_path: Path) -> None:
    pair = graft(tmp_path)
    pairs.run_passes(pair, PackMarkovHead(checkpoint=str(checkpoint(tmp_path)), precision=precision))
    tables = [
        node for node in head_of(pair).get_ordered_ops() if node.get_friendly_name() in ("markov_w1", "markov_w2")
    ]
    assert [table.get_element_type().get_type_name() for table in tables] == [kind, kind]


def test_confidence_on_request(tmp_path: Path) -> None:
    pair = graft(tmp_path)
    pairs.run_passes(pair, PackMarkovHead(checkpoint=str(checkpoint(tmp_path)), confidence=True))
    assert list(markov.present_computations(head_of(pair))) == ["dense", "scorer", "confidence"]
    pair = graft(tmp_path / "other")
    with pytest.raises(PreconditionError, match="no confidence head"):
        pairs.run_passes(pair, PackMarkovHead(checkpoint=str(checkpoint(tmp_path, "zlab_dflash2")), confidence=True))


def test_k_defaults(tmp_path: Path) -> None:
    for name, wanted in (("deepspec_vanilla", 64), ("minicpm_pruned", checkpoints.DRAFT_VOCAB)):
        pair = graft(tmp_path / name)
        pairs.run_passes(pair, PackMarkovHead(checkpoint=str(checkpoint(tmp_path, name))))
        assert markov.read_facts(head_of(pair)).top_k == wanted


@pytest.mark.parametrize(
    ("name", "top_k", "message"),
    [
        ("deepspec_vanilla", 0, "top-k out of range: expected 1 to 64, found 0"),
        ("deepspec_vanilla", 65, "top-k out of range: expected 1 to 64, found 65"),
        ("minicpm_pruned", 25, "expected 1 to 24, the draft vocabulary, found 25"),
        ("zlab_dflash2", 0, "top-k out of range"),
        ("deepspec_rnn", 4, "rnn heads have no scorer"),
    ],
)
def test_k_out_of_range(name: str, top_k: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match=message):
        pairs.run_passes(graft(tmp_path), PackMarkovHead(checkpoint=str(checkpoint(tmp_path, name)), top_k=top_k))


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        ({"vocab": 96}, "over 64 tokens, the target over 96"),
        ({"mask": 5}, "dflash/mask_token_id is 5 on the draft and 3 in the checkpoint"),
        ({"layers": (1, 3)}, "dflash/target_layer_ids is 1,3 on the draft and 1,4 in the checkpoint"),
        ({"hidden": 32}, "the head reads 16 hidden columns, the backbone gives 32"),
        ({"CANDIDATE_POSITION_OFFSET": "1"}, "candidate_position_offset is 1 on the draft and 0 in the checkpoint"),
        ({"MARKOV_HEAD_TYPE": "vanilla", "MARKOV_RANK": "4"}, "advertises a vanilla head, the head is gated"),
        ({"MARKOV_HEAD_TYPE": "gated", "MARKOV_RANK": "16"}, "advertises rank 16, the head has rank 4"),
    ],
)
def test_a_checkpoint_of_another_draft(draft: dict[str, Any], message: str, tmp_path: Path) -> None:
    pair = graft(tmp_path, **draft)
    before = ir.fingerprint(pair.package("draft").model)
    with pytest.raises(PreconditionError, match="the checkpoint does not belong here") as caught:
        pairs.run_passes(pair, PackMarkovHead(checkpoint=str(checkpoint(tmp_path, "deepspec_gated"))))
    assert message in str(caught.value)
    assert caught.value.reasons
    assert pair.package("draft").get(FileName.MARKOV_HEAD) is None
    assert ir.fingerprint(pair.package("draft").model) == before


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, PreconditionError, "no checkpoint to take the head from"),
        ({"checkpoint": "nowhere"}, ModelFileError, "no such checkpoint"),
        ({"checkpoint": "headless"}, CheckpointError, "the draft has no Markov head"),
    ],
)
def test_nothing_to_pack(
    options: dict[str, str], error: type[OvgraftError], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoints.write_checkpoint(tmp_path / "headless", *checkpoints.deepspec_headless())
    with pytest.raises(error, match=message):
        pairs.run_passes(graft(tmp_path), PackMarkovHead(**options))  # type: ignore[arg-type]


def test_the_zoo_pair(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    """Real exports: the head of a published checkpoint beside an exported backbone."""
    folder = zoo("checkpoints/zlab_dflash2")
    pair = pairs.open_pair(zoo("qwen3"), zoo("qwen3_dflash_draft"))
    ovgraft.Pipeline(f"pack-markov-head{{checkpoint={folder}}},set-markov-top-k{{k=8}}").run(pair)
    assert markov.read_facts(head_of(pair)).top_k == 8
    pair.save(tmp_path / "out")
    for file in (tmp_path / "out").rglob("*.xml"):
        assert str(folder.parent).encode() not in file.read_bytes()
    saved = pairs.open_pair(tmp_path / "out" / "target", tmp_path / "out" / "draft")
    assert markov.package_reasons(saved.package("draft"), 2048) == ()
