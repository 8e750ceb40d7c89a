"""One IR on its way to disk: what has to be written, and the writing of a whole pair.

A model that differs from what was read in model-level rt_info only gets a new .xml, spliced from the old text; its .bin
is not opened. Any other difference means that OpenVINO writes both files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import openvino as ov

from ovgraft.drafts.contract import Key
from ovgraft.errors import ModelFileError
from ovgraft.ir import progress
from ovgraft.ir.compare import op_ids, same_structure
from ovgraft.ir.files import Stamp, file_digest, file_error, stamp, sync
from ovgraft.ir.reading import bin_path, read_model
from ovgraft.ir.rtinfo import delete, flatten, leaves, set_text
from ovgraft.ir.writeback import written_back
from ovgraft.ir.xmltail import UnexpectedXmlError, has_model_info_only, read_rt_info, splice_rt_info

Change = Literal["none", "metadata", "full"]

_SIZE_MARK = "ovgraft-bin-size"
_DIGEST_MARK = "ovgraft-bin-blake3"

_LEAST_BYTES_OF_AN_OP = 300  # of text; exported decoders have 450 on average


@dataclass(frozen=True)
class Source:
    """The files a model was read from, as they were then.

    Attributes:
        xml: The .xml.
        stamps: Of the .xml and of the .bin, None for one that is not there.
    """

    xml: Path
    stamps: tuple[Stamp | None, ...]

    @classmethod
    def of(cls, xml: Path) -> Source:
        """The files as they are now."""
        return cls(xml, (stamp(xml), stamp(bin_path(xml))))

    def check(self) -> None:
        """Refuse files that somebody has changed since.

        Raises:
            ModelFileError: They are not what was read: the live model may read other weights than it shows.
        """
        if Source.of(self.xml) != self:
            raise ModelFileError(f"{self.xml.name} or its .bin changed on disk since it was read", file=self.xml)


@dataclass(frozen=True)
class Pristine:
    """How a model was read.

    Attributes:
        model: A clone of it.
        source: Where it was read from.
        ops: Its ``op_ids`` when the clone was taken.
    """

    model: ov.Model
    source: Source
    ops: tuple[int, ...]

    @classmethod
    def of(cls, model: ov.Model, source: Source, clone: ov.Model | None = None) -> Pristine:
        """The model as it is now; ``clone`` when there is one already."""
        return cls(model.clone() if clone is None else clone, source, op_ids(model))


@dataclass(frozen=True)
class Plan:
    """What saving a model takes.

    Attributes:
        change: ``none``: the files as they are; ``metadata``: a new .xml; ``full``: a new pair.
        xml: The text of the new .xml for ``none`` and ``metadata``; with ``none`` it may differ from the old one by the
            recorded size of the .bin.
        reason: Why ``full``: the first difference to what was read.
    """

    change: Change
    xml: bytes = b""
    reason: str = ""


def plan_save(model: ov.Model, pristine: ov.Model | None, source: Source | None, ops: Sequence[int] = ()) -> Plan:
    """Decide what has to be written; no weights are read.

    Args:
        model: The live model.
        pristine: A clone taken when it was read; None for a model that was built.
        source: Where it was read from.
        ops: Its ``op_ids`` when the clone was taken, if they were kept: they save time.

    Raises:
        ModelFileError: The files changed since the model was read.
    """
    if pristine is None or source is None:
        return Plan("full", reason="new")
    source.check()
    if any(not isinstance(value, str | int) or isinstance(value, bool) for value in leaves(model).values()):
        return Plan("full", reason="rt_info values that are not text")
    text = source.xml.read_bytes()
    difference = same_structure(model, pristine, cloned_from=ops, bare=has_model_info_only(text))
    if difference is not None:
        return Plan("full", reason=difference)
    before, wanted = flatten(pristine), flatten(model)
    change: Change = "none" if wanted == before else "metadata"
    weights = bin_path(source.xml)
    wanted[Key.BIN_SIZE] = str(weights.stat().st_size if weights.exists() else 0)
    try:
        if read_rt_info(text) != before:
            raise UnexpectedXmlError("the rt_info reads differently than OpenVINO reads it")
        return Plan(change, splice_rt_info(text, wanted))
    except UnexpectedXmlError as error:
        return Plan("full", reason=str(error))


def weight_bytes(model: ov.Model) -> int:
    """Bytes of all constants, an upper bound of the size of the .bin (equal constants are written once)."""
    return sum(node.get_byte_size() for node in model.get_ordered_ops() if node.get_type_name() == "Constant")


def xml_bytes(model: ov.Model) -> int:
    """Bytes of the .xml, at least."""
    return _LEAST_BYTES_OF_AN_OP * len(model.get_ordered_ops())


def write_model(model: ov.Model, xml: Path) -> str:
    """Write a whole pair into a folder where neither file exists yet, force it to disk and read it back.

    The .bin's size and digest go into rt_info ``ovgraft/bin_size`` and ``ovgraft/bin_blake3``.

    Args:
        model: Any model; left as it is.
        xml: The new .xml.

    Returns:
        The digest: blake3 of the .bin in hex.

    Raises:
        ModelFileError: The disk is full or fails, or what was written does not read back as the model.
    """
    # size and digest are known only when the .bin is written; marks hold their place in the text
    marked = model.clone()
    set_text(marked, Key.BIN_SIZE, _SIZE_MARK)
    set_text(marked, Key.BIN_DIGEST, _DIGEST_MARK)
    weights, total = bin_path(xml), weight_bytes(model)
    try:
        with written_back(weights, total) as sync_weights:
            try:
                with progress.watching(weights, total):
                    ov.save_model(marked, xml, compress_to_fp16=False)
            except RuntimeError as error:
                raise ModelFileError(
                    f"{xml.name} cannot be written: no room left on the disk, or the disk fails", file=xml
                ) from error
            return _seal(model, xml, sync_weights)
    except OSError as error:
        raise file_error(error, xml) from error


def _seal(model: ov.Model, xml: Path, sync_weights: Callable[[], None]) -> str:
    """Put size and digest in, look at what was written, and force it to disk."""
    weights = bin_path(xml)
    # the disk and the hash each take their time; neither needs the other
    with ThreadPoolExecutor(max_workers=1) as background:
        synced = background.submit(sync_weights)
        size, digest = weights.stat().st_size, file_digest(weights)
        text = xml.read_bytes()
        text = _fill(text, _SIZE_MARK, str(size), xml)
        text = _fill(text, _DIGEST_MARK, digest, xml)
        xml.write_bytes(text)
        _read_back(model, xml)
        synced.result()
    sync(xml)
    return digest


def _fill(text: bytes, mark: str, value: str, xml: Path) -> bytes:
    place = f'value="{mark}"'.encode()
    if text.count(place) != 1:
        raise ModelFileError(f"{xml.name} was not written whole", file=xml)
    return text.replace(place, f'value="{value}"'.encode())


def _read_back(model: ov.Model, xml: Path) -> None:
    """OpenVINO does not tell of a short write: look at what is there."""
    difference = same_structure(model, read_model(xml), after="save")
    if difference is not None:
        raise ModelFileError(f"{xml.name} does not read back as the model that was saved: {difference}", file=xml)


def adopt_rt_info(xml: Path, *models: ov.Model) -> None:
    """Give models the model-level entries of the file one of them was saved to."""
    try:
        entries = read_rt_info(xml.read_bytes())
    except UnexpectedXmlError:
        return
    for model in models:
        known = flatten(model)
        for path in known.keys() - entries.keys():
            delete(model, path)
        for path, value in entries.items():
            if known.get(path) != value:
                set_text(model, path, value)
