from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from ovgraft import pipeline
from tests.cli.conftest import Run


def test_the_list_has_every_pass_and_preset_with_its_summary(run: Run) -> None:
    outcome = run("passes")
    assert outcome.code == 0
    assert outcome.err == ""
    for listed in pipeline.list_passes():
        assert f"{listed.name} " in outcome.out
        assert listed.summary in outcome.out
    for preset in pipeline.list_presets():
        assert preset.summary in outcome.out


def test_json_says_the_same(run: Run) -> None:
    data = run("passes", "--json").data
    assert data["schema"] == 1
    assert [entry["name"] for entry in data["passes"]] == [listed.name for listed in pipeline.list_passes()]
    assert {entry["name"] for entry in data["presets"]} == {preset.name for preset in pipeline.list_presets()}
    assert set(run("passes", "--presets", "--json").data) == {"schema", "presets"}


@pytest.mark.parametrize("name", pipeline.pass_names())
def test_one_pass_shows_options_defaults_and_an_example(run: Run, name: str) -> None:
    outcome = run("passes", name)
    data = run("passes", name, "--json").data["pass"]
    cls = pipeline.get_pass(name)
    assert outcome.code == 0
    assert cls.summary() in outcome.out
    assert f"ovgraft apply {'--target TARGET --draft DRAFT' if cls.needs_draft else 'MODEL'} -p " in outcome.out
    assert [option["key"] for option in data["options"]] == [info.key for info in pipeline.describe_options(cls)]
    for option in data["options"]:
        assert option["key"] in outcome.out
        assert option["help"] in outcome.out
        assert option["help"]


@pytest.mark.parametrize("name", [None, *(preset.name for preset in pipeline.list_presets()), "expose-hidden-states"])
def test_the_starter_is_toml_that_loads(run: Run, name: str | None) -> None:
    outcome = run("passes", *([name] if name else []), "--format", "toml")
    uses = [table["use"] for table in tomllib.loads(outcome.out)["pass"]]
    loaded = pipeline.Pipeline.from_toml(outcome.out)
    assert [item.name for item in loaded] == uses
    if name == "dflash":
        assert str(loaded) == pipeline.preset("dflash").text


def test_a_starter_of_a_pass_without_needed_options_says_so(run: Run, tmp_path: Path) -> None:
    outcome = run("passes", "set-rt-info", "--format", "toml")
    assert outcome.code == 0
    assert "# key: " in outcome.out
    assert "required" in outcome.out


def test_a_preset_shows_its_pipeline(run: Run) -> None:
    outcome = run("passes", "dflash")
    lines = [line.strip() for line in outcome.out.splitlines()]
    assert "".join(lines[lines.index("pipeline") + 1 :]) == pipeline.preset("dflash").text


def test_a_mistyped_name(run: Run) -> None:
    outcome = run("passes", "mov-fc")
    assert outcome.code == 2
    assert outcome.out == ""
    assert "did you mean 'move-fc'?" in outcome.err
