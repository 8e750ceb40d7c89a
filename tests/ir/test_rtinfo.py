from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset16 as ops

from ovgraft import ir

AWKWARD = "quote \" apostrophe ' less < more > and & tab \t newline \n return \r umlaut ä han 漢 end ]]> \x01"


@pytest.fixture
def model() -> ov.Model:
    x = ops.parameter([2], np.float32, name="x")
    return ov.Model([ops.add(x, ops.constant(np.ones(2, np.float32)))], [x], "m")


def test_set_and_get(model: ov.Model) -> None:
    ir.set_text(model, ("a",), "1")
    ir.set_text(model, ("b", "c", "d"), "2")
    ir.set_text(model, ("b", "e"), "3")
    assert ir.get_text(model, ("a",)) == "1"
    assert ir.get_text(model, ("b", "c", "d")) == "2"
    assert ir.flatten(model) == {("a",): "1", ("b", "c", "d"): "2", ("b", "e"): "3"}


@pytest.mark.parametrize("path", [("x",), ("b",), ("b", "x"), ("b", "c", "x"), ("a", "x"), ("a", "x", "y")])
def test_what_is_not_there_or_no_text_is_none(model: ov.Model, path: tuple[str, ...]) -> None:
    ir.set_text(model, ("a",), "1")
    ir.set_text(model, ("b", "c"), "2")
    assert ir.get_text(model, path) is None


def test_delete(model: ov.Model) -> None:
    for path in (("a",), ("b", "c", "d"), ("b", "e"), ("f", "g", "h")):
        ir.set_text(model, path, "1")
    assert ir.delete(model, ("b", "c", "d"))
    assert ir.flatten(model) == {("a",): "1", ("b", "e"): "1", ("f", "g", "h"): "1"}
    assert ir.delete(model, ("f",))
    assert ir.delete(model, ("b", "e"))
    assert not model.has_rt_info("b")
    assert not ir.delete(model, ("b", "e"))
    assert not ir.delete(model, ("a", "x"))
    assert ir.flatten(model) == {("a",): "1"}


def test_other_values_than_text(model: ov.Model) -> None:
    model.set_rt_info(3, ["int"])
    model.set_rt_info(True, ["bool"])
    model.set_rt_info([1, 2], ["list"])
    assert ir.flatten(model) == {("int",): "3"}
    assert ir.get_text(model, ("bool",)) is None
    with pytest.raises(TypeError, match="values are text"):
        ir.set_text(model, ("x",), 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", [(), ("",), ("a", ""), ("t", "x")])
def test_paths_that_openvino_would_die_of(model: ov.Model, path: tuple[str, ...]) -> None:
    ir.set_text(model, ("t",), "text")
    with pytest.raises(ValueError, match="rt_info"):
        ir.set_text(model, path, "1")


def test_awkward_keys_and_values_survive_a_round_trip(model: ov.Model, tmp_path: Path) -> None:
    entries = {("a b", "1x", "c/d"): AWKWARD, ("plain",): "", ("info", "name"): "value", ("x", '"<&'): " "}
    for path, value in entries.items():
        ir.set_text(model, path, value)
    ov.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
    read = ir.flatten(ir.read_model(tmp_path / "m.xml"))
    assert {path: read.get(path) for path in entries} == entries


def test_clones_have_their_own(model: ov.Model) -> None:
    ir.set_text(model, ("a", "b"), "1")
    copy = model.clone()
    ir.set_text(copy, ("a", "b"), "2")
    assert ir.get_text(model, ("a", "b")) == "1"


def test_user_data_survives_a_round_trip(model: ov.Model, tmp_path: Path) -> None:
    node = model.get_results()[0].input_value(0).get_node()
    assert ir.get_user_data(node, "digest") is None
    ir.set_user_data(node, "digest", AWKWARD)
    ov.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
    back = ir.read_model(tmp_path / "m.xml").get_results()[0].input_value(0).get_node()
    assert ir.get_user_data(back, "digest") == AWKWARD


def test_the_bin_offset_is_forgotten(model: ov.Model, tmp_path: Path) -> None:
    ov.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
    read = ir.read_model(tmp_path / "m.xml")
    constant = next(node for node in read.get_ordered_ops() if node.get_type_name() == "Constant")
    assert "WeightlessCacheAttribute_0" in constant.get_rt_info()
    ir.strip_weightless_cache(constant)
    ir.strip_weightless_cache(constant)
    assert "WeightlessCacheAttribute_0" not in constant.get_rt_info()
