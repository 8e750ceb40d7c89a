"""The K best candidates of each row, ordered by value and then by lower id, exactly.

OpenVINO's TopK orders equal values by id only with ``stable=True``, which on CPU costs about a hundred times the
unstable one at vocabulary width, and equal values are common: pruned rows are -inf, and bf16 logits are coarse. Here

1. a row is cut into blocks, and the K blocks of the largest maxima are kept (of equal ones the first). No candidate is
   lost: K blocks that come before a block each hold a value that comes before all of its values;
2. the values of these blocks, in id order, go through an unstable TopK, which finds the K-th largest value; everything
   larger is in its answer, and a second one finds the lowest ids among the values equal to it;
3. a stable TopK puts these 2K in order.

K comes from one Constant, and nothing else in the graph knows it.
"""

from __future__ import annotations

import numpy as np
import openvino as ov

from ovgraft.ir import opset

_BLOCK = 64
_LEAST_BLOCKS = 64  # below this many the two levels cost more than they save
_NO_VALUE = np.float32(-np.inf)


def exact_top_k(rows: ov.Output, k: ov.Output) -> tuple[ov.Output, ov.Output]:
    """Add the ops.

    -inf is a value like any other: a row with fewer than K finite ones is filled up with its lowest other ids. What a
    row with NaN gives is unspecified, but its ids are in range. The lowest finite f32 counts as -inf in step 1, because
    CPU's ReduceMax gives no less; ReduceMin of +inf is as wrong, hence the TopK where a minimum would do.

    Args:
        rows: f32 ``[R, V]``, V static.
        k: i64 scalar, 1 to V.

    Returns:
        Values f32 ``[R, K]`` and ids i64 ``[R, K]``.
    """
    width = rows.get_partial_shape()[1].get_length()
    if width < _BLOCK * _LEAST_BLOCKS:
        values, ids = _ordered(rows, k)
    else:
        members, member_ids = _best_blocks(rows, k, width)
        values, places = _ordered(members, k)
        ids = opset.gather_elements(member_ids, places, 1).output(0)
    return values, opset.convert(ids, ov.Type.i64).output(0)


def _best_blocks(rows: ov.Output, k: ov.Output, width: int) -> tuple[ov.Output, ov.Output]:
    """Values and ids of the K blocks that hold the K best values, by rising id: f32 and i32 ``[R, K * block]``."""
    # a divisor of the width saves a copy of all rows
    block = next((size for size in range(_BLOCK, _BLOCK // 2, -1) if width % size == 0), _BLOCK)
    missing = -width % block
    if missing:
        padded = opset.pad(rows, _i64([0, 0]), _i64([0, missing]), "constant", opset.constant(_NO_VALUE))
        rows = padded.output(0)
    count = (width + missing) // block
    blocks = opset.reshape(rows, _i64([0, count, block]), special_zero=True)
    maxima = opset.reduce_max(blocks, _i64([2]), keep_dims=False)
    kept = opset.minimum(k, _i64(count)).output(0)
    _, best = _ordered(maxima.output(0), kept)
    in_order = opset.topk(best, kept, 1, "min", "value", index_element_type="i32").output(0)
    members = opset.gather(blocks, in_order, _i64(1), batch_dims=1)
    first_ids = opset.unsqueeze(opset.multiply(in_order, _i32(block)), _i64([2]))
    ids = opset.add(first_ids, _i32(np.arange(block)))
    flat = _i64([0, -1])
    return (
        opset.reshape(members, flat, special_zero=True).output(0),
        opset.reshape(ids, flat, special_zero=True).output(0),
    )


def _ordered(values: ov.Output, k: ov.Output) -> tuple[ov.Output, ov.Output]:
    """The K best of ``[R, N]`` by value, then by lower place: values ``[R, K]`` and places i32 ``[R, K]``."""
    best = opset.topk(values, k, 1, "max", "index", index_element_type="i32")
    found, found_places = best.outputs()  # by rising place
    threshold = opset.topk(found, _i64(1), 1, "min", "value", index_element_type="i32").output(0)

    # Falling numbers, so that the largest K of them are the lowest places. i32, because an inference precision below
    # f32 would round them.
    width = opset.gather(opset.shape_of(values, "i32"), _i64(1), _i64(0))
    falling = opset.unsqueeze(opset.range(width, _i32(0), _i32(-1), "i32"), _i64([0]))
    tied = opset.select(opset.equal(values, threshold), falling, _i32([[0]]))
    marks, tied_places = opset.topk(tied, k, 1, "max", "value", index_element_type="i32").outputs()

    # Tied ones first: where the threshold itself is -inf, they must come before what is masked with -inf here.
    masked = opset.constant(_NO_VALUE)
    candidates = opset.concat(
        [
            opset.select(opset.greater(marks, _i32(0)), threshold, masked),
            opset.select(opset.greater(found, threshold), found, masked),
        ],
        1,
    )
    places = opset.concat([tied_places, found_places], 1)
    ordered, chosen = opset.topk(candidates, k, 1, "max", "value", index_element_type="i32", stable=True).outputs()
    return ordered, opset.gather_elements(places, chosen, 1).output(0)


def _i32(value: object) -> ov.Node:
    return opset.constant(np.array(value, np.int32))


def _i64(value: object) -> ov.Node:
    return opset.constant(np.array(value, np.int64))
