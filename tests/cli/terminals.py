"""Programs on a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support import ROOT

_ON_ITS_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Shown:
    """What a program did to the terminal.

    Attributes:
        code: Exit code.
        raw: All it wrote.
    """

    code: int
    raw: str

    @property
    def text(self) -> str:
        """Without escape sequences."""
        return _ESCAPE.sub("", self.raw)

    @property
    def left(self) -> list[str]:
        """The lines that stand there at the end: carriage return and "erase line" are obeyed."""
        lines = [""]
        for piece in re.split(r"(\r|\n|\x1b\[\d*[A-Za-z])", self.raw):
            if piece == "\n":
                lines.append("")
            elif piece in ("\x1b[2K", "\r"):
                lines[-1] = "" if piece != "\r" else lines[-1]
            elif piece == "\x1b[1A":
                lines.pop()
            else:
                lines[-1] += _ESCAPE.sub("", piece)
        return [line.rstrip() for line in lines if line.strip()]

    @property
    def cursor_shown(self) -> bool:
        """Whether the cursor was given back."""
        return self.raw.rfind("\x1b[?25h") >= self.raw.rfind("\x1b[?25l")


def on_terminal(
    args: Sequence[object], *, columns: int = 100, interrupt_at: str | None = None, env: dict[str, str] | None = None
) -> Shown:
    """Run Python with arguments.

    Args:
        args: Of the interpreter.
        columns: Width of the terminal.
        interrupt_at: Press Ctrl-C once this text was seen.
        env: More environment.
    """
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", **(env or {})}
    if "NO_COLOR" not in (env or {}):
        environment.pop("NO_COLOR", None)
    end, inner = pty.openpty()
    # no fork of this process: it has OpenVINO's threads
    process = subprocess.Popen(
        [sys.executable, "-c", _ON_ITS_TERMINAL, *map(str, args)],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env=environment,
        start_new_session=True,
    )
    os.close(inner)
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    raw = b""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if interrupt_at is not None and interrupt_at in _ESCAPE.sub("", raw.decode("utf-8", "replace")):
            os.write(end, b"\x03")
            interrupt_at = None
        if select.select([end], [], [], 0.05)[0]:
            try:
                piece = os.read(end, 65536)
            except OSError:  # Linux says so when the other end is closed
                break
            if not piece:
                break
            raw += piece
    os.close(end)
    return Shown(process.wait(), raw.decode("utf-8", "replace"))
