"""What ``ovgraft apply`` does: open, run, compare numbers, save, tell."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from ovgraft import pipeline
from ovgraft.cli.console import Console
from ovgraft.cli.opening import open_graft
from ovgraft.cli.records import graft_record, run_record, write_report
from ovgraft.cli.report_table import report_lines
from ovgraft.errors import ModelFileError, OvgraftError, SpecError
from ovgraft.inspection.layout import Cell, Line
from ovgraft.pipeline import toml

if TYPE_CHECKING:
    from ovgraft.checks import Verification
    from ovgraft.graft import Graft, Snapshot
    from ovgraft.passbase import Pass
    from ovgraft.pipeline import Hook, PassRun, Pipeline, Report

OnError = Literal["stop", "skip"]
When = Literal["none", "end", "each"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """The command line of ``ovgraft apply``, as parsed; see ``--help``."""

    model: Path | None
    target: Path | None
    draft: Path | None
    passes: tuple[str, ...]
    config: Path | None
    preset: str | None
    skip: tuple[str, ...]
    output: Path | None
    in_place: bool
    force: bool
    dry_run: bool
    weights: Literal["copy", "link"]
    verify: When | None
    strict: bool | None
    on_error: OnError | None
    report: Path | None
    dump_dir: Path | None
    reproducer: Path | None


@dataclass(frozen=True)
class Plan:
    """What to run, after the pipeline file and the options were put together."""

    pipeline: Pipeline
    on_error: OnError
    verify: When
    strict: bool


def apply(console: Console, request: Request) -> None:
    """Do it.

    Raises:
        UsageError: Options that do not go together.
        OvgraftError: As passes, check and save say; nothing was written then.
    """
    check_usage(request)
    plan = make_plan(request)
    check_output(request)
    with console.status() as say:
        say("opening the models")
        graft = open_models(request)
        report, verification, error = run(graft, plan, request, say)
        if error is None and not request.dry_run:
            say("writing")
            save(graft, report, request)
    written = error is None and not request.dry_run
    record = run_record(report, verification, graft, request.output, written=written)
    if request.report is not None:
        write_report(request.report, record)
    if console.json:
        console.document(record)
        console.json = False  # an error below goes to stderr only
    else:
        console.data(*report_lines(report, verification, console.symbols))
    if error is not None:
        raise error
    _say_end(console, request, report)


def check_usage(request: Request) -> None:
    """Refuse options that do not go together.

    Raises:
        UsageError: With what to say instead.
    """
    if request.model is not None and request.target is not None:
        raise click.UsageError("name the model once: as MODEL or with --target")
    if request.model is None and request.target is None:
        raise click.UsageError("name a model: MODEL, or --target DIR with --draft DIR")
    if request.draft is not None and request.target is None:
        raise click.UsageError("--draft goes with --target, not with MODEL")
    if not (request.passes or request.config or request.preset):
        raise click.UsageError("name the passes: -p PASSES, -c FILE.toml or --preset NAME")
    if request.in_place and request.output is not None:
        raise click.UsageError("--in-place replaces the input: leave -o out")
    if request.in_place and request.weights == "link":
        raise click.UsageError("--weights link is for another OUT: --in-place leaves an unchanged .bin where it is")
    if request.output is None and not (request.in_place or request.dry_run):
        raise click.UsageError("name where to write: -o OUT, --in-place, or --dry-run for nowhere")


def make_plan(request: Request) -> Plan:
    """The preset's passes, the pipeline file's, then those of ``-p``; options win over the file.

    Raises:
        SpecError: A name or an option that means nothing, or nothing left to run.
    """
    passes: list[Pass] = []
    if request.preset is not None:
        passes += pipeline.parse(pipeline.preset(request.preset).text)
    said = None if request.config is None else toml.load(request.config)
    if said is not None:
        passes += said.pipeline
    for text in request.passes:
        passes += pipeline.parse(text)
    for name in request.skip:
        if all(item.name != name for item in passes):
            listed = ", ".join(dict.fromkeys(item.name for item in passes))
            raise SpecError(f"--skip {name}: this pipeline has no such pass", hint=f"it has {listed}")
    passes = [item for item in passes if item.name not in request.skip]
    if not passes:
        raise SpecError("--skip leaves no pass to run")
    return Plan(
        pipeline.Pipeline(passes),
        request.on_error or (said and said.on_error) or "stop",
        request.verify or (said and said.verify) or "none",
        bool(request.strict if request.strict is not None else said and said.strict),
    )


def check_output(request: Request) -> None:
    """Refuse a place to write before the work is done; saving checks again.

    Raises:
        ModelFileError: It exists, is the input, or has no folder to lie in.
    """
    for file in (request.output, request.report):
        if file is not None and not request.dry_run and not file.absolute().parent.is_dir():
            raise ModelFileError(f"no such folder: {file.absolute().parent}", file=file)
    output, source = request.output, request.model or request.target
    if output is None or source is None or request.dry_run:
        return
    if request.draft is None and source.exists() and (source.suffix == ".xml") != (output.suffix == ".xml"):
        kind = "an .xml" if source.suffix == ".xml" else "a folder"
        raise ModelFileError(f"the input is {kind}, so OUT must be one too", file=output)
    if not output.exists():
        return
    if any(path is not None and path.exists() and output.samefile(path) for path in (source, request.draft)):
        raise ModelFileError(f"{output} is the input; say --in-place to replace it", file=output)
    if not request.force:
        raise ModelFileError(f"{output} exists; say --force to replace it", file=output)


def open_models(request: Request) -> Graft:
    """The graft to edit."""
    source = request.model or request.target
    assert source is not None  # check_usage insists on one
    return open_graft(source, request.draft)


def run(
    graft: Graft, plan: Plan, request: Request, say: Say
) -> tuple[Report, Verification | None, OvgraftError | None]:
    """Run the passes and, when asked to, compare the numbers at the end.

    Returns:
        What happened, the comparison, and why nothing may be written.
    """
    graft.target.model  # noqa: B018  the snapshot holds what was read before it
    if graft.draft is not None and not graft.draft.is_checkpoint:
        graft.draft.model  # noqa: B018
    start = graft.snapshot()
    report = pipeline.execute(
        plan.pipeline, graft, on_error=plan.on_error, strict=plan.strict, hooks=_hooks(plan, request, say)
    )
    report = dataclasses.replace(report, dry_run=request.dry_run)
    if report.error is not None or plan.verify != "end":
        return report, None, report.error
    say("comparing numbers")
    verification: Verification | None = None
    try:
        verification = _compare(start, graft)
        verification.require()
    except OvgraftError as error:
        return report, verification, error
    return report, verification, None


def save(graft: Graft, report: Report, request: Request) -> None:
    """Write it; with a draft, its record too."""
    extra = None if graft.draft is None else {"graft.json": graft_record(report, graft)}
    graft.save(
        request.output,
        force=request.force,
        in_place=request.in_place,
        weights=request.weights,
        extra_files=extra,
    )


def _hooks(plan: Plan, request: Request, say: Say) -> list[Hook]:
    def show(run: PassRun, done: int, total: int, what: str) -> None:
        part = f" {what} {done}/{total}" if total else ""
        say(f"pass {run.position}/{run.total} {run.item.name}{part}")

    hooks: list[Hook] = [pipeline.Progress(show), pipeline.Timing()]
    if request.reproducer is not None:
        hooks.append(pipeline.Reproducer(request.reproducer))
    if request.dump_dir is not None:
        hooks.append(pipeline.Dump(request.dump_dir))
    if plan.verify == "each":
        hooks.append(pipeline.Verify(lambda before, after: _compare(before, after).require()))
    return hooks


def _compare(before: Snapshot, after: Graft) -> Verification:
    from ovgraft import checks

    return checks.compare_grafts(checks.graft_of(before, after), after)


def _say_end(console: Console, request: Request, report: Report) -> None:
    if request.dry_run:
        console.say(Line(("not written", Cell(" (dry run)", "dim"))))
        return
    where = "the input" if request.output is None else str(request.output)
    what = "" if report.changed else ", a copy: nothing changed"
    console.say(Line((f"wrote {where}{what}",)))
