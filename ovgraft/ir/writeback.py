"""A growing file is forced to disk while it is written, not when it is whole.

Linux keeps gigabytes of dirty pages before it writes the first; the disk would idle while OpenVINO hashes and copies
weights, and everybody would wait for it afterwards.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

_LEAST_BYTES = 128 << 20

# Imports next to nothing, ends with its stdin, which is with this process at the latest.
_FLUSHER = """
import os, select, sys
file = os.open(sys.argv[1], os.O_RDONLY)
while not select.select([0], [], [], 0.05)[0]:
    os.fdatasync(file)
"""


@contextmanager
def written_back(file: Path, total: int) -> Iterator[Callable[[], None]]:
    """Make an empty file and have its dirty pages written as they come, by another process.

    ``ov.save_model`` lets no thread of this one run.

    Args:
        file: Does not exist yet; the body fills it.
        total: Bytes it will have; few are not worth a process.

    Yields:
        What forces the rest to disk. It tells of every write that failed since the file was made: Linux tells each
        open file once, and one that is opened afterwards of nothing that somebody else was told.

    Raises:
        OSError: As the system says it.
    """
    with file.open("xb") as held:

        def sync() -> None:
            if not os.path.samestat(os.fstat(held.fileno()), file.stat()):
                raise OSError(errno.ESTALE, "the file was replaced while it was written")
            os.fsync(held.fileno())

        flusher = _flusher(file) if total >= _LEAST_BYTES else None
        try:
            yield sync
        finally:
            if flusher is not None:
                flusher.kill()  # a forked child may hold the other end of its stdin
                flusher.communicate()


def _flusher(file: Path) -> subprocess.Popen[bytes] | None:
    """None where there can be none: in a frozen program, or an embedded Python, the executable is something else."""
    if getattr(sys, "frozen", False) or not Path(sys.executable or "").name.startswith("python"):
        return None
    import subprocess  # small saves do without: a host that forks while a thread imports it would find it locked

    command = [sys.executable, "-I", "-S", "-c", _FLUSHER, str(file)]
    nowhere = subprocess.DEVNULL
    with suppress(OSError):
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere)
    return None
