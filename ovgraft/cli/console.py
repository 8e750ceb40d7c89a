"""The two streams: data on stdout, everything else on stderr.

Kept light for ``ovgraft --help``: the drawing modules are imported when something is drawn, ``rich`` only for a
terminal or for colour. Plain streams get plain text at full width. Every piece of text passes through
``layout.printable``, and rich's markup is off.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TextIO

from ovgraft.cli.status import Status

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from ovgraft.cli.progress import StatusLine
    from ovgraft.errors import OvgraftError
    from ovgraft.inspection.layout import Block, Symbols

Color = Literal["auto", "always", "never"]

_QUIET_SECONDS = 0.5  # before anything is said
_SHORTEST_STEP = 0.05  # seconds


class Console:
    """What a command may say, and where.

    Attributes:
        verbosity: -1 quiet, 0 normal, 1 with causes and times, 2 with tracebacks.
        color: ``auto`` follows the stream, NO_COLOR and FORCE_COLOR.
        json: The command was asked for one JSON document on stdout.
    """

    def __init__(self) -> None:
        self.verbosity = 0
        self.color: Color = "auto"
        self.json = False
        self._started = time.perf_counter()
        self._status = Status()

    @property
    def symbols(self) -> Symbols:
        """What stdout can hold."""
        from ovgraft.inspection.layout import ASCII, UNICODE

        try:
            "".join(UNICODE).encode(sys.stdout.encoding or "ascii")
        except UnicodeEncodeError:
            return ASCII
        return UNICODE

    def data(self, *blocks: Block) -> None:
        """Blocks on stdout."""
        self._draw(sys.stdout, blocks)

    def document(self, content: Mapping[str, object]) -> None:
        """One JSON document on stdout, in ASCII: names are untrusted and streams differ."""
        import json

        self.raw(json.dumps(content, indent=2) + "\n")

    def raw(self, text: str) -> None:
        """Text in a format of its own on stdout, for example a page: UTF-8, whatever the stream holds else."""
        _write(sys.stdout, text, "utf-8")

    def say(self, *blocks: Block) -> None:
        """Blocks on stderr, nothing under ``-q``."""
        if self.verbosity >= 0:
            self._draw(sys.stderr, blocks)

    def error(self, error: OvgraftError) -> None:
        """One sentence, what is behind it, and what to do."""
        from ovgraft.cli.failures import describe

        if self.json:
            self.document({"schema": 1, "error": error.to_dict()})
        self._draw(sys.stderr, describe(error, self.verbosity))

    def sentence(self, text: str, *details: tuple[str, str]) -> None:
        """What went wrong when no :class:`OvgraftError` says it, with labelled lines below."""
        from ovgraft.cli.failures import sentence

        self._draw(sys.stderr, sentence(text, details))

    def bug(self, error: BaseException) -> None:
        """An exception nobody planned."""
        from ovgraft.cli.failures import describe_bug

        if self.json:
            self.document({"schema": 1, "error": {"type": type(error).__name__, "message": str(error)}})
        self._draw(sys.stderr, describe_bug(error, self.verbosity))

    @contextmanager
    def status(self) -> Iterator[Status]:
        """A line about what is going on, on a terminal only, and only for what lasts.

        Yields:
            Called with the step the command is at; work on files tells it how far it is.
        """
        from ovgraft.ir.progress import listening

        with self._line() as line, self._status.running(line) as status, listening(status):
            yield status

    @contextmanager
    def _line(self) -> Iterator[StatusLine | None]:
        if self.verbosity < 0 or not _is_terminal(sys.stderr) or os.environ.get("TERM") in ("dumb", "unknown"):
            yield None
            return
        from ovgraft.cli.progress import StatusLine, line_console

        delay = max(0.0, _QUIET_SECONDS - (time.perf_counter() - self._started))
        line = StatusLine(line_console(sys.stderr, colored=self._colored(sys.stderr)), delay, "starting")
        try:
            yield line
        finally:
            line.close()

    def timings(self) -> None:
        """With ``-v`` the seconds of every step, on stderr."""
        if self.verbosity < 1 or not self._status.seconds:
            return
        from ovgraft.inspection.layout import Cell, Line, Table

        total = time.perf_counter() - self._started
        steps = [(text, seconds) for text, seconds in self._status.seconds.items() if seconds >= _SHORTEST_STEP]
        rest = total - sum(seconds for _, seconds in steps)
        rows = [(f"{seconds:.2f} s", Cell(text, "name")) for text, seconds in steps]
        rows += [(f"{rest:.2f} s", Cell("the rest", "dim")), (f"{total:.2f} s", Cell("total", "title"))]
        self._draw(sys.stderr, [Line((Cell("time", "heading"),)), Table(rows, align="><")])

    def _colored(self, stream: TextIO) -> bool:
        if self.color != "auto":
            return self.color == "always"
        if os.environ.get("NO_COLOR"):
            return False
        if os.environ.get("FORCE_COLOR"):
            return True
        return _is_terminal(stream) and os.environ.get("TERM") != "dumb"

    def _draw(self, stream: TextIO, blocks: Sequence[Block]) -> None:
        if _is_terminal(stream) or self._colored(stream):
            from ovgraft.cli.terminal import draw

            _write(stream, draw(self._rich(stream), blocks, self.symbols))
        else:
            from ovgraft.inspection.layout import plain

            _write(stream, plain(blocks))

    def _rich(self, stream: TextIO) -> RichConsole:
        from ovgraft.cli.terminal import rich_console

        return rich_console(stream, colored=self._colored(stream), terminal=_is_terminal(stream))


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def _write(stream: TextIO, text: str, encoding: str | None = None) -> None:
    """Write all of it, in escapes where the encoding cannot; a reader that went away (``| head``) is not an error."""
    own = stream.encoding or "ascii"
    buffer = getattr(stream, "buffer", None)
    try:
        if encoding is None or buffer is None:
            stream.write(text.encode(own, "backslashreplace").decode(own))
        else:
            stream.flush()
            buffer.write(text.encode(encoding, "backslashreplace"))
        stream.flush()
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        # what is still buffered must not fail again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
