"""Files the way a safe save needs them: never written over, forced to disk, and errors in one sentence."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

from blake3 import blake3

from ovgraft.errors import ModelFileError
from ovgraft.ir import progress
from ovgraft.paths import path_name

_CHUNK = 256 << 20  # bytes hashed between two words on how far it is

Stamp = tuple[int, int, int]
"""Inode, size and modification time of a file."""


def stamp(path: Path) -> Stamp | None:
    """What tells whether a file was written or replaced since; None when there is no such file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def write_file(target: Path, data: bytes) -> None:
    """Write a file that does not exist yet."""
    with target.open("xb") as write:
        write.write(data)


def sync(path: Path) -> None:
    """Force a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_digest(path: Path) -> str:
    """blake3 of a file in hex, read by mapping it, on all cores."""
    hasher = blake3(max_threads=blake3.AUTO)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
    for start in range(0, size, _CHUNK):
        progress.advance(start, size, unit="B")
        hasher.update(view[start : start + _CHUNK])
    progress.advance(size, size, unit="B")
    return hasher.hexdigest()


def walk_files(folder: Path) -> list[Path]:
    """All files of a folder and its folders, relative to it, in alphabetical order.

    Links are followed. Hidden folders are left out: they belong to tools (git, download caches, a save under way).

    Raises:
        ModelFileError: A link leads nowhere or in a circle, or something is neither file nor folder.
    """
    return _walk(folder, Path(), ())


def _walk(folder: Path, below: Path, parents: tuple[str, ...]) -> list[Path]:
    here = os.path.realpath(folder / below)
    if here in parents:
        raise ModelFileError(f"the links in {path_name(folder)} lead in a circle at {below}", file=folder / below)
    files: list[Path] = []
    for entry in sorted(os.scandir(here), key=lambda entry: entry.name):
        path = below / entry.name
        if entry.is_dir():
            if not entry.name.startswith("."):
                files += _walk(folder, path, (*parents, here))
        elif entry.is_file():
            files.append(path)
        else:
            raise ModelFileError(
                f"{path} is a link to nothing" if entry.is_symlink() else f"{path} is no regular file",
                file=folder / path,
                hint="remove it from the package",
            )
    return files


def file_error(error: OSError, path: Path) -> ModelFileError:
    """What the system said, as one sentence about ``path``."""
    name = path_name(path)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ModelFileError(f"no room left on the disk while writing {name}", file=path)
    said = os.strerror(error.errno).lower() if error.errno else str(error)
    return ModelFileError(f"{name} cannot be written: {said}", file=path)
