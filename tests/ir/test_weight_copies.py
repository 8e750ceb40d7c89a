"""Copies of weight subgraphs and their digests."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from ovgraft import ir
from ovgraft.ir.constants import constant_address

ops = ir.opset


def int8_weight(seed: int = 0, *, scale: float = 0.5, zero_point: int = 3, name: str = "w") -> ov.Output:
    codes = np.random.default_rng(seed).integers(0, 255, (8, 4), np.uint8)
    weight = ops.constant(codes, name=name)
    centred = ops.subtract(
        ops.convert(weight, "f16", name=f"{name}/convert"),
        ops.convert(ops.constant(np.full((8, 1), zero_point, np.uint8)), "f16"),
    )
    scaled = ops.multiply(centred, ops.constant(np.full((8, 1), scale, np.float16)))
    return ops.convert(scaled, "f32").output(0)


def constants(output: ov.Output) -> list[ov.Node]:
    weights = ir.weight_root(output)
    assert weights is not None
    return list(weights.constants)


def test_a_copy_shares_memory_and_keeps_everything_else(tmp_path: Path) -> None:
    x = ir.make_parameter("x", "f32", [-1, 4])
    product = ops.matmul(x, int8_weight(), False, True, name="fc")
    ov.save_model(ov.Model([ir.make_result(product.output(0), "y")], [x], "m"), tmp_path / "m.xml")
    model = ir.read_model(tmp_path / "m.xml")
    root = next(node for node in model.get_ordered_ops() if node.get_type_name() == "MatMul").input_value(1)
    ir.set_user_data(root.get_node(), "note", "kept")
    (copy,) = ir.clone_subgraph([root])
    for ours, theirs in zip(constants(root), constants(copy), strict=True):
        assert ours is not theirs
        assert ours.get_friendly_name() == theirs.get_friendly_name()
        assert constant_address(ours.data) == constant_address(theirs.data)
        assert "WeightlessCacheAttribute_0" in ours.get_rt_info()
        assert "WeightlessCacheAttribute_0" not in theirs.get_rt_info()
    assert ir.get_user_data(copy.get_node(), "note") == "kept"
    assert ir.weights_digest(copy) == ir.weights_digest(root)
    assert [target.get_node().get_type_name() for target in root.get_target_inputs()] == ["MatMul"]
    assert list(copy.get_target_inputs()) == []


def test_a_copy_outlives_its_source() -> None:
    root = int8_weight()
    digest = ir.weights_digest(root)
    (copy,) = ir.clone_subgraph([root])
    del root
    gc.collect()
    assert ir.weights_digest(copy) == digest


def test_what_is_shared_stays_shared() -> None:
    shared = int8_weight()
    left, right = ops.negative(shared).output(0), ops.abs(shared).output(0)
    copy_left, copy_right = ir.clone_subgraph([left, right])
    assert copy_left.get_node().input_value(0).get_node() is copy_right.get_node().input_value(0).get_node()
    assert (copy_left.get_node().get_type_name(), copy_right.get_node().get_type_name()) == ("Negative", "Abs")


def test_what_depends_on_an_input_is_refused_and_left_alone() -> None:
    x = ir.make_parameter("x", "f32", [-1, 4])
    product = ops.matmul(x, int8_weight(), False, True, name="fc").output(0)
    with pytest.raises(ValueError, match="MatMul 'fc' is not made of constants alone"):
        ir.clone_subgraph([product])
    with pytest.raises(ValueError, match="is not made of constants alone"):
        ir.weights_digest(product)
    assert list(product.get_target_inputs()) == []


def test_the_digest_is_of_the_weights_not_of_their_names() -> None:
    assert ir.weights_digest(int8_weight()) == ir.weights_digest(int8_weight(name="other"))
    assert len(ir.weights_digest(int8_weight())) == 64


@pytest.mark.parametrize(
    "other",
    [
        lambda: int8_weight(seed=1),
        lambda: int8_weight(scale=0.25),
        lambda: int8_weight(zero_point=4),
        lambda: ops.convert(int8_weight(), "f16").output(0),
        lambda: ops.reshape(int8_weight(), ops.constant([4, 8]), False).output(0),
    ],
)
def test_the_digest_tells_weights_apart(other: Callable[[], ov.Output]) -> None:
    assert ir.weights_digest(int8_weight()) != ir.weights_digest(other())


@pytest.mark.parametrize("shape", [(2, 6), (6, 2), (12,)])
def test_packed_bytes_of_another_shape_or_type_are_other_weights(shape: tuple[int, ...]) -> None:
    base = ir.weights_digest(ov.op.Constant(ov.Type.i4, ov.Shape([3, 4]), [1] * 12).output(0))
    assert base != ir.weights_digest(ov.op.Constant(ov.Type.i4, ov.Shape(list(shape)), [1] * 12).output(0))
    assert base != ir.weights_digest(ov.op.Constant(ov.Type.u4, ov.Shape([3, 4]), [1] * 12).output(0))


def test_strings_and_empty_constants_have_a_digest() -> None:
    def digest(words: list[str]) -> str:
        return ir.weights_digest(ov.op.Constant(ov.Tensor(np.array(words))).output(0))

    assert digest(["ab", "c"]) != digest(["ab", "d"])
    assert ir.weights_digest(ops.constant(np.zeros((0, 3), np.float32)).output(0))
