"""One IR on its way to disk."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from blake3 import blake3

from ovgraft import ir
from ovgraft.drafts.contract import Key
from ovgraft.errors import ModelFileError
from ovgraft.ir import save
from ovgraft.ir.save import Source, plan_save, write_model
from ovgraft.ir.xmltail import read_rt_info, splice_rt_info
from tests import models


class Read:
    """A model with what a package keeps beside it."""

    def __init__(self, xml: Path) -> None:
        self.source = Source.of(xml)
        self.model = ir.read_model(xml)
        self.pristine = self.model.clone()

    def plan(self) -> save.Plan:
        return plan_save(self.model, self.pristine, self.source)


@pytest.fixture
def xml(tmp_path: Path) -> Path:
    path = tmp_path / "model.xml"
    ov.save_model(models.tiny_decoder(1, weights="int8"), path, compress_to_fp16=False)
    return path


def test_an_untouched_model_gets_the_size_of_its_bin(xml: Path) -> None:
    plan = Read(xml).plan()
    assert plan.change == "none"
    size = str(xml.with_suffix(".bin").stat().st_size)
    xml.write_bytes(plan.xml)
    assert ir.get_text(ir.read_model(xml), Key.BIN_SIZE) == size
    again = Read(xml).plan()
    assert (again.change, again.xml) == ("none", plan.xml)


def test_metadata_is_spliced(xml: Path) -> None:
    read = Read(xml)
    ir.set_text(read.model, ("note",), 'a "b" <c>\n')
    ir.delete(read.model, ("runtime_options",))
    plan = read.plan()
    assert plan.change == "metadata"
    text = xml.read_bytes()
    assert plan.xml[: text.rindex(b"<rt_info>")] == text[: text.rindex(b"<rt_info>")]
    xml.write_bytes(plan.xml)
    back = ir.read_model(xml)
    assert ir.flatten(back) == ir.flatten(read.model) | {Key.BIN_SIZE: str(xml.with_suffix(".bin").stat().st_size)}
    assert ir.same_structure(read.model, back) is None


def test_a_metadata_save_keeps_the_digest(tmp_path: Path) -> None:
    digest = write_model(models.tiny_decoder(1), tmp_path / "m.xml")
    read = Read(tmp_path / "m.xml")
    ir.set_text(read.model, ("note",), "1")
    (tmp_path / "m.xml").write_bytes(read.plan().xml)
    assert ir.get_text(ir.read_model(tmp_path / "m.xml"), Key.BIN_DIGEST) == digest
    assert ir.reading.verify_digest(tmp_path / "m.xml") == digest


def test_what_is_not_metadata(xml: Path) -> None:
    read = Read(xml)
    ir.set_user_data(read.model.get_results()[0], "key", "value")
    plan = read.plan()
    assert plan.change == "full"
    assert "Result" in plan.reason
    assert plan_save(models.tiny_decoder(1), None, None).change == "full"


@pytest.mark.parametrize("was_there", [False, True])
def test_entries_of_ports_are_not_metadata_of_the_model(tmp_path: Path, was_there: bool) -> None:
    xml, model = tmp_path / "m.xml", models.tiny_decoder(1)
    if was_there:
        model.get_results()[0].input(0).get_rt_info()["user_datakey"] = "value"
    ov.save_model(model, xml, compress_to_fp16=False)
    read = Read(xml)
    assert read.plan().change == "none"
    port = read.model.get_results()[0].input(0)
    if was_there:
        del port.get_rt_info()["user_datakey"]
    else:
        port.get_rt_info()["user_datakey"] = "value"
    plan = read.plan()
    assert plan.change == "full"
    assert "rt_info of input 0" in plan.reason
    write_model(read.model, tmp_path / "b.xml")
    back = ir.read_model(tmp_path / "b.xml").get_results()[0].input(0)
    assert ("user_datakey" in back.get_rt_info()) is not was_there


def test_values_that_are_not_text_are_left_to_openvino(xml: Path) -> None:
    read = Read(xml)
    read.model.set_rt_info(True, ["flag"])
    assert read.plan().change == "full"
    write_model(read.model, xml.with_name("b.xml"))
    assert ir.get_text(ir.read_model(xml.with_name("b.xml")), ("flag",)) == "YES"


@pytest.mark.parametrize("foreign", [b"<!-- note --></net>", b"<meta_data></meta_data></net>"])
def test_a_foreign_layout_is_left_to_openvino(xml: Path, foreign: bytes) -> None:
    xml.write_bytes(xml.read_bytes().replace(b"</net>", foreign))
    read = Read(xml)
    ir.set_text(read.model, ("note",), "1")
    plan = read.plan()
    assert plan.change == "full"
    write_model(read.model, xml.with_name("b.xml"))
    assert ir.get_text(ir.read_model(xml.with_name("b.xml")), ("note",)) == "1"


@pytest.mark.parametrize("which", [".xml", ".bin"])
@pytest.mark.parametrize("how", ["rewritten", "replaced", "removed"])
def test_files_that_changed_since_are_refused(xml: Path, which: str, how: str) -> None:
    read = Read(xml)
    file = xml.with_suffix(which)
    content = file.read_bytes()
    if how == "rewritten":
        os.utime(file, ns=(1, 1))
    else:
        file.rename(file.with_suffix(".old"))
        if how == "replaced":
            file.write_bytes(content)
    with pytest.raises(ModelFileError, match="changed on disk since it was read"):
        read.plan()


def test_a_whole_pair(tmp_path: Path) -> None:
    model = models.tiny_decoder(1, weights="int4")
    entries = ir.flatten(model)
    digest = write_model(model, tmp_path / "a.xml")
    weights = (tmp_path / "a.bin").read_bytes()
    assert digest == blake3(weights).hexdigest()
    back = ir.read_model(tmp_path / "a.xml")
    assert ir.get_text(back, Key.BIN_SIZE) == str(len(weights))
    assert ir.get_text(back, Key.BIN_DIGEST) == digest
    assert ir.flatten(model) == entries, "the live model is left as it is"
    text = (tmp_path / "a.xml").read_bytes()
    assert splice_rt_info(text, read_rt_info(text)) == text


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_model(models.tiny_decoder(2, weights="int8"), tmp_path / f"{name}.xml")
    write_model(ir.read_model(tmp_path / "a.xml"), tmp_path / "c.xml")
    for suffix in (".xml", ".bin"):
        whole = (tmp_path / f"a{suffix}").read_bytes()
        assert (tmp_path / f"b{suffix}").read_bytes() == whole
        assert (tmp_path / f"c{suffix}").read_bytes() == whole


def test_old_marks_do_not_survive_a_whole_save(tmp_path: Path) -> None:
    model = models.tiny_decoder(1)
    ir.set_text(model, Key.BIN_SIZE, "1")
    ir.set_text(model, Key.BIN_DIGEST, "2")
    digest = write_model(model, tmp_path / "m.xml")
    assert ir.get_text(ir.read_model(tmp_path / "m.xml"), Key.BIN_DIGEST) == digest


def test_nothing_is_compressed(tmp_path: Path) -> None:
    write_model(models.tiny_decoder(1, weights="f32"), tmp_path / "m.xml")
    kinds = {
        str(node.get_element_type())
        for node in ir.read_model(tmp_path / "m.xml").get_ordered_ops()
        if node.get_type_name() == "Constant" and node.get_byte_size() > 1000
    }
    assert kinds == {"<Type: 'float32'>"}


@pytest.mark.parametrize("harm", ["short", "empty xml", "wrong weights"])
def test_a_bad_write_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str) -> None:
    whole = ov.save_model

    def bad(model: ov.Model, xml: Path, **options: object) -> None:
        whole(model, xml, **options)
        weights = xml.with_suffix(".bin")
        if harm == "short":
            weights.write_bytes(weights.read_bytes()[:-100])
        elif harm == "empty xml":
            xml.write_bytes(b"")
        else:
            content = np.frombuffer(weights.read_bytes(), np.uint8)
            weights.write_bytes(np.zeros_like(content).tobytes())

    monkeypatch.setattr(ov, "save_model", bad)
    with pytest.raises(ModelFileError):
        write_model(models.tiny_decoder(1), tmp_path / "m.xml")


def test_what_openvino_says_of_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise RuntimeError("basic_ios::clear: iostream error")

    monkeypatch.setattr(ov, "save_model", full)
    with pytest.raises(ModelFileError, match=r"m\.xml cannot be written: no room left on the disk"):
        write_model(models.tiny_decoder(1), tmp_path / "m.xml")


def test_weights_of_two_files_in_one_model(tmp_path: Path) -> None:
    """What a graft does: constants mapped from the draft's .bin live in the target."""
    for name, seed in (("target", 0), ("draft", 1)):
        ov.save_model(models.tiny_decoder(1, seed=seed), tmp_path / f"{name}.xml", compress_to_fp16=False)
    target, draft = Read(tmp_path / "target.xml"), Read(tmp_path / "draft.xml")

    def head(model: ov.Model) -> ov.Output:
        return model.get_results()[0].input_value(0).get_node().input_value(1)

    digest = ir.weights_digest(head(draft.model))
    (moved,) = ir.clone_subgraph([head(draft.model)])
    head(target.model).replace(moved)
    target.model.validate_nodes_and_infer_types()
    assert target.plan().change == "full"
    write_model(target.model, tmp_path / "out.xml")
    for name in ("target", "draft"):
        (tmp_path / f"{name}.bin").unlink()
    del target, draft, moved
    assert ir.weights_digest(head(ir.read_model(tmp_path / "out.xml"))) == digest


def test_every_ir_of_the_zoo_comes_back(shared: Path, tmp_path: Path) -> None:
    for number, path in enumerate(sorted(shared.glob("*/*/openvino_*model.xml"))):
        read = Read(path)
        assert read.plan().change == "none", path
        write_model(read.model, tmp_path / f"{number}.xml")
        assert (tmp_path / f"{number}.bin").read_bytes() == path.with_suffix(".bin").read_bytes()
