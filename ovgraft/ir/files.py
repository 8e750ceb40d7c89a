"""Files the way a safe save needs them: copied in the kernel, never written over, forced to disk."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from blake3 import blake3

from ovgraft.errors import ModelFileError

_FICLONE = 0x40049409  # linux/fs.h; absent from fcntl before Python 3.12
_CHUNK = 1 << 30


def reflink(source: Path, target: Path) -> bool:
    """Make ``target`` share the blocks of ``source``, where the filesystem can (btrfs, xfs, bcachefs).

    Returns:
        False, with no ``target`` left behind, when it cannot.
    """
    with source.open("rb") as read, target.open("xb") as write:
        try:
            fcntl.ioctl(write.fileno(), _FICLONE, read.fileno())
        except OSError:
            cloned = False
        else:
            cloned = True
    if not cloned:
        target.unlink()
    return cloned


def reflinks(source: Path, folder: Path) -> bool:
    """Whether files can be copied from there to ``folder`` without taking room."""
    probe = folder / "reflink-probe"
    try:
        cloned = reflink(source, probe)
    except OSError:
        return False
    if cloned:
        probe.unlink()
    return cloned


def copy_file(source: Path, target: Path) -> None:
    """Copy a file that does not exist yet: shared blocks if possible, else within the kernel; links are followed.

    Raises:
        OSError: As the system says it.
    """
    if reflink(source, target):
        return
    with source.open("rb") as read, target.open("xb") as write:
        _copy_in_kernel(read.fileno(), write.fileno())


def _copy_in_kernel(source: int, target: int) -> None:
    size = os.fstat(source).st_size
    done = 0
    try:
        while done < size and (count := os.copy_file_range(source, target, min(_CHUNK, size - done))):
            done += count
    except OSError as error:
        # across filesystems, on old kernels and on some network mounts; what was copied stays copied
        if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
            raise
    while done < size:
        count = os.sendfile(target, source, done, min(_CHUNK, size - done))
        if count == 0:
            raise OSError(errno.EIO, "the file became shorter while it was copied")
        done += count


def link_file(source: Path, target: Path) -> None:
    """Make ``target`` a second name of the file behind ``source``.

    Raises:
        OSError: As the system says it; ``EXDEV`` when they lie on two filesystems.
    """
    os.link(os.path.realpath(source), target)


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
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()


def file_error(error: OSError, path: Path) -> ModelFileError:
    """What the system said, as one sentence about ``path``."""
    name = path.name
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ModelFileError(f"no room left on the disk while writing {name}", file=path)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ModelFileError(f"{name} cannot be written: {os.strerror(error.errno).lower()}", file=path)
    said = os.strerror(error.errno).lower() if error.errno else str(error)
    return ModelFileError(f"{name} cannot be written: {said}", file=path)
