"""What a command is doing now, and how long each step took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ovgraft.cli.progress import StatusLine
    from ovgraft.pipeline import PassRun


class Status:
    """Called with the step a command is at; tells the line, when there is one, and remembers the time.

    Attributes:
        seconds: Steps in the order they began, each with the time it took, however often it came.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._line: StatusLine | None = None
        self._step = ""
        self._since = 0.0

    def __call__(self, text: str, done: int = 0, total: int = 0, what: str = "") -> None:
        """Set the step.

        Args:
            text: What is being done.
            done: How much of ``total``.
            total: Parts of the step; 0 when nobody knows.
            what: Which part of the step ``done`` counts.
        """
        from ovgraft.cli.interrupts import check

        check()
        if text != self._step:
            self._count()
            self._step = text
        self.advance(done, total, what, "")

    def advance(self, done: int, total: int, what: str, unit: str) -> None:
        """Parts of the step that are through, or bytes of it."""
        if self._line is not None:
            self._line.show(f"{self._step}: {what}" if what else self._step, done, total, unit)

    def watch(self, file: Path, total: int) -> AbstractContextManager[None]:
        """Watch a file that grows to ``total`` bytes."""
        return nullcontext() if self._line is None else self._line.watch(file, total)

    @contextmanager
    def running(self, line: StatusLine | None) -> Iterator[Status]:
        """Tell a line until the end of the body."""
        self._line, self._since = line, time.perf_counter()
        try:
            yield self
        finally:
            self._count()
            self._line, self._step = None, ""

    def show_pass(self, run: PassRun, done: int, total: int, what: str) -> None:
        """The callback of :class:`ovgraft.pipeline.Progress`."""
        of = f"pass {run.position}/{run.total} " if run.total > 1 else ""
        self(f"{of}{run.item.name}", done, total, what)

    def _count(self) -> None:
        now = time.perf_counter()
        if self._step:
            self.seconds[self._step] = self.seconds.get(self._step, 0.0) + now - self._since
        self._since = now
