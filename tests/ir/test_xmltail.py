"""The text we splice is the text OpenVINO would have written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openvino import opset16 as ops

from ovgraft import ir
from ovgraft.drafts.contract import RtPath
from ovgraft.ir.xmltail import UnexpectedXmlError, read_rt_info, splice_rt_info

HEAD = b'<?xml version="1.0"?>\n<net name="m" version="11">\n\t<edges>\n\t</edges>'

NAMES = st.sampled_from(
    ["a", "b", "Ab", "_c", "1x", "sp ace", "x/y", "xmlish", "é", 'q"', "info", "dot.x", "name", "<"]
)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00", exclude_categories=["Cs"]), max_size=12)


@st.composite
def entries(draw: st.DrawFn) -> dict[RtPath, str]:
    found: dict[RtPath, str] = {}
    for path in draw(st.lists(st.lists(NAMES, min_size=1, max_size=3).map(tuple), max_size=8)):
        if not any(path[: len(other)] == other or other[: len(path)] == path for other in found):
            found[path] = draw(TEXT)
    return found


def written_by_openvino(wanted: dict[RtPath, str], folder: Path) -> bytes:
    x = ops.parameter([2], np.float32, name="x")
    model = ov.Model([ir.make_result(ops.relu(x, name="relu").output(0), "y")], [x], "m")
    for path, value in wanted.items():
        ir.set_text(model, path, value)
    ov.save_model(model, folder / "m.xml", compress_to_fp16=False)
    return (folder / "m.xml").read_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("xml")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=entries(), second=entries())
def test_a_splice_is_what_openvino_would_have_written(
    folder: Path, first: dict[RtPath, str], second: dict[RtPath, str]
) -> None:
    old, new = written_by_openvino(first, folder), written_by_openvino(second, folder)
    runtime = {("OpenVINO Runtime",): ov.get_version()}
    assert read_rt_info(old) == first | runtime
    assert splice_rt_info(old, first | runtime) == old
    assert splice_rt_info(old, second | runtime) == new
    assert splice_rt_info(splice_rt_info(old, {}), second | runtime) == new


def test_only_the_changed_path_is_touched() -> None:
    tail = b'\n  <rt_info>\n\n <b value="x"/>\n<c><d value="1"/><e value="2" /></c>\n<odd></odd>   </rt_info>\n</net>\n'
    text = HEAD + tail
    wanted = read_rt_info(text)
    assert wanted == {("b",): "x", ("c", "d"): "1", ("c", "e"): "2"}
    assert splice_rt_info(text, wanted) == text
    changed = splice_rt_info(text, wanted | {("c", "d"): "<3>"})
    assert changed == text.replace(b'<d value="1"/>', b'<d value="&lt;3>" />')
    removed = splice_rt_info(text, {("b",): "x", ("c", "e"): "2"})
    assert removed == text.replace(b'<d value="1"/>', b"")
    added = splice_rt_info(text, wanted | {("bb",): "y"})
    assert added == text.replace(b'<b value="x"/>', b'<b value="x"/>\n\t\t<bb value="y" />')


def test_a_text_without_rt_info_gets_one() -> None:
    assert splice_rt_info(HEAD + b"\n</net>\n", {("a", "b"): "1"}) == (
        HEAD + b'\n\t<rt_info>\n\t\t<a>\n\t\t\t<b value="1" />\n\t\t</a>\n\t</rt_info>\n</net>\n'
    )
    assert splice_rt_info(HEAD + b"\n</net>\n", {}) == HEAD + b"\n</net>\n"


@pytest.mark.parametrize("rt_info", [b"<rt_info />", b"<rt_info></rt_info>", b"<rt_info>\n\t</rt_info>"])
def test_an_empty_rt_info(rt_info: bytes) -> None:
    text = HEAD + b"\n\t" + rt_info + b"\n</net>\n"
    assert read_rt_info(text) == {}
    assert read_rt_info(splice_rt_info(text, {("a",): "1"})) == {("a",): "1"}


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b"</net",
        b"<meta_data></meta_data></net>",
        b"<rt_info>",
        b"<rt_info><a value='1' /></rt_info></net>",
        b'<rt_info><a value="1" version="2" /></rt_info></net>',
        b'<rt_info><a value="1" /><a value="2" /></rt_info></net>',
        b'<rt_info><a value="1"><b value="2" /></a></rt_info></net>',
        b"<rt_info>text</rt_info></net>",
        b"<rt_info><!-- note --></rt_info></net>",
        b"<rt_info><a></b></rt_info></net>",
        b"<rt_info></rt_info><rt_info></rt_info></net>",
        b'<rt_info><a value="\xff" /></rt_info></net>',
        b'<rt_info><a value="&#99999999999;" /></rt_info></net>',
    ],
)
def test_any_other_layout_is_refused(tail: bytes) -> None:
    with pytest.raises(UnexpectedXmlError):
        read_rt_info(HEAD + tail)
    with pytest.raises(UnexpectedXmlError):
        splice_rt_info(HEAD + tail, {("a",): "3"})


def test_no_edges() -> None:
    with pytest.raises(UnexpectedXmlError, match="no edges"):
        read_rt_info(b"<net></net>")


def test_the_end_of_a_loop_body_is_not_the_end() -> None:
    body = b"<body><edges></edges><rt_info></rt_info></body>"
    text = body + HEAD + b'<rt_info><a value="1" /></rt_info></net>'
    assert splice_rt_info(text, {("a",): "2"}) == body + HEAD + b'<rt_info><a value="2" /></rt_info></net>'


def test_every_ir_of_the_zoo_reads_as_openvino_reads_it(shared: Path) -> None:
    found = sorted(shared.glob("*/*/openvino_*model.xml"))
    assert len(found) > 25
    for path in found:
        text = path.read_bytes()
        assert read_rt_info(text) == ir.flatten(ir.read_model(path)), path
        assert splice_rt_info(text, read_rt_info(text)) == text
        assert splice_rt_info(splice_rt_info(text, {}), read_rt_info(text)) == text
