"""Reading an IR from disk, with errors that name the file and what is wrong with it."""

from __future__ import annotations

import functools
from pathlib import Path

import openvino as ov

from ovgraft.drafts.contract import Key
from ovgraft.errors import ModelFileError
from ovgraft.ir.rtinfo import get_text


@functools.cache
def core() -> ov.Core:
    """The one OpenVINO runtime of this process; reads weights by mapping them."""
    return ov.Core()


def bin_path(xml: Path) -> Path:
    """Where OpenVINO looks for the weights of an xml."""
    return xml.with_suffix(".bin")


def read_model(path: Path) -> ov.Model:
    """Read an IR; weights stay mapped, not copied.

    Raises:
        ModelFileError: A file is missing or damaged, or the .bin belongs to another xml.
    """
    path = Path(path)
    if path.suffix != ".xml":
        raise ModelFileError("an OpenVINO IR is named by its .xml file", file=path, found=path.name)
    if not path.is_file():
        raise ModelFileError(f"no such file: {path}", file=path)
    weights = bin_path(path)
    if not weights.is_file():
        raise ModelFileError(f"{path.name} has no {weights.name} beside it", file=path)
    try:
        model = core().read_model(path)
    except RuntimeError as error:
        raise ModelFileError("OpenVINO cannot read this IR", file=path) from error
    size = weights.stat().st_size
    recorded = get_text(model, Key.BIN_SIZE)
    if recorded is not None and recorded != str(size):
        raise ModelFileError(
            f"the weights in {weights.name} do not belong to this xml",
            file=path,
            expected=f"{recorded} bytes",
            found=f"{size} bytes",
        )
    return model
