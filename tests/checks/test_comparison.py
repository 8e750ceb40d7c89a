from __future__ import annotations

import json

import numpy as np
import openvino as ov
import pytest
from openvino import opset16 as ops

from ovgraft import checks, ir
from ovgraft.checks.comparison import Tally
from ovgraft.errors import MismatchError, SpecError
from tests import models


def test_equal_models_differ_by_nothing() -> None:
    model = models.tiny_decoder()
    found = checks.compare(model, model.clone(), steps=2)
    (logits,) = found.outputs
    assert found.same
    assert (logits.output, logits.max_abs, logits.mean_abs, logits.where) == ("logits", 0, 0, None)
    assert logits.elements == (9 + 2) * 64
    assert found.calls == ("prefill", "step 1", "step 2")
    assert json.loads(json.dumps(found.to_dict()))["same"] is True


def test_other_weights_are_found_with_their_place() -> None:
    found = checks.compare(models.tiny_decoder(seed=0), models.tiny_decoder(seed=1), steps=1)
    (logits,) = found.outputs
    assert not found.same
    assert logits.problem == "differs"
    assert logits.where is not None
    assert len(logits.where.index) == 3
    assert "logits differs" in logits.sentence()


def test_a_difference_that_only_decode_steps_show_is_found() -> None:
    """The second model forgets its keys: a prefill alone looks right."""
    model = models.tiny_decoder(layers=1)
    forgetful = model.clone()
    read = next(node for node in forgetful.get_ordered_ops() if node.get_type_name() == "ReadValue")
    for reader in list(read.output(0).get_target_inputs()):
        scaled = ops.multiply(read.output(0), ops.constant(np.float32(0.5)))
        if reader.get_node().get_type_name() != "Assign":
            reader.replace_source_output(scaled.output(0))
    forgetful.validate_nodes_and_infer_types()
    assert checks.compare(model, forgetful, steps=0).same
    found = checks.compare(model, forgetful, steps=2)
    assert not found.same
    assert found.outputs[0].where is not None
    assert found.outputs[0].where.call != "prefill"


def test_tolerances_by_output() -> None:
    a, b = models.tiny_decoder(seed=0), models.tiny_decoder(seed=1)
    assert checks.compare(a, b, steps=0, tolerances=checks.Tolerances(atol_of={"logits": 1e3})).same
    assert not checks.compare(a, b, steps=0, tolerances=checks.Tolerances(atol_of={"other": 1e3})).same
    assert checks.compare(a, b, steps=0, tolerances=checks.Tolerances(rtol=1e9)).same


def test_outputs_of_one_side_are_listed_and_renamed_ports_found() -> None:
    a = models.tiny_decoder()
    b = a.clone()
    b.output("logits").set_names({"logits", "scores"})
    more = ir.make_result(b.get_results()[0].input_value(0), "again")
    b.add_results([more])
    found = checks.compare(a, b, steps=0)
    assert [output.output for output in found.outputs] == ["logits"]
    assert found.only_b == ("again",)


def test_nothing_in_common_is_refused() -> None:
    a, b = models.tiny_decoder(), models.tiny_decoder()
    b.output("logits").set_names({"scores"})
    with pytest.raises(MismatchError, match="no output in common"):
        checks.compare(a, b)


def test_given_inputs_make_one_inference() -> None:
    model = models.tiny_decoder()
    feeds = {
        "input_ids": np.array([[1, 2]]),
        "attention_mask": np.ones((1, 2), np.int64),
        "position_ids": np.array([[0, 1]]),
        "beam_idx": np.zeros(1, np.int32),
    }
    found = checks.compare(model, model.clone(), inputs=feeds)
    assert found.calls == ("call",)
    assert found.outputs[0].elements == 2 * 64
    del feeds["position_ids"]
    with pytest.raises(SpecError, match="no value is given for input position_ids"):
        checks.compare(model, model.clone(), inputs=feeds)
    with pytest.raises(MismatchError, match="does not run on"):
        checks.run_alone(model, inputs={**feeds, "position_ids": np.zeros((1, 2, 3, 4), np.int64)})


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(SpecError, match="no device 'XPU'") as error:
        checks.compare(models.tiny_decoder(), models.tiny_decoder(), device="XPU")
    assert "CPU" in str(error.value.hint)


def _tally(a: list[float], b: list[float], dtype: type = np.float32) -> checks.OutputDifference:
    tally = Tally(["y"], checks.Tolerances())
    tally.add({"y": np.array(a, dtype)}, {"y": np.array(b, dtype)}, 0, "call")
    return tally.differences()[0]


def test_numbers_that_are_not_finite_are_never_the_same() -> None:
    nan, inf = float("nan"), float("inf")
    for pair in (([1, nan], [1, nan]), ([1, 2], [1, nan]), ([inf, 1], [inf, 1])):
        assert _tally(*pair).problem == "not finite in call"


def test_nothing_to_compare_is_not_the_same() -> None:
    assert _tally([], []).problem == "empty"


def test_shapes_must_agree() -> None:
    assert "shapes differ in call: [2] and [1]" in _tally([1, 2], [1]).problem


def test_integers_are_compared_exactly() -> None:
    big = 1 << 40
    assert _tally([big], [big + 1], np.int64).problem == "differs"
    assert _tally([big], [big], np.int64).same


def test_relative_and_mean() -> None:
    found = _tally([10, 0, 2], [11, 0, 2])
    assert found.max_rel == pytest.approx(0.1)
    assert found.mean_abs == pytest.approx(1 / 3)
    assert found.where is not None
    assert found.where.index == (0,)


def test_alone_finds_what_is_not_finite() -> None:
    parameter = ops.parameter([-1, 4], np.float32, name="x")
    parameter.output(0).set_names({"x"})
    result = ops.result(ops.log(ops.relu(parameter)))
    result.output(0).set_names({"y"})
    model = ov.Model([result], [parameter], "m")
    assert checks.run_alone(model, inputs={"x": np.ones((1, 4), np.float32)}).good
    report = checks.run_alone(model, inputs={"x": -np.ones((1, 4), np.float32)})
    assert not report.good
    assert report.outputs[0].problem == "not finite in call"
    assert json.loads(json.dumps(report.to_dict()))["good"] is False


@pytest.mark.parametrize("by_row", [False, True])
def test_limits_relative_to_the_number_or_to_its_row(by_row: bool) -> None:
    """Beside 1,000 an error of 0.05 is rounding; in a row of ones it is none."""
    limits = checks.Tolerances(atol=0, rtol=1e-4, by_row=by_row)
    found: list[checks.OutputDifference] = []
    for large in (1000, 1):
        tally = Tally(["y"], limits)
        row = np.array([[1.0, large], [1, 1]], np.float32)
        tally.add({"y": row}, {"y": row + np.array([[0.05, 0], [0, 0]], np.float32)}, 0, "call")
        found += tally.differences()
    assert [output.same for output in found] == [by_row, False]
    assert found[1].sentence() == f"y differs: 0.05 at call [0,0], limit 0 + 0.0001 {'max|row|' if by_row else '|a|'}"


def test_limits_that_are_not_set_are_the_default_of_the_comparison() -> None:
    given = checks.Tolerances(atol_of={"y": 3})
    assert given.of("x") == (1e-5, 1e-5)
    wide = given.or_else(checks.Tolerances(atol=1, rtol=2, atol_of={"y": 7, "z": 8}, by_row=True))
    assert (wide.of("x"), wide.of("y"), wide.of("z"), wide.by_row) == ((1, 2), (3, 2), (8, 2), True)
