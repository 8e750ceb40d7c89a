from __future__ import annotations

from pathlib import Path

import pytest

from tests import models
from tests.cli.conftest import Run


def snapshot(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_a_pass_that_would_fire(run: Run, target: Path) -> None:
    before = snapshot(target)
    outcome = run("passes", "--explain", "annotate-hidden-states", target)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("annotate-hidden-states  would fire\n")
    assert outcome.out.endswith("nothing was written\n")
    assert snapshot(target) == before


def test_one_that_would_not(run: Run, target: Path, draft: Path) -> None:
    outcome = run("passes", "--explain", "move-fc", target, "--draft", draft)
    assert outcome.code == 1
    assert outcome.out.startswith("move-fc  would not fire\n  the target exposes no hidden states")
    assert "  do: run expose-hidden-states first" in outcome.out


def test_reasons_come_with_nodes(run: Run, tmp_path: Path) -> None:
    folder = models.write_package(models.tiny_text_embeddings(), tmp_path / "e")
    outcome = run("passes", "--explain", "annotate-hidden-states", folder)
    assert outcome.code == 1
    assert "because\n" in outcome.out
    data = run("passes", "--explain", "annotate-hidden-states", folder, "--json").data
    (entry,) = data["passes"]
    assert (data["schema"], data["runs"], entry["answer"]) == (1, False, "refuses")
    assert entry["error"]["reasons"][0]["nodes"]


def test_one_with_nothing_to_do(run: Run, grafted: Path) -> None:
    outcome = run("passes", "--explain", "move-fc", grafted)
    assert outcome.code == 0
    assert "move-fc  would run and change nothing" in outcome.out


def test_passes_see_what_came_before_them(run: Run, target: Path, draft: Path) -> None:
    for text in ("expose-hidden-states,move-fc", "dflash"):
        data = run("passes", "--explain", text, target, "--draft", draft, "--json").data
        assert data["runs"]
        assert "fires" in {entry["answer"] for entry in data["passes"]}
    outcome = run("passes", "--explain", "expose-hidden-states{layers=9},move-fc", target, "--draft", draft)
    assert outcome.code == 1
    assert "move-fc  not reached" in outcome.out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--explain", "move-fc"], "--explain expects a pass and a model"),
        (["move-fc", "x"], "a model is for --explain"),
        (["--explain", "move-fcc", "x"], "did you mean 'move-fc'"),
    ],
)
def test_usage(run: Run, args: list[str], said: str) -> None:
    outcome = run("passes", *args)
    assert outcome.code == 2
    assert said in outcome.err
