from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from blake3 import blake3

from ovgraft import ir
from ovgraft.ir import copying, files, progress
from ovgraft.ir.save import write_model
from tests import models


class Heard:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.said: list[tuple[int, int, str, str]] = []
        self.watched: list[tuple[str, int, int]] = []

    def advance(self, done: int, total: int, what: str, unit: str) -> None:
        self.said.append((done, total, what, unit))

    @contextmanager
    def watch(self, file: Path, total: int) -> Iterator[None]:
        yield
        self.watched.append((file.name, file.stat().st_size, total))


def test_nobody_needs_to_listen(tmp_path: Path) -> None:
    progress.advance(1, 2)
    with progress.watching(tmp_path, 1):
        pass


def test_a_digest_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_CHUNK", 100_000)
    content = os.urandom(250_000)
    (tmp_path / "file").write_bytes(content)
    heard = Heard()
    with progress.listening(heard):
        assert files.file_digest(tmp_path / "file") == blake3(content).hexdigest()
    assert heard.said == [(done, 250_000, "", "B") for done in (0, 100_000, 200_000, 250_000)]
    (tmp_path / "file").write_bytes(b"")
    assert files.file_digest(tmp_path / "file") == blake3().hexdigest()
    assert len(heard.said) == 4


def test_a_copy_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_CHUNK", 100_000)
    monkeypatch.setattr(copying, "reflink", lambda source, target: False)
    (tmp_path / "file").write_bytes(bytes(250_000))
    heard = Heard()
    with progress.listening(heard):
        copying.copy_file(tmp_path / "file", tmp_path / "copy")
    assert heard.said == [(done, 250_000, "", "B") for done in (100_000, 200_000, 250_000)]


def test_a_copy_in_the_background_is_told_of_by_whoever_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target, heard = tmp_path / "file", tmp_path / "copy", Heard()
    source.write_bytes(bytes(1000))

    def slow(source: Path, target: Path, stopped: object) -> None:
        target.write_bytes(bytes(400))
        while not heard.said:
            pass
        target.write_bytes(bytes(1000))

    monkeypatch.setattr(copying, "copy_file", slow)
    copy = copying.BackgroundCopy(source, target)
    while copy.done() != 400:
        pass
    with progress.listening(heard):
        copy.finish()
    assert heard.said[0] == (400, 1000, "", "B")
    assert copy.done() == 1000


def test_the_weights_are_watched_while_openvino_writes_them(tmp_path: Path) -> None:
    heard = Heard()
    with progress.listening(heard):
        write_model(models.tiny_decoder(1), tmp_path / "model.xml")
    size = ir.bin_path(tmp_path / "model.xml").stat().st_size
    assert [(name, found) for name, found, _ in heard.watched] == [("model.bin", size)]
    assert size <= heard.watched[0][2] <= 2 * size
    assert heard.said[-1] == (size, size, "", "B")
