"""Who is at work in a folder right now: a lock on a file in it, which ends with the process that holds it.

The file goes away with the folder, so whoever got the lock looks again whether it is still the file that lies there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

LOCK = "lock"
"""Name of the file."""

_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # some network mounts


def lock_folder(folder: Path) -> int:
    """Lock a folder, which is made when it is missing.

    On a filesystem without locks nobody is kept out.

    Returns:
        A handle for :func:`remove_locked` or ``os.close``, either of which ends the lock.

    Raises:
        BlockingIOError: Somebody else holds it.
        OSError: As the system says it.
    """
    while True:
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        try:
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:
            if folder.is_symlink():
                raise
            continue  # its last holder has just removed the folder
        try:
            _lock(handle)
            if _lies_there(handle, folder / LOCK):
                return handle
        except OSError:
            os.close(handle)
            raise
        os.close(handle)


def is_locked(folder: Path) -> bool | None:
    """Whether somebody holds a folder's lock; None when nobody can tell."""
    with keep_unlocked(folder) as free:
        return None if free is None else not free


@contextlib.contextmanager
def keep_unlocked(folder: Path) -> Iterator[bool | None]:
    """Let nobody lock a folder while one looks at what lies in it.

    Yields:
        True when nobody holds its lock, nor gets it where there is one; False when somebody holds it; None when nobody
        can tell.
    """
    handle = free = None
    try:
        while free is None:
            handle = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            free = _share(handle)
            if free and not _lies_there(handle, folder / LOCK):
                os.close(handle)
                handle = free = None
    except (FileNotFoundError, NotADirectoryError):
        free = True
    except OSError:
        free = None
    try:
        yield free
    finally:
        if handle is not None:
            os.close(handle)


def remove_locked(folder: Path, handle: int) -> None:
    """Remove a locked folder that holds nothing but its lock, and end the lock; a fuller one stays, unlocked."""
    try:
        with contextlib.suppress(OSError):
            if os.listdir(folder) == [LOCK]:
                os.unlink(folder / LOCK)
                os.rmdir(folder)
    finally:
        os.close(handle)


def _lock(handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise


def _share(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lies_there(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
