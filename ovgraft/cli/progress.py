"""The line that tells how far a command is, drawn with rich. Imported only when there is a terminal."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.text import Text

from ovgraft.cli import interrupts
from ovgraft.inspection.as_text import number, size
from ovgraft.inspection.layout import printable, shortened

_DELAY_SECONDS = 0.5
_GLANCE_SECONDS = 0.1
_BAR_WIDTH = 16
_BESIDE_TEXT = 16  # columns of spinner and clock
_BESIDE_BAR = 42  # columns of bar and amount
_SHORT_WRITE = 64 << 20  # bytes that are written before anybody asks


class _Step(ProgressColumn):
    """What is being done, its middle left out where the terminal is narrow."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width - _BESIDE_TEXT
        self._stopping = False

    def render(self, task: Task) -> Text:
        self._stopping |= interrupts.struck()
        text = f"stopping after {task.description}" if self._stopping else task.description
        room = max(16, self._width - (_BESIDE_BAR if task.total else 0))
        return Text(shortened(printable(text), room), no_wrap=True)


class _Bar(ProgressColumn):
    """A bar where there is a total."""

    def render(self, task: Task) -> ProgressBar | Text:
        if not task.total:
            return Text("")
        return ProgressBar(total=task.total, completed=task.completed, width=_BAR_WIDTH)


class _Amount(ProgressColumn):
    """``1.2 GiB of 4.3 GiB`` or ``12 of 36``."""

    def render(self, task: Task) -> Text:
        if not task.total:
            return Text("")
        in_words = size if task.fields["unit"] == "B" else number
        return Text(f"{in_words(int(task.completed))} of {in_words(int(task.total))}")


class StatusLine:
    """A line that appears after a while, so that quick steps do not flicker, and leaves nothing behind.

    Args:
        console: Where; a terminal.
        delay: Seconds until it appears.
        text: What is being done at first.
    """

    def __init__(self, console: Console, delay: float, text: str = "") -> None:
        self._console = console
        spinner = SpinnerColumn("line" if console.options.ascii_only else "dots")
        columns = (spinner, _Step(console.width), _Bar(), _Amount(), TimeElapsedColumn())
        self._progress = Progress(
            *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._begin(text)
        self._lock = threading.Lock()
        self._due = self._hidden = self._shown = False
        self._timer = threading.Timer(delay, self._appear)
        self._timer.daemon = True
        self._timer.start()

    def show(self, text: str, done: int = 0, total: int = 0, unit: str = "") -> None:
        """Say what is being done now, and how far it is."""
        if text == self._text:
            self._progress.update(self._task, completed=done, total=total or None, unit=unit)
        else:
            self._progress.remove_task(self._task)
            self._begin(text, done, total, unit)

    @contextmanager
    def watch(self, file: Path, total: int) -> Iterator[None]:
        """Show how a file grows, from another process: whoever writes it lets no thread of this one draw."""
        if total < _SHORT_WRITE:
            yield
            return
        self._hide(True)
        watcher = _watcher(file, total, self._text, 0.0 if self._due else _DELAY_SECONDS, self._console.no_color)
        try:
            yield
        finally:
            if watcher is not None:
                watcher.communicate()
            self._hide(False)

    def close(self) -> None:
        """Take the line away."""
        self._timer.cancel()
        self._timer.join()
        self._hide(True)

    def _begin(self, text: str, done: int = 0, total: int = 0, unit: str = "") -> None:
        """A task for each step: a total, once given, cannot be taken back."""
        self._text = text
        self._task = self._progress.add_task(text, completed=done, total=total or None, unit=unit)

    def _appear(self) -> None:
        self._due = True
        self._draw()

    def _hide(self, hidden: bool) -> None:
        self._hidden = hidden
        self._draw()

    def _draw(self) -> None:
        with self._lock:
            wanted = self._due and not self._hidden
            if wanted and not self._shown:
                self._progress.start()
            elif self._shown and not wanted:
                self._progress.stop()
            self._shown = wanted


def line_console(stream: TextIO, *, colored: bool) -> Console:
    """A console for the line alone: it moves the cursor whether there is colour or not."""
    return Console(file=stream, force_terminal=True, no_color=not colored, markup=False, highlight=False, emoji=False)


def _watcher(file: Path, total: int, text: str, delay: float, no_color: bool) -> subprocess.Popen[bytes] | None:
    """A process that draws until its stdin ends; None where there can be none, and then nothing is drawn."""
    said = json.dumps([str(file), total, text, delay, no_color])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with suppress(OSError):
        return subprocess.Popen(
            [sys.executable, "-m", "ovgraft.cli.progress", said], stdin=subprocess.PIPE, env=environment
        )
    return None


def _watch(said: str) -> None:
    """Draw how a file grows until stdin ends; the other end of :func:`_watcher`."""
    interrupts.take_note()
    signal.signal(signal.SIGINT, lambda number, frame: None)  # whoever writes the file ends, and with it stdin
    file, total, text, delay, no_color = json.loads(said)
    line = StatusLine(line_console(sys.stderr, colored=not no_color), delay, text)
    try:
        while not select.select([sys.stdin], [], [], _GLANCE_SECONDS)[0]:
            with suppress(OSError):
                line.show(text, os.stat(file).st_size, total, "B")
    finally:
        line.close()


if __name__ == "__main__":
    _watch(sys.argv[1])
