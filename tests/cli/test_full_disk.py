"""A disk that fills, a real one: one sentence, exit 3, and all is as it was."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import models
from tests.cli.conftest import Outcome, Run
from tests.drafts.building import running

ANNOTATE = "annotate-hidden-states"
EXPOSE = "expose-hidden-states{layers=0}"
BALLAST = "ballast"


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A disk of 2 MiB."""
    place = tmp_path_factory.mktemp("disk")
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write_package(models.tiny_decoder(1), tmp_path_factory.mktemp("source") / "target", config={"a": 1})


class Disk(NamedTuple):
    place: Path

    def leave(self, free: int) -> None:
        """Take all but so many bytes."""
        gc.collect()  # models that map files which are gone still take their room
        (self.place / BALLAST).unlink(missing_ok=True)
        room = os.statvfs(self.place)
        (self.place / BALLAST).write_bytes(bytes(max(0, room.f_bavail * room.f_frsize - free)))

    def files(self) -> dict[str, bytes]:
        found = [path for path in self.place.rglob("*") if path.name != BALLAST]
        return {str(path.relative_to(self.place)): path.read_bytes() if path.is_file() else b"" for path in found}


@pytest.fixture
def small(disk: Path) -> Disk:
    for path in disk.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return Disk(disk)


def refused(outcome: Outcome) -> None:
    assert outcome.code == 3, outcome
    (said,) = (line for line in outcome.err.splitlines() if line.startswith("error: "))
    assert any(word in said for word in ("room", "no space left on device")), said


@pytest.mark.parametrize("looked", [True, False], ids=["told first", "found out"])
@pytest.mark.parametrize("passes", [ANNOTATE, EXPOSE])
def test_apply(run: Run, source: Path, small: Disk, passes: str, looked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the room was there and somebody else takes it: nobody looks, and it ends anywhere."""
    out = small.place / "out"
    size = sum(path.stat().st_size for path in source.iterdir())
    if not looked:
        plenty = shutil.disk_usage(small.place)._replace(free=1 << 40)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: plenty)
    for free in (0, 4096, size // 2, size * 7 // 8) if not looked else (size // 2,):
        small.leave(free)
        refused(run("apply", source, "-p", passes, "-o", out))
        assert small.files() == {}, free
    small.leave(2 << 20)
    assert run("apply", source, "-p", "set-rt-info{key=note value=old}", "-o", out).code == 0
    before = small.files()
    small.leave(size // 2)
    refused(run("apply", source, "-p", passes, "-o", out, "--force"))
    refused(run("apply", out, "-p", EXPOSE, "--in-place"))
    assert small.files() == before


@pytest.mark.parametrize("looked", [True, False], ids=["told first", "found out"])
def test_build_draft(run: Run, small: Disk, tmp_path: Path, looked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = running.tiny(tmp_path, "zlab_dflash").path
    if not looked:
        plenty = shutil.disk_usage(small.place)._replace(free=1 << 40)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: plenty)
    for free in (0, 30_000, 120_000) if not looked else (30_000,):
        small.leave(free)
        refused(run("build-draft", checkpoint, "-o", small.place / "out"))
        assert small.files() == {}, free


def test_report(run: Run, source: Path, small: Disk, tmp_path: Path) -> None:
    report = small.place / "report.json"
    passes = ",".join(f"set-rt-info{{key=note value={i}}}" for i in range(30))  # more than the one page of the old one
    for old in (None, "an earlier report"):
        small.leave(8192)
        if old is not None:
            report.write_text(old)
        small.leave(0)
        before = small.files()
        refused(run("apply", source, "-p", passes, "-o", tmp_path / "out", "--report", report))
        assert small.files() == before
        assert not (tmp_path / "out").exists()


def test_dumps(run: Run, source: Path, small: Disk) -> None:
    small.leave(100_000)
    refused(run("apply", source, "-p", ANNOTATE, "--dry-run", "--dump-dir", small.place / "a" / "b"))
    refused(run("apply", source / "openvino_model.xml", "-p", ANNOTATE, "--dry-run", "--dump-dir", small.place / "a"))
    assert small.files() == {}


def test_a_reproducer_hides_no_failure(run: Run, source: Path, small: Disk) -> None:
    """The error of the run is that of the pass; that there is no reproducer is said beside it."""
    small.leave(100_000)
    args = ["-p", "expose-hidden-states{layers=9}", "--dry-run", "--reproducer", small.place / "a"]
    outcome = run("apply", source, *args)
    assert outcome.code == 4
    assert "no layer 9" in outcome.err
    assert "hook Reproducer failed: not enough room on the disk" in outcome.out
    assert small.files() == {}


@pytest.mark.parametrize("form", ["text", "html"])
def test_inspect(run: Run, source: Path, small: Disk, form: str) -> None:
    file = small.place / f"report.{form}"
    small.leave(0)
    refused(run("inspect", source, "--format", form, "-o", file))
    assert small.files() == {}
    small.leave(8192)
    file.write_text("an earlier one")
    small.leave(0)
    if form == "html":
        refused(run("inspect", source, "--format", form, "-o", file, "--force"))
        assert file.read_text() == "an earlier one"
