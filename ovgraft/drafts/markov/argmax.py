"""The best token of each draft row as an op subgraph, so that no host scans the vocabulary."""

from __future__ import annotations

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft.drafts.grafting import NameSpace
from ovgraft.drafts.reference.rows import target_ids
from ovgraft.ir import opset

NO_TOKEN = -1
"""What a row gives that has NaN, +inf, or no finite value."""


def scaled_logits(
    logits: ov.Output, output_multiplier: float, final_logit_softcapping: float, names: NameSpace
) -> ov.Output:
    """``cap * tanh(logits * multiplier / cap)`` in f32; a multiplier of 1 and a cap of 0 add nothing.

    The cap keeps the order of logits but not their distances: large ones become equal, and then the lower id wins.
    """
    if logits.get_element_type() != ov.Type.f32:
        logits = names.give(opset.convert(logits, ov.Type.f32), "draft_token_ids/logits")
    if output_multiplier != 1:
        factor = names.constant(output_multiplier, ov.Type.f32, "draft_token_ids/output_multiplier")
        logits = names.give(opset.multiply(logits, factor), "draft_token_ids/scaled")
    if final_logit_softcapping > 0:
        cap = names.constant(final_logit_softcapping, ov.Type.f32, "draft_token_ids/final_logit_softcapping")
        logits = names.give(opset.divide(logits, cap), "draft_token_ids/divided")
        logits = names.give(opset.tanh(logits), "draft_token_ids/tanh")
        logits = names.give(opset.multiply(logits, cap), "draft_token_ids/capped")
    return logits


def best_token(logits: ov.Output, d2t: NDArray[np.int64] | None, names: NameSpace) -> ov.Output:
    """Add the ops.

    ArgMax by hand, because OpenVINO's TopK orders equal values by id only in its slow stable form: the largest value,
    then the lowest place that holds it.

    Args:
        logits: f32 ``[..., Dv]``, Dv static.
        d2t: Offsets ``[Dv]`` of a pruned vocabulary: target id = i + d2t[i]; None when draft ids are target ids.
        names: Of the model.

    Returns:
        i64 ``[...]``, target ids; of equal values the lower draft id; ``NO_TOKEN`` for a row with NaN, +inf, or no
        finite value.
    """

    def give(node: ov.Node, name: str) -> ov.Output:
        return names.give(node, f"draft_token_ids/{name}")

    def constant(value: object, kind: type[np.generic], name: str) -> ov.Output:
        return give(opset.constant(np.array(value, kind)), name)

    width = logits.get_partial_shape()[-1].get_length()
    last = constant([-1], np.int64, "last_axis")
    best = give(opset.reduce_max(logits, last, keep_dims=True), "best")
    ids = constant(np.arange(width), np.int32, "ids")
    past_the_end = constant(width, np.int32, "past_the_end")
    places = give(opset.select(give(opset.equal(logits, best), "is_best"), ids, past_the_end), "places")
    place = give(opset.reduce_min(places, last, keep_dims=False), "place")

    # CPU's ReduceMax passes over NaN and gives the lowest finite value for a row of -inf, which no place holds
    finite = give(opset.is_finite(give(opset.squeeze(best, last), "best_value")), "is_finite")
    has_nan = give(opset.reduce_logical_or(give(opset.is_nan(logits), "is_nan"), last, keep_dims=False), "has_nan")
    found = give(opset.less(place, past_the_end), "is_found")
    number = give(opset.logical_and(finite, give(opset.logical_not(has_nan), "has_no_nan")), "is_number")
    valid = give(opset.logical_and(number, found), "is_valid")
    tokens = np.arange(width) if d2t is None else target_ids(d2t)
    token = give(opset.convert(place, ov.Type.i64), "draft_id")
    if d2t is not None:
        table = constant(tokens, np.int64, "target_ids")
        inside = give(opset.minimum(token, constant(width - 1, np.int64, "last_id")), "inside")
        token = give(opset.gather(table, inside, constant(0, np.int64, "axis")), "target_id")
    return give(opset.select(valid, token, constant(NO_TOKEN, np.int64, "no_token")), "token")


def largest_token(d2t: NDArray[np.int64]) -> int:
    """The largest target id a pruned draft can give."""
    return int(target_ids(d2t).max())
