from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ovgraft
from ovgraft import ir
from ovgraft.drafts.building.draft import build_draft
from ovgraft.drafts.checkpoint import read_checkpoint
from ovgraft.drafts.contract import Key
from tests import models
from tests.cli.conftest import Run
from tests.drafts import checkpoints
from tests.support import ROOT

SAMPLE = ROOT / "samples" / "checkpoint"
WHOLE = {
    "config.json",
    *(f"openvino_{stem}.{suffix}" for stem in ("model", "markov_head_model") for suffix in ("xml", "bin")),
}


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


@pytest.fixture
def frozen(tmp_path: Path) -> Path:
    """A checkpoint with copies of its target's tables."""
    return checkpoints.write_checkpoint(tmp_path / "frozen", *checkpoints.deepspec_vanilla())


@pytest.fixture
def fitting(tmp_path: Path) -> Path:
    """Its target."""
    tensors = checkpoints.deepspec_vanilla()[1]
    given = {
        "self.model.embed_tokens.weight": tensors["embed_tokens.weight"].astype(np.float32),
        "self.lm_head.weight": tensors["lm_head.weight"].astype(np.float32),
    }
    return models.write_package(models.tiny_decoder(6, 16, 64, 2, 1, given=given), tmp_path / "target")


@pytest.mark.parametrize("form", ["sdpa", "per-row"])
def test_a_checkpoint_becomes_a_package(run: Run, tmp_path: Path, form: str) -> None:
    outcome = run("build-draft", SAMPLE, "-o", tmp_path / "out", "--form", form)
    assert outcome.code == 0, outcome.err
    assert f"speculators checkpoint built as {form}" in outcome.out
    assert outcome.err == f"wrote {tmp_path / 'out'}\n"
    assert names(tmp_path / "out") == WHOLE
    model = ovgraft.load(tmp_path / "out").target.model
    assert ir.get_text(model, Key.INPUT_LAYOUT) == ("per_row" if form == "per-row" else None)


def test_rows_of_sliding_layers_are_as_asked_for(run: Run, tmp_path: Path) -> None:
    folder = checkpoints.write_checkpoint(tmp_path / "sliding", *checkpoints.zlab_dflash2())
    assert run("build-draft", folder, "-o", tmp_path / "out", "--sliding-in-block", "bidirectional").code == 0
    found = ovgraft.load(tmp_path / "out").target.model
    for kind in ("auto", "bidirectional"):
        wanted = build_draft(read_checkpoint(folder), sliding_in_block=kind)
        assert (ir.same_structure(found, wanted) is None) == (kind == "bidirectional")


def test_a_draft_built_alone_is_called_a_draft(run: Run, tmp_path: Path) -> None:
    outcome = run("build-draft", SAMPLE, "-o", tmp_path / "out")
    assert "target  +" not in outcome.out
    assert "  draft +  openvino_markov_head_model" in outcome.out
    data = run("build-draft", SAMPLE, "-o", tmp_path / "out", "--force", "--json").data
    assert set(data["models"]) == {"draft/openvino_model", "draft/openvino_markov_head_model"}
    assert {edit["model"] for record in data["passes"] for edit in record["edits"]} == {"draft"}
    assert (set(data["source"]), set(data["paths"])) == ({"draft"}, {"draft", "output"})


def test_copies_need_the_target(run: Run, tmp_path: Path, frozen: Path, fitting: Path) -> None:
    outcome = run("build-draft", frozen, "-o", tmp_path / "out")
    assert outcome.code == 4
    assert "copies of its target's embedding" in outcome.err
    assert "hint: name the target" in outcome.err
    assert not (tmp_path / "out").exists()
    outcome = run("build-draft", frozen, "--target", fitting, "-o", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    assert names(tmp_path / "out") == WHOLE
    assert "inputs_embeds" in {port.any_name for port in ovgraft.load(tmp_path / "out").target.model.inputs}


def test_copies_may_be_kept(run: Run, tmp_path: Path, frozen: Path) -> None:
    assert run("build-draft", frozen, "-o", tmp_path / "out", "--keep-copies").code == 0
    assert "input_ids" in {port.any_name for port in ovgraft.load(tmp_path / "out").target.model.inputs}


def test_another_target_is_refused(run: Run, tmp_path: Path, frozen: Path) -> None:
    other = models.write_package(models.tiny_decoder(6, 16, 64, 2, 1, seed=9), tmp_path / "other")
    outcome = run("build-draft", frozen, "--target", other, "-o", tmp_path / "out")
    assert outcome.code == 3
    assert "embed_tokens.weight is not the target's" in outcome.err
    assert not (tmp_path / "out").exists()


def test_the_built_draft_is_grafted_later(run: Run, tmp_path: Path, frozen: Path, fitting: Path) -> None:
    """In two steps, or from the checkpoint in one: the same draft."""
    assert run("build-draft", frozen, "--target", fitting, "-o", tmp_path / "built").code == 0
    pipeline = "annotate-hidden-states,expose-hidden-states,move-fc,attach-embedding,attach-lm-head"
    two = run("apply", "--target", fitting, "--draft", tmp_path / "built", "-p", pipeline, "-o", tmp_path / "two")
    assert two.code == 0, two.err
    one = run("apply", "--target", fitting, "--draft", frozen, "--preset", "dspark", "-o", tmp_path / "one")
    assert one.code == 0, one.err
    for folder, model in (("target", "openvino_model"), ("draft", "openvino_model")):
        a, b = (ir.read_model(tmp_path / run / folder / f"{model}.xml") for run in ("one", "two"))
        assert ir.same_structure(a, b) is None


def test_json(run: Run, tmp_path: Path) -> None:
    record = run("build-draft", SAMPLE, "-o", tmp_path / "out", "--json").data
    assert record["schema"] == 1
    assert record["written"] is True
    assert record["pipeline"] == "build-draft,pack-markov-head"
    outcome = run("build-draft", SAMPLE, "-o", tmp_path / "out", "--json")
    assert json.loads(outcome.out)["error"]["type"] == "ModelFileError"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([SAMPLE, "-o", "no/such/out"], 3, "no such folder"),
        (["nothing", "-o", "out"], 3, "no such file or folder: nothing"),
        ([SAMPLE], 2, "missing option"),
        ([SAMPLE, "-o", "out", "--form", "paged"], 2, "'paged' is not one of"),
        ([ROOT / "samples" / "pair" / "draft", "-o", "out"], 3, "has an OpenVINO model already"),
        ([SAMPLE, "--target", ROOT / "samples" / "pair" / "target", "-o", "out"], 4, "does not fit the target"),
    ],
)
def test_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = run("build-draft", *arguments)
    assert outcome.code == code
    assert words in outcome.err
    assert not list(tmp_path.iterdir())


def test_what_is_there_stays_unless_forced(run: Run, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    outcome = run("build-draft", SAMPLE, "-o", tmp_path / "out")
    assert outcome.code == 3
    assert "say --force" in outcome.err
    assert names(tmp_path / "out") == {"mine"}
    assert run("build-draft", SAMPLE, "-o", tmp_path / "out", "--force").code == 0
    assert names(tmp_path / "out") == WHOLE | {"mine"}


def test_onto_itself(run: Run, tmp_path: Path) -> None:
    folder = checkpoints.write_checkpoint(tmp_path / "draft", *checkpoints.zlab_dflash())
    outcome = run("build-draft", folder, "-o", folder, "--force")
    assert outcome.code == 3
    assert names(folder) == {"config.json", "model.safetensors"}
