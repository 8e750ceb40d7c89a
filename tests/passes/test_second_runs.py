"""Every pass run again on its own output with other options: it acts or refuses, and never says falsely "unchanged"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from ovgraft import drafts, ir, passes
from ovgraft.drafts import markov
from ovgraft.drafts.contract import FileName, Key
from ovgraft.drafts.spec import HeadType
from ovgraft.errors import OvgraftError
from ovgraft.graft import Graft
from ovgraft.passbase import Pass
from ovgraft.passes import AttachLmHead, ExposeDraftHidden
from ovgraft.pipeline import Pipeline
from tests import models, pairs
from tests.drafts.building import running
from tests.drafts.markov.heads import random_head

Make = Callable[[Path], Graft]
ACTS = None


def pair(folder: Path) -> Graft:
    target = models.write_package(models.tiny_decoder(layers=4), folder / "target")
    return pairs.open_pair(target, models.write_package(models.tiny_dflash_draft(), folder / "draft", config={}))


def alone(folder: Path) -> Graft:
    return pairs.open_pair(models.write_package(models.tiny_decoder(layers=4), folder / "target"))


def small(folder: Path) -> Graft:
    return pairs.open_pair(models.write_package(models.tiny_decoder(layers=1), folder / "target"))


def checkpoint(folder: Path) -> Graft:
    return pairs.open_pair(running.tiny(folder, "zlab_dflash").path)


def sliding(folder: Path) -> Graft:
    """Its layers are causal in the block."""
    return pairs.open_pair(running.tiny(folder, "zlab_dflash2").path)


def with_head(folder: Path) -> Graft:
    others: dict[str, ov.Model] = {FileName.MARKOV_HEAD: markov.build_head(random_head(HeadType.GATED))}
    draft = models.write_package(models.tiny_dflash_draft(1), folder / "draft", config={}, others=others)
    return pairs.open_pair(models.write_package(models.tiny_decoder(1), folder / "target"), draft)


def with_dead_inputs(folder: Path) -> Graft:
    x, dead = (ops.parameter([1, 2], np.float32, name=name) for name in ("x", "dead"))
    for node in (x, dead):
        node.output(0).set_names({node.get_friendly_name()})
    model = ov.Model([ir.make_result(ops.relu(x).output(0), "y")], [x, dead])
    return pairs.open_pair(models.write_package(model, folder / "target"))


def eagle3(folder: Path) -> Graft:
    target = models.write_package(models.tiny_decoder(layers=10), folder / "target")
    return pairs.open_pair(target, models.write_package(models.tiny_eagle3_draft(), folder / "draft", config={}))


@dataclass(frozen=True)
class Case:
    """A pass on its own output.

    Attributes:
        make: The graft.
        first: Pipeline text of the first run.
        second: Pipeline text of the second.
        says: Part of the refusal; None when the second run acts.
    """

    make: Make
    first: str
    second: str
    says: str | None


OTHERWISE = "compressed already, otherwise than asked for"
EXPOSED = "exposes hidden states already"
LOGITS = "another choice about logits"
INT4 = "compress-weights{model=target mode=int4 group-size=16}"
PAGED = "in PagedAttention form already, with other options"
PAGED_OPTIONS = (
    *("score-outputs=true", "score-aggregation=false", "cache-rotation=true", "xattention=true"),
    *("adaptive-rkv=true", "qq-bias=true", "per-layer-block-indices=true"),
)

CASES = [
    Case(
        alone,
        "annotate-hidden-states,set-rt-info{key=hidden_states_decoder_layers value=x}",
        "annotate-hidden-states{replace=true}",
        ACTS,
    ),
    Case(pair, "attach-lm-head{keep-hidden=true}", "attach-lm-head{keep-hidden=false}", ACTS),
    Case(pair, "attach-lm-head{keep-hidden=false}", "attach-lm-head{keep-hidden=true}", "without keep-hidden"),
    Case(checkpoint, "build-draft", "build-draft{form=per-row}", "its form is sdpa, not per-row"),
    Case(checkpoint, "build-draft{form=per-row}", "build-draft", "its form is per-row, not sdpa"),
    Case(
        sliding,
        "build-draft{sliding-in-block=causal}",
        "build-draft{sliding-in-block=bidirectional}",
        "its sliding layers are causal, not bidirectional",
    ),
    Case(small, "compress-weights{model=target group-size=16}", INT4, OTHERWISE),
    Case(small, INT4, "compress-weights{model=target mode=int4 group-size=8}", OTHERWISE),
    Case(small, INT4, "compress-weights{model=target mode=int4 group-size=-1}", OTHERWISE),
    Case(small, "compress-weights{model=target mode=int4 group-size=16 all-layers=false}", INT4, OTHERWISE),
    Case(
        small,
        "compress-weights{model=target group-size=16}",
        "compress-weights{model=target group-size=16 lm-head=int4}",
        OTHERWISE,
    ),
    Case(small, "compress-weights{model=target lm-head=keep}", "compress-weights{model=target}", ACTS),
    Case(with_dead_inputs, "drop-dead-inputs{keep=dead}", "drop-dead-inputs", ACTS),
    Case(alone, "expose-hidden-states{layers=1,2}", "expose-hidden-states{layers=1,3}", EXPOSED),
    Case(alone, "expose-hidden-states{layers=1,2}", "expose-hidden-states{layer-convention=input}", EXPOSED),
    Case(alone, "expose-hidden-states{layers=1,2}", "expose-hidden-states{layers=1,2 layer-convention=input}", EXPOSED),
    Case(pair, "attach-lm-head,fold-draft-argmax", "fold-draft-argmax{keep-logits=false}", LOGITS),
    Case(pair, "attach-lm-head,fold-draft-argmax{keep-logits=false}", "fold-draft-argmax", LOGITS),
    Case(with_head, "set-markov-top-k{k=4}", "pack-markov-head{top-k=5}", "its top-k is 4, not 5"),
    Case(with_head, "set-markov-top-k{k=4}", "pack-markov-head{precision=f16}", "stored in bf16, not f16"),
    Case(with_head, "set-markov-top-k{k=4}", "pack-markov-head{confidence=true}", "it has no confidence head"),
    Case(with_head, "set-markov-top-k{k=4}", "set-markov-top-k{k=5}", ACTS),
    Case(with_head, "select-markov-computation{keep=dense}", "select-markov-computation{keep=scorer}", "scorer"),
    *[Case(small, "paged-attention", f"paged-attention{{{option}}}", PAGED) for option in PAGED_OPTIONS],
    Case(small, "paged-attention{score-outputs=true}", "paged-attention", PAGED),
    Case(alone, "rename-tensors{map=logits=a}", "rename-tensors{map=logits=b}", "no tensor 'logits'"),
    Case(alone, "set-rt-info{key=a value=1}", "set-rt-info{key=a value=2}", ACTS),
    Case(alone, "set-rt-info{key=a value=1}", "set-rt-info{key=a delete=true}", ACTS),
]

ELSEWHERE = {"model", "file"}
"""Options that choose another model: what they choose has not been worked on."""

NO_DEMAND = {
    ("build-draft", "keep_copies"): "test_a_draft_alone_cannot_get_back_its_copies",
    ("drop-dead-inputs", "keep"): "test_an_input_that_is_gone_is_not_called_kept",
    ("pack-markov-head", "checkpoint"): "tests/passes/test_pack_markov_head.py: the head is built and compared",
    ("rename-tensors", "friendly_names"): "acts on whatever differs",
}
"""Options that are looked at in another way, and where."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.first}|{case.second}".replace("/", "."))
def test_it_acts_or_refuses(case: Case, tmp_path: Path) -> None:
    if "compress-weights" in case.first:
        pytest.importorskip("nncf", reason="nncf is not installed: pip install 'ovgraft[compress]'")
    graft = case.make(tmp_path)
    Pipeline(case.first).run(graft)
    if case.says is None:
        records = Pipeline(case.second).run(graft, strict=True).records
        assert records[-1].status == "changed"
        again = Pipeline(case.second).run(graft, strict=True).records
        assert again[-1].status == "unchanged"
        return
    before = {(role, name): model.clone() for role, name, model in live(graft)}
    with pytest.raises(OvgraftError, match=case.says) as caught:
        Pipeline(case.second).run(graft)
    assert caught.value.exit_code == 4
    for role, name, model in live(graft):
        assert ir.same_structure(model, before[role, name]) is None


def live(graft: Graft) -> list[tuple[str, str, ov.Model]]:
    return [(role, name, model) for role, package in graft.packages.items() for name, model in package.models.items()]


def test_no_option_is_forgotten() -> None:
    tried: dict[tuple[str, str], set[Any]] = {}
    for case in CASES:
        for text in (case.first, case.second):
            for item in Pipeline(text):
                for field in item.options():
                    tried.setdefault((item.name, field.name), set()).add(repr(getattr(item, field.name)))
    for name in passes.__all__:
        cls: type[Pass] = getattr(passes, name)
        for field in cls.options():
            if field.name in ELSEWHERE or (cls.name, field.name) in NO_DEMAND:
                continue
            assert len(tried.get((cls.name, field.name), ())) > 1, f"{cls.name} {field.name} is not tried"


def test_an_input_that_is_gone_is_not_called_kept(tmp_path: Path) -> None:
    graft = with_dead_inputs(tmp_path)
    Pipeline("drop-dead-inputs").run(graft)
    (record,) = Pipeline("drop-dead-inputs{keep=dead}").run(graft, strict=True).records
    assert record.remarks == ("unchanged: every input is read or kept", "not there to be kept: dead")


def test_a_draft_alone_cannot_get_back_its_copies(tmp_path: Path) -> None:
    graft = checkpoint(tmp_path)
    Pipeline("build-draft").run(graft)
    drafts.write_record(graft.target.model, Key.BUILT, {"copies_left_out": True})
    with pytest.raises(OvgraftError, match="the copies of the target's tables were left out"):
        Pipeline("build-draft{keep-copies=true}").run(graft)


def test_hidden_states_of_a_draft_with_an_output_layer_of_its_own(tmp_path: Path) -> None:
    graft = eagle3(tmp_path)
    with pytest.raises(OvgraftError, match="the draft has none to keep"):
        pairs.run_passes(graft, AttachLmHead(keep_hidden=True))
    pairs.run_passes(graft, ExposeDraftHidden())
    with pytest.raises(OvgraftError, match="an Eagle-3 draft reads its own last_hidden_state"):
        pairs.run_passes(graft, AttachLmHead(keep_hidden=False))
    for item in (AttachLmHead(), AttachLmHead(keep_hidden=True)):
        (context,) = pairs.run_passes(graft, item)
        assert context.remarks[0].startswith("unchanged: the draft has its own output layer")
