"""safetensors: an 8-byte header length, a JSON header, then the bytes; one file or shards with an index.

Read here and not with the safetensors package, which copies bfloat16 tensors and has no numpy type for them.
"""

from __future__ import annotations

import mmap
import struct
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ovgraft.drafts.reading.strict_json import parse_object
from ovgraft.drafts.weight_source import StoredTensor, mapped_view
from ovgraft.errors import CheckpointError

_LENGTH_BYTES = 8
_MAX_HEADER = 100_000_000  # the format's own limit
_LFS_POINTER = b"version "  # its first bytes; what follows is an address and a digest

_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}


def read_safetensors(file: Path) -> list[StoredTensor]:
    """The tensors of one file, mapped.

    Raises:
        CheckpointError: The file is truncated, its header is damaged, or offsets and sizes do not fit together.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(_LENGTH_BYTES)
        if len(prefix) < _LENGTH_BYTES:
            raise CheckpointError("truncated file", file=file, expected=f"at least {_LENGTH_BYTES} bytes", found=size)
        length = struct.unpack("<Q", prefix)[0]
        if length > _MAX_HEADER:
            pointer = prefix == _LFS_POINTER
            raise CheckpointError(
                "not a safetensors file",
                file=file,
                found="a Git LFS pointer" if pointer else f"a header of {length} bytes",
                hint="fetch the weights with: git lfs pull" if pointer else None,
            )
        start = _LENGTH_BYTES + length
        if start > size:
            raise CheckpointError(
                "truncated file", file=file, expected=f"{start} bytes for the header alone", found=f"{size} bytes"
            )
        header = parse_object(stream.read(length), file)
        # The mapping stays valid after the descriptor is closed.
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    header.pop("__metadata__", None)
    entries = sorted((_entry(name, entry, file) for name, entry in header.items()), key=lambda entry: entry[3])
    end = 0
    for name, dtype, shape, begin, stop in entries:
        if begin != end:
            raise CheckpointError(
                f"the bytes of tensor {name} overlap others or leave a hole",
                key=name,
                file=file,
                expected=f"data offset {end}",
                found=begin,
            )
        needed = prod(shape) * dtype.itemsize
        if stop - begin != needed:
            raise CheckpointError(
                f"the size of tensor {name} does not fit its type and shape",
                key=name,
                file=file,
                expected=f"{needed} bytes for {dtype.name} {list(shape)}",
                found=f"{stop - begin} bytes",
            )
        end = stop
    if start + end != size:
        last = next((name for name, _, _, _, stop in entries if start + stop > size), None)
        raise CheckpointError(
            "truncated file" if start + end > size else "bytes after the last tensor",
            key=last,
            file=file,
            expected=f"{start + end} bytes",
            found=f"{size} bytes",
        )
    return [
        StoredTensor(name, dtype, shape, file, mapped_view(mapped, dtype, shape, start + begin))
        for name, dtype, shape, begin, _ in entries
    ]


def read_shards(index: Path) -> list[StoredTensor]:
    """The tensors of all shards an index names.

    Raises:
        CheckpointError: A shard is missing, or index and shards disagree about who holds what.
    """
    content = parse_object(index.read_bytes(), index)
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(
            "a shard index maps tensor names to files", key="weight_map", file=index, found=type(weight_map).__name__
        )
    held: dict[str, StoredTensor] = {}
    for shard in sorted(set(weight_map.values())):
        file = index.parent / shard
        if Path(shard).name != shard:
            raise CheckpointError("a shard lies beside its index", key="weight_map", file=index, found=shard)
        if not file.is_file():
            named = next(name for name, held_by in weight_map.items() if held_by == shard)
            raise CheckpointError("a shard is missing", key=named, file=index, expected=shard, found="no such file")
        for tensor in read_safetensors(file):
            if weight_map.get(tensor.name) != shard:
                raise CheckpointError(
                    f"tensor {tensor.name} is not where the index says",
                    key=tensor.name,
                    file=file,
                    expected=weight_map.get(tensor.name, "not in the index"),
                    found=shard,
                )
            held[tensor.name] = tensor
    for name, shard in weight_map.items():
        if name not in held:
            raise CheckpointError(
                f"tensor {name} is not in the shard the index names", key=name, file=index.parent / shard
            )
    return [held[name] for name in weight_map]


def _entry(name: str, entry: Any, file: Path) -> tuple[str, np.dtype[Any], tuple[int, ...], int, int]:
    if not isinstance(entry, dict):
        raise CheckpointError("a damaged header entry", key=name, file=file, found=entry)
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise CheckpointError(
            f"tensor {name} has a type that is not read", key=name, file=file, expected=", ".join(_DTYPES), found=dtype
        )
    if not _sizes(shape) or not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError("a damaged header entry", key=name, file=file, found=entry)
    return name, _DTYPES[dtype], tuple(shape), offsets[0], offsets[1]


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
