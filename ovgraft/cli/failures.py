"""Errors as lines for people."""

from __future__ import annotations

import traceback
from collections.abc import Iterable

from ovgraft.errors import OvgraftError, SpecError
from ovgraft.inspection.layout import Block, Cell, Line, printable, shortened

_MOST_REASONS = 8
_LONGEST = 1000  # characters: names and paths out of files have no bound


def sentence(text: str, details: Iterable[tuple[str, str]] = ()) -> list[Block]:
    """``error: text`` and labelled lines below it."""
    lines = [Line((Cell(f"{label}: ", "dim"), _bounded(detail)), indent=2) for label, detail in details]
    return [Line((Cell("error: ", "bad"), _bounded(text))), *lines]


def describe(error: OvgraftError, verbosity: int) -> list[Block]:
    """The sentence, the place in the text, the reasons, what ran before, the hint; with ``-v`` the causes."""
    text = str(error)
    blocks = sentence(text)
    if isinstance(error, SpecError):
        blocks += _caret_lines(error)
    reasons = [line for reason in error.reasons if (line := str(reason)) not in text]
    shown = reasons if verbosity > 0 else reasons[:_MOST_REASONS]
    blocks += [Line((f"- {_bounded(reason)}",), indent=2) for reason in shown]
    if len(shown) < len(reasons):
        more = f"and {len(reasons) - len(shown)} more (-v prints them)"
        blocks.append(Line((Cell(more, "dim"),), indent=2))
    ran_before: tuple[str, ...] = getattr(error, "ran_before", ())
    if ran_before:
        blocks.append(Line((f"ran before it: {', '.join(ran_before)}",), indent=2))
    if error.hint:
        blocks.append(Line((Cell("hint: ", "dim"), _bounded(error.hint)), indent=2))
    if verbosity > 0:
        blocks += _causes(error)
    return blocks + _traceback(error, verbosity)


def describe_bug(error: BaseException, verbosity: int) -> list[Block]:
    """One sentence, and how to see more."""
    hint = () if verbosity > 1 else (("hint", "this is a bug in ovgraft; run again with -vv for the traceback"),)
    text = f"unexpected {type(error).__name__}: {error}".rstrip(": ")
    return sentence(text.partition("\n")[0], hint) + _traceback(error, verbosity)


def _bounded(text: str) -> str:
    return shortened(text, _LONGEST, "...")


def _caret_lines(error: SpecError) -> list[Block]:
    caret = error.caret()
    if caret is None:
        return []
    text, _, marks = caret.partition("\n")
    start = len(marks) - len(marks.lstrip())
    # escapes widen what stands before and above the marks
    before, above = printable(text[:start]), printable(text[start : len(marks)])
    underline = "^" + "~" * (max(len(above), 1) - 1)
    return [Line((text,), indent=4), Line((" " * len(before), Cell(underline, "bad")), indent=4)]


def _causes(error: BaseException) -> list[Block]:
    lines: list[Block] = []
    while (cause := error.__cause__) is not None:
        lines += [Line((Cell(text, "dim"),), indent=2) for text in f"caused by: {cause}".splitlines()]
        error = cause
    return lines


def _traceback(error: BaseException, verbosity: int) -> list[Block]:
    if verbosity < 2:
        return []
    return [Line((Cell(text, "dim"),)) for text in "".join(traceback.format_exception(error)).splitlines()]
