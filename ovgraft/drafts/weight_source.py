"""Named tensors of a checkpoint, read from safetensors, .npz or ONNX initializers without copying them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from mmap import mmap
from pathlib import Path
from typing import Any

import blake3
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ovgraft.errors import CheckpointError

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

_SIDECAR = "mask_embedding"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor that has not been read yet.

    Attributes:
        name: Its name in the file.
        dtype: numpy type; bfloat16 and the float8 types are those of ``ml_dtypes``.
        shape: Dimensions.
        file: The file that holds its bytes.
        read: Returns the values, read-only; a view of the mapped file wherever the file allows one.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    file: Path
    read: Callable[[], NDArray[Any]]

    @property
    def nbytes(self) -> int:
        """Size of the values in bytes."""
        return prod(self.shape) * self.dtype.itemsize


class WeightSource:
    """The tensors of a checkpoint by name, whatever files hold them.

    Args:
        path: The file or folder they were found in, for messages.
        tensors: The tensors; names are unique.
    """

    def __init__(self, path: Path, tensors: Iterable[StoredTensor]) -> None:
        self.path = path
        self._tensors: dict[str, StoredTensor] = {}
        for tensor in tensors:
            if (other := self._tensors.get(tensor.name)) is not None:
                raise CheckpointError(
                    f"tensor {tensor.name} is stored twice",
                    key=tensor.name,
                    file=tensor.file,
                    found=f"also in {other.file.name}",
                )
            self._tensors[tensor.name] = tensor

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def info(self, name: str) -> StoredTensor:
        """Type, shape and file of a tensor; nothing is read.

        Raises:
            CheckpointError: There is no such tensor.
        """
        if name not in self._tensors:
            raise CheckpointError(f"no tensor {name}", key=name, file=self.path)
        return self._tensors[name]

    def tensor(self, name: str) -> NDArray[Any]:
        """The values of a tensor, read-only, in the file's own type."""
        return self.info(name).read()

    def renamed(self, names: Mapping[str, str]) -> WeightSource:
        """The same tensors under other names; the rest is left out.

        Args:
            names: New name -> name in this source.
        """
        renamed = []
        for new, old in names.items():
            tensor = self.info(old)
            renamed.append(StoredTensor(new, tensor.dtype, tensor.shape, tensor.file, tensor.read))
        return WeightSource(self.path, renamed)

    def digest(self, names: Iterable[str] | None = None) -> str:
        """blake3 hex over name, type, shape and bytes of each tensor, in name order; streamed from the mapped file.

        The same tensors have the same digest in one file, in shards, in .npz and in ONNX.
        """
        hasher = blake3.blake3(max_threads=blake3.blake3.AUTO)
        for name in sorted(self._tensors if names is None else names):
            tensor = self.info(name)
            hasher.update(f"{name}\n{tensor.dtype.name}\n{','.join(map(str, tensor.shape))}\n".encode())
            hasher.update(tensor.read().reshape(-1).view(np.uint8).data)
        return str(hasher.hexdigest())


def mapped_view(buffer: mmap, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> Callable[[], NDArray[Any]]:
    """A reader of values inside a mapped file: a view, unless they are not aligned for their type.

    Args:
        buffer: The mapped file.
        dtype: Type of the values.
        shape: Dimensions of the result.
        offset: First byte.
    """

    def read() -> NDArray[Any]:
        array: NDArray[Any] = np.ndarray(shape, dtype, buffer, offset)
        if not array.flags.aligned:
            array = array.copy()
            array.flags.writeable = False
        return array

    return read


def open_weights(path: Path) -> WeightSource:
    """Find and open the weights of a checkpoint.

    In a folder: ``model.safetensors.index.json`` and its shards, else ``model.safetensors``, else the only other
    ``.safetensors`` file; without any, the same for ``.npz``, then for ``.onnx``.

    Args:
        path: The folder, or one weight file.

    Raises:
        CheckpointError: Nothing that can be read, or no telling which file it is.
    """
    path = Path(path)
    if path.is_file():
        return _open_file(path)
    if not path.is_dir():
        raise CheckpointError("no such checkpoint", file=path)
    indexes = sorted(path.glob("*.safetensors.index.json"))
    if len(indexes) > 1:
        raise CheckpointError("two shard indexes", file=path, found=_names(indexes))
    if indexes:
        return _open_file(indexes[0])
    for suffix in (".safetensors", ".npz", ".onnx"):
        files = [file for file in sorted(path.glob(f"*{suffix}")) if file.stem != _SIDECAR]
        named = [file for file in files if file.stem == "model"]
        if len(files) == 1 or named:
            return _open_file((named or files)[0])
        if files:
            raise CheckpointError(
                "several weight files and no index",
                file=path,
                expected=f"one model{suffix}, or model{suffix}.index.json"
                if suffix == ".safetensors"
                else f"model{suffix}",
                found=_names(files),
            )
    pickles = [file for file in sorted(path.iterdir()) if file.suffix in _PICKLES]
    hint = "pickled PyTorch files can run code and are not read; save them as safetensors" if pickles else None
    raise CheckpointError(
        "no weights", file=path, expected=".safetensors, .npz or .onnx", found=_names(pickles) or "none", hint=hint
    )


def open_mask_embedding(folder: Path) -> StoredTensor | None:
    """The side file that replaces the embedding row of the mask token, or None without one.

    ``mask_embedding.safetensors`` or ``.npz`` with one tensor.

    Raises:
        CheckpointError: Only a pickled one is there, or it does not hold exactly one tensor.
    """
    for suffix in (".safetensors", ".npz"):
        file = folder / f"{_SIDECAR}{suffix}"
        if file.is_file():
            source = _open_file(file)
            if len(source) != 1:
                raise CheckpointError(
                    "a mask embedding file holds one tensor", file=file, expected="1 tensor", found=", ".join(source)
                )
            return source.info(next(iter(source)))
    pickled = folder / f"{_SIDECAR}.pt"
    if pickled.exists():
        raise CheckpointError(
            "the mask embedding is pickled; pickles can run code and are not read",
            file=pickled,
            expected=f"{_SIDECAR}.safetensors or {_SIDECAR}.npz",
            hint="convert it where PyTorch is at hand: safetensors.torch.save_file({'mask_embedding': "
            "torch.load('mask_embedding.pt', weights_only=True)}, 'mask_embedding.safetensors'); "
            "the draft proposes badly without it",
        )
    return None


def _open_file(file: Path) -> WeightSource:
    try:
        return _open_known(file)
    except OSError as error:
        link = f", a link to {file.readlink()}" if file.is_symlink() else ""
        raise CheckpointError(
            "the weights cannot be read", file=error.filename or file, found=f"{error.strerror}{link}"
        ) from error


def _open_known(file: Path) -> WeightSource:
    if file.exists() and not file.is_file():  # opening a pipe would wait forever
        raise CheckpointError("not a regular file", file=file)
    # Imported here: onnx takes as long to import as everything else together.
    if file.name.endswith(".safetensors.index.json"):
        from ovgraft.drafts.safetensors_source import read_shards

        return WeightSource(file, read_shards(file))
    if file.suffix == ".safetensors":
        from ovgraft.drafts.safetensors_source import read_safetensors

        return WeightSource(file, read_safetensors(file))
    if file.suffix == ".npz":
        from ovgraft.drafts.npz_source import read_npz

        return WeightSource(file, read_npz(file))
    if file.suffix == ".onnx":
        from ovgraft.drafts.onnx_source import read_onnx

        return WeightSource(file, read_onnx(file))
    raise CheckpointError("not a weight file", file=file, expected=".safetensors, .npz or .onnx", found=file.suffix)


def _names(files: list[Path]) -> str:
    return ", ".join(file.name for file in files)
