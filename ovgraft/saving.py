"""Writing a graft: every IR by its plan, every other file as it is, and one swap that puts them all there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ovgraft import destination
from ovgraft.destination import GRAFT_FILE, Job, Packages
from ovgraft.drafts.contract import Key
from ovgraft.errors import ModelFileError
from ovgraft.passbase import ModelRole
from ovgraft.side_files import CONFIG_FILE

if TYPE_CHECKING:
    from ovgraft.ir.copying import BackgroundCopy
    from ovgraft.ir.files import Stamp
    from ovgraft.ir.save import Change
    from ovgraft.ir.staging import Place

__all__ = [
    "GRAFT_FILE",
    "ExtraFiles",
    "Saved",
    "SavedModel",
    "Weights",
    "save_elsewhere",
    "save_in_place",
    "saving_elsewhere",
]

Weights = Literal["copy", "link"]
OnStep = Callable[[str], None]


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


def save_in_place(packages: Packages, out: Path | None, extra_files: ExtraFiles, on_step: OnStep) -> Saved:
    """Write onto the input what changed; see :meth:`ovgraft.graft.Graft.save`."""
    from ovgraft.ir.staging import staging

    destination.check_in_place(packages, out)
    jobs, folders = destination.layout_in_place(packages, extra_files=bool(extra_files))
    for job in jobs:
        job.plans = job.package.plan_save()
    unchanged = all(plan.change == "none" for job in jobs for plan in job.plans.values())
    if not extra_files and unchanged and not any(job.package.config_file.text for job in jobs):
        return Saved((), tuple(_saved_model(job, name) for job in jobs for name in job.plans), ())
    destination.check_jobs_replaceable(jobs)
    with staging(folders, on_step) as places:
        _check_inputs(jobs)  # another save may have come and gone before this one had its lock
        homes = list(zip(jobs, places, strict=False))
        _check_room([(place, _room_for_models(job)) for job, place in homes])
        models = [model for job, place in homes for model in _write_models(job, place, on_step, None)]
        for job, place in homes:
            _write_config(job, place, Path(CONFIG_FILE), on_step)
        saved = _write_extra(places, models, extra_files, on_step)
        destination.check_replaceable(place.folder / file for place in places for file in place.files)
    for job in jobs:
        job.package.settle(job.plans)
    return saved


def save_elsewhere(
    packages: Packages, out: Path, *, force: bool, weights: Weights, extra_files: ExtraFiles, on_step: OnStep
) -> Saved:
    """Write everything to another folder or .xml; see :meth:`ovgraft.graft.Graft.save`."""
    with saving_elsewhere(packages, out, force=force, weights=weights, on_step=on_step) as finish:
        return finish(extra_files)


class _NotFinishedError(Exception):
    """Nobody asked for the save after all."""


@contextmanager
def saving_elsewhere(
    packages: Packages, out: Path, *, force: bool, weights: Weights, on_step: OnStep, kept: bool = False
) -> Iterator[Callable[[ExtraFiles], Saved]]:
    """Keep a save open while the packages are still worked on; see :meth:`ovgraft.graft.Graft.writing`.

    Yields:
        What writes them all; they get to their places when the block ends, or nowhere when it was not called.
    """
    from ovgraft.ir.staging import staging

    destination.check_output(packages, out, force=force)
    jobs, folders = destination.layout(packages, out)
    saved: list[Saved] = []
    try:
        with staging(folders, on_step) as places, _Ahead(places[0], weights, on_step) as ahead:
            if kept:
                ahead.copy([(job, job.package.main_name) for job in jobs])

            def finish(extra_files: ExtraFiles) -> Saved:
                saved.append(_stage(jobs, places[0], ahead, force=force, extra_files=extra_files))
                return saved[-1]

            yield finish
            if not saved:
                raise _NotFinishedError
    except _NotFinishedError:
        pass


def _stage(jobs: list[Job], place: Place, ahead: _Ahead, *, force: bool, extra_files: ExtraFiles) -> Saved:
    """Write everything into the hidden folder."""
    on_step = ahead.on_step
    for job in jobs:
        if job.package.kind == "folder":
            job.carried = destination.carried(job)
            job.stamps = destination.stamps(job)
    ahead.copy([(job, name) for job in jobs for name in job.package.models if job.package.looks_kept(name)])
    for job in jobs:
        job.plans = job.package.plan_save()
        if job.package.kind == "xml":
            # what lies beside a single .xml was only looked at
            main = job.package.main_name
            job.plans = {name: plan for name, plan in job.plans.items() if name == main or plan.change != "none"}
    ahead.drop_unneeded(jobs)
    _check_room([(place, _room_for_models(job) + _room_for_copies(job, place, ahead)) for job in jobs])
    models = []
    for job in jobs:
        models += _write_models(job, place, on_step, ahead.take)
        for file, target in job.carried.items():
            if file != Path(CONFIG_FILE) or not _write_config(job, place, target, on_step):
                ahead.take(job.package.folder / file, target)
    saved = _write_extra([place], models, extra_files, on_step)
    _check_inputs(jobs)  # nobody locks an input: what was copied may be of two saves
    destination.check_targets({job.role: job.package for job in jobs}, place, force=force)
    place.obsolete = destination.obsolete(place)
    replaces = bool(place.obsolete) or any(os.path.lexists(place.folder / file) for file in place.files)
    place.lasting = replaces or any(model.change == "full" for model in models)
    return saved


def _check_inputs(jobs: list[Job]) -> None:
    """Refuse an input that changed since it was read, or while it was copied."""
    for job in jobs:
        job.package.check_files()
        for file, stamp in destination.stamps(job).items():
            if stamp != job.stamps[file]:
                path = job.package.folder / file
                raise ModelFileError(f"{file} changed on disk while it was copied", file=path, hint="run again")


def _write_extra(places: list[Place], models: list[SavedModel], extra_files: ExtraFiles, on_step: OnStep) -> Saved:
    from ovgraft.ir.files import write_file

    def summary() -> Saved:
        files = sorted(file.as_posix() for place in places for file in place.files)
        return Saved(tuple(place.folder for place in places), tuple(models), tuple(files))

    for name, data in (extra_files(summary()) if callable(extra_files) else extra_files).items():
        on_step(f"write {name}")
        write_file(places[-1].new(Path(name)), data)
    return summary()


def _saved_model(job: Job, name: str, digest: str | None = None) -> SavedModel:
    from ovgraft import ir

    plan = job.plans[name]
    if plan.change != "full":
        digest = ir.get_text(job.package.models[name], Key.BIN_DIGEST)
    return SavedModel(job.role, name, plan.change, plan.reason, digest)


# --- room


def _check_room(needs: list[tuple[Place, int]]) -> None:
    """Refuse before the first byte what cannot fit."""
    needed: dict[int, int] = {}
    for place, need in needs:
        device = place.stage.stat().st_dev
        needed[device] = needed.get(device, 0) + need
    for place, _ in needs:
        need, free = needed[place.stage.stat().st_dev], shutil.disk_usage(place.stage).free
        if need > free:
            raise ModelFileError(
                f"not enough room on the disk for {place.folder}",
                file=place.folder,
                expected=f"{need} bytes",
                found=f"{free} bytes free",
            )


def _room_for_models(job: Job) -> int:
    """Bytes of new .xml and .bin files; what OpenVINO will write as .xml is guessed low."""
    from ovgraft.ir.save import weight_bytes, xml_bytes

    full = [job.package.models[name] for name, plan in job.plans.items() if plan.change == "full"]
    anew = sum(weight_bytes(model) + xml_bytes(model) for model in full)
    return anew + sum(len(plan.xml) for plan in job.plans.values())


def _room_for_copies(job: Job, place: Place, ahead: _Ahead) -> int:
    """Bytes of files that are copied, at most."""
    from ovgraft.ir.copying import reflinks

    bins = [job.package.bin(name) for name, plan in job.plans.items() if plan.change != "full"]
    files = [file for file in (*bins, *(job.package.folder / file for file in job.carried)) if file.exists()]
    copied = [file for file in files if not (ahead.weights == "link" and file.suffix == ".bin")]
    if not copied or reflinks(copied[0], place.stage):
        return 0
    return sum(file.stat().st_size - ahead.done(file) for file in copied)


# --- files


class _Ahead:
    """Copies files into a place, the largest .bin while something else is worked out, if it looks as if it will stay.

    Attributes:
        on_step: Called with a few words before every step that touches the disk.
    """

    def __init__(self, place: Place, weights: Weights, on_step: OnStep) -> None:
        self.on_step = on_step
        self.weights = weights
        self._place = place
        self._source: Path | None = None
        self._began: Stamp | None = None
        self._copy: BackgroundCopy | None = None

    def __enter__(self) -> _Ahead:
        return self

    def __exit__(self, *error: object) -> None:
        self._drop()

    def copy(self, models: list[tuple[Job, str]]) -> None:
        """Begin with the largest weights of some models, unless others are under way."""
        from ovgraft.ir.copying import BackgroundCopy
        from ovgraft.ir.files import stamp

        bins = [(job.package.bin(name), job, name) for job, name in models]
        bins = [found for found in bins if found[0].is_file()]
        if self._copy is not None or not bins or self.weights != "copy":
            return
        source, job, name = max(bins, key=lambda found: found[0].stat().st_size)
        if source.stat().st_size >= shutil.disk_usage(self._place.stage).free:
            return
        target = self._place.staged(job.xml(name).with_suffix(".bin"))
        self.on_step(f"copy {source.name} ahead")
        target.parent.mkdir(parents=True, exist_ok=True)
        self._source, self._began, self._copy = source, stamp(source), BackgroundCopy(source, target)

    def drop_unneeded(self, jobs: list[Job]) -> None:
        """The guess was wrong where OpenVINO is to write the .bin."""
        kept = {job.package.bin(name) for job in jobs for name, plan in job.plans.items() if plan.change != "full"}
        if self._source not in kept:
            self._drop()

    def done(self, source: Path) -> int:
        """Bytes of a file that are copied already."""
        return self._copy.done() if self._copy is not None and source == self._source else 0

    def take(self, source: Path, target: Path) -> None:
        """Have a file copied, relative to the place; what is under way is waited for."""
        from ovgraft.ir.copying import copy_file, link_file
        from ovgraft.ir.files import stamp

        self.on_step(f"copy {target}")
        file, staged = self._place.folder / target, self._place.new(target)
        if self._copy is not None and source == self._source:
            with _writing(file):
                self._copy.finish()
            self._copy = None
            if stamp(source) != self._began:
                raise ModelFileError(
                    f"{source.name} changed on disk while it was copied", file=source, hint="run again"
                )
        elif self.weights == "copy" or target.suffix != ".bin":
            with _writing(file):
                copy_file(source, staged)
        else:
            try:
                link_file(source, staged)
            except OSError as error:
                raise ModelFileError(
                    f"{source.name} cannot be hard-linked there: {os.strerror(error.errno or 0).lower()}",
                    file=file,
                    hint="leave out --weights link to copy it",
                ) from error

    def _drop(self) -> None:
        if self._copy is not None:
            self._copy.drop()
        self._copy = self._source = None


def _write_models(
    job: Job, place: Place, on_step: OnStep, copy: Callable[[Path, Path], None] | None
) -> list[SavedModel]:
    """Stage the live IRs; ``copy`` puts a .bin that stays as it is there, None where it is there already."""
    from ovgraft.ir.files import write_file
    from ovgraft.ir.save import write_model

    models = []
    for name, plan in job.plans.items():
        xml, digest = job.xml(name), None
        weights = xml.with_suffix(".bin")
        if plan.change == "full":
            on_step(f"write {xml}")
            place.new(weights)
            with _writing(place.folder / xml):
                digest = write_model(job.package.models[name], place.new(xml))
        elif copy is not None or plan.change == "metadata":
            on_step(f"write {xml}")
            with _writing(place.folder / xml):
                write_file(place.new(xml), plan.xml)
        if copy is None:
            for file in (file for file in (xml, weights) if file in place.files and (place.folder / file).exists()):
                shutil.copymode(place.folder / file, place.staged(file))
        elif plan.change != "full" and job.package.bin(name).exists():
            copy(job.package.bin(name), weights)
        models.append(_saved_model(job, name, digest))
    return models


def _write_config(job: Job, place: Place, target: Path, on_step: OnStep) -> bool:
    """Stage a config.json that a pass changed; False when none did."""
    from ovgraft.ir.files import write_file

    config = job.package.config_file
    if config.text is None:
        return False
    on_step(f"write {target}")
    with _writing(place.folder / target):
        write_file(place.new(target), config.text)
        shutil.copymode(config.path, place.staged(target))
    return True


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
