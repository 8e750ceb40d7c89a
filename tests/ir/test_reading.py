from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset16 as ops

from ovgraft import ir
from ovgraft.drafts.contract import Key
from ovgraft.errors import ModelFileError
from ovgraft.ir.reading import verify_digest
from ovgraft.ir.save import write_model
from ovgraft.ir.xmlcheck import is_too_deep
from tests import models


@pytest.fixture
def xml(tmp_path: Path) -> Path:
    path = tmp_path / "model.xml"
    ov.save_model(models.tiny_decoder(1), path, compress_to_fp16=False)
    return path


def error(path: Path) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        ir.read_model(path)
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)
    assert "src/" not in str(caught.value)
    return caught.value


def test_reads_what_was_written(xml: Path) -> None:
    assert ir.same_structure(models.tiny_decoder(1), ir.read_model(xml), after="save") is None
    assert ir.read_model(str(xml)).get_results()


def test_weights_are_mapped_not_copied(xml: Path) -> None:
    ir.read_model(xml)
    model = ir.read_model(xml)
    mapped = Path("/proc/self/maps").read_text()
    assert str(xml.with_suffix(".bin")) in mapped
    assert model.get_results()


@pytest.mark.parametrize("name", ["nothing.xml", "nothing/model.xml"])
def test_no_such_file(tmp_path: Path, name: str) -> None:
    assert str(error(tmp_path / name)).startswith("no such file: ")


def test_a_folder_and_another_suffix(tmp_path: Path) -> None:
    (tmp_path / "folder.xml").mkdir()
    assert "is a folder" in str(error(tmp_path / "folder.xml"))
    (tmp_path / "model.onnx").write_bytes(b"")
    assert "model.onnx is no .xml" in str(error(tmp_path / "model.onnx"))


def test_no_bin(xml: Path) -> None:
    xml.with_suffix(".bin").unlink()
    found = error(xml)
    assert "model.xml has no model.bin beside it" in str(found)
    assert "bytes of weights" in str(found.expected)


def test_a_model_without_weights_needs_no_bin(tmp_path: Path) -> None:
    x = ops.parameter([2], np.float32, name="x")
    ov.save_model(ov.Model([ops.relu(x)], [x], "m"), tmp_path / "m.xml", compress_to_fp16=False)
    (tmp_path / "m.bin").unlink(missing_ok=True)
    assert ir.read_model(tmp_path / "m.xml").get_parameters()


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_cut_bin(xml: Path, keep: float) -> None:
    weights = xml.with_suffix(".bin")
    whole = weights.read_bytes()
    weights.write_bytes(whole[: int(len(whole) * keep)])
    found = error(xml)
    assert "is cut off or belongs to another xml" in str(found)
    assert found.expected == f"{len(whole)} bytes"
    assert found.found == f"{int(len(whole) * keep)} bytes"


def test_the_last_byte_is_missed(xml: Path) -> None:
    weights = xml.with_suffix(".bin")
    weights.write_bytes(weights.read_bytes()[:-1])
    assert "cut off" in str(error(xml))


def cut_at(marker: bytes, offset: int = 0) -> Callable[[bytes], int]:
    return lambda text: text.rindex(marker) + offset


@pytest.mark.parametrize(
    "where",
    [
        *(lambda text: 30, lambda text: 200, lambda text: len(text) // 2, lambda text: len(text) - 3),
        *(cut_at(b"</layers>"), cut_at(b"<edges>"), cut_at(b"</edges>"), cut_at(b"</edges>", 8)),
        *(cut_at(b"<rt_info>", 4), cut_at(b"</rt_info>"), cut_at(b"</net>"), cut_at(b"</net>", 5)),
    ],
)
def test_a_cut_xml(xml: Path, where: Callable[[bytes], int]) -> None:
    text = xml.read_bytes()
    xml.write_bytes(text[: where(text)])
    assert "model.xml is cut off: no </net> at its end" in str(error(xml))


@pytest.mark.parametrize("text", [b"", b"<?xml version='1.0'?>\n<svg></svg>", b"\x00\x01\x02" * 1000, b"<ne"])
def test_no_ir(xml: Path, text: bytes) -> None:
    xml.write_bytes(text)
    assert "is not an OpenVINO IR" in str(error(xml))


def test_an_op_of_an_extension_is_named(xml: Path) -> None:
    text = xml.read_bytes()
    xml.write_bytes(text.replace(b'type="MatMul" version="opset1"', b'type="Stitch" version="extension"', 1))
    found = error(xml)
    assert "has an op that this OpenVINO does not know, Stitch of extension" in str(found)
    assert isinstance(found.__cause__, RuntimeError)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.xml")
    assert "pipe.xml is no regular file" in str(error(tmp_path / "pipe.xml"))


def test_weights_that_may_not_be_read(xml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def refuse_weights(path: Path, mode: str = "r", *rest: Any, **more: Any) -> IO[Any]:
        if path.suffix == ".bin":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, mode, *rest, **more)

    monkeypatch.setattr(Path, "open", refuse_weights)
    assert "model.bin cannot be read: permission denied" in str(error(xml))


def test_a_hole_in_the_xml(xml: Path) -> None:
    text = xml.read_bytes()
    middle = len(text) // 2
    xml.write_bytes(text[:middle] + text[middle + 500 :])
    found = error(xml)
    assert isinstance(found.__cause__, RuntimeError) or "cut off" in str(found)


def test_the_bin_of_another_model(xml: Path) -> None:
    other = xml.parent / "other.xml"
    ov.save_model(models.tiny_decoder(2), other, compress_to_fp16=False)
    shutil.copy(other.with_suffix(".bin"), xml.with_suffix(".bin"))
    assert "the weights in model.bin do not belong to this xml" in str(error(xml))
    shutil.copy(xml, other)
    shutil.copy(xml.with_suffix(".bin"), other.with_suffix(".bin"))
    assert "do not belong" in str(error(other))


def test_the_recorded_size_of_the_bin(xml: Path) -> None:
    model = ir.read_model(xml)
    ir.set_text(model, Key.BIN_SIZE, "12")
    ov.save_model(model, xml.with_name("b.xml"), compress_to_fp16=False)
    found = error(xml.with_name("b.xml"))
    assert "do not belong" in str(found)
    assert found.expected == "12 bytes"


def test_the_digest_tells_weights_of_equal_size_apart(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "a.xml", tmp_path / "b.xml"
    digest = write_model(models.tiny_decoder(1, seed=1), ours)
    write_model(models.tiny_decoder(1, seed=2), theirs)
    assert verify_digest(ours) == digest
    shutil.copy(theirs.with_suffix(".bin"), ours.with_suffix(".bin"))
    ir.read_model(ours)
    with pytest.raises(ModelFileError, match="do not belong to this xml"):
        verify_digest(ours)


def test_without_a_recorded_digest_there_is_none(xml: Path) -> None:
    assert verify_digest(xml) is None


def test_every_ir_of_the_zoo_ends_where_its_weights_end(shared: Path) -> None:
    found = sorted(shared.glob("*/*/openvino_*model.xml"))
    assert len(found) > 25
    for path in found:
        ir.read_model(path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (b"\xff\xfe", "is not UTF-8"),  # OpenVINO takes any bytes
        (b"\xed\xa0\x80", "is not UTF-8"),
        (b"&#xD800;", "&#xD800; is no character"),
        (b"&#57343;", "&#57343; is no character"),
        (b"&#00000057343;", "&#00000057343; is no character"),
    ],
)
def test_names_that_are_no_text(xml: Path, name: bytes, said: str) -> None:
    xml.write_bytes(xml.read_bytes().replace(b'name="input_ids"', b'name="' + name + b'"', 1))
    assert said in str(error(xml))


def test_names_of_any_characters_are_read(xml: Path) -> None:
    xml.write_bytes(xml.read_bytes().replace(b'name="input_ids"', b'name="&#xE000;&#128512;\xd7\x90"', 1))
    assert "\ue000\U0001f600\u05d0" in {node.get_friendly_name() for node in ir.read_model(xml).get_parameters()}


@pytest.mark.parametrize("place", [b"<layers>", b"</edges>"])
@pytest.mark.parametrize("inner", [b"", b'<x y="a>b"/><z></z><!-- <a> -->'])
def test_rt_info_without_end_is_refused(xml: Path, place: bytes, inner: bytes) -> None:
    text = xml.read_bytes()
    branches, ends = (b"<a>" + inner) * 100_000, b"</a>" * 100_000
    nested = b"<rt_info>" + branches + ends + b"</rt_info>"
    before, after = (nested, b"") if place == b"<layers>" else (b"", nested)
    xml.write_bytes(text[: text.index(b"<rt_info>\n\t\t<")].replace(place, before + place + after, 1) + b"</net>")
    assert "nests its elements without end" in str(error(xml))


def test_a_comment_without_end_hides_all_behind_it() -> None:
    for start in (b"<!-- >", b"<![CDATA[ >"):
        assert not is_too_deep(b"<a>" + start + b"<x>" * 200)
    assert is_too_deep(b"<a><!-- > -->" + b"<x>" * 200)


def test_rt_info_of_many_levels_is_read(xml: Path) -> None:
    model = models.tiny_decoder(1)
    path = tuple(f"level{at}" for at in range(60))
    ir.set_text(model, path, "deep")
    ov.save_model(model, xml, compress_to_fp16=False)
    assert ir.get_text(ir.read_model(xml), path) == "deep"
