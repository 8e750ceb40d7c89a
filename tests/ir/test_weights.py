from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from ovgraft.ir.weights import weight_root


def int8_matmul() -> ov.Node:
    x = ops.parameter([-1, 8], np.float32, name="x")
    weight = ops.constant(np.zeros((4, 8), np.uint8), name="w")
    zero_point = ops.constant(np.zeros((4, 1), np.uint8), name="zp")
    scale = ops.constant(np.ones((4, 1), np.float16), name="scale")
    centred = ops.subtract(ops.convert(weight, "f16"), ops.convert(zero_point, "f16"))
    return ops.matmul(x, ops.convert(ops.multiply(centred, scale), "f32"), False, True, name="fc")


def test_a_compressed_weight_is_told_by_its_largest_constant() -> None:
    found = weight_root(int8_matmul().input_value(1))
    assert found is not None
    assert found.format == "u8"
    assert found.bytes == 4 * 8 + 4 + 4 * 2
    assert [node.get_type_name() for node in found.nodes] == [
        *("Constant", "Convert", "Constant", "Convert", "Subtract", "Constant", "Multiply", "Convert")
    ]
    assert [node.get_friendly_name() for node in found.constants] == ["w", "zp", "scale"]


def test_int4_counts_half_bytes() -> None:
    weight = ov.op.Constant(ov.Type.i4, ov.Shape([2, 6]), [1] * 12)
    found = weight_root(ops.convert(weight, "f32").output(0))
    assert found is not None
    assert (found.format, found.bytes) == ("i4", 6)


def test_a_shared_constant_counts_once() -> None:
    weight = ops.constant(np.ones((2, 2), np.float32))
    found = weight_root(ops.multiply(weight, weight).output(0))
    assert found is not None
    assert (len(found.nodes), found.bytes) == (2, 16)


def test_what_depends_on_an_input_or_state_is_no_weight() -> None:
    matmul = int8_matmul()
    assert weight_root(matmul.output(0)) is None
    assert weight_root(matmul.input_value(0)) is None
    state = ops.read_value(ops.constant(np.zeros((1, 2), np.float32)), "state")
    assert weight_root(state.output(0)) is None
