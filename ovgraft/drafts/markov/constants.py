"""Constants that keep a checkpoint's precision and, where they can, its memory."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft.drafts.markov.head_weights import BFLOAT16
from ovgraft.ir import opset

_mapped: list[NDArray[Any]] = []
"""Mapped arrays that Constants look into.

A Constant does not keep the numpy array of its memory alive, and clones of a model outlive the model, so the mapping
stays until the process ends. That costs address space; the pages belong to the file.
"""


def weight(array: NDArray[Any], name: str) -> ov.Output:
    """A Constant of the array's own type and, unless that is f32, the Convert to f32 behind it.

    An array inside a mapped file is not copied.

    Args:
        array: f32, f16 or bfloat16.
        name: Friendly name of the Constant.

    Returns:
        f32 of the array's shape.
    """
    constant = opset.constant(_tensor(array), shared_memory=True)
    constant.set_friendly_name(name)
    if array.dtype == np.float32:
        return constant.output(0)
    convert = opset.convert(constant, ov.Type.f32)
    convert.set_friendly_name(f"{name}/convert")
    return convert.output(0)


def _tensor(array: NDArray[Any]) -> ov.Tensor:
    bfloat16 = array.dtype == BFLOAT16
    element_type = ov.Type.bf16 if bfloat16 else ov.Type(array.dtype)
    stored = array.view(np.uint16) if bfloat16 else array
    if _is_mapped(array) and array.flags.c_contiguous:
        _mapped.append(array)
        return ov.Tensor(stored, ov.Shape(array.shape), element_type)
    tensor = ov.Tensor(element_type, ov.Shape(array.shape))
    target = np.asarray(tensor.data)
    (target.view(np.uint16) if bfloat16 else target)[...] = stored
    return tensor


def _is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    if isinstance(array, memoryview):
        array = array.obj
    return isinstance(array, mmap.mmap)
