"""drop-dead-inputs: fires on what nobody reads, and on nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from ovgraft import ir
from ovgraft.errors import PostconditionError, PreconditionError
from ovgraft.graft import Graft, load
from ovgraft.passbase import Context
from ovgraft.passes import DropDeadInputs
from ovgraft.pipeline import Pipeline
from tests.models import tiny_decoder, write_package
from tests.support import infer, run_decoder


def parameter(name: str) -> ov.Node:
    node = ops.parameter([1, 2], np.float32, name=name)
    node.output(0).set_names({name})
    return node


def tiny_model() -> ov.Model:
    """``x`` reaches the output, ``s`` only the state, ``dead`` nothing."""
    x, s, dead = (parameter(name) for name in ("x", "s", "dead"))
    read = ops.read_value(ops.constant(np.zeros((1, 2), np.float32)), "v")
    assign = ops.assign(ops.add(read, s), "v")
    result = ops.result(ops.relu(x))
    result.output(0).set_names({"y"})
    return ov.Model([result], [assign], [x, s, dead], "m")


def graft_of(folder: Path, *, draft: bool = False) -> Graft:
    for role in ("target", "draft"):
        write_package(tiny_model(), folder / role, others={"openvino_other_model": tiny_model()})
    return load(target=folder / "target", draft=folder / "draft" if draft else None)


def inputs(model: ov.Model) -> list[str]:
    return [port.get_any_name() for port in model.inputs]


def test_removes_what_reaches_nothing(tmp_path: Path) -> None:
    graft = graft_of(tmp_path)
    [record] = Pipeline([DropDeadInputs()]).run(graft, strict=True).records
    assert inputs(graft.target.model) == ["x", "s"]
    [edit] = record.edits
    assert (edit.kind, edit.model, edit.text) == ("remove", "target", "input dead removed: nothing reads it")
    assert edit.node is not None
    assert (edit.node.name, edit.node.type) == ("dead", "Parameter")
    x = np.array([[-1, 2]], np.float32)
    np.testing.assert_array_equal(infer(graft.target.model, {"x": x, "s": x})["y"], np.maximum(x, 0))


def test_second_run_changes_nothing(tmp_path: Path) -> None:
    graft = graft_of(tmp_path)
    pipeline = Pipeline([DropDeadInputs()])
    pipeline.run(graft)
    [record] = pipeline.run(graft, strict=True).records
    assert record.status == "unchanged"
    assert record.remarks == ("unchanged: every input is read or kept",)


def test_input_whose_readers_are_leftovers_is_dead(tmp_path: Path) -> None:
    graft = graft_of(tmp_path)
    [dead] = [node for node in graft.target.model.get_parameters() if node.get_friendly_name() == "dead"]
    leftover = ops.relu(dead)
    Pipeline([DropDeadInputs()]).run(graft)
    assert inputs(graft.target.model) == ["x", "s"]
    assert leftover.get_type_name() == "Relu"  # alive until here


def test_keep(tmp_path: Path) -> None:
    graft = graft_of(tmp_path)
    [record] = Pipeline("drop-dead-inputs{keep=dead,beam_idx}").run(graft).records
    assert record.status == "unchanged"
    assert inputs(graft.target.model) == ["x", "s", "dead"]


def test_chooses_models(tmp_path: Path) -> None:
    graft = graft_of(tmp_path, draft=True)
    Pipeline([DropDeadInputs(model="draft")]).run(graft)
    assert graft.draft is not None
    assert inputs(graft.draft.model) == ["x", "s"]
    assert inputs(graft.target.model) == ["x", "s", "dead"]
    Pipeline([DropDeadInputs(file="openvino_other_model")]).run(graft)
    for package in (graft.target, graft.draft):
        other = package.get("openvino_other_model")
        assert other is not None
        assert inputs(other) == ["x", "s"]
    assert inputs(graft.target.model) == ["x", "s", "dead"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("drop-dead-inputs{model=draft}", "the graft has no draft"),
        ("drop-dead-inputs{file=openvino_mark_model}", "the target package has no openvino_mark_model"),
    ],
)
def test_missing_models(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PreconditionError, match=message):
        Pipeline(text).run(graft_of(tmp_path))


def test_promise_can_fail(tmp_path: Path) -> None:
    graft = graft_of(tmp_path)
    with pytest.raises(PostconditionError, match="a dead input is left in the target at Parameter 'dead'"):
        DropDeadInputs().ensures(graft)


def test_order_names_and_numbers_of_a_decoder_stay(tmp_path: Path) -> None:
    model = tiny_decoder(layers=2)
    model.add_parameters([ir.make_parameter("token_type_ids", "i64", [-1, -1])])
    graft = load(write_package(model, tmp_path / "m"))
    before = inputs(graft.target.model)
    tokens = np.arange(1, 6)
    expected = run_decoder(tiny_decoder(layers=2), tokens)["logits"]
    Pipeline([DropDeadInputs()]).run(graft)
    assert inputs(graft.target.model) == [name for name in before if name != "token_type_ids"]
    np.testing.assert_array_equal(run_decoder(graft.target.model, tokens)["logits"], expected)


def test_context_is_the_only_record(tmp_path: Path) -> None:
    graft, context = graft_of(tmp_path, draft=True), Context()
    DropDeadInputs().apply(graft, context)
    assert [edit.model for edit in context.edits] == ["target", "draft"]
