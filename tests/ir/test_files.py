from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from ovgraft.ir import copying, files

CONTENT = os.urandom(300_000)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    return path


def failing(number: int) -> Any:
    def call(*arguments: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("refusal", [None, errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP])
def test_copy_whatever_the_kernel_offers(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int | None
) -> None:
    if refusal is not None:
        monkeypatch.setattr(os, "copy_file_range", failing(refusal))
    copying.copy_file(source, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT


def test_copy_where_blocks_can_be_shared(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def clone(target: int, request: int, origin: int) -> int:
        assert request == 0x40049409
        os.write(target, os.pread(origin, len(CONTENT), 0))
        return 0

    monkeypatch.setattr(fcntl, "ioctl", clone)
    monkeypatch.setattr(os, "copy_file_range", failing(errno.EIO))
    assert copying.reflinks(source, tmp_path)
    copying.copy_file(source, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "source"]


def test_no_sharing_leaves_nothing_behind(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "ioctl", failing(errno.EOPNOTSUPP))
    assert not copying.reflink(source, tmp_path / "copy")
    assert not copying.reflinks(source, tmp_path)
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("call", ["copy_file", "reflink"])
def test_nothing_is_written_over(source: Path, tmp_path: Path, call: str) -> None:
    (tmp_path / "there").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        getattr(copying, call)(source, tmp_path / "there")
    with pytest.raises(FileExistsError):
        files.write_file(tmp_path / "there", b"new")
    assert (tmp_path / "there").read_bytes() == b"old"


def test_a_full_disk_is_not_hidden_by_another_way_to_copy(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "copy_file_range", failing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        copying.copy_file(source, tmp_path / "copy")


def test_a_file_that_shrinks_while_it_is_copied(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "copy_file_range", lambda *arguments: 0)
    monkeypatch.setattr(os, "sendfile", lambda *arguments: 0)
    with pytest.raises(OSError, match="became shorter"):
        copying.copy_file(source, tmp_path / "copy")


def test_links_are_followed(source: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(source)
    copying.copy_file(tmp_path / "link", tmp_path / "copy")
    assert not (tmp_path / "copy").is_symlink()
    copying.link_file(tmp_path / "link", tmp_path / "hard")
    assert (tmp_path / "hard").stat().st_ino == source.stat().st_ino


def test_digest(source: Path) -> None:
    assert files.file_digest(source) == blake3(CONTENT).hexdigest()
    source.write_bytes(b"")
    assert files.file_digest(source) == blake3(b"").hexdigest()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "no room left on the disk while writing model.bin"),
        (errno.EDQUOT, "no room left on the disk while writing model.bin"),
        (errno.EROFS, "model.bin cannot be written: read-only file system"),
        (errno.EACCES, "model.bin cannot be written: permission denied"),
        (errno.EIO, "model.bin cannot be written: input/output error"),
    ],
)
def test_one_sentence(number: int, words: str) -> None:
    found = files.file_error(OSError(number, "text"), Path("/x/model.bin"))
    assert found.message == words
    assert found.exit_code == 3


def test_a_copy_in_the_background(source: Path, tmp_path: Path) -> None:
    copy = copying.BackgroundCopy(source, tmp_path / "copy")
    copy.finish()
    assert (tmp_path / "copy").read_bytes() == CONTENT
    assert copy.done() == len(CONTENT)


def test_a_copy_in_the_background_that_nobody_wants(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_CHUNK", 16)
    copying.BackgroundCopy(source, tmp_path / "copy").drop()
    assert not (tmp_path / "copy").exists()


def test_a_copy_in_the_background_that_fails(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "copy_file_range", failing(errno.ENOSPC))
    copy = copying.BackgroundCopy(source, tmp_path / "copy")
    with pytest.raises(OSError, match="No space left"):
        copy.finish()
    copying.BackgroundCopy(source, tmp_path / "nothing" / "copy").drop()
