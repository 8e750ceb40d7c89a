"""Stateful key and value caches, as stateful exports have them."""

from __future__ import annotations

import numpy as np
import openvino as ov

from ovgraft.drafts.building.graph import ints, scalar
from ovgraft.ir import opset


class Cache:
    """The cache variables of one draft.

    Args:
        batch_of: Any output whose axis 0 is the batch.
        beam_idx: i32 ``[B]``.
    """

    def __init__(self, batch_of: ov.Output, beam_idx: ov.Output) -> None:
        shape = opset.shape_of(batch_of, output_type="i64")
        self._batch = opset.gather(shape, ints(0), scalar(0))
        self._beam_idx = beam_idx
        self.assigns: list[ov.Node] = []

    def append(self, layer: int, what: str, rows: ov.Output) -> ov.Output:
        """Rows in the cache and new ones behind them; all stay for the next call.

        Args:
            layer: Number of the layer.
            what: ``key`` or ``value``.
            rows: f32 ``[B, heads, rows, size]``.

        Returns:
            f32 ``[B, heads, past + rows, size]``.
        """
        heads, size = (rows.get_partial_shape()[axis].get_length() for axis in (1, 3))
        empty = opset.broadcast(opset.constant(np.float32(0)), opset.concat([self._batch, ints(heads, 0, size)], 0))
        shape = ov.PartialShape([-1, heads, -1, size])
        variable = opset.read_value(empty, _variable(layer, what), ov.Type.f32, shape)
        variable.set_friendly_name(f"ReadValue_{layer}_{what}")
        past = opset.gather(variable, self._beam_idx, scalar(0))
        kept = opset.concat([past, rows], 2)
        assign = opset.assign(kept, _variable(layer, what))
        assign.set_friendly_name(f"Assign_{layer}_{what}")
        self.assigns.append(assign)
        return kept.output(0)


def _variable(layer: int, what: str) -> str:
    return f"past_key_values.{layer}.{what}present.{layer}.{what}"
