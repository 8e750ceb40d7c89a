"""Reading an IR from disk, with errors that name the file and what is wrong with it."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import openvino as ov

from ovgraft.drafts.contract import Key
from ovgraft.errors import ModelFileError
from ovgraft.ir.files import file_digest
from ovgraft.ir.head_sizes import restore_head_sizes
from ovgraft.ir.rtinfo import get_text
from ovgraft.ir.xmlcheck import encoding_problem, is_too_deep

_UNKNOWN_OP = re.compile(r"Cannot create (\S+) layer .* from unsupported opset: (\S+)", re.DOTALL)
_EXTENT = re.compile(rb' offset="(\d{1,20})" size="(\d{1,20})"')


@functools.cache
def core() -> ov.Core:
    """The one OpenVINO runtime of this process; reads weights by mapping them."""
    return ov.Core()


def bin_path(xml: Path) -> Path:
    """Where OpenVINO looks for the weights of an xml."""
    return xml.with_suffix(".bin")


def read_model(path: str | Path) -> ov.Model:
    """Read an IR; weights stay mapped, not copied.

    OpenVINO itself is content with a .bin that is too long, and so with one of another model. Here the .bin must end
    where the last constant ends, and have the size the xml recorded when ovgraft saved it.

    Args:
        path: The .xml; the .bin lies beside it.

    Raises:
        ModelFileError: A file is missing, cut or damaged, or the .bin belongs to another xml.
    """
    path = Path(path)
    text = _read_text(path)
    if b"<net" not in text[:65536]:
        raise ModelFileError(f"{path.name} is not an OpenVINO IR: no <net> at its start", file=path)
    if not text.rstrip().endswith(b"</net>"):
        raise ModelFileError(
            f"{path.name} is cut off: no </net> at its end", file=path, found=f"{len(text)} bytes", hint="get it again"
        )
    if problem := encoding_problem(text):
        raise ModelFileError(f"{path.name} has text that Python cannot hold: {problem}", file=path)
    if is_too_deep(text):
        raise ModelFileError(f"{path.name} nests its elements without end", file=path)
    extended = b' version="extension"' in text
    if extended:
        core().get_property("CPU", "FULL_DEVICE_NAME")  # PagedAttention is known only once the CPU plugin is loaded
    described = max((int(offset) + int(size) for offset, size in _EXTENT.findall(text)), default=0)
    del text
    size = _bin_size(path, described)
    try:
        model = core().read_model(path)
    except RuntimeError as error:
        if unknown := _UNKNOWN_OP.search(str(error)):
            raise ModelFileError(
                f"{path.name} has an op that this OpenVINO does not know, {unknown[1]} of {unknown[2]}",
                file=path,
                hint="a newer OpenVINO wrote it, or it needs an extension, as tokenizers do",
            ) from error
        raise ModelFileError(f"OpenVINO cannot read {path.name}: it is damaged or not an IR", file=path) from error
    if extended:
        restore_head_sizes(model)
    recorded = get_text(model, Key.BIN_SIZE)
    if recorded is not None and recorded != str(size):
        raise _foreign_weights(path, recorded, size)
    return model


def verify_digest(path: str | Path) -> str | None:
    """Check the .bin against the digest the xml recorded when ovgraft wrote the pair; reads all weights.

    Returns:
        The digest, blake3 in hex; None when the xml has none recorded.

    Raises:
        ModelFileError: As :func:`read_model`, or the digests differ.
    """
    path = Path(path)
    recorded = get_text(read_model(path), Key.BIN_DIGEST)
    if recorded is None:
        return None
    found = file_digest(bin_path(path))
    if found != recorded:
        raise ModelFileError(
            f"the weights in {bin_path(path).name} do not belong to this xml",
            file=path,
            expected=f"blake3 {recorded}",
            found=found,
        )
    return recorded


def _read_text(path: Path) -> bytes:
    if path.suffix != ".xml":
        raise ModelFileError(f"{path.name} is no .xml; an OpenVINO IR is named by its .xml file", file=path)
    if path.is_dir():
        raise ModelFileError(f"{path} is a folder, not an .xml file", file=path)
    if path.exists() and not path.is_file():  # reading a pipe would wait forever
        raise ModelFileError(f"{path.name} is no regular file", file=path)
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ModelFileError(f"no such file: {path}", file=path) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _bin_size(path: Path, described: int) -> int:
    """Size of the .bin, which must be what the xml describes."""
    weights = bin_path(path)
    if not weights.is_file():
        if described == 0:
            return 0
        raise ModelFileError(
            f"{path.name} has no {weights.name} beside it", file=path, expected=f"{described} bytes of weights"
        )
    try:
        weights.open("rb").close()  # OpenVINO would call an xml damaged whose .bin may not be read
    except OSError as error:
        raise _unreadable(weights, error) from error
    size = weights.stat().st_size
    if size < described:
        raise ModelFileError(
            f"{weights.name} is cut off or belongs to another xml",
            file=weights,
            expected=f"{described} bytes",
            found=f"{size} bytes",
        )
    if size > described:
        raise _foreign_weights(path, str(described), size)
    return size


def _unreadable(path: Path, error: OSError) -> ModelFileError:
    return ModelFileError(f"{path.name} cannot be read: {(error.strerror or str(error)).lower()}", file=path)


def _foreign_weights(path: Path, expected: str, found: int) -> ModelFileError:
    return ModelFileError(
        f"the weights in {bin_path(path).name} do not belong to this xml",
        file=path,
        expected=f"{expected} bytes",
        found=f"{found} bytes",
    )
