"""rename-tensors: names change everywhere they stand, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from ovgraft.errors import PostconditionError, PreconditionError, SpecError
from ovgraft.graft import Graft, load
from ovgraft.passes import RenameTensors
from ovgraft.pipeline import Pipeline
from tests.models import tiny_decoder, write_package
from tests.support import infer, run_decoder


def tiny_model() -> ov.Model:
    """``out = relu(mid)``, ``mid = x + 1`` is an output too, without a name of its own; input ``z`` is odd."""
    x, z = (ops.parameter([1, 2], np.float32, name=name) for name in ("x", "Parameter_7"))
    x.output(0).set_names({"x"})
    z.output(0).set_names({"z"})
    mid = ops.add(x, z)
    mid.set_friendly_name("mid node")
    mid.output(0).set_names({"mid", "mid2"})
    relu = ops.relu(mid)
    relu.set_friendly_name("act")
    out = ops.result(relu)
    out.set_friendly_name("out")
    out.output(0).set_names({"out"})
    return ov.Model([out, ops.result(mid)], [x, z], "m")


@pytest.fixture
def graft(tmp_path: Path) -> Graft:
    return load(write_package(tiny_model(), tmp_path / "m"))


def input_names(model: ov.Model) -> list[set[str]]:
    return [set(port.get_names()) for port in model.inputs]


def output_names(model: ov.Model) -> list[set[str]]:
    return [set(port.get_names()) for port in model.outputs]


def test_input_output_and_intermediate(graft: Graft, tmp_path: Path) -> None:
    [record] = Pipeline("rename-tensors{map=x=input,out=y,mid=h}").run(graft, strict=True).records
    assert [edit.text for edit in record.edits] == [
        *("tensor x renamed input", "tensor out renamed y", "tensor mid renamed h"),
    ]
    graft.save(tmp_path / "saved")
    for model in (graft.target.model, load(tmp_path / "saved").target.model):
        assert input_names(model) == [{"input"}, {"z"}]
        assert output_names(model) == [{"y"}, {"h", "mid2"}]
        assert [node.get_friendly_name() for node in model.get_parameters()] == ["input", "Parameter_7"]
        assert model.get_results()[0].get_friendly_name() == "y"
        ones = np.ones((1, 2), np.float32)
        answers = infer(model, {"input": ones, "z": -3 * ones})
        np.testing.assert_array_equal(answers["y"], 0 * ones)


def test_names_swap(graft: Graft) -> None:
    Pipeline("rename-tensors{map=x=z,z=x}").run(graft, strict=True)
    assert input_names(graft.target.model) == [{"z"}, {"x"}]


def test_outputs_swap(graft: Graft, tmp_path: Path) -> None:
    """A Result shares its source's names, so a swap done twice would be none."""
    Pipeline("rename-tensors{map=out=mid,mid=out}").run(graft, strict=True)
    graft.save(tmp_path / "saved")
    for model in (graft.target.model, load(tmp_path / "saved").target.model):
        assert output_names(model) == [{"mid"}, {"out", "mid2"}]
        answers = infer(model, {"x": np.ones((1, 2), np.float32), "z": -3 * np.ones((1, 2), np.float32)})
        np.testing.assert_array_equal(answers["mid"], [[0, 0]])


def test_friendly_names_follow_tensor_names(graft: Graft) -> None:
    pipeline = Pipeline("rename-tensors{friendly-names=true}")
    [record] = pipeline.run(graft, strict=True).records
    assert [edit.text for edit in record.edits] == ["input Parameter_7 has the friendly name z"]
    assert [node.get_friendly_name() for node in graft.target.model.get_parameters()] == ["x", "z"]
    [record] = pipeline.run(graft, strict=True).records
    assert record.status == "unchanged"


def test_friendly_name_that_is_taken_is_refused(graft: Graft) -> None:
    with pytest.raises(PreconditionError, match="friendly name 'act' is taken at Relu 'act'"):
        Pipeline("rename-tensors{map=z=act friendly-names=true}").run(graft)
    assert input_names(graft.target.model) == [{"x"}, {"z"}]


def test_friendly_name_of_an_input_with_two_names_is_not_guessed(graft: Graft) -> None:
    graft.target.model.input("z").set_names({"z", "zz"})
    with pytest.raises(PreconditionError, match=r"several tensor names at Parameter 'Parameter_7'.*found z, zz"):
        Pipeline("rename-tensors{friendly-names=true}").run(graft)


@pytest.mark.parametrize(
    ("renames", "message", "hint"),
    [
        ("outt=y", "the target has no tensor 'outt'", "did you mean 'out'?"),
        ("qqq=y", "the target has no tensor 'qqq'", None),
        ("x=mid2", "has a tensor 'mid2' already: Add 'mid node' output 0", None),
        ("x=out", "has a tensor 'out' already: Relu 'act' output 0", None),
    ],
)
def test_unknown_and_taken_names(graft: Graft, renames: str, message: str, hint: str | None) -> None:
    with pytest.raises(PreconditionError, match=message) as caught:
        Pipeline(f"rename-tensors{{map={renames}}}").run(graft)
    assert caught.value.hint == hint
    assert output_names(graft.target.model) == [{"out"}, {"mid", "mid2"}]


def test_name_on_two_tensors_is_refused(graft: Graft) -> None:
    graft.target.model.input("z").set_names({"x"})
    with pytest.raises(PreconditionError, match="several tensors 'x': Parameter 'Parameter_7' output 0, Parameter 'x'"):
        Pipeline("rename-tensors{map=x=y}").run(graft)


def test_second_run_is_refused(graft: Graft) -> None:
    pipeline = Pipeline([RenameTensors(map=("x=input",))])
    pipeline.run(graft)
    with pytest.raises(PreconditionError, match="has no tensor 'x'"):
        pipeline.run(graft)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "give map=OLD=NEW or friendly-names=true"),
        ("{map=x}", "written OLD=NEW, got 'x'"),
        ("{map=x=}", "written OLD=NEW, got 'x='"),
        ("{map=a=b=c}", "written OLD=NEW, got 'a=b=c'"),
        ("{map=a=b,a=c}", "'a' is the old name of several renames"),
        ("{map=a=c,b=c}", "'c' is the new name of several renames"),
    ],
)
def test_bad_options(options: str, message: str) -> None:
    with pytest.raises(SpecError, match=f"pass 'rename-tensors': .*{message}"):
        Pipeline(f"rename-tensors{options}")


def test_promise_can_fail(graft: Graft) -> None:
    with pytest.raises(PostconditionError, match="target tensors did not take their names: y"):
        RenameTensors(map=("out=y",)).ensures(graft)
    graft.target.model.output(1).set_names({"y"})
    with pytest.raises(PostconditionError, match="target tensors kept their names: out"):
        RenameTensors(map=("out=y",)).ensures(graft)


def test_decoder_gives_the_same_numbers(tmp_path: Path) -> None:
    graft = load(write_package(tiny_decoder(layers=2), tmp_path / "m"))
    tokens = np.arange(1, 6)
    expected = run_decoder(graft.target.model, tokens, split=(3,))["logits"]
    Pipeline("rename-tensors{map=logits=scores friendly-names=true}").run(graft)
    np.testing.assert_array_equal(run_decoder(graft.target.model, tokens, split=(3,))["scores"], expected)
