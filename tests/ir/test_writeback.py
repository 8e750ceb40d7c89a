"""The process that has a growing file written back: there while it helps, gone whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ovgraft.ir.writeback import written_back
from tests import support


def flushers(file: Path) -> list[int]:
    """Processes that were told of a file."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"-S" in words and os.fsencode(file) in words:
            found.append(int(folder.name))
    return found


def flusher(file: Path) -> int:
    """The one process; its words are there a moment after it is."""
    deadline = time.monotonic() + 20
    while not (found := flushers(file)):
        assert time.monotonic() < deadline, "there is none"
        time.sleep(0.02)
    (pid,) = found
    return pid


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts one fails."""

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError(f"a process was started: {arguments}")

    monkeypatch.setattr(subprocess, "Popen", refuse)


def opened(pid: int) -> set[str]:
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(os.readlink(link))
    return found


def wait_until_gone(file: Path) -> None:
    deadline = time.monotonic() + 20
    while flushers(file):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_flushes_what_is_there_until_the_end(tmp_path: Path) -> None:
    file = tmp_path / "weights.bin"
    with written_back(file, 1 << 30):
        pid = flusher(file)
        with file.open("wb") as sink:
            sink.write(bytes(1 << 20))
            sink.flush()
            deadline = time.monotonic() + 20
            while str(file) not in opened(pid):
                assert time.monotonic() < deadline, "it never opened the file"
                time.sleep(0.02)
    assert not flushers(file)


def test_a_fork_does_not_keep_it(tmp_path: Path) -> None:
    """A child of the host has a copy of the pipe that ends it."""
    file = tmp_path / "weights.bin"
    with written_back(file, 1 << 30):
        assert flusher(file)
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        started = time.monotonic()
    try:
        assert time.monotonic() - started < 30
        assert not flushers(file)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_what_the_flusher_was_told_of_is_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same open file from before the first write is synced: another one would be told nothing."""
    file = tmp_path / "weights.bin"
    synced: list[int] = []
    with written_back(file, 1) as sync:
        held = {link for link in Path("/proc/self/fd").iterdir() if os.path.realpath(link) == str(file)}
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", synced.append)
            sync()
    assert [f"/proc/self/fd/{number}" for number in synced] == [str(link) for link in held]


def test_a_file_that_was_replaced(tmp_path: Path) -> None:
    file = tmp_path / "weights.bin"
    with written_back(file, 1) as sync:
        (tmp_path / "other").write_bytes(b"x")
        (tmp_path / "other").replace(file)
        with pytest.raises(OSError, match="replaced while it was written"):
            sync()


@pytest.mark.usefixtures("no_process")
def test_few_bytes_start_no_process(tmp_path: Path) -> None:
    with written_back(tmp_path / "few.bin", 1 << 20):
        pass


@pytest.mark.parametrize("executable", ["", "/no/such/python", "/bin/sleep"])
def test_without_it_everything_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executable: str) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with written_back(tmp_path / "weights.bin", 1 << 30) as sync:
        (tmp_path / "weights.bin").write_bytes(b"x")
        sync()
    assert (tmp_path / "weights.bin").read_bytes() == b"x"


@pytest.mark.usefixtures("no_process")
def test_a_frozen_program_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with written_back(tmp_path / "weights.bin", 1 << 30):
        pass


def test_an_error_in_the_body_ends_it(tmp_path: Path) -> None:
    file = tmp_path / "weights.bin"
    with pytest.raises(ValueError, match="full"), written_back(file, 1 << 30):
        raise ValueError("full")
    assert not flushers(file)


def test_it_dies_with_whoever_writes(tmp_path: Path) -> None:
    file = tmp_path / "weights.bin"
    code = f"""
import sys, time
from pathlib import Path
from ovgraft.ir.writeback import written_back
with written_back(Path({str(file)!r}), 1 << 30):
    print("ready", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=support.ROOT) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        assert flusher(file)
        writer.send_signal(signal.SIGKILL)
    wait_until_gone(file)
