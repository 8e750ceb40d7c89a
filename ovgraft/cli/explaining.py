"""What ``ovgraft passes --explain`` runs, and how it tells: why a pass would or would not fire, nothing written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ovgraft.inspection.layout import Block, Cell, Line, Style, Table

if TYPE_CHECKING:
    from ovgraft.cli.status import Status
    from ovgraft.pipeline import PassRecord

_ANSWERS: dict[str, tuple[str, str, Style]] = {
    "changed": ("fires", "would fire", "good"),
    "unchanged": ("idle", "would run and change nothing", "dim"),
    "failed": ("refuses", "would not fire", "bad"),
    "not-run": ("not-reached", "not reached: a pass before it would not fire", "dim"),
}
_MOST_REASONS = 12


def explain(text: str, path: Path, draft: Path | None, status: Status) -> tuple[bool, dict[str, object], list[Block]]:
    """Run passes on clones and look at what happens.

    Args:
        text: Pipeline text; several passes see what the ones before them did.
        path: The model.
        draft: Its draft.
        status: Told what is being done.

    Returns:
        Whether all of them would run, the JSON document, the lines.

    Raises:
        SpecError: Bad text, or an unknown pass.
        ModelFileError: The model cannot be read.
    """
    from ovgraft import pipeline
    from ovgraft.cli.opening import open_graft

    passes = pipeline.parse(text)
    status(f"reading {path}")
    graft = open_graft(path, draft)
    report = pipeline.execute(passes, graft, dry_run=True, hooks=[pipeline.Progress(status.show_pass)])
    runs = all(record.status in ("changed", "unchanged") for record in report.records)
    data: dict[str, object] = {"schema": 1, "runs": runs, "passes": [_data(record) for record in report.records]}
    blocks = [block for record in report.records for block in (*_lines(record), Line())]
    return runs, data, [*blocks, Line((Cell("nothing was written", "dim"),))]


def _data(record: PassRecord) -> dict[str, object]:
    answer, *_ = _ANSWERS[record.status]
    return {
        "pass": record.spec,
        "answer": answer,
        "edits": [edit.to_dict() for edit in record.edits],
        "remarks": list(record.remarks),
        "error": None if record.error is None else record.error.to_dict(),
    }


def _lines(record: PassRecord) -> Iterator[Block]:
    _, words, style = _ANSWERS[record.status]
    yield Line((Cell(record.spec, "title"), "  ", Cell(words, style)))
    error = record.error
    if error is not None:
        sentence = str(error).removeprefix(f"{error.pass_name}: ")
        yield Line((sentence,), indent=2)
        if error.reasons:
            yield Line((Cell("because", "heading"),), indent=2)
            yield Table([(Cell(str(reason), "prose"),) for reason in error.reasons[:_MOST_REASONS]], indent=4)
            if len(error.reasons) > _MOST_REASONS:
                yield Line((Cell(f"and {len(error.reasons) - _MOST_REASONS} more (--json has them)", "dim"),), indent=4)
        if error.hint:
            yield Line((Cell("do: ", "dim"), error.hint), indent=2)
    said: list[tuple[Cell, Cell]] = [(Cell("sees", "dim"), Cell(remark, "prose")) for remark in record.remarks]
    for edit in record.edits:
        where = f" [{edit.node}]" if edit.node is not None else ""
        said.append((Cell(f"{edit.kind} {edit.model}", "dim"), Cell(f"{edit.text}{where}", "prose")))
    if said:
        yield Table(said)
