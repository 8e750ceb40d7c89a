"""A growing file is forced to disk while it is written, not when it is whole.

Linux keeps gigabytes of dirty pages before it writes the first; the disk would idle while OpenVINO hashes and copies
weights, and everybody would wait for it afterwards.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LEAST_BYTES = 128 << 20

# Imports next to nothing, ends with its stdin, which is with this process at the latest.
_FLUSHER = """
import os, select, sys
file = None
while not select.select([0], [], [], 0.05)[0]:
    try:
        file = os.open(sys.argv[1], os.O_RDONLY) if file is None else file
        os.fdatasync(file)
    except OSError:
        pass
"""


@contextmanager
def writing_back(file: Path, total: int) -> Iterator[None]:
    """Have dirty pages of ``file`` written as they come, by another process: ``ov.save_model`` lets no thread run.

    It is a help and no promise: the file must still be synced.

    Args:
        file: May not exist yet.
        total: Bytes it will have; few are not worth a process.
    """
    flusher = _flusher(file) if total >= _LEAST_BYTES else None
    try:
        yield
    finally:
        if flusher is not None:
            flusher.communicate()


def _flusher(file: Path) -> subprocess.Popen[bytes] | None:
    """None where there can be none: in a frozen program the executable is no Python."""
    if getattr(sys, "frozen", False) or not sys.executable:
        return None
    command = [sys.executable, "-I", "-S", "-c", _FLUSHER, str(file)]
    nowhere = subprocess.DEVNULL
    with suppress(OSError):
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere)
    return None
