"""A file that a command writes: opened before the work, so that nobody learns afterwards that it cannot be written."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ovgraft.errors import ModelFileError

_NO_RESERVING = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


class OutputFile:
    """An open file that gets its content in one go, or none of it.

    What was there stays until :meth:`write`; links, pipes and devices are written through.
    """

    def __init__(self, path: Path, what: str, *, replace: bool = True) -> None:
        """Open it.

        Args:
            path: The file.
            what: What it is to people, for example ``the report``.
            replace: Whether it may be there already.

        Raises:
            ModelFileError: It is there, is a folder, or may not be written.
        """
        self._path = path
        self._what = what
        self._is_new = not os.path.lexists(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (0 if replace else os.O_EXCL)
        try:
            self._handle = os.open(path, flags, 0o666)
        except FileExistsError as error:
            raise ModelFileError(f"{what} exists", file=path, hint="--force replaces it") from error
        except OSError as error:
            raise self._error(error) from error
        found = os.fstat(self._handle)
        self._is_file = stat.S_ISREG(found.st_mode)
        self._size = found.st_size

    def reserve(self, size: int) -> None:
        """Take the room for so many bytes, where the filesystem lets it be taken.

        Raises:
            ModelFileError: There is none.
        """
        if not self._is_file:
            return
        try:
            os.posix_fallocate(self._handle, 0, max(size, 1))
        except OSError as error:
            if error.errno not in _NO_RESERVING:
                raise self._error(error) from error

    def write(self, content: bytes, done: str = "") -> None:
        """Make this its content.

        Args:
            content: All of it.
            done: What was done before, for an error after it, for example ``the models were written``.

        Raises:
            ModelFileError: There is no room, or the disk fails.
        """
        self.reserve(len(content))
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(self._handle, left) :]
            if self._is_file:
                os.ftruncate(self._handle, len(content))
        except OSError as error:
            self._size = 0  # half of it is none
            raise self._error(error, done) from error
        self._is_new = False
        self._size = len(content)

    def close(self, *, failed: bool) -> None:
        """Close it; of work that failed before :meth:`write` nothing stays."""
        with contextlib.suppress(OSError):
            if failed and self._is_file:
                os.ftruncate(self._handle, self._size)
            if failed and self._is_new:
                self._path.unlink()
        os.close(self._handle)

    def _error(self, error: OSError, done: str = "") -> ModelFileError:
        said = os.strerror(error.errno or 0).lower()
        before = f"{done}, but " if done else ""
        return ModelFileError(f"{before}{self._what} cannot be written: {said}", file=self._path)


@contextlib.contextmanager
def output_file(path: Path, what: str, *, replace: bool = True) -> Iterator[OutputFile]:
    """Keep a file open while what goes into it is worked out.

    Raises:
        ModelFileError: It cannot be opened.
    """
    file = OutputFile(path, what, replace=replace)
    failed = True
    try:
        yield file
        failed = False
    finally:
        file.close(failed=failed)
