"""Where the files of a graft go, what is refused beforehand, and the one swap that puts them there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

from ovgraft.drafts.contract import Key
from ovgraft.errors import ModelFileError
from ovgraft.passbase import ModelRole

if TYPE_CHECKING:
    from ovgraft.graft import Package
    from ovgraft.ir.save import Change, Plan
    from ovgraft.ir.staging import Place

Weights = Literal["copy", "link"]

GRAFT_FILE = "graft.json"
"""Record of a graft beside ``target/`` and ``draft/``; its ``"files"`` lists what the graft wrote."""


@dataclass(frozen=True)
class SavedModel:
    """One IR after a save.

    Attributes:
        role: The package it belongs to.
        name: File name without suffix.
        change: ``none``, ``metadata`` (new .xml, same weights) or ``full`` (OpenVINO wrote both files).
        reason: Why ``full``: the first difference to what was read.
        digest: blake3 of the .bin in hex; None when nobody has computed it yet.
    """

    role: ModelRole
    name: str
    change: Change
    reason: str
    digest: str | None


@dataclass(frozen=True)
class Saved:
    """What a save wrote.

    Attributes:
        folders: The folders written into; the first one is the output folder.
        models: All IRs that were loaded or added.
        files: Everything written, relative to its folder, with slashes, in alphabetical order.
    """

    folders: tuple[Path, ...]
    models: tuple[SavedModel, ...]
    files: tuple[str, ...]


ExtraFiles = Mapping[str, bytes] | Callable[[Saved], Mapping[str, bytes]]


@dataclass
class _Job:
    """One package on its way to one place.

    Attributes:
        prefix: Its folder within the place.
        stem: File name of the main IR there.
        plans: What each loaded IR needs.
        carried: Files that are copied as they are, by their path in the package folder.
    """

    role: ModelRole
    package: Package
    prefix: Path
    stem: str
    plans: dict[str, Plan] = field(default_factory=dict)
    carried: dict[Path, Path] = field(default_factory=dict)

    def xml(self, name: str) -> Path:
        stem = self.stem if name == self.package.main_name else name
        return self.prefix / f"{stem}.xml"


def save(
    packages: Mapping[ModelRole, Package],
    out: Path | None,
    *,
    force: bool,
    in_place: bool,
    weights: Weights,
    extra_files: ExtraFiles,
    on_step: Callable[[str], None],
) -> Saved:
    """Write packages; see :meth:`ovgraft.graft.Graft.save`."""
    from ovgraft.ir.files import write_file
    from ovgraft.ir.staging import staging

    if in_place:
        _check_in_place(packages, out)
        jobs, folders = _layout_in_place(packages, extra_files)
    else:
        jobs, folders = _layout(packages, _checked(packages, out, force))
    for job in jobs:
        job.plans = job.package.plan_save()
        if not in_place and job.package.kind == "folder":
            job.carried = _carried(job)
        elif not in_place:
            # what lies beside a single .xml was only looked at
            main = job.package.main_name
            job.plans = {name: plan for name, plan in job.plans.items() if name == main or plan.change != "none"}
    if in_place and not extra_files and all(plan.change == "none" for job in jobs for plan in job.plans.values()):
        return Saved((), tuple(_saved_model(job, name) for job in jobs for name in job.plans), ())
    with staging(folders, on_step) as places:
        models = []
        homes = places[: len(jobs)] if in_place else places * len(jobs)
        _check_room(jobs, homes, weights, in_place)
        for job, place in zip(jobs, homes, strict=True):
            models += _stage(job, place, weights, in_place, on_step)
        saved = Saved(tuple(place.folder for place in places), tuple(models), _names(places))
        for name, data in (extra_files(saved) if callable(extra_files) else extra_files).items():
            on_step(f"write {name}")
            write_file(places[-1].new(Path(name)), data)
        if not in_place:
            _check_targets(packages, places[0], force)
            places[0].obsolete = _obsolete(places[0])
            replaces = places[0].obsolete or any(os.path.lexists(places[0].folder / file) for file in places[0].files)
            places[0].lasting = bool(replaces) or any(model.change == "full" for model in models)
        saved = Saved(saved.folders, saved.models, _names(places))
    if in_place:
        for job in jobs:
            job.package.settle(job.plans)
    return saved


def _names(places: list[Place]) -> tuple[str, ...]:
    return tuple(sorted(file.as_posix() for place in places for file in place.files))


# --- what goes where


def _layout(packages: Mapping[ModelRole, Package], out: Path) -> tuple[list[_Job], list[tuple[Path, str | None]]]:
    """Jobs that all write into the one place ``out``."""
    if "draft" in packages:
        jobs = [_Job(role, package, Path(role), package.main_name) for role, package in packages.items()]
        return jobs, [(out, None)]
    package = packages["target"]
    if package.kind == "xml":
        return [_Job("target", package, Path(), out.stem)], [(out.parent, out.stem)]
    return [_Job("target", package, Path(), package.main_name)], [(out, None)]


def _layout_in_place(
    packages: Mapping[ModelRole, Package], extra_files: ExtraFiles
) -> tuple[list[_Job], list[tuple[Path, str | None]]]:
    """One place for each package, and one more for extra files beside a pair of them."""
    jobs = [_Job(role, package, Path(), package.main_name) for role, package in packages.items()]
    folders = [(package.folder, package.main_name if package.kind == "xml" else None) for package in packages.values()]
    if extra_files and "draft" in packages:
        home = packages["target"].folder.parent
        if any(package.folder != home / role for role, package in packages.items()):
            raise ValueError(
                "extra files of a pair that is saved in place need it to lie in FOLDER/target, FOLDER/draft"
            )
        folders.append((home, None))
    return jobs, folders


def _carried(job: _Job) -> dict[Path, Path]:
    """Files copied as they are: all of a folder but the IRs that are loaded, and what a checkpoint leaves behind."""
    planned = {Path(f"{name}{suffix}") for name in job.plans for suffix in (".xml", ".bin")}
    return {
        file: job.prefix / file
        for file in _walk(job.package.folder, Path(), ())
        if file not in planned and job.package.carries(file)
    }


def _walk(folder: Path, below: Path, parents: tuple[str, ...]) -> list[Path]:
    """All files, relative to the package; links are followed, hidden folders (a save's, git's) are left out."""
    here = os.path.realpath(folder / below)
    if here in parents:
        raise ModelFileError(f"the links in {folder.name} lead in a circle at {below}", file=folder / below)
    files: list[Path] = []
    for entry in sorted(os.scandir(here), key=lambda entry: entry.name):
        path = below / entry.name
        if entry.is_dir():
            if not entry.name.startswith("."):
                files += _walk(folder, path, (*parents, here))
        elif entry.is_file():
            files.append(path)
        else:
            raise ModelFileError(
                f"{path} is a link to nothing" if entry.is_symlink() else f"{path} is no regular file",
                file=folder / path,
                hint="remove it from the package",
            )
    return files


def _obsolete(place: Place) -> list[Path]:
    """Files that an earlier graft wrote here by its own record and this one does not."""
    record = place.folder / GRAFT_FILE
    try:
        names = json.loads(record.read_bytes())["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    if not isinstance(names, list):
        return []
    new, obsolete = set(place.files), []
    for name in names:
        file = PurePosixPath(name) if isinstance(name, str) else PurePosixPath("/")
        # the record is text that anybody may have written
        if file.is_absolute() or ".." in file.parts or Path(file) in new:
            continue
        path = place.folder / file
        within = Path(os.path.realpath(path.parent)) == Path(os.path.realpath(place.folder)) / file.parent
        if within and (path.is_file() or path.is_symlink()):
            obsolete.append(Path(file))
    return obsolete


# --- what is refused


def _check_in_place(packages: Mapping[ModelRole, Package], out: Path | None) -> None:
    if out is not None and not ("draft" not in packages and _same(out, packages["target"].path)):
        raise ModelFileError(f"in place means the input itself, not {out}", file=out, hint="leave out the output")


def _same(a: Path, b: Path) -> bool:
    return os.path.realpath(a) == os.path.realpath(b)


def _checked(packages: Mapping[ModelRole, Package], out: Path | None, force: bool) -> Path:
    """``out``, when it may be written to."""
    from ovgraft.ir.staging import refuse_leftover, stage_of

    if out is None:
        raise TypeError("save() needs an output path, or in_place=True")
    target = packages["target"]
    single = "draft" not in packages
    if not single and out.suffix == ".xml":
        raise ModelFileError(f"a target and its draft need a folder, not {out.name}", file=out, hint="name a folder")
    if single and (out.suffix == ".xml") != (target.kind == "xml"):
        kind, other = ("an .xml", "a folder") if target.kind == "xml" else ("a folder", "an .xml")
        raise ModelFileError(f"the input is {kind}, the output {out.name} is {other}", file=out, hint=f"name {kind}")
    for package in packages.values():
        _check_input(package, out)
    if out.exists() and out.suffix != ".xml" and not out.is_dir():
        raise ModelFileError(f"{out} is a file, the output must be a folder", file=out)
    refuse_leftover(stage_of(out.parent, out.stem) if out.suffix == ".xml" else stage_of(out))
    taken = [path for path in ((out, out.with_suffix(".bin")) if out.suffix == ".xml" else (out,)) if _stands(path)]
    if taken and not force:
        raise ModelFileError(f"{taken[0]} exists", file=taken[0], hint="say --force to replace it")
    return out


def _stands(path: Path) -> bool:
    return os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir()))


def _check_input(package: Package, out: Path) -> None:
    given, place = Path(os.path.realpath(package.path)), Path(os.path.realpath(out))
    if given == place:
        raise ModelFileError(f"{out} is the input", file=out, hint="say --in-place to replace it")
    if out.suffix == ".xml":
        return
    if given.is_relative_to(place):
        raise ModelFileError(f"{out} holds the input {package.path}", file=out, hint="name another folder")
    if package.kind == "folder" and place.is_relative_to(given):
        raise ModelFileError(f"{out} lies within the input {package.path}", file=out, hint="name another folder")


# --- writing


def _check_targets(packages: Mapping[ModelRole, Package], place: Place, force: bool) -> None:
    """Beside an .xml may lie anything: further IRs replace nothing unasked, and the input never."""
    inputs = {os.path.realpath(package.xml(name)) for package in packages.values() for name in package.models}
    for file in place.files:
        path = place.folder / file
        if os.path.realpath(path) in inputs:
            raise ModelFileError(f"{path} belongs to the input", file=path, hint="name another folder")
        if not force and os.path.lexists(path):
            raise ModelFileError(f"{path} exists", file=path, hint="say --force to replace it")


def _check_room(jobs: list[_Job], places: list[Place], weights: Weights, in_place: bool) -> None:
    """Refuse before the first byte what cannot fit."""
    needed: dict[int, int] = {}
    for job, place in zip(jobs, places, strict=True):
        device = place.stage.stat().st_dev
        needed[device] = needed.get(device, 0) + _room(job, place, weights, in_place)
    for place in places:
        need, free = needed[place.stage.stat().st_dev], shutil.disk_usage(place.stage).free
        if need > free:
            raise ModelFileError(
                f"not enough room on the disk for {place.folder}",
                file=place.folder,
                expected=f"{need} bytes",
                found=f"{free} bytes free",
            )


def _room(job: _Job, place: Place, weights: Weights, in_place: bool) -> int:
    """Bytes a job takes at most."""
    from ovgraft.ir.files import reflinks
    from ovgraft.ir.reading import bin_path
    from ovgraft.ir.save import weight_bytes

    models, folder = job.package.models, job.package.folder
    full = [name for name, plan in job.plans.items() if plan.change == "full"]
    room = sum(weight_bytes(models[name]) for name in full) + sum(len(plan.xml) for plan in job.plans.values())
    if in_place:
        return room
    files = [bin_path(job.package.xml(name)) for name in job.plans if name not in full]
    files += [folder / file for file in job.carried]
    copied = [file for file in files if file.exists() and not (weights == "link" and file.suffix == ".bin")]
    if copied and not reflinks(copied[0], place.stage):
        room += sum(file.stat().st_size for file in copied)
    return room


def _stage(
    job: _Job, place: Place, weights: Weights, in_place: bool, on_step: Callable[[str], None]
) -> list[SavedModel]:
    from ovgraft.ir.files import write_file
    from ovgraft.ir.reading import bin_path
    from ovgraft.ir.save import write_model

    models = []
    for name, plan in job.plans.items():
        xml, digest = job.xml(name), None
        source = bin_path(job.package.xml(name))
        if plan.change == "full":
            on_step(f"write {xml}")
            place.new(xml.with_suffix(".bin"))
            with _writing(place.folder / xml):
                digest = write_model(job.package.models[name], place.new(xml))
        elif not in_place or plan.change == "metadata":
            on_step(f"write {xml}")
            with _writing(place.folder / xml):
                write_file(place.new(xml), plan.xml)
            if not in_place and source.exists():
                _copy(source, xml.with_suffix(".bin"), place, weights, on_step)
        if in_place:
            for file in (xml, xml.with_suffix(".bin")):
                if file in place.files and (place.folder / file).exists():
                    shutil.copymode(place.folder / file, place.staged(file))
        models.append(_saved_model(job, name, digest))
    for file, target in job.carried.items():
        _copy(job.package.folder / file, target, place, weights, on_step)
    return models


def _copy(source: Path, target: Path, place: Place, weights: Weights, on_step: Callable[[str], None]) -> None:
    from ovgraft.ir.files import copy_file, link_file

    on_step(f"copy {target}")
    staged = place.new(target)
    if weights == "copy" or target.suffix != ".bin":
        with _writing(place.folder / target):
            copy_file(source, staged)
        return
    try:
        link_file(source, staged)
    except OSError as error:
        raise ModelFileError(
            f"{source.name} cannot be hard-linked there: {os.strerror(error.errno or 0).lower()}",
            file=place.folder / target,
            hint="leave out --weights link to copy it",
        ) from error


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    """Errors of the staged file are told of the file it was to become."""
    from ovgraft.ir.files import file_error

    try:
        yield
    except OSError as error:
        raise file_error(error, file) from error
    except ModelFileError as error:
        error.file = file
        raise


def _saved_model(job: _Job, name: str, digest: str | None = None) -> SavedModel:
    from ovgraft.ir.rtinfo import get_text

    plan = job.plans[name]
    if plan.change != "full":
        digest = get_text(job.package.models[name], Key.BIN_DIGEST)
    return SavedModel(job.role, name, plan.change, plan.reason, digest)
