"""Files replaced together or not at all, whenever the process dies.

New files are written into a hidden folder beside their place, forced to disk and moved in last. Two files cannot be
renamed as one, so a pair is swapped in the only order in which no moment shows an .xml beside a .bin that is not its
own: old .xml aside, old .bin aside, new .bin in, new .xml in. With several pairs all old .xml go first and all new ones
come last, so that no two models of different saves are seen together either. A folder that does not exist yet appears
with all its files by one rename.

The hidden folder is locked while the save runs, and so is told from one that a dead process left behind. A second save
refuses, and so does a load of files that were moved. What a dead one left is told with both ways out: either set of
files may be the wanted one, so nothing is guessed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ovgraft.errors import ModelFileError
from ovgraft.ir.files import file_error, sync
from ovgraft.ir.locking import LOCK, is_locked, keep_unlocked, lock_folder, remove_locked
from ovgraft.paths import path_name

SUFFIX = ".ovgraft-save"

_NEW = "new"  # files being written
_READY = "ready"  # what _NEW is called once it is whole everywhere and the swap begins
_OLD = "old"  # what the swap moved aside
_DONE = "done"  # what _OLD is called once nobody may go back to it, because it is being deleted
_OTHERS = "others"  # the hidden folders of the other places of the same save, one a line

OnStep = Callable[[str], None]


@dataclass
class Place:
    """A folder that a save writes into.

    Attributes:
        folder: Where the files end up.
        stage: The hidden folder, on the same filesystem.
        lock: Handle of the lock on it.
        fresh: ``folder`` does not exist yet and comes with all its files at once.
        files: Staged files, relative to ``folder``.
        obsolete: Files of ``folder`` that go away in the swap.
        lasting: Force everything to disk before it counts as saved. Copies that replace nothing can do without, as
            with cp: a power cut may cost them, not their source, and a short .bin is refused by its size.
    """

    folder: Path
    stage: Path
    lock: int
    fresh: bool
    files: list[Path] = field(default_factory=list)
    obsolete: list[Path] = field(default_factory=list)
    lasting: bool = True

    def new(self, file: Path) -> Path:
        """Where to write a staged file; ``file`` is relative to ``folder``."""
        path = self.staged(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.files.append(file)
        return path

    def staged(self, file: Path) -> Path:
        """Where a staged file lies until the swap."""
        return self.stage / _NEW / file


def is_stage(path: Path) -> bool:
    """Whether this is a hidden folder of a save, running or dead."""
    return path.name.startswith(".") and path.name.endswith(SUFFIX)


def stage_of(folder: Path, file: str | None = None) -> Path:
    """The hidden folder of a save.

    Args:
        folder: The output folder; with ``file`` the folder the IR lies in.
        file: Stem of the .xml when a single IR is saved.
    """
    if file is not None:
        return folder / f".{file}{SUFFIX}"
    return folder / SUFFIX if folder.is_dir() else folder.parent / f".{folder.name}{SUFFIX}"


def refuse_leftover(stage: Path, within: Path | None = None) -> None:
    """Refuse when a save is in the middle of its swap, or died there.

    Args:
        stage: The hidden folder to look for.
        within: Look only at what it holds of this folder, relative to the place.

    Raises:
        ModelFileError: Files of the place lie in the hidden folder.
    """
    moved = [stage / part / (within or Path()) for part in (_OLD, _READY)]
    if not any(map(_files, moved)):
        return
    with keep_unlocked(stage) as free:
        if free is False:
            raise _running(stage)
        if any(map(_files, moved)):  # else it has come to its end since
            raise _running(stage) if is_locked(stage) else _leftover(stage, sure=free is not None)


def _files(folder: Path) -> list[Path]:
    # os.walk takes a folder that goes meanwhile for an empty one
    return sorted(Path(place, name).relative_to(folder) for place, _, names in os.walk(folder) for name in names)


def _holds_something(stage: Path) -> bool:
    """Whether anything lies there to decide about; a process that died as it cleaned up leaves nothing."""
    if not stage.is_dir():
        return stage.exists()
    left = [path for path in stage.iterdir() if path.name not in (LOCK, _DONE, _OTHERS)]
    return any(path.name not in (_OLD, _READY) or _files(path) for path in left)


def _running(stage: Path) -> ModelFileError:
    return ModelFileError(f"another ovgraft is saving here, in {stage}", file=stage, hint="run again when it is done")


def _leftover(stage: Path, *, sure: bool) -> ModelFileError:
    """Say what an interrupted save left and both ways out of it."""
    stages = [stage]
    if (stage / _OTHERS).is_file():
        stages += [Path(os.path.normpath(stage / line)) for line in (stage / _OTHERS).read_text("utf-8").splitlines()]
    old = [each for each in stages if _files(each / _OLD)]
    ready = [each for each in stages if _files(each / _READY)]
    delete = f"delete {_listed(stages)}"
    undo = f"move all files {_listed(f'from {each / _OLD} to {each.parent}' for each in old)}"
    finish = f"move all files {_listed(f'from {each / _READY} to {each.parent}' for each in ready)}"
    if any((each / _NEW).is_dir() for each in stages) or not (old or ready):
        said, hint = "nothing was replaced yet", delete
    elif not ready:
        said, hint = "the new files are in place", f"{delete} to keep them; to go back, first {undo}"
    elif not old:
        said, hint = "not all new files were moved in yet", f"to finish it, {finish}; then {delete}"
    else:
        said = "files were moved aside, and not all new ones moved in yet"
        hint = f"to finish it, {finish}; to go back, {undo}; then {delete}"
    what = "an earlier save was interrupted" if sure else "an earlier save was interrupted, or another one is running,"
    return ModelFileError(f"{what} in {stage}: {said}", file=stage, hint=hint)


def _listed(items: Iterable[object]) -> str:
    return " and ".join(str(item) for item in items)


def _open(folder: Path, file: str | None) -> Place:
    stage = stage_of(folder, file)
    if not stage.parent.is_dir():
        raise ModelFileError(f"the folder {stage.parent} does not exist", file=folder, hint="make it first")
    if not os.access(stage.parent, os.W_OK | os.X_OK):
        raise ModelFileError(f"the folder {stage.parent} cannot be written to", file=folder)
    try:
        lock = lock_folder(stage)
    except BlockingIOError as error:
        raise _running(stage) from error
    except OSError as error:
        if _holds_something(stage):
            raise _leftover(stage, sure=False) from error
        raise file_error(error, stage.parent) from error
    try:
        if _holds_something(stage):
            raise _leftover(stage, sure=is_locked(stage) is not None)
        _empty(stage)
        (stage / _NEW).mkdir()
    except BaseException as error:
        remove_locked(stage, lock)
        if isinstance(error, OSError):
            raise file_error(error, stage.parent) from error
        raise
    return Place(folder, stage, lock, fresh=not folder.is_dir())


def _refuse_neighbours(places: Iterable[Place], folder: Path, file: str | None) -> None:
    """Refuse saves, at work or dead in their swap, in other hidden folders that write the same files.

    They are those of the graft around the folder, of the packages and single IRs within it, of the folder itself when
    one IR of it is saved, and of the folder from when it did not exist yet.
    """
    home = Path(os.path.abspath(folder))
    around, unborn = home.parent / SUFFIX, home.parent / f".{home.name}{SUFFIX}"
    within = [*home.glob(f"*{SUFFIX}"), *home.glob(f"*/*{SUFFIX}")] if file is None else [home / SUFFIX]
    own = {os.path.realpath(place.stage) for place in places}
    for stage in (around, unborn, *within):
        if os.path.realpath(stage) in own:
            continue
        if is_locked(stage):
            raise _running(stage)
        if stage is not unborn:  # it moves one folder, whole; single IRs beside the folder use the same name
            refuse_leftover(stage, Path(home.name) if stage is around else None)


@contextlib.contextmanager
def staging(folders: Sequence[tuple[Path, str | None]], on_step: OnStep) -> Iterator[list[Place]]:
    """Stage files in the body, swap all of them in at its end.

    Args:
        folders: The folders, each with the stem of the .xml when a single IR is saved.
        on_step: Called with a few words before every step that touches the disk.

    Yields:
        One place for each folder.

    Raises:
        ModelFileError: A folder is missing or cannot be written to, holds a leftover, somebody else is saving there,
            or the disk fails. Whatever is raised, in the body too, everything is as it was.
    """
    places: list[Place] = []
    done: list[tuple[Path, Path]] = []
    made: list[Path] = []
    try:
        for folder, file in folders:
            on_step(f"stage {path_name(folder)}")
            places.append(_open(folder, file))
        for folder, file in folders:
            _refuse_neighbours(places, folder, file)
        for place in places if len(places) > 1 else ():
            others = [os.path.relpath(other.stage, place.stage) for other in places if other is not place]
            (place.stage / _OTHERS).write_text("\n".join(others), "utf-8")
        yield places
        _sync_staged(places, on_step)
        _swap(places, done, made, on_step)
    except BaseException as error:
        _undo(places, done, made)
        if isinstance(error, OSError):
            raise file_error(error, Path(error.filename or places[-1].folder)) from error
        raise
    try:
        on_step("clean up")
    finally:
        _remove_stages(places)


def _remove_stages(places: list[Place]) -> None:
    for place in places:
        with contextlib.suppress(OSError):
            os.rename(place.stage / _OLD, place.stage / _DONE)
    for place in places:
        _empty(place.stage)
        remove_locked(place.stage, place.lock)


def _empty(stage: Path) -> None:
    """Delete all of a hidden folder but its lock, as far as that can be."""
    with contextlib.suppress(OSError):
        for entry in [entry for entry in os.scandir(stage) if entry.name != LOCK]:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry, ignore_errors=True)
            else:
                os.unlink(entry)


def _sync_staged(places: list[Place], on_step: OnStep) -> None:
    for place in places:
        for file in place.files if place.lasting else ():
            on_step(f"sync {file}")
            sync(place.staged(file))


def _swap(places: list[Place], done: list[tuple[Path, Path]], made: list[Path], on_step: OnStep) -> None:
    """Move everything; ``done`` and ``made`` grow with what was moved and which folders were made."""

    def move(source: Path, target: Path, what: str) -> None:
        absent = [parent for parent in target.parents if not parent.exists()]
        made.extend(absent)
        for folder in reversed(absent):
            folder.mkdir()
        on_step(what)
        os.rename(source, target)
        done.append((source, target))

    standing = [place for place in places if not place.fresh]
    for place in standing:
        move(place.stage / _NEW, place.stage / _READY, f"{path_name(place.folder)} ready")
    entering = [(place, file) for place in standing for file in place.files]
    leaving = [(place, file) for place, file in entering if os.path.lexists(place.folder / file)]
    leaving += [(place, file) for place in standing for file in place.obsolete]
    alone = entering if leaving == entering and [file.suffix for _, file in entering] == [".xml"] else []
    for place, file in alone:
        # a single .xml whose .bin stays is never missing: one name replaces the other
        kept, target = place.stage / _OLD / file, place.folder / file
        kept.parent.mkdir(parents=True)
        os.link(target, kept, follow_symlinks=False)
        on_step(f"new {file} in")
        os.replace(place.stage / _READY / file, target)
        done.append((target, kept))
    if not alone:
        for place, file in sorted(leaving, key=lambda item: item[1].suffix != ".xml"):
            move(place.folder / file, place.stage / _OLD / file, f"old {file} aside")
        for place, file in sorted(entering, key=lambda item: item[1].suffix == ".xml"):
            move(place.stage / _READY / file, place.folder / file, f"new {file} in")
    for place in places:
        if place.fresh:
            move(place.stage / _NEW, place.folder, f"new {path_name(place.folder)} in")
    lasting = [place for place in places if place.lasting]
    changed = {(place.folder / file).parent for place in lasting for file in (*place.files, *place.obsolete)}
    for folder in sorted(changed | {place.folder.parent for place in lasting if place.fresh}):
        on_step(f"sync {path_name(folder)}")
        sync(folder)


def _undo(places: list[Place], done: list[tuple[Path, Path]], made: list[Path]) -> None:
    try:
        for source, target in reversed(done):
            os.replace(target, source)
        for folder in sorted(made, reverse=True):
            if folder.exists():
                folder.rmdir()
    except OSError as error:
        for place in places:
            os.close(place.lock)
        raise _leftover(places[0].stage, sure=True) from error
    _remove_stages(places)
