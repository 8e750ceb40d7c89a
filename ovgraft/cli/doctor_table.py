"""A diagnosis as a table, with what is behind each warning and failure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ovgraft.inspection.layout import Block, Cell, Line, Style, Symbols, Table

if TYPE_CHECKING:
    from ovgraft.checks.doctor import Check, Diagnosis

_WORDS: dict[str, tuple[str, Style]] = {
    "pass": ("ok", "good"),
    "warn": ("warn", "warn"),
    "fail": ("FAIL", "bad"),
    "not-applicable": ("-", "dim"),
    "not-checked": ("not checked", "dim"),
}
_MOST_EVIDENCE = 8


def diagnosis_lines(found: Diagnosis, symbols: Symbols) -> list[Block]:
    """The table of checks, the details of those that do not pass, and the verdict."""
    title = (Cell(found.draft, "title"), f" {symbols.arrow} ", Cell(found.target, "title"))
    rows = [_row(check) for check in found.checks]
    blocks: list[Block] = [Line(title), Table(rows)]
    for check in found.checks:
        if check.answer.status in ("warn", "fail"):
            blocks += [Line(), *_details(check)]
    return [*blocks, Line(), _verdict(found)]


def _row(check: Check) -> tuple[Cell | str, ...]:
    word, style = _WORDS[check.answer.status]
    text: Style = "dim" if style == "dim" else "prose"
    return (Cell(check.id, "dim" if style == "dim" else ""), Cell(word, style), Cell(check.answer.text, text))


def _details(check: Check) -> Iterator[Block]:
    word, style = _WORDS[check.answer.status]
    yield Line((Cell(check.id, "heading"), "  ", Cell(word, style), f"  {check.question}"))
    shown = check.answer.evidence[:_MOST_EVIDENCE]
    rows = [(Cell(str(reason), "prose"),) for reason in shown]
    if rows:
        yield Table(rows)
    if len(shown) < len(check.answer.evidence):
        yield Line((Cell(f"and {len(check.answer.evidence) - len(shown)} more (--json has them)", "dim"),), indent=2)
    if check.answer.advice:
        yield Line((Cell("do: ", "dim"), check.answer.advice), indent=2)


def _verdict(found: Diagnosis) -> Line:
    counts = found.counts
    failures, warnings = counts.get("fail", 0), counts.get("warn", 0)
    style: Style = "good"
    text = "the draft fits"
    if failures:
        text, style = f"the draft does not fit: {_count(failures, 'check')} failed", "bad"
    elif warnings:
        text, style = f"the draft fits, with {_count(warnings, 'warning')}", "warn"
    skipped = counts.get("not-checked", 0)
    how = f"  ({len(found.checks)} checks{f', {skipped} not checked' if skipped else ''}"
    how += ")" if found.ran else "; --run adds numbers)"
    return Line((Cell(text, style), Cell(how, "dim")))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
