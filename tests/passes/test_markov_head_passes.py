"""select-markov-computation and set-markov-top-k on packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openvino as ov
import pytest

from ovgraft.drafts import markov
from ovgraft.drafts.contract import FileName
from ovgraft.drafts.spec import HeadType
from ovgraft.errors import PreconditionError
from ovgraft.graft import Graft
from ovgraft.passes.select_markov_computation import SelectMarkovComputation
from ovgraft.passes.set_markov_top_k import SetMarkovTopK
from ovgraft.pipeline import Pipeline
from tests import models, pairs
from tests.drafts.markov.heads import names, random_head


def pair(folder: Path, head: HeadType = HeadType.GATED, **options: Any) -> Graft:
    model = markov.build_head(random_head(head, **options))
    draft = models.write_package(
        models.tiny_dflash_draft(1), folder / "draft", config={}, others={FileName.MARKOV_HEAD: model}
    )
    return pairs.open_pair(models.write_package(models.tiny_decoder(1), folder / "target"), draft)


def head_of(graft: Graft) -> ov.Model:
    head = (graft.draft or graft.target).get(FileName.MARKOV_HEAD)
    assert head is not None
    return head


@pytest.mark.parametrize("keep", ["dense", "scorer"])
def test_select(keep: Any, tmp_path: Path) -> None:
    graft = pair(tmp_path)
    (context,) = pairs.run_passes(graft, SelectMarkovComputation(keep=keep))
    assert list(markov.present_computations(head_of(graft))) == [keep]
    assert [edit.model for edit in context.edits] == ["draft"]
    assert f"{keep} stays" in context.edits[0].text
    graft.save(tmp_path / "out")
    again = pairs.open_pair(tmp_path / "out" / "target", tmp_path / "out" / "draft")
    assert names(head_of(again).inputs) == names(head_of(graft).inputs)
    (context,) = pairs.run_passes(again, SelectMarkovComputation(keep=keep))
    assert context.remarks == [f"unchanged: {keep} is the only computation"]


def test_set_top_k(tmp_path: Path) -> None:
    graft = pair(tmp_path)
    (context,) = pairs.run_passes(graft, SetMarkovTopK(k=5))
    assert [edit.text for edit in context.edits] == ["top-k of the Markov head: 64 -> 5"]
    assert str(head_of(graft).output("edge_scores").partial_shape) == "[?,5,5]"
    (context,) = pairs.run_passes(graft, SetMarkovTopK(k=5))
    assert context.remarks == ["unchanged: top-k is 5"]


def test_through_the_pipeline_on_the_head_alone(tmp_path: Path) -> None:
    """`ovgraft apply openvino_markov_head_model.xml -p ...`: the one model given is the head."""
    graft = pair(tmp_path)
    for name in (f"{FileName.MARKOV_HEAD}.xml", "other.xml"):
        file = tmp_path / "draft" / name
        if name == "other.xml":
            ov.save_model(markov.build_head(random_head(HeadType.GATED)), file, compress_to_fp16=False)
        alone = Graft(type(graft.target)(file))
        Pipeline("set-markov-top-k{k=7},select-markov-computation{keep=scorer}").run(alone)
        assert str(alone.target.model.output("candidate_ids").partial_shape) == "[?,7]"


def test_a_draft_package_alone(tmp_path: Path) -> None:
    pair(tmp_path)
    graft = pairs.open_pair(tmp_path / "draft")
    (context,) = pairs.run_passes(graft, SetMarkovTopK(k=3))
    assert [edit.model for edit in context.edits] == ["target"]


@pytest.mark.parametrize(
    ("head", "options", "item", "message"),
    [
        (HeadType.RNN, {}, SetMarkovTopK(k=3), "has no scorer"),
        (HeadType.RNN, {}, SelectMarkovComputation(keep="scorer"), "no scorer computation"),
        (HeadType.DFLASH2, {}, SelectMarkovComputation(keep="dense"), "no dense computation"),
        (HeadType.VANILLA, {}, SelectMarkovComputation(keep="confidence"), "no confidence computation"),
        (HeadType.VANILLA, {}, SetMarkovTopK(k=0), "top-k out of range"),
        (HeadType.VANILLA, {"draft_vocab": 40}, SetMarkovTopK(k=41), "expected 1 to 40, the draft vocabulary"),
    ],
)
def test_refusals(head: HeadType, options: dict[str, Any], item: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match=message):
        pairs.run_passes(pair(tmp_path, head, **options), item)


def test_no_head(tmp_path: Path) -> None:
    target = models.write_package(models.tiny_decoder(1), tmp_path / "target")
    with pytest.raises(PreconditionError, match=r"no openvino_markov_head_model\.xml"):
        pairs.run_passes(pairs.open_pair(target), SetMarkovTopK(k=3))
