"""How far long work is, for whoever listens: the command line does on a terminal, nobody else.

The listener is ambient, because the work lies many calls below those who know of a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol


class Listener(Protocol):
    """What is told of the work."""

    def advance(self, done: int, total: int, what: str, unit: str) -> None:
        """Called when ``done`` of ``total`` are through; ``unit`` is ``B`` for bytes and nothing for steps."""

    def watch(self, file: Path, total: int) -> AbstractContextManager[None]:
        """Entered while a file grows to ``total`` bytes without a word, and without Python's lock being given up."""


_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell ``listener`` of the work in the body."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def advance(done: int, total: int, what: str = "", *, unit: str = "") -> None:
    """Tell how much is through.

    Args:
        done: What is.
        total: All there is.
        what: Which part is next.
        unit: ``B`` for bytes.
    """
    if (listener := _listener.get()) is not None:
        listener.advance(done, total, what, unit)


def watching(file: Path, total: int) -> AbstractContextManager[None]:
    """Have a file watched that the body lets grow to ``total`` bytes."""
    listener = _listener.get()
    return nullcontext() if listener is None else listener.watch(file, total)
