"""Every sample runs as its first lines say."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ovgraft
from ovgraft import drafts
from ovgraft.checks.head_walk import HeadWalk, best_walk
from ovgraft.checks.pair import Taps
from ovgraft.checks.speculate import Speculator
from ovgraft.drafts.contract import FileName
from ovgraft.pipeline import preset
from tests import models
from tests.drafts import checkpoints
from tests.support import ROOT

SAMPLES = ROOT / "samples"
TESTED_ELSEWHERE = {"04_smollm2_gguf.py"}
"""tests/genai/test_smollm2.py: it needs the network and a trained draft."""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Standard output of a command that must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def cli(*arguments: str | Path) -> str:
    return run(sys.executable, "-m", "ovgraft", *arguments)


def test_every_sample_is_run_here_and_numbered() -> None:
    names = sorted(path.name for path in SAMPLES.iterdir() if path.suffix in {".py", ".toml"})
    assert [name[:2] for name in names] == [f"{number:02}" for number in range(1, len(names) + 1)]
    source = Path(__file__).read_text(encoding="utf-8")
    assert not [name for name in names if source.count(name) < 1]


def test_files_are_small() -> None:
    sizes = {path: path.stat().st_size for path in SAMPLES.rglob("*") if path.is_file()}
    assert max(sizes.values()) < 2 << 20
    assert sum(sizes.values()) < 4 << 20


def test_python_sample(tmp_path: Path) -> None:
    said = run(sys.executable, SAMPLES / "01_graft_pair.py", tmp_path / "out")
    assert "move-fc: changed" in said
    assert "target outputs: logits[?,?,2048] last_hidden_state[?,?,64]" in said
    assert (tmp_path / "out" / "draft" / "openvino_model.xml").exists()


def test_toml_sample_makes_a_pair_that_a_host_runs(tmp_path: Path) -> None:
    target, draft = SAMPLES / "pair" / "target", SAMPLES / "pair" / "draft"
    out = tmp_path / "out"
    cli("apply", "--target", target, "--draft", draft, "-c", SAMPLES / "02_pipeline.toml", "-o", out)
    said = run(sys.executable, SAMPLES / "05_own_host.py", out, "--new-tokens", "12", "--candidates", "3")
    assert len(said.splitlines()[0].split()) == 13
    assert "tokens per target call" in said


def test_checkpoint_sample_becomes_a_pair_that_a_host_runs(tmp_path: Path) -> None:
    target = SAMPLES / "pair" / "target"
    texts = []
    for name, draft in (("dspark", SAMPLES / "dspark"), ("dflash", SAMPLES / "pair" / "draft")):
        out = tmp_path / name
        cli("apply", "--target", target, "--draft", draft, "--preset", name, "-o", out)
        texts.append(run(sys.executable, SAMPLES / "05_own_host.py", out, "--new-tokens", "12").splitlines()[0])
    assert (tmp_path / "dspark" / "draft" / "openvino_markov_head_model.xml").exists()
    assert texts[0] == texts[1]  # the text is the target's, whatever drafts


def test_the_host_reads_a_vocabulary_of_the_drafts_own(tmp_path: Path) -> None:
    """The tokens of the host are those that doctor measures with."""
    target = models.write_package(models.tiny_decoder(6, 16, 64, 2, 1), tmp_path / "target")
    checkpoint = checkpoints.write_checkpoint(tmp_path / "checkpoint", *checkpoints.speculators_dspark())
    graft = ovgraft.load(target=target, draft=checkpoint)
    ovgraft.Pipeline(preset("dspark").text).run(graft)
    graft.save(tmp_path / "pair")
    facts = drafts.read_draft(graft.package("draft"))
    assert facts.d2t is not None
    measured = Speculator(graft, Taps(facts.target_layer_ids or ()), candidates=4)
    text = measured.write([5, 17, 9], 6)
    outputs = measured.block(text)
    model = graft.package("draft").get(FileName.MARKOV_HEAD)
    assert model is not None
    walk = best_walk(model)
    assert walk != "none"
    head = HeadWalk(model, walk, facts.d2t)
    hidden = outputs.get("last_hidden_state")
    expected = head.tokens(outputs["logits"][0], None if hidden is None else hidden[0], text.tokens[3])
    host = runpy.run_path(str(SAMPLES / "05_own_host.py"))["DFlash"](tmp_path / "pair" / "draft" / "openvino_model.xml")
    proposed = host.propose(text.tokens[:4], outputs["hidden_states"], 4)
    assert set(proposed) <= set((np.arange(len(facts.d2t)) + facts.d2t).tolist())
    assert proposed == expected.tolist()


@pytest.mark.genai
def test_genai_sample() -> None:
    pytest.importorskip("openvino_genai", reason="openvino_genai is not installed: pip install 'ovgraft[genai]'")
    assert "equal to the target alone: True" in run(sys.executable, SAMPLES / "03_genai_dflash.py")


def test_main_job_of_make_demo(tmp_path: Path) -> None:
    target, draft = SAMPLES / "pair" / "target", SAMPLES / "pair" / "draft"
    out = tmp_path / "out"
    cli("apply", "--target", target, "--draft", draft, "--preset", "dflash", "-o", out)
    assert {path.name for path in out.iterdir()} == {"target", "draft", "graft.json"}
    assert "last_hidden_state" in cli("inspect", out / "target")
    assert "logits" in cli("verify", target, out / "target")
