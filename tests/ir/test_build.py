from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from ovgraft import ir


def test_a_parameter_has_one_name() -> None:
    parameter = ir.make_parameter("past_lens", "i32", [-1, 4])
    assert parameter.get_friendly_name() == "past_lens"
    assert parameter.output(0).get_names() == {"past_lens"}
    assert parameter.get_element_type() == ov.Type.i32
    assert str(parameter.get_output_partial_shape(0)) == "[?,4]"


@pytest.mark.parametrize(("shape", "fed"), [([-1, 4], [2, 4]), ([2, 2, 2], [2, 2, 2]), ([], [])])
def test_two_results_of_one_value_keep_their_names(shape: list[int], fed: list[int], tmp_path: Path) -> None:
    x = ir.make_parameter("x", "f32", shape)
    value = ir.opset.relu(x, name="relu").output(0)
    first = ir.make_result(value, "h_a")
    second = ir.make_result(value, "h_b")
    third = ir.make_result(value, "h_c")
    assert first.input_value(0).get_node() is value.get_node()
    model = ov.Model([first, second, third], [x], "m")
    ov.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
    feed = np.full(fed, 3, np.float32)
    for source in (model, ir.read_model(tmp_path / "m.xml")):
        request = ir.core().compile_model(source, "CPU").create_infer_request()
        request.infer({"x": feed})
        for name in ("h_a", "h_b", "h_c"):
            np.testing.assert_array_equal(request.get_tensor(name).data, feed)


def test_a_value_of_unknown_rank_too() -> None:
    value = ir.opset.relu(ir.make_parameter("x", "f32", ov.PartialShape.dynamic())).output(0)
    results = [ir.make_result(value, name) for name in ("h_a", "h_b")]
    assert [result.output(0).get_names() for result in results] == [{"h_a"}, {"h_b"}]
    assert results[1].input_value(0).get_node().get_type_name() == "Identity"


def test_result_and_value_share_the_name() -> None:
    x = ir.make_parameter("x", "f32", [2])
    value = ir.opset.relu(x).output(0)
    value.set_names({"72"})
    result = ir.make_result(value, "last_hidden_state")
    assert result.get_friendly_name() == "last_hidden_state"
    assert value.get_names() == {"72", "last_hidden_state"}


def test_rename_replaces_all_names_and_the_ports_own() -> None:
    x = ir.make_parameter("x", "f32", [2])
    inner = ir.opset.relu(x, name="relu")
    inner.output(0).set_names({"a", "b"})
    ir.rename_tensor(x.output(0), "y")
    ir.rename_tensor(inner.output(0), "c")
    assert (x.get_friendly_name(), x.output(0).get_names()) == ("y", {"y"})
    assert (inner.get_friendly_name(), inner.output(0).get_names()) == ("relu", {"c"})


def test_a_node_is_named_with_its_place() -> None:
    x = ir.make_parameter("x", "f32", [2])
    relu = ir.opset.relu(x, name="same")
    negative = ir.opset.negative(relu, name="same")
    model = ov.Model([ir.make_result(negative.output(0), "y")], [x], "m")
    assert str(ir.node_ref(negative, model)) == "Negative 'same' (#2)"
    assert ir.node_ref(relu).index == -1
    assert ir.node_ref(ir.opset.relu(x), model).index == -1
