"""Constants that keep a checkpoint's precision and, where they can, its memory."""

from __future__ import annotations

import mmap
from typing import Any, Literal

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft.drafts.markov.head_weights import BFLOAT16
from ovgraft.errors import CheckpointError
from ovgraft.ir import opset

Precision = Literal["checkpoint", "f16", "f32"]

_ROWS = 4096  # converted at a time

_mapped: dict[int, NDArray[Any]] = {}
"""Mapped arrays that Constants look into, by address.

A Constant does not keep the numpy array of its memory alive, and clones of a model outlive the model, so the mapping
stays until the process ends. That costs address space; the pages belong to the file.
"""


def weight(array: NDArray[Any], name: str, precision: Precision = "checkpoint") -> ov.Output:
    """A Constant and, unless it is f32, the Convert to f32 behind it.

    An array inside a mapped file that keeps its type is not copied.

    Args:
        array: f32, f16 or bfloat16.
        name: Friendly name of the Constant.
        precision: What it is stored in; ``checkpoint`` is the array's own type.

    Returns:
        f32 of the array's shape.

    Raises:
        CheckpointError: A finite value that f16 has no room for.
    """
    dtype = {"checkpoint": array.dtype, "f16": np.dtype(np.float16), "f32": np.dtype(np.float32)}[precision]
    constant = opset.constant(_tensor(array, dtype, name), shared_memory=True)
    constant.set_friendly_name(name)
    if dtype == np.float32:
        return constant.output(0)
    convert = opset.convert(constant, ov.Type.f32)
    convert.set_friendly_name(f"{name}/convert")
    return convert.output(0)


def _tensor(array: NDArray[Any], dtype: np.dtype[Any], name: str) -> ov.Tensor:
    # numpy has no bfloat16 of its own, and OpenVINO takes that of ml_dtypes for an unknown type
    bits = np.dtype(np.uint16) if dtype == BFLOAT16 else dtype
    element_type = ov.Type.bf16 if dtype == BFLOAT16 else ov.Type(dtype)
    if dtype == array.dtype and array.flags.c_contiguous and _is_mapped(array):
        _mapped[array.__array_interface__["data"][0]] = array
        return ov.Tensor(array.view(bits), ov.Shape(array.shape), element_type)
    tensor = ov.Tensor(element_type, ov.Shape(array.shape))
    target = np.asarray(tensor.data).view(bits)
    for start in range(0, len(array), _ROWS):
        rows = array[start : start + _ROWS]
        target[start : start + _ROWS] = _cast(rows, dtype, name).view(bits)
    return tensor


def _cast(rows: NDArray[Any], dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        cast: NDArray[Any] = np.ascontiguousarray(rows.astype(dtype, copy=False))
    grown = np.isinf(cast) & ~np.isinf(rows) if cast.dtype != rows.dtype else np.zeros(0, bool)
    if grown.any():
        raise CheckpointError(
            f"{name} does not fit {dtype.name}",
            key=name,
            expected=f"at most {np.finfo(np.float16).max:g}",
            found=float(np.abs(rows[grown].astype(np.float32)).max()),
            hint="keep precision=checkpoint",
        )
    return cast


def _is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    if isinstance(array, memoryview):
        array = array.obj
    return isinstance(array, mmap.mmap)
