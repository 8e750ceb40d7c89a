from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests import models
from tests.cli.conftest import Run

CONFIG = {"model_type": "qwen3", "vocab_size": 64, "dflash_config": {"block_size": 8}}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pair in which nothing is wrong."""
    folder = tmp_path_factory.mktemp("doctor")
    models.write_package(models.tiny_decoder(layers=4, annotated=True), folder / "target")
    models.write_package(models.tiny_dflash_draft(n=3, target_layer_ids=(0, 1, 2)), folder / "draft", config=CONFIG)
    return folder


def test_a_sound_pair(run: Run, sound: Path) -> None:
    outcome = run("doctor", "--target", sound / "target", "--draft", sound / "draft")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[0] == "draft → target"
    assert lines[-1] == "the draft fits  (19 checks; --run adds numbers)"
    assert "  fc-width          ok  3 x 32 = 96" in lines
    assert run("doctor", sound).out == outcome.out


def test_warnings_are_no_failure(run: Run, target: Path, draft: Path) -> None:
    outcome = run("doctor", "--target", target, "--draft", draft)
    assert outcome.code == 0
    assert "locators  warn  do the recorded layers end at layer boundaries?" in outcome.out
    assert "  do: run annotate-hidden-states, which finds these; without it OpenVINO GenAI" in outcome.out
    assert "the draft fits, with 4 warnings" in outcome.out


def test_a_failure_is_1_and_stops_what_builds_on_it(run: Run, sound: Path, tmp_path: Path) -> None:
    other = models.write_package(models.tiny_dflash_draft(n=2, target_layer_ids=(0, 9)), tmp_path / "draft")
    outcome = run("doctor", "--target", sound / "target", "--draft", other)
    assert outcome.code == 1
    assert "FAIL         no layer 9: the target has layers 0 to 3" in outcome.out
    assert "not checked  after layer-ids" in outcome.out
    data = run("doctor", "--target", sound / "target", "--draft", other, "--json").data
    assert (data["schema"], data["good"], data["counts"]["fail"]) == (1, False, 1)
    by_id = {check["id"]: check for check in data["checks"]}
    assert by_id["layer-ids"]["numbers"] == {"target_layers": 4, "layer_ids": [0, 9]}
    assert by_id["fc-width"]["status"] == "not-checked"


def test_run_with_prompts(run: Run, sound: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "prompts.npz", one=np.array([5, 6, 7]), more=np.array([[1, 2], [3, 4]]))
    prompts = ("--prompts", tmp_path / "prompts.npz", "--prompt-ids", "9 8,7")
    outcome = run("doctor", sound, "--run", "--new-tokens", 4, "--candidates", 2, *prompts, "--json")
    assert outcome.code == 0
    by_id = {check["id"]: check for check in outcome.data["checks"]}
    assert by_id["acceptance"]["numbers"]["texts"] == 4
    assert by_id["acceptance"]["numbers"]["candidates"] == 2
    assert by_id["finite-block"]["status"] == by_id["per-row"]["status"] == "pass"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "name a folder with target/ and draft/, or --target and --draft"),
        (["x", "--target", "y"], "name a folder with target/ and draft/"),
        (["--prompt-ids", "1"], "prompts are for --run"),
        (["--run", "--prompt-ids", "1,x"], "--prompt-ids expects token ids"),
    ],
)
def test_usage(run: Run, args: list[str], said: str) -> None:
    outcome = run("doctor", *args)
    assert outcome.code == 2
    assert said in outcome.err


def test_a_target_alone_or_an_array_of_floats_is_usage(run: Run, target: Path, sound: Path, tmp_path: Path) -> None:
    assert "there is no draft" in run("doctor", "--target", target).err
    np.savez(tmp_path / "p.npz", x=np.zeros(3))
    outcome = run("doctor", sound, "--run", "--prompts", tmp_path / "p.npz")
    assert (outcome.code, "holds no token ids" in outcome.err) == (2, True)


def test_files_that_are_not_there(run: Run, target: Path) -> None:
    assert run("doctor", "--target", target, "--draft", "nope").code == 3
    assert run("doctor", "--target", "nope", "--draft", target).code == 3


def test_hostile_names(run: Run, tmp_path: Path) -> None:
    model = models.tiny_decoder(layers=4)
    for node in model.get_ordered_ops():
        node.set_friendly_name(f"[bold]\x1b[31m\u202e{node.get_friendly_name()}</b>")
    models.write_package(model, tmp_path / "target")
    draft = models.write_package(models.tiny_dflash_draft(n=3, target_layer_ids=(0, 1, 2)), tmp_path / "draft")
    outcome = run("doctor", "--target", tmp_path / "target", "--draft", draft)
    assert outcome.code == 0
    assert "\x1b" not in outcome.out
    assert "\u202e" not in outcome.out
    assert "[bold]\\x1b[31m\\u202e" in outcome.out
