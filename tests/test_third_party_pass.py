"""The sample distribution is installed beside ovgraft, listed, explained and run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ovgraft
from tests.support import ROOT

SAMPLE = ROOT / "samples" / "third_party_pass"
PAIR = ROOT / "samples" / "pair"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the sample is installed."""
    folder = tmp_path_factory.mktemp("installed")
    info = folder / "ovgraft_sample_pass-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ovgraft-sample-pass\nVersion: 1.0\n")
    # what pip writes from the pyproject beside it
    lines = (SAMPLE / "pyproject.toml").read_text().splitlines()
    entry = next(line for line in lines if line.startswith("stamp-owner")).replace('"', "")
    (info / "entry_points.txt").write_text(f"[ovgraft.passes]\n{entry}\n")
    (folder / "stamp_owner.py").write_bytes((SAMPLE / "stamp_owner.py").read_bytes())
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ovgraft", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_it_is_listed_and_explained(installed: dict[str, str]) -> None:
    assert "stamp-owner" in run(installed, "passes").stdout
    told = run(installed, "passes", "stamp-owner").stdout
    assert "Write who owns a model into its metadata." in told
    assert "team lasagna" in told


def test_it_runs_in_a_pipeline(installed: dict[str, str], tmp_path: Path) -> None:
    text = 'stamp-owner{owner="team lasagna"}'
    done = run(installed, "apply", str(PAIR / "target"), "-p", text, "-p", text, "-o", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "unchanged: team lasagna owns it already" in done.stdout
    model = ovgraft.load(tmp_path / "out").target.model
    assert model.get_rt_info(["sample", "owner"]).value == "team lasagna"
    weights = [(folder / "openvino_model.bin").read_bytes() for folder in (PAIR / "target", tmp_path / "out")]
    assert weights[0] == weights[1]


def test_its_refusal_reads_like_any_other(installed: dict[str, str], tmp_path: Path) -> None:
    done = run(installed, "apply", str(PAIR / "target"), "-p", 'stamp-owner{owner=" "}', "-o", str(tmp_path / "out"))
    assert done.returncode == 4
    assert "stamp-owner: an owner needs a name" in done.stderr
    assert not (tmp_path / "out").exists()
