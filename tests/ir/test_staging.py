from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ovgraft.errors import ModelFileError
from ovgraft.ir.locking import LOCK, is_locked, keep_unlocked, lock_folder, remove_locked
from ovgraft.ir.staging import Place, is_stage, refuse_leftover, stage_of, staging

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
        with pytest.raises(ModelFileError, match="another ovgraft is saving here") as caught:
            stage_nothing(root / "a")
        assert caught.value.hint == "run again when it is done"
    assert (root / "a" / "x").read_text() == "x"


def test_a_dead_save_is_no_running_one(root: Path) -> None:
    script = f"""
import os
from pathlib import Path
from ovgraft.ir.staging import staging
with staging([(Path({str(root / "a")!r}), None)], lambda step: None) as (place,):
    place.new(Path("m.xml")).write_text("new")
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    before = state(root)
    assert before["a/.ovgraft-save/new/m.xml"] == "new"
    with pytest.raises(
        ModelFileError, match=r"an earlier save was interrupted in .*nothing was replaced yet"
    ) as caught:
        stage_nothing(root / "a")
    assert caught.value.hint == f"delete {root / 'a' / '.ovgraft-save'}"
    assert state(root) == before


def test_loading_in_the_middle_of_a_swap_says_who_is_at_it(root: Path) -> None:
    seen: list[str] = []

    def on_step(name: str) -> None:
        if name == "new m.xml in":
            with pytest.raises(ModelFileError) as caught:
                refuse_leftover(stage_of(root / "a"))
            seen.append(str(caught.value))

    save_all_to_a(root, on_step)
    assert len(seen) == 1
    assert seen[0].startswith("another ovgraft is saving here")


def save_all_to_a(root: Path, on_step: Callable[[str], None]) -> None:
    with staging([(root / "a", None)], on_step) as (place,):
        for name in ("m.xml", "m.bin"):
            place.new(Path(name)).write_text(f"new {name}")


def test_where_there_are_no_locks_it_says_that_it_does_not_know(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with staging([(root / "a", None)], no_step) as (place,):
        place.new(Path("x")).write_text("x")
        with pytest.raises(ModelFileError, match="interrupted, or another one is running, in"):
            stage_nothing(root / "a")
    assert (root / "a" / "x").read_text() == "x"
    assert not any(is_stage(path) for path in root.rglob("*"))


def neighbours() -> list[tuple[str, str | None, str, str | None]]:
    """Two saves that write the same files although their hidden folders are two."""
    return [
        ("a", None, "a", "m"),
        ("a", "m", "a", None),
        (".", None, "a", None),
        ("a", None, ".", None),
        ("a", "m", ".", None),
        (".", None, "a", "m"),
    ]


@pytest.mark.parametrize(("first", "first_file", "second", "second_file"), neighbours())
def test_saves_of_a_graft_and_of_what_is_in_it_keep_apart(
    root: Path, first: str, first_file: str | None, second: str, second_file: str | None
) -> None:
    with staging([(root / first, first_file)], no_step):
        before = state(root)
        with (
            pytest.raises(ModelFileError, match="another ovgraft is saving here"),
            staging([(root / second, second_file)], no_step),
        ):
            pass
        assert state(root) == before


def test_two_irs_of_one_folder_are_saved_at_once(root: Path) -> None:
    with staging([(root / "a", "m")], no_step) as (one,), staging([(root / "a", "gone")], no_step) as (other,):
        one.new(Path("m.xml")).write_text("new m")
        other.new(Path("gone.xml")).write_text("new gone")
    assert (state(root)["a/m.xml"], state(root)["a/gone.xml"]) == ("new m", "new gone")


def test_what_died_in_a_swap_within_a_graft_is_told_when_the_graft_is_saved(root: Path) -> None:
    left = stage_of(root / "a") / "old"
    left.mkdir(parents=True)
    (left / "m.xml").write_text("old")
    before = state(root)
    with pytest.raises(ModelFileError, match="an earlier save was interrupted"):
        stage_nothing(root)
    assert state(root) == before


def test_an_empty_leftover_is_swept_away(root: Path) -> None:
    stage_of(root / "a").mkdir()
    (stage_of(root / "a") / LOCK).touch()
    with staging([(root / "a", None)], no_step) as (place,):
        place.new(Path("x")).write_text("x")
    assert (root / "a" / "x").exists()
    assert not stage_of(root / "a").exists()


def test_a_lock_that_was_removed_while_it_was_taken_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "stage"
    first = lock_folder(folder)
    real = fcntl.flock
    waited: list[bool] = []

    def late(handle: int, operation: int) -> None:
        if not waited:  # its holder goes between our open and our lock
            waited.append(True)
            remove_locked(folder, first)
        real(handle, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    second = lock_folder(folder)
    assert is_locked(folder)
    remove_locked(folder, second)
    assert not folder.exists()


def test_a_folder_that_goes_while_it_is_made_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "stage"
    first = lock_folder(folder)
    real = os.mkdir
    met: list[bool] = []

    def late(path: str, mode: int = 0o777) -> None:
        try:
            real(path, mode)
        except FileExistsError:
            if not met:  # its holder goes between the refusal and the next look
                met.append(True)
                remove_locked(folder, first)
            raise

    monkeypatch.setattr(os, "mkdir", late)
    second = lock_folder(folder)
    assert met
    assert is_locked(folder)
    remove_locked(folder, second)


def test_the_lock_of_the_next_save_counts_when_the_one_looked_at_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "stage"
    first = lock_folder(folder)
    real = fcntl.flock
    second: list[int] = []

    def late(handle: int, operation: int) -> None:
        if operation & fcntl.LOCK_SH and not second:  # one save ends and another begins between our open and our lock
            remove_locked(folder, first)
            second.append(lock_folder(folder))
        real(handle, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    assert is_locked(folder) is True
    remove_locked(folder, second[0])
    assert is_locked(folder) is False


def test_no_save_begins_while_one_looks_at_what_was_left(tmp_path: Path) -> None:
    os.close(lock_folder(tmp_path / "stage"))
    with keep_unlocked(tmp_path / "stage") as free:
        assert free is True
        with pytest.raises(BlockingIOError):
            lock_folder(tmp_path / "stage")
    os.close(lock_folder(tmp_path / "stage"))


def save_a_and_one(root: Path, places: list[Place]) -> None:
    with staging([(root / "a", None), (root, "one")], no_step) as (a, one):
        places += [a, one]
        for name in ("m.xml", "m.bin"):
            a.new(Path(name)).write_text(f"new {name}")
        for name in ("one.xml", "one.bin"):
            one.new(Path(name)).write_text(f"new {name}")


def test_death_while_old_files_are_deleted_leaves_nothing_to_go_back_to(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(folder: os.DirEntry[str], *, ignore_errors: bool) -> None:
        if next(Path(folder).rglob("m.xml"), None):
            next(Path(folder).rglob("m.xml")).unlink()
            raise KeyboardInterrupt

    places: list[Place] = []
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", die)
        with pytest.raises(KeyboardInterrupt):
            save_a_and_one(root, places)
    for place in places:
        os.close(place.lock)
    refuse_leftover(stage_of(root / "a"))
    refuse_leftover(stage_of(root, "one"))
    save_all_to_a(root, no_step)
    assert not stage_of(root / "a").exists()
    assert state(root)["a/m.xml"] == "new m.xml"


def test_a_save_that_ends_while_a_load_looks_is_no_trouble(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = stage_of(root / "a") / "old" / "b"
    left.mkdir(parents=True)
    real = os.scandir

    def late(path: str) -> object:
        if Path(path) == left:
            left.rmdir()
        return real(path)

    monkeypatch.setattr(os, "scandir", late)
    refuse_leftover(stage_of(root / "a"))
    assert not left.exists()


@pytest.mark.parametrize("link", ["", LOCK])
def test_a_link_to_nothing_in_the_place_of_the_lock_is_refused(root: Path, link: str) -> None:
    place = stage_of(root / "a") / link
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(root / "nothing" / "there")
    with pytest.raises(ModelFileError, match="cannot be written"):
        stage_nothing(root / "a")


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
