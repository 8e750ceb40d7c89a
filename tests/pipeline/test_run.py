"""The run loop: what it records, what it rolls back, what strict mode proves, what hooks see."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from ovgraft import ir
from ovgraft.drafts.contract import Key
from ovgraft.errors import (
    ContractError,
    MismatchError,
    ModelFileError,
    OvgraftError,
    PassError,
    PostconditionError,
    PreconditionError,
    ValidationError,
)
from ovgraft.graft import Graft, load
from ovgraft.pipeline import (
    Dump,
    Hook,
    PassRun,
    Pipeline,
    Progress,
    Report,
    Reproducer,
    Size,
    Sizes,
    Timing,
    Verify,
    execute,
    parse,
)
from ovgraft.pipeline.validation import explain
from tests.pipeline.samples import Break, Everything, Label, Lie, NeedsDraft, lookup, tiny_graft, tiny_model

STAGES: list[tuple[Any, type[OvgraftError]]] = [
    ("requires", PreconditionError),
    ("apply", PreconditionError),
    ("validate", ValidationError),
    ("ensures", PostconditionError),
    ("bug", PassError),
]


def state(graft: Graft) -> dict[str, Any]:
    """All that must not change when a pass fails."""
    return {
        f"{role}/{name}": ir.fingerprint(model)
        for role, package in graft.packages.items()
        for name, model in package.models.items()
    }


def names(graft: Graft) -> set[str]:
    return set(graft.target.model.output(0).get_names())


# ---------------------------------------------------------------------------------------------- records


def test_report_tells_what_each_pass_did(tmp_path: Path) -> None:
    graft = tiny_graft(tmp_path)
    report = Pipeline([Label(to="a"), Everything()]).run(graft)
    first, second = report.records
    assert (first.position, first.spec, first.status) == (1, "label{to=a}", "changed")
    assert [edit.text for edit in first.edits] == ["output named a"]
    assert (second.status, second.edits, second.remarks) == ("unchanged", (), ("nothing to do",))
    assert names(graft) == {"y", "a"}
    assert report.changed
    assert report.error is None
    assert report.seconds is None
    assert report.after == {}


def test_report_as_json_is_deterministic_and_names_no_folder(tmp_path: Path) -> None:
    pipeline = Pipeline([Label(to="a", folder=tmp_path / "secret" / "place"), Break()])
    documents = []
    for run in ("one", "two"):
        graft = tiny_graft(tmp_path / run)
        report = execute(pipeline, graft, hooks=[Timing(), Sizes()])
        documents.append(json.dumps(report.to_dict()))
        assert report.seconds is not None
        assert report.to_dict(durations=True)["passes"][0]["seconds"] > 0
    assert documents[0] == documents[1]
    assert str(tmp_path) not in documents[0]
    data = json.loads(documents[0])
    assert list(data) == [
        *("schema", "versions", "pipeline", "source", "strict", "dry_run", "changed", "models", "passes"),
    ]
    assert data["schema"] == 1
    assert data["pipeline"] == "label{to=a folder=place},break"
    assert data["source"] == {"target": "target"}
    assert data["models"] == {"target/openvino_model": {"nodes": [6, 6], "weight_bytes": [48, 48]}}
    assert list(data["passes"][0]) == [
        *("position", "pass", "status", "edits", "remarks", "error", "models", "dump"),
    ]
    assert data["passes"][1]["status"] == "failed"
    assert data["passes"][1]["error"] == {
        **{"type": "PreconditionError", "message": "changed my mind", "pass": "break"},
    }


def test_only_metadata_is_told_apart(tmp_path: Path) -> None:
    assert Pipeline([NeedsDraft()]).run(tiny_graft(tmp_path / "a", draft=True)).metadata_only
    assert not Pipeline([Label()]).run(tiny_graft(tmp_path / "b")).metadata_only


# ---------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(("at", "expected"), STAGES)
def test_failed_pass_leaves_the_graft_as_the_pass_before_left_it(
    tmp_path: Path, at: Any, expected: type[OvgraftError]
) -> None:
    graft = tiny_graft(tmp_path, draft=True)
    Pipeline([Label(to="a")]).run(graft)
    before = state(graft)
    with pytest.raises(expected) as caught:
        Pipeline([Everything(), Break(at=at), Label(to="b")]).run(graft)
    error = caught.value
    assert state(graft) == before
    assert error.pass_name == "break"
    assert isinstance(error, PassError)
    assert error.position == 2
    assert error.ran_before == ("everything",)
    assert error.exit_code == 4
    assert str(error).startswith("break: ")


@pytest.mark.parametrize(("at", "expected"), STAGES)
def test_skip_goes_on(tmp_path: Path, at: Any, expected: type[OvgraftError]) -> None:
    graft = tiny_graft(tmp_path)
    report = Pipeline([Label(to="a"), Break(at=at), Label(to="b")]).run(graft, on_error="skip")
    assert [record.status for record in report.records] == ["changed", "skipped", "changed"]
    assert isinstance(report.records[1].error, expected)
    assert report.records[1].edits == ()
    assert report.error is None
    assert names(graft) == {"y", "a", "b"}


def test_passes_after_a_failure_are_reported_as_not_run(tmp_path: Path) -> None:
    report = execute(Pipeline([Label(to="a"), Break(), Label(to="b")]), tiny_graft(tmp_path))
    assert [record.status for record in report.records] == ["changed", "failed", "not-run"]
    assert report.error is report.records[1].error
    assert report.records[2].spec == "label{to=b}"


def test_interrupt_rolls_back_and_passes_through(tmp_path: Path) -> None:
    graft = tiny_graft(tmp_path)
    assert names(graft) == {"y"}  # reads the model
    before = state(graft)
    with pytest.raises(KeyboardInterrupt):
        Pipeline([Break(at="interrupt")]).run(graft, on_error="skip")
    assert state(graft) == before


def test_bug_in_a_pass_is_named_and_chained(tmp_path: Path) -> None:
    with pytest.raises(PassError, match=r"break: bug in this pass: KeyError: 'layers.3'") as caught:
        Pipeline([Break(at="bug")]).run(tiny_graft(tmp_path))
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_file_that_fails_under_a_pass_is_no_bug_of_the_pass(tmp_path: Path) -> None:
    graft = tiny_graft(tmp_path)
    assert names(graft) == {"y"}  # reads the model
    before = state(graft)
    with pytest.raises(ModelFileError, match=r"^break: Permission denied: side\.json$") as caught:
        Pipeline([Break(at="file")]).run(graft)
    assert isinstance(caught.value.__cause__, PermissionError)
    assert state(graft) == before


def test_errors_of_other_kinds_keep_their_exit_code(tmp_path: Path) -> None:
    graft = tiny_graft(tmp_path)
    (tmp_path / "target" / "openvino_model.bin").unlink()
    with pytest.raises(ModelFileError) as caught:
        Pipeline([Label()]).run(graft)
    assert caught.value.exit_code == 3
    assert caught.value.pass_name is None
    graft = tiny_graft(tmp_path / "again", draft=True)
    with pytest.raises(ModelFileError, match="read-other: ") as caught:
        Pipeline([Label(), ReadOther(word="broken")]).run(graft)
    assert caught.value.pass_name == "read-other"


def test_pass_that_needs_a_draft_says_so(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match="needs-draft: needs a draft"):
        Pipeline([NeedsDraft()]).run(tiny_graft(tmp_path))


def test_validation_error_names_the_node_and_keeps_the_text(tmp_path: Path) -> None:
    with pytest.raises(ValidationError) as caught:
        Pipeline([Break(at="validate")]).run(tiny_graft(tmp_path))
    error = caught.value
    assert error.node is not None
    assert (error.node.type, error.node.name) == ("MatMul", "layers.0/up")
    assert error.node.index > 0
    assert "Incompatible MatMul" in error.reasons[0].message
    assert "OpenVINO rejects openvino_model at MatMul 'layers.0/up'" in str(error)
    assert "While validating node" in str(error.__cause__)


def test_validation_text_without_a_known_node() -> None:
    model = tiny_model()
    assert explain("Something else went wrong", model, "m").node is None
    gone = explain("While validating node 'opset1::Add a (x) -> ()' with friendly_name 'gone':\nwhy", model, "m")
    assert gone.node is not None
    assert (gone.node.name, gone.node.index) == ("gone", -1)
    assert gone.reasons[0].message == "why"


def test_unknown_on_error_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stop, skip"):
        Pipeline([Label()]).run(tiny_graft(tmp_path), on_error="ignore")  # type: ignore[arg-type]


def test_dry_run_puts_the_graft_back(tmp_path: Path) -> None:
    graft = tiny_graft(tmp_path)
    assert names(graft) == {"y"}  # reads the model
    before = state(graft)
    report = Pipeline([Label()]).run(graft, dry_run=True)
    assert report.dry_run
    assert report.changed
    assert state(graft) == before


# ---------------------------------------------------------------------------------------------- strict mode


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ("nothing", "reports edits and changed nothing"),
        ("structure", "reports no edit and changed target/openvino_model"),
        ("metadata", "reports no edit and changed target/openvino_model"),
    ],
)
def test_strict_mode_catches_lies(tmp_path: Path, about: Any, message: str) -> None:
    graft = tiny_graft(tmp_path)
    assert names(graft) == {"y"}  # reads the model
    before = state(graft)
    with pytest.raises(ContractError, match=message):
        Pipeline([Lie(about=about)]).run(graft, strict=True)
    assert state(graft) == before


def test_strict_mode_believes_the_truth(tmp_path: Path) -> None:
    graft = tiny_graft(tmp_path, draft=True)
    report = Pipeline([Label(), Everything(), NeedsDraft()]).run(graft, strict=True)
    assert [record.status for record in report.records] == ["changed", "unchanged", "changed"]
    assert report.strict


def test_strict_mode_tells_reading_a_model_from_changing_it(tmp_path: Path) -> None:
    [record] = Pipeline([ReadOther()]).run(tiny_graft(tmp_path / "read", draft=True), strict=True).records
    assert record.status == "unchanged"
    with pytest.raises(ContractError, match="reports no edit and changed draft/other"):
        Pipeline([ReadOther(flag=True)]).run(tiny_graft(tmp_path / "marked", draft=True), strict=True)
    with pytest.raises(ContractError, match="reports no edit and changed draft/new"):
        Pipeline([ReadOther(word="new")]).run(tiny_graft(tmp_path / "made", draft=True), strict=True)


class ReadOther(Everything):
    """Read another IR of the draft's package; with ``flag`` mark it, with ``word`` add or damage one."""

    name = "read-other"

    def apply(self, graft: Graft, ctx: Any) -> None:
        package = graft.package("draft")
        ov.save_model(tiny_model(), package.xml("other"), compress_to_fp16=False)
        if self.word == "broken":
            package.xml("other").with_suffix(".bin").unlink()
        other = package.get("other")
        assert other is not None
        if self.flag:
            ir.set_text(other, ("mark",), "1")
        if self.word == "new":
            package.add("new", tiny_model())


# ---------------------------------------------------------------------------------------------- the record in the model


def test_changed_models_carry_the_text_of_what_changed_them(tmp_path: Path) -> None:
    graft = tiny_graft(tmp_path, draft=True)
    Pipeline([Label(to="a", folder=tmp_path), Everything()]).run(graft)
    Pipeline([Break(), NeedsDraft(), Label(to="b")]).run(graft, on_error="skip")
    assert graft.draft is not None
    recorded = ir.get_text(graft.target.model, Key.PIPELINE)
    assert recorded == f"label{{to=a folder={tmp_path.name}}},label{{to=b}}"
    assert len(parse(recorded, lookup)) == 2
    assert ir.get_text(graft.draft.model, Key.PIPELINE) == "needs-draft"


# ---------------------------------------------------------------------------------------------- hooks


class Log(Hook):
    """Writes down what it is told."""

    def __init__(self, name: str, events: list[str], fail: str | None = None) -> None:
        self.name, self.events, self.fail = name, events, fail

    def _say(self, what: str, run: PassRun) -> None:
        self.events.append(f"{self.name} {what} {run.spec} {run.position}/{run.total}")
        if self.fail == what:
            raise OSError("disk full")

    def before_pass(self, run: PassRun) -> None:
        self._say("before", run)

    def after_pass(self, run: PassRun) -> None:
        self._say("after", run)

    def after_failure(self, run: PassRun, error: OvgraftError) -> None:
        self._say("failure", run)


def test_hooks_enclose_each_other(tmp_path: Path) -> None:
    events: list[str] = []
    hooks = [Log("outer", events), Log("inner", events)]
    execute(Pipeline([Label(), Break()]), tiny_graft(tmp_path), hooks=hooks)
    assert events == [
        *("outer before label 1/2", "inner before label 1/2", "inner after label 1/2", "outer after label 1/2"),
        *("outer before break 2/2", "inner before break 2/2", "inner failure break 2/2", "outer failure break 2/2"),
    ]


@pytest.mark.parametrize("when", ["before", "after"])
def test_failing_hook_fails_the_pass(tmp_path: Path, when: str) -> None:
    graft = tiny_graft(tmp_path)
    with pytest.raises(PassError, match="label: bug in hook Log: OSError: disk full"):
        Pipeline([Label()]).run(graft, hooks=[Log("x", [], fail=when)])
    assert names(graft) == {"y"}


def test_hook_failing_after_a_failure_does_not_hide_it(tmp_path: Path) -> None:
    report = execute(Pipeline([Break()]), tiny_graft(tmp_path), hooks=[Log("x", [], fail="failure")])
    assert isinstance(report.error, PreconditionError)
    assert report.records[0].remarks == ("hook Log failed: disk full",)


def test_timing_includes_the_hooks_after_it(tmp_path: Path) -> None:
    def check(before: Any, after: Graft) -> None:
        assert after.target.model is not None

    report = Pipeline([Label(), Everything()]).run(tiny_graft(tmp_path), hooks=[Timing(), Verify(check)])
    first, second = report.records
    assert first.seconds is not None
    assert first.verify_seconds is not None
    assert first.seconds >= first.verify_seconds > 0
    assert second.verify_seconds is None
    assert report.seconds == pytest.approx(first.seconds + (second.seconds or 0))


def test_sizes_of_what_was_there_and_what_came(tmp_path: Path) -> None:
    pipeline = Pipeline([Grow(), Everything(), Break(), Label(), Grow(count=2)])
    report = pipeline.run(tiny_graft(tmp_path, draft=True), on_error="skip", hooks=[Sizes()])
    plain, target, draft = Size(6, 48), "target/openvino_model", "draft/openvino_model"
    grown = {target: Size(7, 48), draft: plain}
    assert [record.before for record in report.records] == [{target: plain, draft: plain}, grown, {}, grown, grown]
    assert [record.after for record in report.records[:3]] == [grown, grown, {}]
    assert report.to_dict()["models"][target] == {"nodes": [6, 8], "weight_bytes": [48, 48]}


class Grow(Everything):
    """Put one op more behind the target."""

    def apply(self, graft: Graft, ctx: Any) -> None:
        result = graft.target.model.get_results()[0]
        result.input(0).replace_source_output(ops.relu(result.input_value(0)).output(0))
        ctx.note("add", "target", "a Relu")


def test_verify_rolls_back_what_changes_numbers(tmp_path: Path) -> None:
    seen = []

    def check(before: Any, after: Graft) -> None:
        old = before.models["target"]["openvino_model"]
        seen.append((set(old.output(0).get_names()), names(after)))
        if "b" in names(after):
            raise MismatchError("other numbers")

    graft = tiny_graft(tmp_path)
    report = execute(Pipeline([Label(to="a"), Label(to="b")]), graft, hooks=[Verify(check)])
    assert seen == [({"y"}, {"y", "a"}), ({"y", "a"}, {"y", "a", "b"})]
    assert report.error is not None
    assert report.error.exit_code == 1
    assert names(graft) == {"y", "a"}


def test_dump_writes_loadable_models(tmp_path: Path) -> None:
    graft = tiny_graft(tmp_path)
    pipeline = Pipeline([Label(to="a"), Everything(), Label(to="b")])
    for _ in range(2):  # a second run replaces the dumps of the first
        report = pipeline.run(tiny_graft_again(graft), hooks=[Dump(tmp_path / "new" / "dumps")])
        assert [record.dump for record in report.records] == ["01-label", None, "03-label"]
    dumped = load(tmp_path / "new" / "dumps" / "01-label")
    assert names(dumped) == {"y", "a"}
    report = pipeline.run(tiny_graft_again(graft), hooks=[Dump(tmp_path / "all", when="all")])
    assert [record.dump for record in report.records] == ["01-label", "02-everything", "03-label"]


def tiny_graft_again(graft: Graft) -> Graft:
    return load(graft.target.path)


def test_progress_hears_of_passes_and_from_them(tmp_path: Path) -> None:
    heard = []
    hook = Progress(lambda run, done, total, what: heard.append((run.position, done, total, what)))
    Pipeline([Busy(), Label()]).run(tiny_graft(tmp_path), hooks=[hook])
    assert heard == [(1, 0, 0, ""), (1, 1, 2, "layer"), (1, 2, 2, "layer"), (2, 0, 0, "")]


class Busy(Everything):
    """Reports progress."""

    def apply(self, graft: Graft, ctx: Any) -> None:
        for done in (1, 2):
            ctx.progress(done, 2, "layer")


@pytest.mark.parametrize("kind", ["folder", "xml", "pair"])
def test_reproducer_reruns_the_failure(tmp_path: Path, kind: str) -> None:
    graft = tiny_graft(tmp_path, draft=kind == "pair")
    if kind == "xml":
        graft = load(tmp_path / "target" / "openvino_model.xml")
    pipeline = Pipeline([Label(to="a"), Break(at="ensures"), Label(to="two words")])
    report = execute(pipeline, graft, hooks=[Reproducer(tmp_path / "repro")])
    assert report.records[1].remarks == ("reproducer written: 02-break",)
    place = tmp_path / "repro" / "02-break"
    rest = parse((place / "pipeline.txt").read_text(), lookup)
    assert rest == Pipeline([Break(at="ensures"), Label(to="two words")])
    models = {
        "folder": ["graft"],
        "xml": ["graft/openvino_model.xml"],
        "pair": ["--target", "graft/target", "--draft", "graft/draft"],
    }[kind]
    command = shlex.split((place / "command.txt").read_text())
    assert command == ["ovgraft", "apply", *models, "-p", str(rest), "--dry-run"]
    again = load(target=place / models[1], draft=place / models[3]) if kind == "pair" else load(place / models[0])
    assert names(again) == {"y", "a"}
    with pytest.raises(PostconditionError):
        rest.run(again)


def test_numbers_survive_a_run(tmp_path: Path) -> None:
    graft = tiny_graft(tmp_path)
    feeds = {"x": np.ones((2, 3), np.float32), "unused": np.zeros(1, np.int64)}
    before = ir.core().compile_model(graft.target.model, "CPU")(feeds)[0]
    Pipeline([Label(), Break()]).run(graft, on_error="skip")
    np.testing.assert_array_equal(ir.core().compile_model(graft.target.model, "CPU")(feeds)["labelled"], before)


def test_report_of_a_run_is_a_report(tmp_path: Path) -> None:
    assert isinstance(Pipeline([Label()]).run(tiny_graft(tmp_path)), Report)
