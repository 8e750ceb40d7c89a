"""What ``ovgraft verify`` runs, and how it tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ovgraft import checks, ir
from ovgraft.checks.grafts import SIDE_MODELS
from ovgraft.checks.paged import SCHEDULES
from ovgraft.cli.opening import open_graft
from ovgraft.drafts.kinds import model_kind
from ovgraft.errors import ModelFileError
from ovgraft.inspection.layout import Block, Cell, Line, Table
from ovgraft.ir.reading import verify_digest
from ovgraft.paths import path_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ovgraft.checks import Comparison, RunReport, Tolerances, Verification
    from ovgraft.graft import Graft

    Arrays = Mapping[str, NDArray[Any]] | None
    Status = Callable[[str], None]
    Answer = tuple[bool, dict[str, object], list[Block]]


def verify_one(path: Path, draft: Path | None, inputs: Arrays, status: Status, **options: Any) -> Answer:
    """Digests, every model alone, and a Markov head against the checkpoint beside it.

    Args:
        path: What the user named.
        draft: The draft of a plain target.
        inputs: Values for the target instead of made-up ones.
        status: Told what is being done.
        **options: Of :func:`ovgraft.checks.run_alone`.

    Returns:
        Whether all is well, the JSON document, the lines.

    Raises:
        ModelFileError: There is nothing to run, such as in a checkpoint.
    """
    graft = open_graft(path, draft)
    digests = list(_digests(graft, status))
    reports: list[RunReport] = []
    witnessed: list[Comparison] = []
    for subject, file in _irs(graft):
        if inputs is not None and subject != "target":
            continue  # they are the target's
        status(f"running {subject}")
        model = ir.read_model(file)
        model.validate_nodes_and_infer_types()
        reports.append(checks.run_alone(model, subject=subject, inputs=inputs, **options))
        if model_kind(model) == "markov head" and (formulas := checks.checkpoint_head(file.parent, model)) is not None:
            common = {key: options[key] for key in ("seed", "samples", "device")}
            witnessed.append(checks.compare_with_formulas(model, formulas, subject=f"{subject}, formulas", **common))
    if not reports:
        text = f"{path_name(path)} holds no OpenVINO model to run"
        raise ModelFileError(text, file=path, hint="build or export it first")
    finite, same = all(report.good for report in reports), all(comparison.same for comparison in witnessed)
    data: dict[str, object] = {
        "schema": 1,
        "good": finite and same,
        "digests": digests,
        "models": [report.to_dict() for report in reports],
        "formulas": [comparison.to_dict() for comparison in witnessed],
    }
    text = "all numbers are finite" if finite else "not all numbers are finite"
    if witnessed:
        text += ", the head computes its checkpoint's formulas" if same else ", the head strays from its checkpoint"
    blocks = [*_digest_lines(digests), _ranges(reports)]
    if witnessed:
        blocks += [Line(), _differences(witnessed)]
    return finite and same, data, [*blocks, _verdict(text, finite and same, reports)]


def verify_two(
    a: Path, b: Path, draft: Path | None, inputs: Arrays, tolerances: Tolerances, status: Status, **options: Any
) -> Answer:
    """Digests, then both on the same inputs.

    Args:
        a: What is right by definition.
        b: The other.
        draft: The draft of ``a``, when that is a plain target.
        inputs: Values for the targets instead of made-up ones.
        tolerances: Limits.
        status: Told what is being done.
        **options: Of :func:`ovgraft.checks.compare_grafts`.

    Returns:
        Whether they are the same, the JSON document, the lines.
    """
    first, second = open_graft(a, draft), open_graft(b)
    digests = [*_digests(first, status, "A "), *_digests(second, status, "B ")]
    status("running both")
    if inputs is None:
        found = checks.compare_grafts(first, second, tolerances=tolerances, **options)
    else:
        models = first.target.model, second.target.model
        one = checks.compare(*models, subject="target", tolerances=tolerances, inputs=inputs, **options)
        found = checks.Verification((one,))
    data = {"schema": 1, "digests": digests, **found.to_dict()}
    return found.same, data, [*_digest_lines(digests), *comparison_lines(found)]


def comparison_lines(found: Verification) -> list[Block]:
    """The table, what was left out, and the verdict."""
    blocks: list[Block] = [_differences(found.comparisons)]
    for comparison in found.comparisons:
        blocks += _left_out(comparison)
    blocks += [Line((Cell(note, "dim"),), indent=2) for note in found.notes]
    same = "same within limits, as far as compared" if found.notes else "same within limits"
    text = same if found.same else "not the same"
    return [*blocks, _verdict(text, found.same, found.comparisons)]


def _irs(graft: Graft) -> Iterator[tuple[str, Path]]:
    """Main models, and those side models whose inputs the checks know how to make."""
    for role, package in graft.packages.items():
        if not package.is_checkpoint:
            yield role, package.xml(package.main_name)
        for name in SIDE_MODELS if package.kind == "folder" else ():
            if name != package.main_name and package.xml(name).is_file():
                yield f"{role} {name}", package.xml(name)


def _digests(graft: Graft, status: Status, prefix: str = "") -> Iterator[dict[str, object]]:
    """Read the weights of every IR that has a digest on record; a wrong one is an error."""
    for subject, file in _irs(graft):
        status(f"reading the weights of {prefix}{subject}")
        yield {"model": f"{prefix}{subject}", "digest": verify_digest(file)}


def _digest_lines(digests: list[dict[str, object]]) -> list[Block]:
    rows = []
    for entry in digests:
        known = entry["digest"]
        said = ("no digest on record", "") if known is None else (Cell("ok", "good"), f"blake3 {str(known)[:12]}")
        rows.append((Cell("weights", "dim"), str(entry["model"]), *said))
    return [Table(rows), Line()]


def _ranges(reports: list[RunReport]) -> Table:
    rows = [
        (
            report.subject if at == 0 else "",
            Cell(output.output, "name"),
            f"[{','.join(map(str, output.shape))}]",
            f"{output.largest:.3g}",
            Cell(output.problem, "bad") if output.problem else Cell("ok", "good"),
        )
        for report in reports
        for at, output in enumerate(report.outputs)
    ]
    return Table(rows, header=("", "output", "shape", "largest", ""), align="<<<><")


def _differences(comparisons: Sequence[Comparison]) -> Table:
    rows = [
        (
            comparison.subject if at == 0 else "",
            Cell(output.output, "name"),
            _small(output.max_abs),
            _small(output.max_rel),
            _small(output.mean_abs),
            "-" if output.where is None else str(output.where),
            output.limit,
            Cell("ok", "good")
            if output.same
            else Cell("FAIL" if output.problem == "differs" else output.problem, "bad"),
        )
        for comparison in comparisons
        for at, output in enumerate(comparison.outputs)
    ]
    header = ("", "output", "max abs", "max rel", "mean abs", "where", "limit", "")
    return Table(rows, header=header, align="<<>>><<<")


def _small(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}"


def _left_out(comparison: Comparison) -> list[Block]:
    parts = {
        "outputs only in A": comparison.only_a,
        "outputs only in B": comparison.only_b,
        "inputs of one side only": comparison.inputs_unshared,
    }
    subject = comparison.subject
    return [
        Line((Cell(f"{subject}: {what}: {', '.join(names)}", "dim"),), indent=2)
        for what, names in parts.items()
        if names
    ]


def _verdict(text: str, good: bool, runs: Sequence[Comparison | RunReport]) -> Line:
    main = [run for run in runs if not run.subject.endswith(tuple(SIDE_MODELS))] or list(runs)
    said: dict[str, list[str]] = {}
    for run in main:
        said.setdefault(_extent(run), []).append(run.subject)
    common = f"seed {main[0].seed}, {main[0].device}, f32"
    how = f"  ({', '.join([*said, common])})"
    if len(said) > 1:
        parts = [f"{', '.join(subjects)}: {extent}" for extent, subjects in said.items()]
        how = f"  ({'; '.join([*parts, common])})"
    return Line((Cell(text, "good" if good else "bad"), Cell(how, "dim")))


def _extent(run: Comparison | RunReport) -> str:
    """How much was run: samples, and the calls of each."""
    samples = "1 sample" if run.samples == 1 else f"{run.samples} samples"
    if run.calls == tuple(SCHEDULES):
        return f"{samples} in one batch, {', '.join(run.calls)}"
    count = len(run.calls) - 1
    steps = f"prefill and {count} step{'s' if count != 1 else ''}" if count else "one call"
    return f"{samples}, {steps}"
