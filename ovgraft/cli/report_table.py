"""A run as a table: what each pass changed, and what it said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovgraft.cli.verifying import comparison_lines
from ovgraft.inspection.layout import Block, Cell, Line, Style, Symbols, Table

if TYPE_CHECKING:
    from ovgraft.checks import Verification
    from ovgraft.pipeline import PassRecord, Report

_WORDS: dict[str, tuple[str, Style]] = {
    "changed": ("yes", "good"),
    "unchanged": ("no", "dim"),
    "skipped": ("failed, skipped", "warn"),
    "failed": ("FAILED", "bad"),
    "not-run": ("not run", "dim"),
}

_SIGNS = {"add": "+", "remove": "-", "replace": "~", "update": "~", "metadata": "="}


def report_lines(report: Report, verification: Verification | None, symbols: Symbols) -> list[Block]:
    """The table, the edits and remarks below it, and the comparison of numbers."""
    rows = [_row(record, symbols) for record in report.records]
    edits = sum(len(record.edits) for record in report.records)
    if len(rows) > 1:
        rows.append(("total", "", str(edits), "", _seconds(report.seconds, _verifying(report))))
    blocks: list[Block] = [Table(rows, header=("pass", "changed", "edits", "nodes", "time"), align="<<><>")]
    said = [row for record in report.records for row in _said(record)]
    if said:
        blocks += [Line(), Table(said)]
    if verification is not None:
        blocks += [Line(), *comparison_lines(verification)]
    return blocks


def _row(record: PassRecord, symbols: Symbols) -> tuple[Cell | str, ...]:
    word, style = _WORDS[record.status]
    ran = record.status in ("changed", "unchanged")
    return (
        Cell(record.spec, "name"),
        Cell(word, style),
        str(len(record.edits)) if ran else "",
        _nodes(record, symbols) if ran else "",
        _seconds(record.seconds, record.verify_seconds),
    )


def _nodes(record: PassRecord, symbols: Symbols) -> str:
    """Models whose number of nodes changed, by role, or by role and name beside the main one."""
    parts = []
    for name, after in record.after.items():
        before = record.before.get(name)
        if before is None:
            parts.append(f"{_short(name)} {after.nodes:,}")
        elif before.nodes != after.nodes:
            parts.append(f"{_short(name)} {before.nodes:,} {symbols.arrow} {after.nodes:,}")
    return ", ".join(parts) or "unchanged"


def _short(name: str) -> str:
    role, _, model = name.partition("/")
    return role if model in ("openvino_model", "openvino_language_model") else name


def _seconds(seconds: float | None, verifying: float | None = None) -> str:
    if seconds is None:
        return ""
    part = f" ({verifying:.2f} s verifying)" if verifying else ""
    return f"{seconds:.2f} s{part}"


def _verifying(report: Report) -> float:
    return sum(record.verify_seconds or 0 for record in report.records)


def _said(record: PassRecord) -> list[tuple[Cell | str, ...]]:
    """Edits and remarks, and why a skipped pass failed."""
    said: list[tuple[Cell | str, Cell]] = [("", Cell(remark, "prose")) for remark in record.remarks]
    said += [(Cell(f"{edit.model} {_SIGNS[edit.kind]}", "dim"), Cell(edit.text, "prose")) for edit in record.edits]
    if record.status == "skipped" and record.error is not None:
        said.append((Cell("failed", "warn"), Cell(str(record.error), "prose")))
    name = record.spec.partition("{")[0]
    return [(Cell(name if at == 0 else "", "dim"), *row) for at, row in enumerate(said)]
