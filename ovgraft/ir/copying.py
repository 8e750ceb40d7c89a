"""Copies of files that do not exist yet: shared blocks where the filesystem can, else within the kernel."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

from ovgraft.ir import progress

_FICLONE = 0x40049409  # linux/fs.h; absent from fcntl before Python 3.12
_CHUNK = 256 << 20  # each return to Python waits for its lock, while another thread computes
_GLANCE_SECONDS = 0.1


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


def copy_file(source: Path, target: Path, stopped: Callable[[], bool] = lambda: False) -> None:
    """Copy a file; links are followed.

    Args:
        source: Any file.
        target: Does not exist yet.
        stopped: Asked now and then; once it says yes the copy stays unfinished.

    Raises:
        OSError: As the system says it.
    """
    if reflink(source, target):
        return
    with source.open("rb") as read, target.open("xb") as write:
        _copy_in_kernel(read.fileno(), write.fileno(), stopped)


def _copy_in_kernel(source: int, target: int, stopped: Callable[[], bool]) -> None:
    size = os.fstat(source).st_size
    done = 0
    copy_range = True
    while done < size and not stopped():
        chunk = min(_CHUNK, size - done)
        try:
            count = os.copy_file_range(source, target, chunk) if copy_range else 0
        except OSError as error:
            # across filesystems, on old kernels and on some network mounts
            if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
                raise
            count = 0
        if count == 0:
            copy_range = False
            count = os.sendfile(target, source, done, chunk)
        if count == 0:
            raise OSError(errno.EIO, "the file became shorter while it was copied")
        done += count
        progress.advance(done, size, unit="B")


def link_file(source: Path, target: Path) -> None:
    """Make ``target`` a second name of the file behind ``source``.

    Raises:
        OSError: As the system says it; ``EXDEV`` when they lie on two filesystems.
    """
    os.link(os.path.realpath(source), target)


class BackgroundCopy:
    """A copy made while something else is worked out; it ends with :meth:`finish` or :meth:`drop`."""

    def __init__(self, source: Path, target: Path) -> None:
        """Start it."""
        self._target = target
        self._size = source.stat().st_size
        self._stop = threading.Event()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, args=(source,), daemon=True)
        self._thread.start()

    def _run(self, source: Path) -> None:
        try:
            copy_file(source, self._target, self._stop.is_set)
        except OSError as error:
            self._error = error

    def done(self) -> int:
        """Bytes copied so far."""
        return self._target.stat().st_size if self._target.exists() else 0

    def finish(self) -> None:
        """Wait for the end.

        Raises:
            OSError: The copy failed.
        """
        while self._thread.is_alive():
            progress.advance(self.done(), self._size, unit="B")
            self._thread.join(_GLANCE_SECONDS)
        if self._error is not None:
            raise self._error

    def drop(self) -> None:
        """Stop it and remove what is there."""
        self._stop.set()
        self._thread.join()
        self._target.unlink(missing_ok=True)
