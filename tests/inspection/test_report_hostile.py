"""The report of files that want to be more than text: names, types, metadata, files; in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import onnx
import openvino as ov
import pytest
from click.testing import CliRunner

from ovgraft.cli.main import cli
from tests import models
from tests.cli import hostile
from tests.inspection import browser

pytestmark = pytest.mark.slow

_EVIL = (
    "</script><script>document.title='owned'</script><img src=x onerror=document.title='owned'>\"'{{7*7}}\u202e\x1b[31m"
)
_COUNT = """<script>
const count = (what) => document.querySelectorAll(what).length;
document.body.dataset.found = `scripts ${count("script")} images ${count("img")} handlers ${count("[onerror]")}`;
</script></body>"""


def _package(folder: Path) -> Path:
    folder.mkdir()
    ov.save_model(hostile.named(), folder / "openvino_model.xml", compress_to_fp16=False)
    (folder / f"{_EVIL.replace('/', '')}.txt").touch()
    return folder


def _graft(folder: Path) -> Path:
    folder.mkdir()
    _package(folder / "target")
    draft = models.tiny_dflash_draft(1, n=1, target_layer_ids=(0,))
    for path in (("dflash", "target_layer_ids"), ("dflash", "mask_token_id"), ("dflash", "markov_head_type"), (_EVIL,)):
        draft.set_rt_info(_EVIL, list(path))
    models.write_package(draft, folder / "draft", config={"model_type": _EVIL, "dflash_config": {"block_size": _EVIL}})
    return folder


def _onnx(file: Path) -> Path:
    helper = onnx.helper
    value = helper.make_tensor_value_info(_EVIL, onnx.TensorProto.FLOAT, [_EVIL, 2])
    node = helper.make_node(_EVIL, [_EVIL], ["y"], name=_EVIL, domain=_EVIL, attribute=_EVIL)
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph([node], _EVIL, [value], [output]), producer_name=_EVIL)
    helper.set_model_props(model, {_EVIL: _EVIL})
    onnx.save(model, file)
    return file


@pytest.mark.parametrize("make", [_package, _graft, _onnx])
def test_nothing_in_a_file_becomes_part_of_the_page(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    chromium = browser.find()
    subject = make(tmp_path / f"{_EVIL.replace('/', '')}.onnx")
    page = tmp_path / "report.html"
    result = CliRunner().invoke(cli, ["inspect", str(subject), "--format", "html", "-o", str(page)])
    assert result.exit_code == 0, result.output
    text = page.read_text("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert text.count("<script") == 2
    page.write_text(text.replace("</body>", _COUNT), "utf-8")
    seen = browser.look(chromium, page.as_uri(), tmp_path / "profile")
    assert seen.console == ()
    assert "<title>owned" not in seen.dom
    assert 'data-found="scripts 3 images 0 handlers 0"' in seen.dom
