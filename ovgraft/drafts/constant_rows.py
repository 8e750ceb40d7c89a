"""Rows of a stored weight as f32: what the decompression ops of an IR compute, a few rows at a time, in numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft.ir.constants import constant_bytes
from ovgraft.ir.weights import WeightSubgraph

Array = NDArray[Any]

_FLOATS: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}
_BYTES: dict[str, np.dtype[Any]] = {"u8": np.dtype(np.uint8), "i8": np.dtype(np.int8)}
_NIBBLES = ("u4", "i4")
_ARITHMETIC: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Subtract": np.subtract,
    "Multiply": np.multiply,
    "Divide": np.divide,
}


class UnreadableWeightError(Exception):
    """A decompression form that is not read; the text names the op or type."""


@dataclass(frozen=True)
class WeightRows:
    """Reads rows of one weight.

    Attributes:
        weight: The weight subgraph, of a matrix.
        axis: The dimension of its output that counts rows.
        dtype: numpy type of the stored values; integers for compressed weights, one byte for 4-bit ones.
    """

    weight: WeightSubgraph
    axis: int
    dtype: np.dtype[Any]

    @property
    def compressed(self) -> bool:
        """Stored as integers with a scale."""
        return self.dtype.kind in "iu"

    def read(self, start: int, stop: int, *, plus: int = 0) -> Array:
        """Rows ``start`` to ``stop``.

        Args:
            start: First row.
            stop: Row after the last one.
            plus: Added to every stored integer first: the change of the result is the quantization step.

        Returns:
            f32 ``[stop - start, columns]``.
        """
        rows = int(self.weight.output.get_shape()[self.axis])
        main = max(self.weight.constants, key=lambda constant: prod(constant.get_output_shape(0)))
        values: dict[int, Array] = {}
        for node in self.weight.nodes:
            kind = node.get_type_name()
            if kind == "Constant":
                value = _slice(node, self.axis, rows, start, stop)
                values[id(node)] = value + plus if node is main and plus else value
                continue
            inputs = [values[id(source.get_node())] for source in node.input_values()]
            if kind == "Convert":
                values[id(node)] = inputs[0]
            elif kind in _ARITHMETIC:
                values[id(node)] = _ARITHMETIC[kind](inputs[0], inputs[1])
            elif kind == "Reshape" and self.axis == 0 and int(node.get_output_shape(0)[0]) == rows:
                values[id(node)] = inputs[0].reshape(stop - start, *node.get_output_shape(0)[1:])
            else:
                raise UnreadableWeightError(f"op {kind}")
        result = values[id(self.weight.nodes[-1])]
        return result.T if self.axis else result


def weight_rows(weight: WeightSubgraph, axis: int) -> WeightRows:
    """A reader of one weight.

    Raises:
        UnreadableWeightError: Its storage type is not read.
    """
    if weight.format in _FLOATS:
        return WeightRows(weight, axis, _FLOATS[weight.format])
    if weight.format in _BYTES:
        return WeightRows(weight, axis, _BYTES[weight.format])
    if weight.format in _NIBBLES:
        return WeightRows(weight, axis, np.dtype(np.uint8 if weight.format == "u4" else np.int8))
    raise UnreadableWeightError(f"type {weight.format}")


def _slice(constant: ov.Node, axis: int, rows: int, start: int, stop: int) -> Array:
    shape = tuple(constant.get_output_shape(0))
    by_row = len(shape) > axis and shape[axis] == rows
    kind = constant.get_output_element_type(0).get_type_name()
    data = constant_bytes(constant)
    if by_row and axis == 0:
        bits = prod(shape[1:]) * constant.get_output_element_type(0).bitwidth
        if bits % 8 == 0:
            return _values(data[start * bits // 8 : stop * bits // 8], kind, (stop - start, *shape[1:]))
    values = _values(data, kind, shape)
    return values[(slice(None),) * axis + (slice(start, stop),)] if by_row else values


def _values(data: Array, kind: str, shape: tuple[int, ...]) -> Array:
    if kind in _NIBBLES:
        # Element 2 i is the low half of byte i.
        both = np.stack([data & 15, data >> 4], axis=-1).reshape(-1)[: prod(shape)].astype(np.float32)
        return (np.where(both > 7, both - 16, both) if kind == "i4" else both).reshape(shape)
    if kind in ("i32", "i64"):
        # Shapes of Reshape, read by nobody here.
        return data
    dtype = _FLOATS.get(kind) or _BYTES.get(kind)
    if dtype is None:
        raise UnreadableWeightError(f"type {kind}")
    return data.view(dtype).reshape(shape).astype(np.float32)
