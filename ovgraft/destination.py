"""Where the files of a graft go, and what is refused before the first one is written."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ovgraft.errors import ModelFileError
from ovgraft.passbase import ModelRole
from ovgraft.paths import path_name

if TYPE_CHECKING:
    from ovgraft.ir.files import Stamp
    from ovgraft.ir.save import Plan
    from ovgraft.ir.staging import Place
    from ovgraft.package import Package

GRAFT_FILE = "graft.json"
"""Record of a graft beside ``target/`` and ``draft/``; its ``"files"`` lists what the graft wrote."""

_ANY_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH

Packages = Mapping[ModelRole, "Package"]
Folders = list[tuple[Path, str | None]]
"""Folders to write into, each with the stem of the .xml when a single IR is saved."""


@dataclass
class Job:
    """One package on its way to one place.

    Attributes:
        role: Which package.
        package: The package.
        prefix: Its folder within the place.
        stem: File name of the main IR there.
        plans: What each live IR needs.
        carried: Files that are copied as they are, by their path in the package folder.
        stamps: What these files were when the save began.
    """

    role: ModelRole
    package: Package
    prefix: Path
    stem: str
    plans: dict[str, Plan] = field(default_factory=dict)
    carried: dict[Path, Path] = field(default_factory=dict)
    stamps: dict[Path, Stamp | None] = field(default_factory=dict)

    def xml(self, name: str) -> Path:
        """File of an IR within the place."""
        stem = self.stem if name == self.package.main_name else name
        return self.prefix / f"{stem}.xml"


def layout(packages: Packages, out: Path) -> tuple[list[Job], Folders]:
    """Jobs that all write into the one place ``out``."""
    if "draft" in packages:
        jobs = [Job(role, package, Path(role), package.main_name) for role, package in packages.items()]
        return jobs, [(out, None)]
    package = packages["target"]
    if package.kind == "xml":
        return [Job("target", package, Path(), out.stem)], [(out.parent, out.stem)]
    return [Job("target", package, Path(), package.main_name)], [(out, None)]


def layout_in_place(packages: Packages, *, extra_files: bool) -> tuple[list[Job], Folders]:
    """One place for each package, and one more for extra files beside a pair of them.

    Raises:
        ValueError: There are extra files and no folder that holds the pair as ``target`` and ``draft``.
    """
    jobs = [Job(role, package, Path(), package.main_name) for role, package in packages.items()]
    folders: Folders = [
        (package.folder, package.main_name if package.kind == "xml" else None) for package in packages.values()
    ]
    if extra_files and "draft" in packages:
        home = packages["target"].folder.parent
        if any(package.folder != home / role for role, package in packages.items()):
            raise ValueError("extra files beside a pair saved in place: it must lie in FOLDER/target and FOLDER/draft")
        folders.append((home, None))
    return jobs, folders


def carried(job: Job) -> dict[Path, Path]:
    """Files copied as they are: all of a folder but the live IRs and what a checkpoint leaves behind.

    Raises:
        ModelFileError: Something in the folder cannot be copied.
    """
    from ovgraft.ir.files import walk_files

    live = {Path(f"{name}{suffix}") for name in job.package.models for suffix in (".xml", ".bin")}
    files = walk_files(job.package.folder)
    return {file: job.prefix / file for file in files if file not in live and job.package.carries(file)}


def stamps(job: Job) -> dict[Path, Stamp | None]:
    """What the files that are copied as they are look like now."""
    from ovgraft.ir.files import stamp

    return {file: stamp(job.package.folder / file) for file in job.carried}


def obsolete(place: Place) -> list[Path]:
    """Files that an earlier graft wrote here by its own record and this one does not."""
    try:
        names = json.loads((place.folder / GRAFT_FILE).read_bytes())["files"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    if not isinstance(names, list):
        return []
    new, found = set(place.files), []
    for name in names:
        file = PurePosixPath(name) if isinstance(name, str) else PurePosixPath("/")
        # the record is text that anybody may have written
        if file.is_absolute() or ".." in file.parts or Path(file) in new:
            continue
        path = place.folder / file
        within = Path(os.path.realpath(path.parent)) == Path(os.path.realpath(place.folder)) / file.parent
        if within and (path.is_file() or path.is_symlink()):
            found.append(Path(file))
    return found


def check_in_place(packages: Packages, out: Path | None) -> None:
    """An output beside ``in_place`` can only name the input once more.

    Raises:
        ModelFileError: It names something else.
    """
    if out is None or ("draft" not in packages and _same(out, packages["target"].path)):
        return
    raise ModelFileError(f"in place means the input itself, not {out}", file=out, hint="leave out the output")


def check_jobs_replaceable(jobs: list[Job]) -> None:
    """:func:`check_replaceable` for what is known before the work."""
    files = []
    for job in jobs:
        if job.package.config_file.text is not None:
            files.append(job.package.config_file.path)
        for name, plan in job.plans.items():
            if plan.change != "none":
                files.append(job.package.xml(name))
            if plan.change == "full":
                files.append(job.package.bin(name))
    check_replaceable(files)


def check_replaceable(files: Iterable[Path]) -> None:
    """A rename needs no right to write a file, so it is asked for here; of a link, what it names stays as it is.

    Raises:
        ModelFileError: A file that an in-place save would replace is write-protected.
    """
    for file in files:
        if not file.exists() or file.is_symlink():
            continue
        if not file.stat().st_mode & _ANY_WRITE or not os.access(file, os.W_OK):
            raise ModelFileError(
                f"{file.name} is write-protected", file=file, hint="chmod u+w it, or name an output instead"
            )


def check_output(packages: Packages, out: Path, *, force: bool) -> None:
    """Whether a save may go there.

    Raises:
        ModelFileError: It is of another kind than the input, is or holds the input, exists, or an earlier save of it
            died in its swap.
    """
    from ovgraft.ir.staging import refuse_leftover, stage_of

    single_xml = out.suffix == ".xml"
    target = packages["target"]
    if single_xml and "draft" in packages:
        raise ModelFileError(f"a target and its draft need a folder, not {out.name}", file=out, hint="name a folder")
    if "draft" not in packages and single_xml != (target.kind == "xml"):
        kind, other = ("an .xml", "a folder") if target.kind == "xml" else ("a folder", "an .xml")
        text = f"the input is {kind}, the output {path_name(out)} is {other}"
        raise ModelFileError(text, file=out, hint=f"name {kind}")
    for package in packages.values():
        _check_input(package, out)
    _check_kind(packages, out)
    if out.exists() and not single_xml and not out.is_dir():
        raise ModelFileError(f"{out} is a file, the output must be a folder", file=out)
    refuse_leftover(stage_of(out.parent, out.stem) if single_xml else stage_of(out))
    taken = [path for path in ((out, out.with_suffix(".bin")) if single_xml else (out,)) if _stands(path)]
    if taken and not force:
        raise ModelFileError(f"{taken[0]} exists", file=taken[0], hint="say --force to replace it")


def check_targets(packages: Packages, place: Place, *, force: bool) -> None:
    """Beside an .xml may lie anything: further IRs replace nothing unasked, and the input never.

    Raises:
        ModelFileError: A file to be written is there already, or belongs to the input.
    """
    inputs = {os.path.realpath(package.xml(name)) for package in packages.values() for name in package.models}
    for file in place.files:
        path = place.folder / file
        if os.path.realpath(path) in inputs:
            raise ModelFileError(f"{path} belongs to the input", file=path, hint="name another folder")
        if not force and os.path.lexists(path):
            raise ModelFileError(f"{path} exists", file=path, hint="say --force to replace it")


def _check_kind(packages: Packages, out: Path) -> None:
    """Files that are not written now stay, so a pair and a single model do not replace each other.

    Raises:
        ModelFileError: ``out`` holds the other kind.
    """
    if out.suffix == ".xml" or not out.is_dir():
        return
    single = any(out.glob("*.xml"))
    pair = any((out / role).is_dir() and any((out / role).glob("*.xml")) for role in ("target", "draft"))
    if "draft" in packages and single:
        raise ModelFileError(
            f"{path_name(out)} holds a model, a target and its draft do not replace it",
            file=out,
            hint="name another folder, or delete this one",
        )
    if "draft" not in packages and pair:
        raise ModelFileError(
            f"{path_name(out)} holds a target and its draft, one model does not replace them",
            file=out,
            hint="name another folder, or delete this one",
        )


def _same(a: Path, b: Path) -> bool:
    return os.path.realpath(a) == os.path.realpath(b)


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
