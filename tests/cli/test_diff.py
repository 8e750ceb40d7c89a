from __future__ import annotations

from pathlib import Path

from tests import models
from tests.cli.conftest import Run


def test_the_same(run: Run, target: Path) -> None:
    outcome = run("diff", target, target)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[-1] == "the same"
    outcome = run("diff", target, target / "openvino_model.xml", "--weights")
    assert outcome.code == 0
    assert "bytes of weights included" in outcome.out


def test_a_graft(run: Run, target: Path, draft: Path, grafted: Path, tmp_path: Path) -> None:
    before = tmp_path / "before"
    before.mkdir()
    (before / "target").symlink_to(target)
    (before / "draft").symlink_to(draft)
    outcome = run("diff", before, grafted)
    assert outcome.code == 1
    assert "  output last_hidden_state added after layers 0, 2, 3\n" in outcome.out
    assert "  MatMul fc moved in, f32, 1 constant\n" in outcome.out
    assert "  +  MatMul    __module.fc/aten::linear/MatMul" in outcome.out
    assert outcome.out.splitlines()[-1] == "different  (2 compared)"
    stat = run("diff", before, grafted, "--stat").out
    assert "  +  " not in stat
    assert "4 nodes added" in stat


def test_json(run: Run, target: Path, grafted: Path) -> None:
    data = run("diff", target, grafted / "target", "--json").data
    assert (data["schema"], data["equal"], data["summary"]["added"]) == (1, False, 4)
    (model,) = data["models"]
    assert {node["b"]["type"] for node in model["nodes"]} == {"Concat", "Constant", "MatMul", "Result"}
    assert model["metadata"]["ovgraft/exposed_hidden_states"]["a"] is None
    stat = run("diff", target, grafted / "target", "--json", "--stat").data
    assert "nodes" not in stat["models"][0]


def test_weights(run: Run, target: Path, tmp_path: Path) -> None:
    other = models.write_package(models.tiny_decoder(layers=4, seed=5), tmp_path / "other")
    assert run("diff", target, other).code == 0
    outcome = run("diff", target, other, "--weights")
    assert outcome.code == 1
    assert "other values in" in outcome.out
    assert run("diff", target, other, "--weights", "--json").data["models"][0]["weights"]


def test_one_side_has_a_draft(run: Run, target: Path, grafted: Path) -> None:
    outcome = run("diff", target, grafted, "--stat")
    assert outcome.code == 1
    assert "draft  only in B" in outcome.out


def test_files_that_are_not_there(run: Run, target: Path) -> None:
    assert run("diff", target, "nope").code == 3
    assert run("diff", target).code == 2
