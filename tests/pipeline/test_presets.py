"""The ready-made pipelines on whole packages: every pass keeps its promise, and a second run changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ovgraft import ir, load
from ovgraft.drafts.contract import Key
from ovgraft.graft import Graft
from ovgraft.pipeline import Pipeline, parse, preset
from tests.drafts import checkpoints
from tests.models import tiny_decoder, tiny_dflash_draft, tiny_eagle3_draft, write_package

CHECKPOINTS = (
    "deepspec_gated",
    "deepspec_headless",
    "minicpm_pruned",
    "modelopt_flat",
    "speculators_dspark",
    "zlab_dflash2",
)
"""One for each way a checkpoint takes through the presets; the others differ in config keys and inside the head."""
PAGED = ("deepspec_gated", "minicpm_pruned", "speculators_dspark", "zlab_dflash2")
"""Paging never sees a head or a config key."""
PAIRS = [
    ("genai", "qwen3-int8", None),
    ("genai", "gpt2", None),
    ("dflash", "qwen3", "qwen3_dflash_draft"),
    ("dflash", "qwen3-int4_sym_g32", "qwen3_dflash_draft-int4"),
    ("eagle3", "qwen3_12l", "qwen3_12l_eagle3_draft"),
    *(("dspark", "qwen3", f"checkpoints/{draft}") for draft in CHECKPOINTS),
    *(("dspark-paged", "qwen3", f"checkpoints/{draft}") for draft in PAGED),
]


def run_twice(graft: Graft, name: str, out: Path) -> None:
    pipeline = Pipeline(preset(name).text)
    first = pipeline.run(graft, strict=True)
    changing = [record.spec for record in first.records if record.status == "changed"]
    second = pipeline.run(graft)
    assert {record.status for record in second.records} == {"unchanged"}
    assert all(record.remarks for record in second.records)

    if not changing:
        return
    graft.save(out)
    saved = load(target=out / "target", draft=out / "draft") if graft.draft else load(out)
    third = pipeline.run(saved)
    assert {record.status for record in third.records} == {"unchanged"}
    recorded: set[str] = set()
    for package in (saved.target, saved.draft):
        text = None if package is None else ir.get_text(package.model, Key.PIPELINE)
        recorded |= {str(Pipeline([item])) for item in parse(text)} if text else set()
    assert recorded == set(changing)


def small_pair(name: str, folder: Path) -> Graft:
    target = write_package(tiny_decoder(layers=12 if name == "eagle3" else 6), folder / "target")
    if name == "genai":
        return load(target)
    if name.startswith("dspark"):
        target = write_package(tiny_decoder(6, 16, 64, 2, 1), folder / "target")
        return load(target=target, draft=checkpoints.write_checkpoint(folder / "draft", *checkpoints.modelopt()))
    draft = tiny_eagle3_draft() if name == "eagle3" else tiny_dflash_draft()
    return load(target=target, draft=write_package(draft, folder / "draft"))


@pytest.mark.parametrize("name", ["genai", "dflash", "eagle3", "dspark", "dspark-paged"])
def test_small_pair(tmp_path: Path, name: str) -> None:
    run_twice(small_pair(name, tmp_path), name, tmp_path / "out")


@pytest.mark.parametrize(("name", "target", "draft"), PAIRS)
def test_zoo_pair(tmp_path: Path, zoo: Callable[[str], Path], name: str, target: str, draft: str | None) -> None:
    graft = load(target=zoo(target), draft=None if draft is None else zoo(draft))
    run_twice(graft, name, tmp_path / "out")


def test_report_of_a_graft_is_the_same_twice(tmp_path: Path) -> None:
    reports = [
        Pipeline(preset("dflash").text).run(small_pair("dflash", tmp_path / run)).to_dict() for run in ("one", "two")
    ]
    assert json.dumps(reports[0]) == json.dumps(reports[1])
    assert str(tmp_path) not in json.dumps(reports)
