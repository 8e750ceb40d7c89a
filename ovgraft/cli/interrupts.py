"""Ctrl-C is exit code 130 and nothing on the terminal but a sentence, wherever it strikes."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

_swallowed = False
_pipe: tuple[int, int] | None = None


def install() -> None:
    """Take over SIGINT and what Python says of exceptions that nobody can catch."""
    own = os.getpid()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own:  # openvino forks to send its telemetry, and the fork would print a traceback
            os._exit(130)
        raise KeyboardInterrupt

    def unraisable(found: Any) -> None:
        global _swallowed
        if isinstance(found.exc_value, KeyboardInterrupt):
            _swallowed = True
        else:
            sys.__unraisablehook__(found)

    take_note()
    signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = unraisable


def take_note() -> None:
    """Let :func:`struck` know of signals at once: Python itself comes to them when C code returns."""
    global _pipe
    _pipe = os.pipe()
    for end in _pipe:
        os.set_blocking(end, False)
    signal.set_wakeup_fd(_pipe[1], warn_on_full_buffer=False)


def struck() -> bool:
    """Whether there was an interrupt since the last call; any thread may ask."""
    try:
        return _pipe is not None and bool(os.read(_pipe[0], 64))
    except BlockingIOError:
        return False


def check() -> None:
    """Raise the interrupt that struck where Python ignores exceptions, such as the callback of a weak reference.

    Raises:
        KeyboardInterrupt: There was one.
    """
    global _swallowed
    if _swallowed:
        _swallowed = False
        raise KeyboardInterrupt
