"""The file behind ``--report``: opened before any work, so that nobody learns afterwards that it cannot be written."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ovgraft.errors import ModelFileError

_NO_RESERVING = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


class ReportFile:
    """An open report.

    A file that was there keeps its text until :meth:`write`; links, pipes and devices are written through.
    """

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            ModelFileError: It is a folder, or may not be written.
        """
        self._path = path
        self._is_new = not os.path.lexists(path)
        try:
            self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise self._error(error) from error
        found = os.fstat(self._handle)
        self._is_file = stat.S_ISREG(found.st_mode)
        self._size = found.st_size

    def reserve(self, record: dict[str, Any]) -> None:
        """Take the room for a record of this length, where the filesystem lets it be taken.

        Raises:
            ModelFileError: There is none.
        """
        if not self._is_file:
            return
        try:
            os.posix_fallocate(self._handle, 0, len(_text(record)))
        except OSError as error:
            if error.errno not in _NO_RESERVING:
                raise self._error(error) from error

    def write(self, record: dict[str, Any], done: str = "") -> None:
        """Make the record its content.

        Args:
            record: What :func:`~ovgraft.cli.records.run_record` gives.
            done: What was done before, for an error after it, for example ``the models were written``.

        Raises:
            ModelFileError: The disk fails.
        """
        text = _text(record)
        try:
            left = memoryview(text)
            while left:
                left = left[os.write(self._handle, left) :]
            if self._is_file:
                os.ftruncate(self._handle, len(text))
        except OSError as error:
            self._size = 0  # half a record is none
            raise self._error(error, done) from error
        self._is_new = False
        self._size = len(text)

    def close(self, *, failed: bool) -> None:
        """Close it; of a run that failed before :meth:`write` nothing stays."""
        with contextlib.suppress(OSError):
            if failed and self._is_file:
                os.ftruncate(self._handle, self._size)
            if failed and self._is_new:
                self._path.unlink()
        os.close(self._handle)

    def _error(self, error: OSError, done: str = "") -> ModelFileError:
        said = os.strerror(error.errno or 0).lower()
        before = f"{done}, but " if done else ""
        return ModelFileError(f"{before}the report cannot be written: {said}", file=self._path)


@contextlib.contextmanager
def report_file(path: Path | None) -> Iterator[ReportFile | None]:
    """Keep a report open; None for no report.

    Raises:
        ModelFileError: It cannot be opened.
    """
    report = None if path is None else ReportFile(path)
    failed = True
    try:
        yield report
        failed = False
    finally:
        if report is not None:
            report.close(failed=failed)


def _text(record: dict[str, Any]) -> bytes:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return (json.dumps({**record, "time": now}, indent=2) + "\n").encode()
