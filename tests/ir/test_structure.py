"""Every kind of edit is seen: by the comparison that saving relies on, and by the fingerprint of strict runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from ovgraft import ir
from ovgraft.ir.compare import _Side, op_ids, same_structure
from tests import models

ops = ir.opset


def node(model: ov.Model, kind: str, which: int = 0) -> ov.Node:
    return [found for found in model.get_ordered_ops() if found.get_type_name() == kind][which]


def replaced_weight(model: ov.Model) -> None:
    big = next(n for n in model.get_ordered_ops() if n.get_type_name() == "Constant" and n.data.nbytes > 2000)
    values = np.array(big.data)
    values.flat[values.size // 2] += 1
    new = ops.constant(values)
    new.set_friendly_name(big.get_friendly_name())
    new.output(0).set_names(big.output(0).get_names())
    big.output(0).replace(new.output(0))


def replaced_scalar(model: ov.Model) -> None:
    small = next(n for n in model.get_ordered_ops() if n.get_type_name() == "Constant" and n.data.nbytes == 4)
    new = ops.constant(np.array(small.data) + 1)
    new.set_friendly_name(small.get_friendly_name())
    small.output(0).replace(new.output(0))


def swapped_edges(model: ov.Model) -> None:
    add = node(model, "Add")
    first, second = add.input_value(0), add.input_value(1)
    add.input(0).replace_source_output(second)
    add.input(1).replace_source_output(first)


def another_opset(model: ov.Model) -> None:
    old = node(model, "Gather")
    new = ov.opset7.gather(*(value for value in old.input_values()), batch_dims=0)
    new.set_friendly_name(old.get_friendly_name())
    new.output(0).set_names(old.output(0).get_names())
    assert (new.get_type_name(), new.get_attributes()) == (old.get_type_name(), old.get_attributes())
    old.output(0).replace(new.output(0))


def put(port: ov.Output | ov.Input, key: str) -> None:
    port.get_rt_info()[key] = "value"


def more_results(model: ov.Model) -> None:
    model.add_results([ir.make_result(node(model, "Add").output(0), "more")])


def reorder(model: ov.Model) -> None:
    parameter = model.get_parameters()[0]
    model.remove_parameter(parameter)
    model.add_parameters([parameter])


def swapped_results(model: ov.Model) -> None:
    more_results(model)
    result = model.get_results()[0]
    model.remove_result(result)
    model.add_results([result])


EDITS: dict[str, Callable[[ov.Model], object]] = {
    "friendly name": lambda model: node(model, "MatMul").set_friendly_name("other"),
    "tensor name": lambda model: node(model, "MatMul").output(0).set_names({"other"}),
    "more tensor names": lambda model: node(model, "Parameter").output(0).get_tensor().add_names({"other"}),
    "attribute": lambda model: node(model, "MatMul").set_attribute("transpose_a", True),
    "user data": lambda model: ir.set_user_data(node(model, "MatMul"), "key", "value"),
    "user data of an output": lambda model: put(node(model, "MatMul").output(0), "user_datakey"),
    "user data of a constant's output": lambda model: put(node(model, "Constant").output(0), "user_datakey"),
    "user data of an input": lambda model: put(node(model, "MatMul").input(1), "user_datakey"),
    "layout of an input": lambda model: model.input("input_ids").get_node().set_layout(ov.Layout("NC")),
    "layout of an output": lambda model: model.get_results()[0].set_layout(ov.Layout("NCH")),
    "shape of a constant": lambda model: node(model, "Constant").set_attribute("shape", [1, 1]),
    "weight": replaced_weight,
    "scalar": replaced_scalar,
    "edges": swapped_edges,
    "opset": another_opset,
    "result": more_results,
    "result order": swapped_results,
    "parameter order": reorder,
}


@pytest.fixture(scope="module")
def pristine() -> ov.Model:
    return models.tiny_decoder(1)


def test_a_clone_is_the_same(pristine: ov.Model) -> None:
    copy = pristine.clone()
    assert ir.same_structure(pristine, copy) is None
    assert ir.fingerprint(pristine) == ir.fingerprint(copy)


@pytest.mark.parametrize("what", EDITS)
def test_every_edit_is_seen(pristine: ov.Model, what: str) -> None:
    edited = pristine.clone()
    EDITS[what](edited)
    difference = ir.same_structure(edited, pristine)
    assert difference
    assert "\n" not in difference
    assert ir.same_structure(pristine, edited)
    assert ir.fingerprint(edited) != ir.fingerprint(pristine)


@pytest.mark.parametrize("what", EDITS)
def test_every_edit_is_seen_where_ops_are_known(pristine: ov.Model, what: str) -> None:
    """What a save does: the clone is from when the model was read, and so are the numbers of its ops."""
    edited = pristine.clone()
    ops_then, clone = op_ids(edited), edited.clone()
    assert same_structure(edited, clone, cloned_from=ops_then, bare=True) is None
    EDITS[what](edited)
    assert same_structure(edited, clone, cloned_from=ops_then, bare=True)


def test_layouts_count_by_their_value(pristine: ov.Model) -> None:
    one, other = pristine.clone(), pristine.clone()
    for model, layout in ((one, "NC"), (other, "CN")):
        model.get_parameters()[0].set_layout(ov.Layout(layout))
    assert "layout" in str(ir.same_structure(one, other))
    assert ir.fingerprint(one) != ir.fingerprint(other)


def test_entries_of_ports_come_back_from_disk(pristine: ov.Model, tmp_path: Path) -> None:
    model = pristine.clone()
    for what in EDITS:
        if what.startswith(("user data of", "layout of")):
            EDITS[what](model)
    ov.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
    back = ir.read_model(tmp_path / "m.xml")
    assert ir.same_structure(model, back, after="save") is None
    node(back, "MatMul").input(1).get_rt_info()["user_datakey"] = "other"
    assert "rt_info of input 1" in str(ir.same_structure(model, back, after="save"))


def test_numbers_of_ops_are_never_given_twice(pristine: ov.Model) -> None:
    seen = [number for _ in range(3) for number in op_ids(pristine.clone())]
    assert len(set(seen)) == len(seen)


def test_outputs_that_share_a_tensor_are_told_apart(pristine: ov.Model) -> None:
    side = _Side(pristine.get_ordered_ops())
    assert side.inputs() == side._inputs_by_node()


def test_a_difference_names_the_node(pristine: ov.Model) -> None:
    edited = pristine.clone()
    target = node(edited, "MatMul", 2)
    ir.set_user_data(target, "key", "value")
    difference = ir.same_structure(edited, pristine)
    assert difference is not None
    assert f"MatMul '{target.get_friendly_name()}'" in difference
    assert "user_datakey" in difference


def test_model_level_entries_count_in_the_fingerprint_alone(pristine: ov.Model) -> None:
    edited = pristine.clone()
    ir.set_text(edited, ("a",), "b")
    assert ir.same_structure(edited, pristine) is None
    assert ir.fingerprint(edited) != ir.fingerprint(pristine)
    ir.delete(edited, ("a",))
    assert ir.fingerprint(edited) == ir.fingerprint(pristine)


def test_equal_bytes_at_other_addresses_are_the_same() -> None:
    one, other = (inspect.unwrap(models.tiny_decoder)(1) for _ in range(2))
    assert ir.same_structure(one, other) is None
    assert ir.fingerprint(one) != ir.fingerprint(other)
    assert ir.same_structure(one, models.tiny_decoder(1, seed=1)) is not None


def test_strings() -> None:
    def model(word: str) -> ov.Model:
        constant = ov.op.Constant(ov.Tensor(np.array([word])))
        constant.set_friendly_name("words")
        return ov.Model([ir.make_result(constant.output(0), "y")], [], "m")

    assert ir.same_structure(model("a"), model("a")) is None
    assert ir.same_structure(model("a"), model("b")) is not None


def loop(step: float) -> ov.Model:
    """Adds ``step`` to x three times."""
    x = ir.make_parameter("x", "f32", [2])
    inner = ir.make_parameter("inner", "f32", [2])
    condition = ops.constant(True, name="condition")
    total = ops.add(inner, ops.constant(np.float32(step), name="step"), name="add")
    body = ov.Model([ir.make_result(condition.output(0), "go"), ir.make_result(total.output(0), "sum")], [inner], "b")
    found = ops.loop(ops.constant(3, name="trips"), ops.constant(True, name="first"))
    found.set_friendly_name("loop")
    found.set_function(body)
    found.set_special_body_ports([-1, 0])
    found.set_merged_input(inner, x.output(0), body.get_results()[1].output(0))
    value = found.get_iter_value(body.get_results()[1].output(0), -1)
    return ov.Model([ir.make_result(value, "y")], [x], "m")


def test_bodies_count(tmp_path: Path) -> None:
    model = loop(1)
    assert ir.same_structure(model, model.clone()) is None
    difference = ir.same_structure(model, loop(2))
    assert difference is not None
    assert "Loop 'loop'" in difference
    assert "in its body" in difference
    assert "Constant 'step'" in difference
    edited = model.clone()
    node(edited, "Loop").get_function().get_ordered_ops()[-1].set_friendly_name("other")
    assert ir.same_structure(edited, model) is not None
    assert ir.fingerprint(edited) != ir.fingerprint(model)
    ov.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
    assert ir.same_structure(model, ir.read_model(tmp_path / "m.xml"), after="save") is None


def test_branches_count() -> None:
    def model(factor: float) -> ov.Model:
        x, which = ir.make_parameter("x", "f32", [2]), ir.make_parameter("which", "boolean", [])
        arms = []
        for arm in (1.0, factor):
            inner = ir.make_parameter("inner", "f32", [2])
            product = ops.multiply(inner, ops.constant(np.float32(arm), name="factor"), name="product")
            arms.append(ov.Model([ir.make_result(product.output(0), "arm")], [inner], "arm"))
        choice = ops.if_op(which)
        choice.set_friendly_name("if")
        choice.set_then_body(arms[0])
        choice.set_else_body(arms[1])
        choice.set_input(x.output(0), *(arm.get_parameters()[0] for arm in arms))
        value = choice.set_output(*(arm.get_results()[0] for arm in arms))
        return ov.Model([ir.make_result(value, "y")], [x, which], "m")

    assert ir.same_structure(model(2), model(2).clone()) is None
    assert "in its body" in str(ir.same_structure(model(2), model(3)))


def test_every_ir_of_the_zoo_is_its_clone_and_its_second_reading(shared: Path) -> None:
    for path in sorted(shared.glob("*/*/openvino_*model.xml")):
        model = ir.read_model(path)
        assert ir.same_structure(model, model.clone()) is None, path
        assert ir.fingerprint(model) == ir.fingerprint(model.clone()), path
        assert ir.same_structure(model, ir.read_model(path)) is None, path
