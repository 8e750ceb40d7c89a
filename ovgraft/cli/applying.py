"""What ``ovgraft apply`` does: open, run, compare numbers, save, tell."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from ovgraft import pipeline
from ovgraft.cli.console import Console
from ovgraft.cli.opening import check_parent, open_graft
from ovgraft.cli.output_file import output_file
from ovgraft.cli.records import graft_record, report_text, run_record
from ovgraft.cli.report_table import report_lines
from ovgraft.errors import ModelFileError, OvgraftError, SpecError
from ovgraft.inspection.layout import Line
from ovgraft.pipeline import toml
from ovgraft.saving import GRAFT_FILE

if TYPE_CHECKING:
    from ovgraft.checks import Verification
    from ovgraft.cli.status import Status
    from ovgraft.graft import Graft, Snapshot
    from ovgraft.passbase import Pass
    from ovgraft.pipeline import Hook, Pipeline, Report
    from ovgraft.saving import ExtraFiles, Saved

OnError = Literal["stop", "skip"]
When = Literal["none", "end", "each"]


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
    check_files(request)
    with contextlib.ExitStack() as stack:
        report_out = None if request.report is None else stack.enter_context(output_file(request.report, "the report"))
        with console.status() as say:
            say("opening the models")
            graft, saved = open_models(request), None
            if request.output is not None and not request.dry_run:
                graft.check_output(request.output, force=request.force)
            with saving(graft, plan, request, say) as save:
                report, verification, error = run(graft, plan, request, say)
                to_save = error is None and not request.dry_run
                record = run_record(report, verification, graft.packages, request.output, written=to_save)
                text = report_text(record)
                if report_out is not None:
                    report_out.reserve(len(text))
                if to_save:
                    saved = save(report)
        if report_out is not None:
            report_out.write(text, "the models were written" if saved is not None and saved.files else "")
    if console.json:
        console.document(record)
        console.json = False  # an error below goes to stderr only
    else:
        console.data(*report_lines(report, verification, console.symbols))
    if error is not None:
        console.say(Line(("nothing was written",)))
        raise error
    console.say(Line((_outcome(request, saved),)))


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


def check_files(request: Request) -> None:
    """Refuse places that no model has to be opened for.

    Raises:
        ModelFileError: OUT or the report has no folder to lie in, or the report would replace an input file.
    """
    for file in (request.output, request.report):
        if file is not None:
            check_parent(file)
    if request.report is not None:
        sources = [request.model, request.target, request.draft, request.config]
        _check_report(request.report, [source for source in sources if source and source.exists()], request.output)


def _check_report(report: Path, sources: list[Path], output: Path | None) -> None:
    """The report lies beside what is read and written, and replaces none of it."""
    place = Path(os.path.realpath(report))
    for source in (source.resolve() for source in sources):
        if place == source.with_suffix(".bin") or place.is_relative_to(source):
            what = "lies within the input" if source.is_dir() else "would replace a file of the input"
            raise ModelFileError(f"the report {report} {what}", hint="name a file beside it")
    if output is not None and place.is_relative_to(os.path.realpath(output)):
        raise ModelFileError(f"the report {report} lies within the output", hint="name a file beside it")
    if report.suffix in (".xml", ".bin") or report.name == GRAFT_FILE:
        text = f"the report is called {report.name}, as a file of the output may be"
        raise ModelFileError(text, file=report, hint="name it report.json")


def open_models(request: Request) -> Graft:
    """The graft to edit."""
    source = request.model or request.target
    assert source is not None  # check_usage insists on one
    return open_graft(source, request.draft)


def run(
    graft: Graft, plan: Plan, request: Request, say: Status
) -> tuple[Report, Verification | None, OvgraftError | None]:
    """Run the passes and, when asked to, compare the numbers at the end.

    Returns:
        What happened, the comparison, and why nothing may be written.
    """
    _read_main_models(graft)
    start = graft.snapshot() if plan.verify == "end" else None
    report = pipeline.execute(
        plan.pipeline, graft, on_error=plan.on_error, strict=plan.strict, hooks=_hooks(plan, request, say)
    )
    report = dataclasses.replace(report, dry_run=request.dry_run)
    if report.error is not None or start is None:
        return report, None, report.error
    say("comparing numbers")
    verification: Verification | None = None
    try:
        verification = _compare(start, graft)
        verification.require()
    except OvgraftError as error:
        return report, verification, error
    return report, verification, None


def _read_main_models(graft: Graft) -> None:
    """So that a damaged file is told before any pass runs, and snapshots hold them."""
    for package in graft.packages.values():
        if not package.is_checkpoint:
            package.read(package.main_name)


@contextlib.contextmanager
def saving(graft: Graft, plan: Plan, request: Request, say: Status) -> Iterator[Callable[[Report], Saved]]:
    """What saves in the end; a pair that gets a folder of its own, or lies in one, gets its record too.

    Weights that no pass touches are copied while the passes run.
    """

    def extra_files(report: Report) -> ExtraFiles:
        def record(saved: Saved) -> dict[str, bytes]:
            return {GRAFT_FILE: graft_record(report, saved)}

        return record if _has_record(graft, report, in_place=request.in_place) else {}

    if request.output is None or request.dry_run or not all(item.metadata_only for item in plan.pipeline):
        yield lambda report: graft.save(
            request.output,
            force=request.force,
            in_place=request.in_place,
            weights=request.weights,
            extra_files=extra_files(report),
            on_step=say,
        )
        return
    output = graft.writing(request.output, force=request.force, weights=request.weights, kept=True, on_step=say)
    with output as finish:
        yield lambda report: finish(extra_files(report))


def _has_record(graft: Graft, report: Report, *, in_place: bool) -> bool:
    if graft.draft is None:
        return False
    if not in_place:
        return True
    home = graft.target.folder.parent
    return report.changed and all(package.folder == home / role for role, package in graft.packages.items())


def _hooks(plan: Plan, request: Request, say: Status) -> list[Hook]:
    hooks: list[Hook] = [pipeline.Progress(say.show_pass), pipeline.Timing(), pipeline.Sizes()]
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


def _outcome(request: Request, saved: Saved | None) -> str:
    if saved is None:
        return "not written: this was a dry run"
    if not saved.files:
        return "nothing to write: nothing changed"
    where = ", ".join(map(str, saved.folders)) if request.output is None else str(request.output)
    anew = [f"{model.role}/{model.name}" for model in saved.models if model.change == "full"]
    return f"wrote {where}" + (f" (weights written anew: {', '.join(anew)})" if anew else " (weights as they were)")
