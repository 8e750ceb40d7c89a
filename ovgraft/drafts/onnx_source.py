"""ONNX initializers, inside the file or in external data beside it."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from ovgraft.drafts.weight_source import BFLOAT16, StoredTensor, mapped_view
from ovgraft.errors import CheckpointError


def read_onnx(file: Path) -> list[StoredTensor]:
    """The initializers of a model; its nodes are not looked at.

    Raises:
        CheckpointError: The file is no ONNX model, an initializer is sparse or of a type without numpy form, or
            external data is missing, short, or outside the folder.
    """
    try:
        model = onnx.load(file, load_external_data=False)
    except Exception as error:
        raise CheckpointError("not an ONNX model", file=file, found=type(error).__name__) from error
    if model.graph.sparse_initializer:
        name = model.graph.sparse_initializer[0].values.name
        raise CheckpointError("sparse initializers are not read", key=name, file=file)
    files: dict[str, mmap.mmap] = {}
    return [_initializer(tensor, file, files) for tensor in model.graph.initializer]


def _initializer(tensor: onnx.TensorProto, file: Path, files: dict[str, mmap.mmap]) -> StoredTensor:
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"initializer {tensor.name} has a type that is not read",
            key=tensor.name,
            file=file,
            found=onnx.TensorProto.DataType.Name(tensor.data_type),
        ) from error
    shape = tuple(tensor.dims)
    if dtype.kind not in "biuf" and dtype != BFLOAT16:
        raise CheckpointError(
            f"initializer {tensor.name} has a type that is not read", key=tensor.name, file=file, found=dtype
        )
    if onnx.external_data_helper.uses_external_data(tensor):
        return _external(tensor, dtype, shape, file, files)

    def read() -> NDArray[Any]:
        array: NDArray[Any] = onnx.numpy_helper.to_array(tensor)
        array.flags.writeable = False
        return array

    return StoredTensor(tensor.name, dtype, shape, file, _checked(read, tensor.name, shape, file))


def _checked(
    read: Callable[[], NDArray[Any]], name: str, shape: tuple[int, ...], file: Path
) -> Callable[[], NDArray[Any]]:
    try:
        found = read().shape
    except ValueError as error:
        raise CheckpointError(
            f"the size of initializer {name} does not fit its shape", key=name, file=file, expected=list(shape)
        ) from error
    if found != shape:
        raise CheckpointError(
            f"initializer {name} has another shape than it says",
            key=name,
            file=file,
            expected=list(shape),
            found=list(found),
        )
    return read


def _external(
    tensor: onnx.TensorProto, dtype: np.dtype[Any], shape: tuple[int, ...], file: Path, files: dict[str, mmap.mmap]
) -> StoredTensor:
    stored = {entry.key: entry.value for entry in tensor.external_data}
    location = stored.get("location", "")
    data = file.parent / location
    if not location or Path(location).is_absolute() or ".." in Path(location).parts:
        raise CheckpointError("external data lies beside its model", key=tensor.name, file=file, found=location)
    if location not in files:
        try:
            if not data.is_file():  # opening a pipe would wait forever
                raise FileNotFoundError(location)
            with data.open("rb") as stream:
                files[location] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CheckpointError(
                "external data is missing or empty", key=tensor.name, file=file, expected=location
            ) from error
    needed = prod(shape) * dtype.itemsize
    try:
        offset, length = int(stored.get("offset", 0)), int(stored.get("length", needed))
    except ValueError as error:
        raise CheckpointError("a damaged external data entry", key=tensor.name, file=file, found=stored) from error
    if length != needed or offset < 0 or offset + needed > len(files[location]):
        raise CheckpointError(
            f"external data does not hold initializer {tensor.name}",
            key=tensor.name,
            file=data,
            expected=f"{needed} bytes at {offset}",
            found=f"{length} bytes named, file of {len(files[location])}",
        )
    return StoredTensor(tensor.name, dtype, shape, data, mapped_view(files[location], dtype, shape, offset))
