"""Packages, grafts, and where a save puts what."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

import ovgraft
from ovgraft import Graft, Package, ir, saving
from ovgraft.drafts.contract import Key
from ovgraft.errors import ModelFileError
from ovgraft.ir.reading import verify_digest
from tests import models, support

Files = dict[str, bytes]


def files(root: Path) -> Files:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("packages")
    target = models.write_package(
        models.tiny_decoder(1, inputs_embeds=True),
        root / "vlm",
        name="openvino_language_model",
        others={"openvino_text_embeddings_model": models.tiny_text_embeddings()},
    )
    (target / "sub" / "deeper").mkdir(parents=True)
    (target / "sub" / "deeper" / "words.txt").write_text("words")
    (target / ".gitattributes").write_text("* lfs")
    (target / ".git").mkdir()
    (target / ".git" / "HEAD").write_text("main")
    models.write_package(models.tiny_decoder(1), root / "target")
    models.write_package(models.tiny_dflash_draft(1), root / "draft")
    checkpoint = root / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text('{"model_type": "qwen3"}')
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "in")
    return tmp_path / "in"


@pytest.mark.parametrize("suffix", [".xml", ".bin"])
def test_files_that_are_replaced_while_they_are_read(root: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = root / "target" / f"openvino_model{suffix}"
    real = ir.read_model

    def late(xml: Path) -> ov.Model:
        model = real(xml)
        other = file.with_name("other")
        other.write_bytes(file.read_bytes())
        os.replace(other, file)
        return model

    package = Package(root / "target")
    with monkeypatch.context() as patch:
        patch.setattr(ir, "read_model", late)
        with pytest.raises(ModelFileError, match="changed on disk since it was read"):
            _ = package.model
    assert package.model is not None


def stamps(root: Path) -> dict[str, tuple[int, ...]]:
    """Everything but the time of the last reading."""
    found = {path.relative_to(root).as_posix(): path.stat() for path in root.rglob("*")}
    return {name: (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_nlink) for name, stat in found.items()}


def error(call: Callable[[], object]) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        call()
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)
    return caught.value


def annotate(package: Package, text: str = "changed") -> None:
    ir.set_text(package.model, ("note",), text)


def touch(package: Package) -> None:
    """The smallest change of the graph."""
    ir.set_user_data(package.model.get_results()[0], "touched", "yes")


# --- what a package is


def test_the_main_model_of_a_folder(root: Path) -> None:
    assert Package(root / "target").main_name == "openvino_model"
    vlm = Package(root / "vlm")
    assert vlm.main_name == "openvino_language_model"
    assert dict(vlm.models) == {}
    assert vlm.model.get_parameters()
    assert list(vlm.models) == ["openvino_language_model"]
    embeddings = vlm.get("openvino_text_embeddings_model")
    assert embeddings is not None
    assert embeddings is vlm.get("openvino_text_embeddings_model")
    assert vlm.get("openvino_nothing") is None


@pytest.mark.parametrize("path", [".", "..", "sub/.."])
def test_a_folder_is_told_by_its_name_however_it_was_named(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    (tmp_path / "empty" / "sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "empty" / "sub" if path == ".." else tmp_path / "empty")
    found = error(lambda: Package(path))
    assert str(found) == f"there is no OpenVINO model in the folder empty [{path}]"
    assert found.to_dict()["file"] == "empty"
    for name in ("a.xml", "b.xml"):
        (tmp_path / "empty" / name).write_text("<net></net>")
    assert str(error(lambda: Package(path))).startswith("empty holds several models to choose from: a, b")
    shutil.copytree(root / "checkpoint", tmp_path / "empty", dirs_exist_ok=True)
    for name in ("a.xml", "b.xml"):
        (tmp_path / "empty" / name).unlink()
    assert str(error(lambda: Package(path).model)).startswith("empty is a checkpoint, not an OpenVINO model")


def test_a_dead_swap_around_a_package_is_seen_from_within(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = root / ".ovgraft-save" / "old" / "target"
    left.mkdir(parents=True)
    (left / "openvino_model.xml").write_text("old")
    (root / "target" / "sub").mkdir()
    monkeypatch.chdir(root / "target" / "sub")
    assert "interrupted" in str(error(lambda: Package("..")))


def test_the_only_xml_of_another_name(root: Path) -> None:
    for suffix in (".xml", ".bin"):
        (root / "target" / f"openvino_model{suffix}").rename(root / "target" / f"mine{suffix}")
    (root / "target" / "openvino_tokenizer.xml").write_text("")
    assert Package(root / "target").main_name == "mine"


def test_an_xml(root: Path) -> None:
    package = Package(root / "vlm" / "openvino_language_model.xml")
    assert (package.kind, package.main_name, package.folder) == ("xml", "openvino_language_model", root / "vlm")
    assert package.get("openvino_text_embeddings_model") is not None
    assert package.config == {"model_type": "qwen3"}


def test_a_checkpoint(root: Path) -> None:
    package = Package(root / "checkpoint")
    assert package.is_checkpoint
    found = error(lambda: package.model)
    assert "checkpoint is a checkpoint, not an OpenVINO model" in str(found)
    assert found.hint
    package.add("openvino_markov_head_model", models.tiny_decoder(1))
    assert list(package.models) == ["openvino_markov_head_model"]


def test_a_checkpoint_with_a_head_beside_it_is_still_one(root: Path) -> None:
    ov.save_model(models.tiny_decoder(1), root / "checkpoint" / "openvino_markov_head_model.xml")
    assert Package(root / "checkpoint").is_checkpoint


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda root: root / "nothing", "no such file or folder"),
        (lambda root: root / "nothing.xml", "no such file or folder"),
        (lambda root: root / "checkpoint" / "model.safetensors", "is neither a folder nor an .xml file"),
        (lambda root: root, "there is no OpenVINO model in the folder"),
    ],
)
def test_nothing_to_load(root: Path, make: Callable[[Path], Path], words: str) -> None:
    assert words in str(error(lambda: Package(make(root))))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_of_a_checkpoint(root: Path, name: str) -> None:
    assert error(lambda: Package(root / "checkpoint" / name)).hint == "name the folder of the checkpoint"


def test_a_folder_called_as_a_model_is_none(root: Path) -> None:
    (root / "empty" / "openvino_model.xml").mkdir(parents=True)
    assert "there is no OpenVINO model in the folder empty" in str(error(lambda: Package(root / "empty")))


def test_several_to_choose_from(root: Path) -> None:
    shutil.copy(root / "target" / "openvino_model.xml", root / "vlm" / "openvino_model.xml")
    found = error(lambda: Package(root / "vlm"))
    assert "several models to choose from: openvino_model, openvino_language_model" in str(found)
    for name in ("a", "b"):
        shutil.copy(root / "target" / "openvino_model.xml", root / f"{name}.xml")
    assert "several models to choose from: a, b" in str(error(lambda: Package(root)))


def test_a_damaged_member_is_named_when_it_is_read(root: Path) -> None:
    (root / "target" / "openvino_model.bin").unlink()
    package = Package(root / "target")
    assert "openvino_model.xml has no openvino_model.bin beside it" in str(error(lambda: package.model))


@pytest.mark.parametrize("text", ["{", "[1]", "\xff", "[" * 100_000])
def test_a_config_that_is_no_object(root: Path, text: str) -> None:
    (root / "target" / "config.json").write_text(text, encoding="latin-1")
    assert "config.json is not" in str(error(lambda: Package(root / "target").config))


def test_no_config(root: Path) -> None:
    (root / "target" / "config.json").unlink()
    assert Package(root / "target").config == {}


def test_load(root: Path) -> None:
    assert ovgraft.load(root / "target").draft is None
    pair = ovgraft.load(target=root / "target", draft=root / "draft")
    assert pair.package("draft") is pair.draft
    assert list(pair.packages) == ["target", "draft"]
    assert "there is no draft" in str(error(lambda: ovgraft.load(root / "target").package("draft")))
    for arguments in ({}, {"path": root, "target": root}):
        with pytest.raises(TypeError):
            ovgraft.load(**arguments)


def test_opening_a_package_imports_no_openvino(root: Path) -> None:
    program = "import sys, ovgraft; ovgraft.load(sys.argv[1]); assert 'openvino' not in sys.modules"
    subprocess.run([sys.executable, "-c", program, str(root / "target")], check=True, cwd=support.ROOT)


# --- snapshots


def test_a_snapshot_brings_everything_back(root: Path) -> None:
    graft = ovgraft.load(target=root / "target", draft=root / "draft")
    assert graft.draft is not None
    before = {role: (ir.fingerprint(p.model), ir.flatten(p.model)) for role, p in graft.packages.items()}
    graft.draft.add("kept", models.tiny_decoder(1))
    snapshot = graft.snapshot()
    for _ in range(2):
        annotate(graft.target)
        touch(graft.draft)
        graft.draft.add("new", models.tiny_decoder(1))
        ir.set_text(graft.draft.models["kept"], ("note",), "changed")
        graft.restore(snapshot)
        assert {role: (ir.fingerprint(p.model), ir.flatten(p.model)) for role, p in graft.packages.items()} == before
        assert list(graft.draft.models) == ["openvino_model", "kept"]
        assert ir.get_text(graft.draft.models["kept"], ("note",)) is None


def test_a_model_that_nobody_has_seen_is_cloned_once(root: Path) -> None:
    package = Package(root / "target")
    assert package.read("openvino_model")
    assert not package.read("nothing")
    snapshot = package.snapshot()
    assert package._pristine["openvino_model"].model is snapshot["openvino_model"]
    touch(package)
    assert package.plan_save()["openvino_model"].change == "full"
    package.restore(snapshot)
    assert package.plan_save()["openvino_model"].change == "none"


@pytest.mark.parametrize("see", [lambda package: package.model, lambda package: dict(package.models)])
def test_a_model_that_somebody_has_seen_was_cloned_before(root: Path, see: Callable[[Package], object]) -> None:
    package = Package(root / "target")
    package.read("openvino_model")
    see(package)
    ir.set_user_data(package._models["openvino_model"].get_results()[0], "touched", "yes")
    package.snapshot()
    assert package.plan_save()["openvino_model"].change == "full"


def test_a_model_that_was_replaced_unseen_is_still_compared_with_the_file(root: Path) -> None:
    package = Package(root / "target")
    package.read("openvino_model")
    package.add("openvino_model", models.tiny_decoder(1, seed=3))
    plan = package.plan_save()["openvino_model"]
    assert (plan.change, "other values" in plan.reason) == ("full", True)


def test_ops_that_moved_between_models_come_back(root: Path) -> None:
    graft = ovgraft.load(target=root / "target", draft=root / "draft")
    assert graft.draft is not None
    before = [ir.fingerprint(package.model) for package in graft.packages.values()]
    snapshot = graft.snapshot()
    weight = next(node for node in graft.draft.model.get_ordered_ops() if node.get_type_name() == "MatMul")
    (moved,) = ir.clone_subgraph([weight.input_value(1)])
    graft.target.model.add_results([ir.make_result(moved, "moved")])
    weight.output(0).replace(weight.input_value(0))
    graft.restore(snapshot)
    assert [ir.fingerprint(package.model) for package in graft.packages.values()] == before
    for package in graft.packages.values():
        assert package.plan_save()["openvino_model"].change == "none"


def test_what_was_read_after_the_snapshot_is_read_again(root: Path) -> None:
    graft = ovgraft.load(root / "vlm")
    snapshot = graft.snapshot()
    annotate(graft.target)
    graft.restore(snapshot)
    assert ir.get_text(graft.target.model, ("note",)) is None


# --- saving elsewhere


def test_a_folder_with_everything_in_it(root: Path, tmp_path: Path) -> None:
    graft = ovgraft.load(root / "vlm")
    annotate(graft.target)
    embeddings = graft.target.get("openvino_text_embeddings_model")
    assert embeddings is not None
    saved = graft.save(tmp_path / "out")
    old, new = files(root / "vlm"), files(tmp_path / "out")
    assert set(new) == set(old) - {".git/HEAD"} == set(saved.files)
    same = {name for name in new if new[name] == old[name]}
    assert set(new) - same == {"openvino_language_model.xml", "openvino_text_embeddings_model.xml"}
    assert [(model.name, model.change) for model in saved.models] == [
        ("openvino_language_model", "metadata"),
        ("openvino_text_embeddings_model", "none"),
    ]
    again = ovgraft.load(tmp_path / "out")
    assert ir.get_text(again.target.model, ("note",)) == "changed"
    assert files(root / "vlm") == old


def test_what_was_never_loaded_is_carried_as_it_is(root: Path, tmp_path: Path) -> None:
    graft = ovgraft.load(root / "vlm")
    assert graft.save(tmp_path / "out").models == ()
    assert files(tmp_path / "out") == {n: b for n, b in files(root / "vlm").items() if n != ".git/HEAD"}


def test_an_untouched_model_is_the_same_but_for_the_size(root: Path, tmp_path: Path) -> None:
    graft = ovgraft.load(root / "target")
    assert graft.target.model
    graft.save(tmp_path / "out")
    old, new = files(root / "target"), files(tmp_path / "out")
    assert old.keys() == new.keys()
    assert [name for name in new if old[name] != new[name]] == ["openvino_model.xml"]
    assert ir.get_text(ovgraft.load(tmp_path / "out").target.model, Key.BIN_SIZE) == str(len(new["openvino_model.bin"]))


def test_the_same_bytes_twice(root: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        graft = ovgraft.load(target=root / "target", draft=root / "draft")
        assert graft.draft is not None
        touch(graft.target)
        annotate(graft.draft)
        graft.save(tmp_path / name)
        graft.save(tmp_path / f"{name}2")
    whole = files(tmp_path / "a")
    assert whole
    for name in ("a2", "b", "b2"):
        assert files(tmp_path / name) == whole


def test_saved_again_and_again(root: Path, tmp_path: Path) -> None:
    graft = ovgraft.load(root / "target")
    touch(graft.target)
    graft.save(tmp_path / "1")
    digest = verify_digest(tmp_path / "1" / "openvino_model.xml")
    for number in (1, 2):
        graft = ovgraft.load(tmp_path / str(number))
        assert graft.target.model
        saved = graft.save(tmp_path / str(number + 1))
        assert (saved.models[0].change, saved.models[0].digest) == ("none", digest)
        assert files(tmp_path / str(number + 1)) == files(tmp_path / str(number))


def test_an_xml_alone(root: Path, tmp_path: Path) -> None:
    graft = ovgraft.load(root / "vlm" / "openvino_language_model.xml")
    assert graft.target.get("openvino_text_embeddings_model") is not None
    annotate(graft.target)
    graft.save(tmp_path / "mine.xml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "mine.bin", "mine.xml"]
    touch(graft.target)
    graft.save(tmp_path / "full.xml")
    assert ir.get_text(ir.read_model(tmp_path / "full.xml"), ("note",)) == "changed"


def test_a_pair(root: Path, tmp_path: Path) -> None:
    graft = ovgraft.load(target=root / "vlm" / "openvino_language_model.xml", draft=root / "checkpoint")
    assert graft.draft is not None
    assert graft.target.model
    graft.draft.add("openvino_markov_head_model", models.tiny_decoder(1))

    def record(saved: saving.Saved) -> dict[str, bytes]:
        return {"graft.json": json.dumps({"files": [*saved.files, "graft.json"]}).encode()}

    saved = graft.save(tmp_path / "out", extra_files=record)
    assert list(saved.files) == sorted(files(tmp_path / "out"))
    assert set(saved.files) == {
        "graft.json",
        "target/openvino_language_model.xml",
        "target/openvino_language_model.bin",
        "draft/config.json",
        "draft/model.safetensors",
        "draft/openvino_markov_head_model.xml",
        "draft/openvino_markov_head_model.bin",
    }
    again = ovgraft.load(tmp_path / "out")
    assert again.draft is not None
    assert again.draft.is_checkpoint
    assert again.draft.get("openvino_markov_head_model") is not None


def test_links_become_files(root: Path, tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for path in sorted((root / "target").iterdir()):
        shutil.move(path, blobs / path.name)
        path.symlink_to(blobs / path.name)
    (root / "target" / "folder").symlink_to(root / "vlm" / "sub")
    graft = ovgraft.load(root / "target")
    annotate(graft.target)
    graft.save(tmp_path / "out")
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    assert (tmp_path / "out" / "folder" / "deeper" / "words.txt").read_text() == "words"
    before = files(blobs)
    graft.save(in_place=True)
    assert files(blobs) == before
    assert not (root / "target" / "openvino_model.xml").is_symlink()
    assert (root / "target" / "openvino_model.bin").is_symlink()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: (folder / "gone.txt").symlink_to("nowhere"), "gone.txt is a link to nothing"),
        (lambda folder: (folder / "loop").symlink_to(folder), "lead in a circle at loop"),
        (lambda folder: os.mkfifo(folder / "pipe"), "pipe is no regular file"),
    ],
)
def test_what_cannot_be_carried(root: Path, tmp_path: Path, make: Callable[[Path], None], words: str) -> None:
    make(root / "target")
    graft = ovgraft.load(root / "target")
    assert words in str(error(lambda: graft.save(tmp_path / "out")))
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("change", [annotate, lambda package: package.model])
def test_hard_links(root: Path, tmp_path: Path, change: Callable[[Package], object]) -> None:
    graft = ovgraft.load(root / "vlm")
    change(graft.target)
    graft.save(tmp_path / "out", weights="link")
    for name in ("openvino_language_model", "openvino_text_embeddings_model"):
        ours, theirs = root / "vlm" / f"{name}.bin", tmp_path / "out" / f"{name}.bin"
        assert ours.stat().st_ino == theirs.stat().st_ino
    assert (root / "vlm" / "config.json").stat().st_ino != (tmp_path / "out" / "config.json").stat().st_ino
    before = files(root / "vlm")
    again = ovgraft.load(tmp_path / "out")
    touch(again.target)
    again.save(in_place=True)
    assert files(root / "vlm") == before


def test_no_hard_links_there(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    graft = ovgraft.load(root / "target")
    found = error(lambda: graft.save(tmp_path / "out", weights="link"))
    assert "openvino_model.bin cannot be hard-linked there: invalid cross-device link" in str(found)
    assert found.hint
    assert not (tmp_path / "out").exists()


def test_paths_from_here(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    for source, out in (("target", "out"), ("target/openvino_model.xml", "out.xml")):
        graft = ovgraft.load(source)
        touch(graft.target)
        graft.save(out)
        graft.save(out, force=True)
        graft.save(in_place=True)
    monkeypatch.chdir(root / "draft")
    for source in (".", "openvino_model.xml"):
        graft = ovgraft.load(source)
        annotate(graft.target, source)
        graft.save("../" + ("out2.xml" if source.endswith(".xml") else "out2"))
        graft.save(in_place=True)
    assert ir.get_text(ir.read_model("openvino_model.xml"), ("note",)) == "openvino_model.xml"
    assert not [path for path in root.rglob("*") if path.name.startswith(".ovgraft")]


# --- what is refused


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("in/target", "is the input"),
        ("in/../in/target", "is the input"),
        ("link", "is the input"),
        ("in", "holds the input"),
        (".", "holds the input"),
        ("in/target/out", "lies within the input"),
        ("out.xml", "the input is a folder, the output out.xml is an .xml"),
        ("nothing/out", "does not exist"),
        ("in/draft", "exists"),
        ("file", "is a file, the output must be a folder"),
    ],
)
def test_refused_folders(root: Path, tmp_path: Path, out: str, words: str) -> None:
    (tmp_path / "link").symlink_to(root / "target")
    (tmp_path / "file").write_text("")
    before = files(tmp_path)
    graft = ovgraft.load(root / "target")
    annotate(graft.target)
    assert words in str(error(lambda: graft.save(tmp_path / out)))
    if words != "exists":
        assert words in str(error(lambda: graft.save(tmp_path / out, force=True)))
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("in/target/openvino_model.xml", "is the input"),
        ("out", "the input is an .xml, the output out is a folder"),
        ("nothing/out.xml", "does not exist"),
        ("there.xml", "exists"),
        ("bin.xml", "bin.bin exists"),
    ],
)
def test_refused_xml(root: Path, tmp_path: Path, out: str, words: str) -> None:
    for name in ("there.xml", "bin.bin"):
        (tmp_path / name).write_text("")
    before = files(tmp_path)
    graft = ovgraft.load(root / "target" / "openvino_model.xml")
    annotate(graft.target)
    assert words in str(error(lambda: graft.save(tmp_path / out)))
    assert files(tmp_path) == before


def test_refused_pairs(root: Path, tmp_path: Path) -> None:
    graft = ovgraft.load(target=root / "target", draft=root / "draft")
    assert "need a folder" in str(error(lambda: graft.save(tmp_path / "out.xml")))
    assert "is the input" in str(error(lambda: graft.save(root / "draft", force=True)))
    assert "holds the input" in str(error(lambda: graft.save(root, force=True)))
    assert "in place means the input itself" in str(error(lambda: graft.save(root, in_place=True)))
    with pytest.raises(TypeError, match="needs an output path"):
        graft.save()


def test_an_added_model_replaces_nothing_of_the_input(root: Path, tmp_path: Path) -> None:
    graft = ovgraft.load(root / "vlm" / "openvino_language_model.xml")
    embeddings = graft.target.get("openvino_text_embeddings_model")
    assert embeddings is not None
    ir.set_text(embeddings, ("note",), "changed")
    assert "belongs to the input" in str(error(lambda: graft.save(root / "vlm" / "new.xml", force=True)))
    (tmp_path / "openvino_text_embeddings_model.xml").write_text("mine")
    assert "exists" in str(error(lambda: graft.save(tmp_path / "new.xml")))
    assert (tmp_path / "openvino_text_embeddings_model.xml").read_text() == "mine"
    graft.save(tmp_path / "new.xml", force=True)
    assert ir.read_model(tmp_path / "openvino_text_embeddings_model.xml")


def test_an_empty_folder_is_no_obstacle(root: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    ovgraft.load(root / "target").save(tmp_path / "out")
    assert files(tmp_path / "out") == files(root / "target")


def test_force_replaces_what_is_written_and_what_an_earlier_graft_wrote(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    graft = ovgraft.load(target=root / "target", draft=root / "draft")
    assert graft.draft is not None
    graft.draft.add("openvino_markov_head_model", models.tiny_decoder(1))

    def record(saved: saving.Saved) -> dict[str, bytes]:
        named = [*saved.files, "graft.json", "../in/target/config.json", "/etc/hostname", "target", 7, "link/words.txt"]
        return {"graft.json": json.dumps({"files": named}).encode()}

    graft.save(out, extra_files=record)
    (out / "draft" / "notes.txt").write_text("mine")
    (out / "link").symlink_to(root / "vlm" / "sub" / "deeper")
    second = ovgraft.load(target=root / "target", draft=root / "draft")
    saved = second.save(out, force=True)
    assert set(files(out)) == {*saved.files, "draft/notes.txt"}
    assert (root / "target" / "config.json").exists()
    assert (root / "vlm" / "sub" / "deeper" / "words.txt").exists()


@pytest.mark.parametrize("text", ["", "[]", '{"files": 3}', '{"files": null}', '{"other": []}', "\xff"])
def test_a_record_nobody_can_read_removes_nothing(root: Path, tmp_path: Path, text: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "graft.json").write_text(text, encoding="latin-1")
    ovgraft.load(root / "target").save(out, force=True)
    assert set(files(out)) == {*files(root / "target"), "graft.json"}


# --- saving in place


def test_metadata_in_place_leaves_the_bin_alone(root: Path) -> None:
    folder = root / "target"
    graft = ovgraft.load(folder)
    before = stamps(folder)
    (folder / "openvino_model.xml").chmod(0o640)
    for text in ("one", "two"):
        annotate(graft.target, text)
        saved = graft.save(in_place=True)
        assert saved.files == ("openvino_model.xml",)
        assert ir.get_text(ovgraft.load(folder).target.model, ("note",)) == text
    after = stamps(folder)
    assert {name for name in before if before[name] != after[name]} == {"openvino_model.xml"}
    assert before.keys() == after.keys()
    assert (folder / "openvino_model.xml").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["openvino_model.xml", "openvino_model.bin"])
def test_a_write_protected_file_is_not_replaced_in_place(root: Path, name: str) -> None:
    folder = root / "target"
    (folder / name).chmod(0o444)
    before = stamps(folder)
    graft = ovgraft.load(folder)
    annotate(graft.target, "one")
    if name.endswith(".bin"):  # metadata alone leaves it where it is
        graft.save(in_place=True)
        before = stamps(folder)
        graft.target.model.add_outputs([graft.target.model.get_ordered_ops()[-2].input_value(0)])
    with pytest.raises(ModelFileError, match=f"{name} is write-protected") as refused:
        graft.save(in_place=True)
    assert refused.value.hint == "chmod u+w it, or name an output instead"
    assert stamps(folder) == before


def test_a_record_that_is_write_protected_is_not_replaced_in_place(root: Path) -> None:
    folder = root / "target"
    (folder / "notes.json").write_text("old")
    (folder / "notes.json").chmod(0o444)
    graft = ovgraft.load(folder)
    annotate(graft.target, "one")
    before = stamps(folder)
    with pytest.raises(ModelFileError, match=r"notes\.json is write-protected"):
        graft.save(in_place=True, extra_files={"notes.json": b"new"})
    assert stamps(folder) == before


def test_a_link_is_replaced_whatever_it_names(root: Path, tmp_path: Path) -> None:
    folder = root / "target"
    blob = tmp_path / "blob"
    (folder / "openvino_model.xml").rename(blob)
    (folder / "openvino_model.xml").symlink_to(blob)
    blob.chmod(0o444)
    held = blob.read_bytes()
    graft = ovgraft.load(folder)
    annotate(graft.target, "one")
    graft.save(in_place=True)
    assert blob.read_bytes() == held
    assert ir.get_text(ovgraft.load(folder).target.model, ("note",)) == "one"


def test_nothing_changed_in_place_writes_nothing(root: Path) -> None:
    graft = ovgraft.load(root / "vlm")
    assert graft.target.model
    before = stamps(root)
    steps: list[str] = []
    assert graft.save(in_place=True, on_step=steps.append).files == ()
    assert steps == []
    assert stamps(root) == before


def test_a_graph_changed_in_place(root: Path) -> None:
    for path in (root / "vlm", root / "target" / "openvino_model.xml"):
        graft = ovgraft.load(path)
        touch(graft.target)
        xml = graft.target.xml(graft.target.main_name)
        others = {name: stamp for name, stamp in stamps(graft.target.folder).items() if xml.stem not in name}
        saved = graft.save(graft.target.path, in_place=True)
        assert saved.models[0].change == "full"
        assert verify_digest(xml) == saved.models[0].digest
        assert {name: stamp for name, stamp in stamps(graft.target.folder).items() if xml.stem not in name} == others
        annotate(graft.target)
        again = graft.save(in_place=True)
        assert again.models[0].change == "metadata"
        assert verify_digest(xml) == saved.models[0].digest
        assert graft.save(in_place=True).files == ()


def test_the_live_model_keeps_its_weights_after_its_file_is_gone(root: Path) -> None:
    graft = ovgraft.load(root / "target")

    def weights() -> list[bytes]:
        return [
            np.array(node.data).tobytes()
            for node in graft.target.model.get_ordered_ops()
            if node.get_type_name() == "Constant"
        ]

    before = weights()
    for _ in range(2):
        touch(graft.target)
        ir.set_user_data(graft.target.model.get_results()[0], "count", str(_))
        graft.save(in_place=True)
        assert weights() == before
    again = ir.read_model(root / "target" / "openvino_model.xml")
    assert ir.same_structure(graft.target.model, again, after="save") is None


def test_a_pair_in_place(root: Path) -> None:
    graft = ovgraft.load(target=root / "target", draft=root / "draft")
    assert graft.draft is not None
    touch(graft.draft)
    annotate(graft.target)
    graft.draft.add("openvino_markov_head_model", models.tiny_decoder(1))
    saved = graft.save(in_place=True, extra_files=lambda saved: {"graft.json": b"{}"})
    assert saved.folders == (root / "target", root / "draft", root)
    assert (root / "graft.json").read_bytes() == b"{}"
    again = ovgraft.load(root)
    assert again.draft is not None
    assert again.draft.get("openvino_markov_head_model") is not None
    assert ir.get_text(again.target.model, ("note",)) == "changed"


def test_extra_files_of_a_pair_in_place_need_a_home(root: Path) -> None:
    graft = ovgraft.load(target=root / "vlm", draft=root / "draft")
    with pytest.raises(ValueError, match="FOLDER/target"):
        graft.save(in_place=True, extra_files={"graft.json": b"{}"})


def test_files_that_changed_since_they_were_read(root: Path, tmp_path: Path) -> None:
    graft = ovgraft.load(root / "target")
    annotate(graft.target)
    xml = root / "target" / "openvino_model.xml"
    xml.write_bytes(xml.read_bytes())
    for call in (lambda: graft.save(in_place=True), lambda: graft.save(tmp_path / "out")):
        assert "changed on disk since it was read" in str(error(call))


@pytest.mark.parametrize("file", ["openvino_model.xml", "openvino_model.bin", "config.json"])
def test_an_input_that_changes_while_it_is_copied(root: Path, tmp_path: Path, file: str) -> None:
    """Another save of the input itself may come and go: half of the copy would be of the one, half of the other."""

    def on_step(name: str) -> None:
        if name.startswith("copy config.json"):
            os.utime(root / "target" / file, ns=(0, 0))

    graft = ovgraft.load(root / "target")
    annotate(graft.target)
    found = error(lambda: graft.save(tmp_path / "out", on_step=on_step))
    assert "changed on disk" in str(found)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_save_in_place_that_comes_second_sees_that_it_does(root: Path) -> None:
    """Planned before, locked after: in between another save has replaced both files."""
    later = ovgraft.load(root / "target")
    annotate(later.target, "later")

    def other_save(name: str) -> None:
        if name == "stage target" and not saved:
            saved.append(True)
            earlier = ovgraft.load(root / "target")
            touch(earlier.target)
            earlier.save(in_place=True)

    saved: list[bool] = []
    found = error(lambda: later.save(in_place=True, on_step=other_save))
    assert "changed on disk since it was read" in str(found)
    assert ovgraft.load(root / "target").target.model.get_results()
    assert verify_digest(root / "target" / "openvino_model.xml") is not None
    assert ir.get_text(ovgraft.load(root / "target").target.model, ("note",)) is None


SAVING = """
import sys
import ovgraft
from ovgraft import ir
source, out = sys.argv[1:]

def on_step(name):
    if name == "write target/openvino_model.xml":
        print("at it", flush=True)
        sys.stdin.readline()

graft = ovgraft.load(target=source + "/target", draft=source + "/draft")
ir.set_user_data(graft.target.model.get_results()[0], "touched", "by the first")
graft.save(out, force=True, on_step=on_step)
"""


def test_two_processes_save_to_one_place(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    second = ovgraft.load(target=root / "target", draft=root / "draft")
    second.save(out)
    touch(second.target)
    before = files(out)
    first = subprocess.Popen(
        [sys.executable, "-c", SAVING, str(root), str(out)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=support.ROOT,
    )
    assert first.stdout is not None
    assert first.stdout.readline() == b"at it\n"
    found = error(lambda: second.save(out, force=True))
    assert str(found).startswith("another ovgraft is saving here")
    inside = ovgraft.load(out / "target")
    annotate(inside.target)
    assert str(error(lambda: inside.save(in_place=True))).startswith("another ovgraft is saving here")
    assert {name: data for name, data in files(out).items() if ".ovgraft-save" not in name} == before
    first.communicate(b"go on\n", timeout=60)
    assert first.returncode == 0
    model = ovgraft.load(out / "target").target.model
    assert ir.get_user_data(model.get_results()[0], "touched") == "by the first"
    assert files(out).keys() == before.keys()


# --- an output that is open while passes run


def run_slowly(graft: Graft, out: Path, work: Callable[[], None], *, kept: bool = True) -> list[str]:
    steps: list[str] = []
    with graft.writing(out, kept=kept, on_step=steps.append) as finish:
        work()
        finish({})
    return steps


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("change", [annotate, touch])
def test_an_open_output_gets_what_a_save_writes(
    root: Path, tmp_path: Path, change: Callable[[Package], None], kept: bool
) -> None:
    """Whatever was guessed of the weights."""
    graft, other = ovgraft.load(root / "target"), ovgraft.load(root / "target")
    steps = run_slowly(graft, tmp_path / "a", lambda: change(graft.target), kept=kept)
    change(other.target)
    other.save(tmp_path / "b")
    assert files(tmp_path / "a") == files(tmp_path / "b")
    ahead = steps.index("copy openvino_model.bin ahead")
    assert ahead < next(i for i, step in enumerate(steps) if step.startswith("write"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "in"]


def test_an_open_output_is_nobody_elses(root: Path, tmp_path: Path) -> None:
    graft, other = ovgraft.load(root / "target"), ovgraft.load(root / "target")
    found: list[ModelFileError] = []
    run_slowly(graft, tmp_path / "out", lambda: found.append(error(lambda: other.save(tmp_path / "out"))))
    assert str(found[0]).startswith("another ovgraft is saving here")
    assert (tmp_path / "out" / "openvino_model.xml").is_file()


def test_what_speaks_against_an_output_is_told_before_the_work(root: Path, tmp_path: Path) -> None:
    graft = ovgraft.load(root / "target")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").write_text("x")
    done: list[bool] = []
    found = error(lambda: run_slowly(graft, tmp_path / "out", lambda: done.append(True)))
    assert "exists" in str(found)
    assert not done


@pytest.mark.parametrize("failing", [True, False], ids=["the work fails", "nobody saves"])
def test_an_open_output_of_nothing_leaves_nothing(root: Path, tmp_path: Path, failing: bool) -> None:
    graft = ovgraft.load(root / "target")
    with (
        pytest.raises(KeyboardInterrupt) if failing else contextlib.nullcontext(),
        graft.writing(tmp_path / "out", kept=True),
    ):
        if failing:
            raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_weights_that_change_after_they_were_copied_ahead(root: Path, tmp_path: Path) -> None:
    weights = root / "target" / "openvino_model.bin"

    def replace() -> None:
        """Before the model is read: what is read is whole, and what was copied is not it."""
        weights.with_name("new").write_bytes(weights.read_bytes())
        os.replace(weights.with_name("new"), weights)
        annotate(graft.target)

    graft = ovgraft.load(root / "target")
    found = error(lambda: run_slowly(graft, tmp_path / "out", replace))
    assert "changed on disk while it was copied" in str(found)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


# --- the disk


@pytest.mark.parametrize("change", [annotate, touch])
def test_too_little_room_is_noticed_before_anything_is_written(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Package], None]
) -> None:
    steps: list[str] = []
    graft = ovgraft.load(root / "target")
    change(graft.target)
    real = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: real._replace(free=1000))
    found = error(lambda: graft.save(tmp_path / "out", on_step=steps.append))
    assert "not enough room on the disk" in str(found)
    assert found.found == "1000 bytes free"
    assert steps == ["stage out"]  # not even the copy that starts ahead
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


FULL = """
import resource, sys
import ovgraft
from ovgraft import ir
source, out, change = sys.argv[1:]
graft = ovgraft.load(source)
if change == "metadata":
    ir.set_text(graft.target.model, ("note",), "changed")
else:
    ir.set_user_data(graft.target.model.get_results()[0], "touched", "yes")
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    graft.save(out)
except ovgraft.OvgraftError as error:
    print(error)
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize(
    ("change", "words"),
    [("metadata", "openvino_model.xml cannot be written: file too large"), ("full", "no room left on the disk")],
)
def test_a_write_that_fails_half_way(root: Path, tmp_path: Path, change: str, words: str) -> None:
    before = files(root)
    run = subprocess.run(
        [sys.executable, "-c", FULL, str(root / "target"), str(tmp_path / "out"), change],
        capture_output=True,
        text=True,
        cwd=support.ROOT,
        check=False,
    )
    assert run.returncode == 3, run.stderr
    assert words in run.stdout
    assert str(tmp_path / "out") in run.stdout
    assert run.stdout.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert files(root) == before


def test_a_folder_that_cannot_be_written_to(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graft = ovgraft.load(root / "target")
    annotate(graft.target)
    monkeypatch.setattr(os, "access", lambda path, mode: not os.path.isdir(path))
    assert f"the folder {tmp_path} cannot be written to" in str(error(lambda: graft.save(tmp_path / "out")))
    assert "cannot be written to" in str(error(lambda: graft.save(in_place=True)))


def test_a_leftover_is_never_carried_along(root: Path, tmp_path: Path) -> None:
    leftover = root / "target" / ".ovgraft-save" / "new"
    leftover.mkdir(parents=True)
    (leftover / "openvino_model.xml").write_text("half")
    ovgraft.load(root / "target").save(tmp_path / "out")
    assert not any(".ovgraft" in name for name in files(tmp_path / "out"))
    graft: Graft = ovgraft.load(root / "target")
    annotate(graft.target)
    found = error(lambda: graft.save(in_place=True))
    assert "nothing was replaced yet" in str(found)
    assert str(root / "target" / ".ovgraft-save") in str(found.hint)


# --- real exports


def test_every_package_of_the_zoo(shared: Path, tmp_path: Path) -> None:
    for name in (*support.DECODERS, *support.DFLASH_DRAFTS):
        source = shared / "zoo" / name
        graft = ovgraft.load(source)
        ir.set_text(graft.target.model, ("note",), name)
        out = tmp_path / name
        assert [model.change for model in graft.save(out).models] == ["metadata"], name
        old, new = files(source), files(out)
        assert old.keys() == new.keys()
        assert [file for file in old if old[file] != new[file]] == [f"{graft.target.main_name}.xml"]
        assert ir.same_structure(graft.target.model, ovgraft.load(out).target.model) is None


@pytest.mark.parametrize("force", [False, True])
def test_a_pair_and_a_single_model_do_not_replace_each_other(tmp_path: Path, force: bool) -> None:
    target = models.write_package(models.tiny_decoder(layers=6), tmp_path / "target")
    draft = models.write_package(models.tiny_dflash_draft(), tmp_path / "draft")
    single, pair = tmp_path / "single", tmp_path / "pair"
    ovgraft.load(target).save(single)
    ovgraft.load(target=target, draft=draft).save(pair)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(ModelFileError, match="single holds a model, a target and its draft do not replace it"):
        ovgraft.load(target=target, draft=draft).save(single, force=force)
    with pytest.raises(ModelFileError, match="pair holds a target and its draft, one model does not replace them"):
        ovgraft.load(target).save(pair, force=force)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
