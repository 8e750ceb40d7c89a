"""set-rt-info: one entry, metadata only, nothing else touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from ovgraft import ir
from ovgraft.drafts.contract import Key
from ovgraft.errors import PostconditionError, PreconditionError, SpecError
from ovgraft.graft import Graft, load
from ovgraft.passes import SetRtInfo
from ovgraft.pipeline import Pipeline
from tests.models import tiny_decoder, write_package


@pytest.fixture
def graft(tmp_path: Path) -> Graft:
    folders = [write_package(tiny_decoder(layers=1), tmp_path / role) for role in ("target", "draft")]
    graft = load(target=folders[0], draft=folders[1])
    ir.set_text(graft.target.model, ("dflash", "mask_token_id"), "7")
    ir.set_text(graft.target.model, ("dflash", "block_size"), "8")
    return graft


def test_writes(graft: Graft, tmp_path: Path) -> None:
    before = graft.target.model.clone()
    value = '{"a": [1, "b c"]}'
    report = Pipeline([SetRtInfo(key="my/own", value=value)]).run(graft, strict=True)
    assert report.metadata_only
    assert [edit.text for edit in report.records[0].edits] == [f"rt_info my/own = {value!r}"]
    assert ir.same_structure(before, graft.target.model) is None
    graft.save(tmp_path / "saved")
    saved = load(tmp_path / "saved" / "target").target.model
    assert ir.get_text(saved, ("my", "own")) == value
    assert ir.get_text(saved, Key.PIPELINE) == str(Pipeline([SetRtInfo(key="my/own", value=value)]))


def test_replaces_and_says_what_was_there(graft: Graft) -> None:
    [record] = Pipeline("set-rt-info{key=dflash/mask_token_id value=9}").run(graft, strict=True).records
    assert record.edits[0].text == "rt_info dflash/mask_token_id = '9', was '7'"
    assert ir.get_text(graft.target.model, Key.MASK_TOKEN_ID) == "9"
    assert ir.get_text(graft.target.model, Key.BLOCK_SIZE) == "8"


@pytest.mark.parametrize("options", ["key=dflash/mask_token_id value=7", "key=dflash/nothing delete=true"])
def test_what_is_so_already_is_no_change(graft: Graft, options: str) -> None:
    [record] = Pipeline(f"set-rt-info{{{options}}}").run(graft, strict=True).records
    assert record.status == "unchanged"
    assert record.remarks[0].startswith("unchanged: ")


def test_deletes_an_entry_or_a_branch(graft: Graft) -> None:
    Pipeline("set-rt-info{key=dflash/mask_token_id delete=true}").run(graft, strict=True)
    assert ir.get_text(graft.target.model, Key.MASK_TOKEN_ID) is None
    assert ir.get_text(graft.target.model, Key.BLOCK_SIZE) == "8"
    Pipeline("set-rt-info{key=dflash delete=true}").run(graft, strict=True)
    assert ir.get_text(graft.target.model, Key.BLOCK_SIZE) is None


def test_chooses_models(graft: Graft) -> None:
    assert graft.draft is not None
    Pipeline("set-rt-info{key=a value=1 model=both},set-rt-info{key=b value=2 model=draft}").run(graft)
    assert [ir.get_text(package.model, ("a",)) for package in (graft.target, graft.draft)] == ["1", "1"]
    assert [ir.get_text(package.model, ("b",)) for package in (graft.target, graft.draft)] == [None, "2"]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("dflash", "rt_info 'dflash' of the target has entries below it: dflash/"),
        ("dflash/block_size/more", "rt_info 'dflash/block_size' of the target is text"),
    ],
)
def test_branches_and_text_do_not_mix(graft: Graft, key: str, message: str) -> None:
    before = ir.flatten(graft.target.model)
    with pytest.raises(PreconditionError, match=message):
        Pipeline([SetRtInfo(key=key, value="1")]).run(graft)
    assert ir.flatten(graft.target.model) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "pass 'set-rt-info' needs the option 'key'"),
        ("{key=a}", "give either value=TEXT or delete=true"),
        ("{key=a value=1 delete=true}", "give either value=TEXT or delete=true"),
        ("{key=a//b value=1}", "key 'a//b' has an empty name"),
        ('{key="" value=1}', "key '' has an empty name"),
        ("{key=ovgraft/bin_size value=1}", "entries under 'ovgraft' are kept by ovgraft itself"),
        ("{key=ovgraft delete=true}", "entries under 'ovgraft' are kept by ovgraft itself"),
    ],
)
def test_bad_options(options: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Pipeline(f"set-rt-info{options}")


def test_promise_can_fail(graft: Graft) -> None:
    with pytest.raises(PostconditionError, match="rt_info 'a' of the target is not as asked"):
        SetRtInfo(key="a", value="1").ensures(graft)
    with pytest.raises(PostconditionError, match="rt_info 'dflash' of the target is not as asked"):
        SetRtInfo(key="dflash", delete=True).ensures(graft)
