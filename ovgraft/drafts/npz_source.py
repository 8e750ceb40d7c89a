"""numpy archives: members that are stored, not deflated, are read from the mapped file.

numpy does not align members inside the archive, so most are copied once when they are read.
"""

from __future__ import annotations

import io
import mmap
import struct
import zipfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from ovgraft.drafts.weight_source import BFLOAT16, StoredTensor, mapped_view
from ovgraft.errors import CheckpointError

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, length of name, length of extra field
_HEADER_BYTES = 65536  # more than any .npy header of a plain type


def read_npz(file: Path) -> list[StoredTensor]:
    """The arrays of an archive.

    numpy writes ``ml_dtypes.bfloat16`` as two nameless bytes (``V2``), which no other array it can write has; such
    members are read as bfloat16.

    Raises:
        CheckpointError: The archive is damaged, or a member is no plain array.
    """
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, OSError) as error:
        raise CheckpointError("damaged archive", file=file, found=str(error)) from error
    with archive, file.open("rb") as stream:
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return [_member(archive, member, mapped, file) for member in archive.infolist()]


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, mapped: mmap.mmap, file: Path) -> StoredTensor:
    name = member.filename.removesuffix(".npy")
    try:
        with archive.open(member) as stream:
            head = io.BytesIO(stream.read(_HEADER_BYTES))
        major, _ = npy_format.read_magic(head)
        read_header = npy_format.read_array_header_1_0 if major == 1 else npy_format.read_array_header_2_0
        shape, fortran_order, dtype = read_header(head)
    except (ValueError, OSError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"member {name} is no array", key=name, file=file, found=str(error)) from error
    if dtype.str == "|V2":
        dtype = BFLOAT16
    if dtype.kind not in "biuf" and dtype != BFLOAT16:
        raise CheckpointError(f"member {name} has a type that is not read", key=name, file=file, found=dtype)
    if fortran_order and len(shape) > 1:
        raise CheckpointError(f"member {name} is not in row order", key=name, file=file, expected="C order")
    data = head.tell()
    needed = prod(shape) * dtype.itemsize
    if member.file_size - data != needed:
        raise CheckpointError(
            f"the size of member {name} does not fit its type and shape",
            key=name,
            file=file,
            expected=f"{needed} bytes",
            found=f"{member.file_size - data} bytes",
        )
    if member.compress_type == zipfile.ZIP_STORED:
        signature, name_length, extra_length = _LOCAL_HEADER.unpack_from(mapped, member.header_offset)
        offset = member.header_offset + _LOCAL_HEADER.size + name_length + extra_length + data
        if signature != b"PK\x03\x04" or offset + needed > len(mapped):
            raise CheckpointError("damaged archive", key=name, file=file)
        return StoredTensor(name, dtype, shape, file, mapped_view(mapped, dtype, shape, offset))

    def inflate() -> NDArray[Any]:
        with zipfile.ZipFile(file) as again, again.open(member) as stream:
            array: NDArray[Any] = np.frombuffer(stream.read(), dtype, offset=data).reshape(shape)
            return array

    return StoredTensor(name, dtype, shape, file, inflate)
