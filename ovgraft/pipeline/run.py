"""The run loop: per pass requires, snapshot, apply, validate, ensures, hooks; on failure the snapshot goes back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

from ovgraft import ir
from ovgraft.drafts.contract import Key
from ovgraft.errors import ContractError, OvgraftError, PassError, PreconditionError, system_error
from ovgraft.passbase import ModelRole
from ovgraft.pipeline import options
from ovgraft.pipeline.hooks import Hook, PassRun
from ovgraft.pipeline.report import PassRecord, Report, Status, stopped_at
from ovgraft.pipeline.validation import validate
from ovgraft.side_files import CONFIG_FILE

if TYPE_CHECKING:
    import openvino as ov

    from ovgraft.graft import Graft, Package
    from ovgraft.pipeline.pipeline import Pipeline

OnError = Literal["stop", "skip"]
"""What to do when a pass failed and was rolled back: end the run, or go on with the next pass."""


def execute(
    pipeline: Pipeline,
    graft: Graft,
    *,
    on_error: OnError = "stop",
    strict: bool = False,
    hooks: Sequence[Hook] = (),
    dry_run: bool = False,
) -> Report:
    """Run a pipeline and tell how it went; a failed pass is an entry of the report, not an exception.

    Arguments are those of :meth:`~ovgraft.pipeline.Pipeline.run`. An interrupt rolls the running pass back and passes
    through.

    Raises:
        ModelFileError: A main IR cannot be read.
    """
    if on_error not in get_args(OnError):
        raise ValueError(f"on_error is one of {', '.join(get_args(OnError))}, got {on_error!r}")
    for package in graft.packages.values():
        if not package.is_checkpoint:
            package.read(package.main_name)  # snapshots hold what has been read
    start = graft.snapshot() if dry_run else None
    try:
        records = _records(pipeline, graft, on_error, strict, hooks)
    finally:
        if start is not None:
            graft.restore(start)
    return Report(
        pipeline=",".join(record.spec for record in records),
        records=tuple(records),
        models={role: package.path.resolve().name for role, package in graft.packages.items()},
        strict=strict,
        dry_run=dry_run,
        versions=_versions(),
    )


def _records(
    pipeline: Pipeline, graft: Graft, on_error: OnError, strict: bool, hooks: Sequence[Hook]
) -> list[PassRecord]:
    records: list[PassRecord] = []
    specs = [options.to_text(item) for item in pipeline]
    stopped = False
    for position, item in enumerate(pipeline, 1):
        portable = options.to_text(item, portable=True)
        if stopped:
            records.append(PassRecord(position, portable, "not-run"))
            continue
        remaining = ",".join(specs[position - 1 :])
        run = PassRun(position, len(pipeline), item, specs[position - 1], remaining, graft)
        ran_before = tuple(done.spec for done in records if done.status in ("changed", "unchanged"))
        error = _run(run, strict, hooks, portable, ran_before)
        stopped = error is not None and on_error == "stop"
        records.append(
            PassRecord(
                position,
                portable,
                _status(run, error, stopped),
                edits=() if error is not None else tuple(run.context.edits),
                remarks=tuple(run.context.remarks),
                error=error,
                before=run.before,
                after=run.after,
                dump=run.dump,
                seconds=run.seconds,
                verify_seconds=run.verify_seconds,
            )
        )
    return records


def _status(run: PassRun, error: OvgraftError | None, stopped: bool) -> Status:
    if error is not None:
        return "failed" if stopped else "skipped"
    return "changed" if run.context.edits else "unchanged"


def _run(
    run: PassRun, strict: bool, hooks: Sequence[Hook], portable: str, ran_before: tuple[str, ...]
) -> OvgraftError | None:
    """One pass; returns its error when it failed and was rolled back."""
    try:
        for hook in hooks:
            with _blamed(f"hook {type(hook).__name__}"):
                hook.before_pass(run)
        with _blamed("this pass"):
            _require(run)
        run.snapshot = run.graft.snapshot()
        _apply(run, strict)
        _stamp(run, portable)
        for hook in reversed(hooks):
            with _blamed(f"hook {type(hook).__name__}"):
                hook.after_pass(run)
    except BaseException as raised:
        if run.snapshot is not None:
            run.graft.restore(run.snapshot)
        if not isinstance(raised, OvgraftError):
            raise  # an interrupt; any other exception is blamed on somebody above
        error = stopped_at(raised, run.item.name, run.position, ran_before)
        for hook in reversed(hooks):
            try:
                hook.after_failure(run, error)
            except Exception as trouble:  # must not hide the error it is about
                run.context.remark(f"hook {type(hook).__name__} failed: {trouble}")
        return error
    finally:
        run.snapshot = None
    return None


@contextlib.contextmanager
def _blamed(culprit: str) -> Iterator[None]:
    """Turn exceptions that nobody raised on purpose into errors that say whose they are."""
    try:
        yield
    except OvgraftError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise system_error(error) from error
        message = f"bug in {culprit}: {type(error).__name__}: {error}"
        raise PassError(message, hint="tell its author; the traceback is the cause of this error") from error


def _require(run: PassRun) -> None:
    if run.item.needs_draft and run.graft.draft is None:
        raise PreconditionError("needs a draft, the graft has only a target", hint="name one with --draft")
    run.item.requires(run.graft)


def _apply(run: PassRun, strict: bool) -> None:
    before = _proof(run.graft) if strict else {}
    with _blamed("this pass"):
        run.item.apply(run.graft, run.context)
    validate(run.graft)
    with _blamed("this pass"):
        run.item.ensures(run.graft)
    if strict:
        _check_told(run, before)


def _check_told(run: PassRun, before: Mapping[str, str]) -> None:
    """Raise when a pass changed something exactly when it does not say so."""
    after = _proof(run.graft)
    changed = {name for name in before if before[name] != after.get(name)}
    changed |= {f"{role}/{name}" for role, name in _new(run.graft, before) if not _as_on_disk(run.graft, role, name)}
    if changed and not run.context.edits:
        raise ContractError(f"reports no edit and changed {', '.join(sorted(changed))}")
    if run.context.edits and not changed:
        raise ContractError("reports edits and changed nothing")


def _proof(graft: Graft) -> dict[str, str]:
    """What tells whether anything was changed: fingerprints of all IRs read so far, comparable within one process."""
    proof = {name: ir.fingerprint(model) for name, model in _models(graft)}
    return proof | {f"{role}/{CONFIG_FILE}": repr(package.config_file.text) for role, package in graft.packages.items()}


def _new(graft: Graft, known: Mapping[str, str]) -> list[tuple[ModelRole, str]]:
    """IRs that were read or made since."""
    packages = graft.packages.items()
    return [(role, name) for role, package in packages for name in package.models if f"{role}/{name}" not in known]


def _as_on_disk(graft: Graft, role: ModelRole, name: str) -> bool:
    """Whether an IR was only read."""
    package = graft.package(role)
    file, model = package.xml(name), package.models[name]
    if not file.is_file():
        return False
    original = ir.read_model(file)
    return ir.same_structure(original, model) is None and ir.flatten(original) == ir.flatten(model)


def _stamp(run: PassRun, portable: str) -> None:
    """Record the pass in the packages it edited, behind what earlier runs recorded: the whole is pipeline text."""
    for role in sorted({edit.model for edit in run.context.edits}):
        for model in _recorded_in(run.graft.package(role)):
            earlier = ir.get_text(model, Key.PIPELINE)
            ir.set_text(model, Key.PIPELINE, f"{earlier},{portable}" if earlier else portable)


def _recorded_in(package: Package) -> list[ov.Model]:
    """The main IR; in a package without one, such as a checkpoint, the IRs made from it."""
    main = package.models.get(package.main_name)
    return list(package.models.values()) if main is None else [main]


def _models(graft: Graft) -> Iterator[tuple[str, ov.Model]]:
    for role, package in graft.packages.items():
        for name, model in package.models.items():
            yield f"{role}/{name}", model


def _versions() -> dict[str, str]:
    import openvino

    import ovgraft

    return {"ovgraft": ovgraft.__version__, "openvino": openvino.__version__}
