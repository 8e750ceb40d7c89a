from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ovgraft import ir
from ovgraft.drafts.markov import exact_top_k
from ovgraft.drafts.reference import top_k
from ovgraft.ir import opset

Array = NDArray[Any]

# one level; two levels with a divisor, with padding (a prime), with fewer blocks than K
WIDTHS = (1, 3, 97, 2048, 4096, 4099, 6400)


def sorter(width: int, k: int) -> ov.Model:
    rows = ir.make_parameter("rows", ov.Type.f32, [-1, width])
    values, ids = exact_top_k(rows.output(0), opset.constant(np.array(k, np.int64)).output(0))
    return ov.Model([ir.make_result(values, "values"), ir.make_result(ids, "ids")], [rows], "top_k")


def run(rows: Array, k: int, precision: str = "f32") -> tuple[Array, Array]:
    model = sorter(rows.shape[1], k)
    assert [str(port.partial_shape) for port in model.outputs] == [f"[?,{k}]"] * 2
    compiled = ir.core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": precision})
    found = compiled({"rows": rows.astype(np.float32)})
    return found["values"], found["ids"]


def check(rows: Array, k: int, precision: str = "f32") -> None:
    values, ids = run(rows, k, precision)
    wanted = top_k(rows.astype(np.float32), k)
    np.testing.assert_array_equal(ids, wanted)
    np.testing.assert_array_equal(values, np.take_along_axis(rows.astype(np.float32), wanted, 1))
    assert ids.dtype == np.int64


def awkward_rows(width: int, seed: int = 0) -> Array:
    """Distinct values, bf16 ones, all equal, -inf alone, few finite ones, two levels, signed zeros, +inf."""
    random = np.random.default_rng(seed)
    normal = random.standard_normal((9, width)).astype(np.float32)
    normal[1] = normal[1].astype(ml_dtypes.bfloat16)
    normal[2] = 3.5
    normal[3] = -np.inf
    normal[4] = -np.inf
    normal[4, random.permutation(width)[: min(10, width)]] = np.round(random.standard_normal(min(10, width)))
    normal[5] = random.integers(0, 2, width)
    normal[6] = np.where(random.integers(0, 2, width), 0.0, -0.0)
    normal[7] = np.round(normal[7])
    normal[8, random.permutation(width)[: width // 4]] = np.inf
    return normal


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("k", [1, 5, 16, 64, 100])
def test_order_is_by_value_then_by_lower_id(width: int, k: int) -> None:
    check(awkward_rows(width), min(k, width))


@pytest.mark.parametrize("width", [97, 300, 2048])
def test_k_may_be_the_whole_row(width: int) -> None:
    check(awkward_rows(width)[:4], width)


def test_one_row_and_more_blocks_than_rows() -> None:
    check(awkward_rows(6400)[1:2], 64)


def test_k_above_the_number_of_blocks() -> None:
    check(awkward_rows(4160)[[1, 2, 4]], 200)  # 65 blocks


def test_ties_across_block_borders() -> None:
    rows = np.full((2, 6400), -1.0, np.float32)
    rows[0, 60:70] = 1.0  # the best values lie around id 64, the border of blocks 0 and 1
    rows[1, ::64] = 1.0  # every block has the same maximum
    for k in (4, 8, 64):
        check(rows, k)


def test_the_lowest_finite_value() -> None:
    """Masks made with finfo.min; mixed with -inf they count as equal where whole blocks have nothing better."""
    lowest = np.finfo(np.float32).min
    rows = awkward_rows(6400)[:3]
    rows[0, rows[0] < 0] = lowest
    rows[1, 20:] = lowest
    rows[2] = lowest
    for k in (1, 16, 64):
        check(rows, k)
    check(np.full((1, 97), np.inf), 5)
    check(np.full((1, 6400), np.inf), 64)


def test_order_does_not_depend_on_the_inference_precision() -> None:
    check(awkward_rows(6400), 16, precision="bf16")


@pytest.mark.parametrize("width", [97, 6400])
def test_rows_with_nan_stay_in_range_and_leave_the_others_alone(width: int) -> None:
    rows = awkward_rows(width)
    rows[0, 3], rows[1], rows[2, ::2] = np.nan, np.nan, np.nan
    _, ids = run(rows, 16)
    assert ids.min() >= 0
    assert ids.max() < width
    np.testing.assert_array_equal(ids[3:], top_k(rows[3:], 16))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_few_values(data: st.DataObject) -> None:
    width = data.draw(st.sampled_from([5, 97, 4160]))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    levels = np.array(data.draw(st.lists(st.sampled_from([-np.inf, -2.0, 0.0, 0.5, np.inf]), min_size=1)))
    rows = levels[random.integers(0, len(levels), (2, width))]
    check(rows, data.draw(st.integers(1, min(width, 80))))
