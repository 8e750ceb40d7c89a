"""What ``ovgraft build-draft`` does: open, build, pack the head, save, tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ovgraft import pipeline
from ovgraft.cli.console import Console
from ovgraft.cli.opening import check_parent
from ovgraft.cli.records import run_record
from ovgraft.cli.report_table import report_lines
from ovgraft.errors import ModelFileError
from ovgraft.graft import Graft, Package
from ovgraft.inspection.layout import Line
from ovgraft.passes.build_draft import BuildDraft
from ovgraft.passes.pack_markov_head import PackMarkovHead
from ovgraft.pipeline import Report, Size


@dataclass(frozen=True)
class Request:
    """The command line of ``ovgraft build-draft``, as parsed; see ``--help``."""

    checkpoint: Path
    target: Path | None
    output: Path
    form: Literal["sdpa", "per-row"]
    sliding_in_block: Literal["auto", "causal", "bidirectional"]
    keep_copies: bool
    force: bool


def build(console: Console, request: Request) -> None:
    """Do it.

    Raises:
        OvgraftError: As the checkpoint, the passes and the save say; nothing was written then.
    """
    check_parent(request.output)
    passes = pipeline.Pipeline(
        [
            BuildDraft(form=request.form, sliding_in_block=request.sliding_in_block, keep_copies=request.keep_copies),
            PackMarkovHead(),
        ]
    )
    with console.status() as say:
        say("opening the models")
        draft = Package(request.checkpoint)
        if not draft.is_checkpoint:
            raise ModelFileError(
                f"{request.checkpoint} has an OpenVINO model already",
                file=request.checkpoint,
                hint="a draft that is an IR goes into `ovgraft apply --draft` as it is",
            )
        graft = Graft(draft) if request.target is None else Graft(Package(request.target), draft)
        Graft(draft).check_output(request.output, force=request.force)
        hooks = [pipeline.Progress(say.show_pass), pipeline.Timing(), pipeline.Sizes()]
        report = pipeline.execute(passes, graft, hooks=hooks)
        if report.error is None:
            Graft(draft).save(request.output, force=request.force, on_step=say)
    packages = graft.packages
    if graft.draft is None:
        report, packages = _of_a_draft(report), {"draft": draft}
    record = run_record(report, None, packages, request.output, written=report.error is None)
    if console.json:
        console.document(record)
        console.json = False  # an error below goes to stderr only
    else:
        console.data(*report_lines(report, None, console.symbols))
    if report.error is not None:
        console.say(Line(("nothing was written",)))
        raise report.error
    console.say(Line((f"wrote {request.output}",)))


def _of_a_draft(report: Report) -> Report:
    """The same run, told of a draft: in a graft of one package that is the target."""

    def renamed(sizes: Mapping[str, Size]) -> dict[str, Size]:
        return {f"draft/{name.partition('/')[2]}": size for name, size in sizes.items()}

    records = [
        replace(
            record,
            edits=tuple(replace(edit, model="draft") for edit in record.edits),
            before=renamed(record.before),
            after=renamed(record.after),
        )
        for record in report.records
    ]
    return replace(report, records=tuple(records), models={"draft": report.models["target"]})
