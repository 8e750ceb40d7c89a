from __future__ import annotations

import os
from pathlib import Path

import pytest

from ovgraft.errors import ModelFileError
from ovgraft.ir.staging import is_stage, refuse_leftover, stage_of, staging

State = dict[str, str]


def state(root: Path) -> State:
    return {
        path.relative_to(root).as_posix(): path.read_text() if path.is_file() else "folder" for path in root.rglob("*")
    }


def no_step(name: str) -> None:
    pass


def stage_nothing(folder: Path) -> None:
    with staging([(folder, None)], no_step):
        pass


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    for name in ("a/m.xml", "a/m.bin", "a/gone.xml", "a/gone.bin", "a/kept.txt", "one.xml", "one.bin"):
        (tmp_path / name).write_text(f"old {name}")
    return tmp_path


def save_all(root: Path, steps: list[str], fail_at: str | None = None) -> None:
    def on_step(name: str) -> None:
        steps.append(name)
        if name == fail_at:
            raise KeyboardInterrupt

    with staging([(root / "a", None), (root / "b", None), (root, "one")], on_step) as (standing, fresh, single):
        for name in ("m.xml", "m.bin", "sub/n.xml", "sub/n.bin"):
            standing.new(Path(name)).write_text(f"new {name}")
        standing.obsolete = [Path("gone.xml"), Path("gone.bin")]
        for name in ("m.xml", "m.bin"):
            fresh.new(Path(name)).write_text(f"new b {name}")
        for name in ("one.xml", "one.bin"):
            single.new(Path(name)).write_text(f"new {name}")


def test_everything_at_once(root: Path) -> None:
    steps: list[str] = []
    save_all(root, steps)
    assert state(root) == {
        "a": "folder",
        "a/kept.txt": "old a/kept.txt",
        "a/m.xml": "new m.xml",
        "a/m.bin": "new m.bin",
        "a/sub": "folder",
        "a/sub/n.xml": "new sub/n.xml",
        "a/sub/n.bin": "new sub/n.bin",
        "b": "folder",
        "b/m.xml": "new b m.xml",
        "b/m.bin": "new b m.bin",
        "one.xml": "new one.xml",
        "one.bin": "new one.bin",
    }


def test_every_xml_leaves_first_and_enters_last(root: Path) -> None:
    steps: list[str] = []
    save_all(root, steps)
    aside = [step.endswith(".xml aside") for step in steps if step.endswith("aside")]
    entering = [step.endswith(".xml in") for step in steps if step.startswith("new") and not step.startswith("new b")]
    assert aside == sorted(aside, reverse=True)
    assert entering == sorted(entering)
    assert steps.index("old one.bin aside") < steps.index("new m.bin in")
    assert max(i for i, step in enumerate(steps) if step.startswith("sync ")) > steps.index("new one.xml in")


def names() -> list[str]:
    return [
        *("stage a", "stage b", "sync m.xml", "sync one.bin", "a ready", "old m.xml aside", "old one.xml aside"),
        *("old gone.bin aside", "new m.bin in", "new sub/n.bin in", "new m.xml in", "new sub/n.xml in", "new b in"),
        *("sync a", "sync sub"),
    ]


@pytest.mark.parametrize("step", names())
def test_an_error_at_any_step_undoes_everything(root: Path, step: str) -> None:
    before = state(root)
    with pytest.raises(KeyboardInterrupt):
        save_all(root, [], fail_at=step)
    assert state(root) == before


def test_an_error_in_the_body_too(root: Path) -> None:
    def fail_after_the_first() -> None:
        with staging([(root / "a", None), (root / "b", None)], no_step) as places:
            places[0].new(Path("m.xml")).write_text("new")
            raise ZeroDivisionError

    before = state(root)
    with pytest.raises(ZeroDivisionError):
        fail_after_the_first()
    assert state(root) == before


def test_what_the_disk_says_is_one_sentence(root: Path) -> None:
    def write_twice() -> None:
        with staging([(root / "a", None)], no_step) as (place,):
            place.new(Path("m.xml")).write_text("new")
            place.new(Path("m.xml")).open("x")

    before = state(root)
    with pytest.raises(ModelFileError, match=r"m\.xml cannot be written: file exists"):
        write_twice()
    assert state(root) == before


def test_an_interrupt_while_cleaning_up_keeps_the_new_files(root: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        save_all(root, [], fail_at="clean up")
    after = state(root)
    assert after["a/m.xml"] == "new m.xml"
    assert not any(is_stage(path) for path in root.rglob("*"))


def test_a_single_xml_is_never_missing(root: Path) -> None:
    seen: list[bool] = []

    def on_step(name: str) -> None:
        seen.append((root / "one.xml").exists())

    before = (root / "one.bin").stat()
    with staging([(root, "one")], on_step) as (place,):
        place.new(Path("one.xml")).write_text("new")
    assert all(seen)
    assert (root / "one.xml").read_text() == "new"
    assert (root / "one.bin").stat() == before


@pytest.mark.parametrize("step", ["one.xml in", "sync"])
def test_a_single_xml_comes_back_too(root: Path, step: str) -> None:
    def on_step(name: str) -> None:
        if name in (f"new {step}", f"sync {root.name}"):
            raise KeyboardInterrupt

    before = state(root)
    with pytest.raises(KeyboardInterrupt), staging([(root, "one")], on_step) as (place,):
        place.new(Path("one.xml")).write_text("new")
    assert state(root) == before


def test_two_xml_alone_are_moved_aside_together(root: Path) -> None:
    steps: list[str] = []
    with staging([(root, "one"), (root / "a", None)], steps.append) as (one, other):
        one.new(Path("one.xml")).write_text("new")
        other.new(Path("m.xml")).write_text("new")
    moves = [step for step in steps if step.startswith(("old", "new"))]
    assert moves == ["old one.xml aside", "old m.xml aside", "new one.xml in", "new m.xml in"]


def test_links_are_replaced_not_followed(root: Path) -> None:
    (root / "blob").write_text("blob")
    os.unlink(root / "one.xml")
    (root / "one.xml").symlink_to(root / "blob")
    with staging([(root, "one")], no_step) as (place,):
        place.new(Path("one.xml")).write_text("new")
    assert (root / "blob").read_text() == "blob"
    assert (root / "one.xml").read_text() == "new"
    assert not (root / "one.xml").is_symlink()


def test_no_parent(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"the folder .*/x does not exist"):
        stage_nothing(tmp_path / "x" / "out")


def test_a_parent_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ModelFileError, match="cannot be written to"):
        stage_nothing(tmp_path / "out")


def test_a_second_save_waits_for_nobody(root: Path) -> None:
    with staging([(root / "a", None)], no_step) as (place,):
        place.new(Path("x")).write_text("x")
        with pytest.raises(ModelFileError, match=r"interrupted, or another one is running.*nothing was replaced yet"):
            stage_nothing(root / "a")
    assert (root / "a" / "x").read_text() == "x"


def test_an_empty_leftover_is_swept_away(root: Path) -> None:
    stage_of(root / "a").mkdir()
    with staging([(root / "a", None)], no_step) as (place,):
        place.new(Path("x")).write_text("x")
    assert (root / "a" / "x").exists()


def test_loading_refuses_only_what_was_moved(root: Path) -> None:
    stage = stage_of(root)
    (stage / "new" / "a").mkdir(parents=True)
    (stage / "new" / "a" / "m.xml").write_text("new")
    refuse_leftover(stage, within=Path("a"))
    (stage / "old" / "a").mkdir(parents=True)
    (stage / "old" / "a" / "m.xml").write_text("old")
    with pytest.raises(ModelFileError, match="interrupted"):
        refuse_leftover(stage, within=Path("a"))
    refuse_leftover(stage, within=Path("b"))
