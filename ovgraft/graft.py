"""A target and its draft, the pair that passes edit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ovgraft import destination, saving
from ovgraft.errors import ModelFileError
from ovgraft.package import Package
from ovgraft.passbase import ModelRole

if TYPE_CHECKING:
    import openvino as ov

__all__ = ["Graft", "Package", "Snapshot", "load"]


@dataclass(frozen=True)
class Snapshot:
    """A graft at one moment.

    Attributes:
        models: Clones of all models.
        configs: What each config.json was to say, where a pass had changed it.
    """

    models: Mapping[ModelRole, Mapping[str, ov.Model]]
    configs: Mapping[ModelRole, dict[str, Any] | None]


@dataclass
class Graft:
    """The one thing passes edit: a target and, when there is one, its draft."""

    target: Package
    draft: Package | None = None

    @property
    def packages(self) -> dict[ModelRole, Package]:
        """The one or two packages by role."""
        packages: dict[ModelRole, Package] = {"target": self.target}
        if self.draft is not None:
            packages["draft"] = self.draft
        return packages

    def package(self, role: ModelRole) -> Package:
        """The package of a role.

        Raises:
            ModelFileError: There is no draft.
        """
        if role == "draft" and self.draft is None:
            raise ModelFileError("there is no draft", hint="name one with --draft")
        return self.packages[role]

    @property
    def draft_role(self) -> ModelRole:
        """The role of the package that a draft's checkpoint makes: its own, or the target's where it stands alone.

        Raises:
            ModelFileError: There is no draft, and the target is no checkpoint.
        """
        if self.draft is None and self.target.is_checkpoint:
            return "target"
        self.package("draft")
        return "draft"

    def snapshot(self) -> Snapshot:
        """Remember all live IRs, added ones too; weight memory is shared."""
        packages = self.packages.items()
        return Snapshot(
            {role: package.snapshot() for role, package in packages},
            {role: package.config_file.changed for role, package in packages},
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Bring all live IRs back to a snapshot, which stays usable."""
        for role, package in self.packages.items():
            package.restore(snapshot.models[role])
            package.config_file.changed = snapshot.configs[role]

    def check_output(self, out: str | Path, *, force: bool = False) -> None:
        """Tell at once what :meth:`save` would have against a place.

        Raises:
            ModelFileError: It is or holds the input, is of another kind, or exists.
        """
        destination.check_output(self.packages, Path(out), force=force)

    @contextmanager
    def writing(
        self,
        out: str | Path,
        *,
        force: bool = False,
        weights: saving.Weights = "copy",
        kept: bool = False,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> Iterator[Callable[[saving.ExtraFiles], saving.Saved]]:
        """Take ``out`` before the passes run, and save in the end what :meth:`save` would.

        What speaks against ``out`` is told at once, nobody else can save there meanwhile, and weights that will stay as
        they are are copied while the passes run.

        Args:
            out: As for :meth:`save`, and so are ``force``, ``weights`` and ``on_step``.
            force: Replace what is there.
            weights: How a .bin that stays as it is gets there.
            kept: The passes will most likely leave the weights as they are.
            on_step: Called before every step that touches the disk.

        Yields:
            A function that saves; its argument are the extra files. The files get to ``out`` when the block ends; when
            the function was not called, or on any error, nothing does.

        Raises:
            ModelFileError: As :meth:`save`.
        """
        with saving.saving_elsewhere(
            self.packages, Path(out), force=force, weights=weights, on_step=on_step, kept=kept
        ) as finish:
            yield finish

    def save(
        self,
        out: str | Path | None = None,
        *,
        force: bool = False,
        in_place: bool = False,
        weights: saving.Weights = "copy",
        extra_files: saving.ExtraFiles = MappingProxyType({}),
        on_step: Callable[[str], None] = lambda step: None,
    ) -> saving.Saved:
        """Write all packages: everything or nothing, whenever the process dies.

        Side files, and IRs that were never loaded, are carried as they are, but for a config.json that a pass changed;
        links are followed, hidden folders left out, and so are weights and tokenizer of a checkpoint whose IR was
        built. An IR in which only model-level
        rt_info changed gets a new .xml, its .bin is copied (or left alone, in place); any other change makes OpenVINO
        write both. The .bin's size goes into rt_info ``ovgraft/bin_size`` of every .xml written for a loaded IR, a
        digest into ``ovgraft/bin_blake3`` when its .bin is written anew. The same graft gives the same bytes.

        Args:
            out: A folder, or an .xml where the input was one; with a draft a folder that gets ``target`` and
                ``draft``. Parent folders are not made.
            force: Replace what is there. Files that are not written now stay, unless the ``"files"`` of a graft.json
                there names them; so a pair and a single model never replace each other.
            in_place: Write onto the input: only what changed, side files are not touched; nothing at all when nothing
                changed.
            weights: ``link`` makes a second name for each .bin that stays as it is instead of a copy.
            extra_files: Further files, relative to ``out``, or a function that makes them from what was saved. In
                place beside the input, for a pair only when it lies in ``FOLDER/target`` and ``FOLDER/draft``.
            on_step: Called with a few words before every step that touches the disk.

        Returns:
            What was written.

        Raises:
            ModelFileError: One clear sentence; the input is unharmed, and what was at ``out`` too. What a killed save
                left behind is such an error in the next one, because both sets of files may be wanted.
            TypeError: Neither ``out`` nor ``in_place``.
        """
        out = None if out is None else Path(out)
        if in_place:
            return saving.save_in_place(self.packages, out, extra_files, on_step)
        if out is None:
            raise TypeError("save() needs an output path, or in_place=True")
        return saving.save_elsewhere(
            self.packages, out, force=force, weights=weights, extra_files=extra_files, on_step=on_step
        )


def load(path: str | Path | None = None, *, target: str | Path | None = None, draft: str | Path | None = None) -> Graft:
    """Open one model, or a target with its draft.

    Args:
        path: A folder or .xml, the same as ``target``; or a folder that a graft was saved to.
        target: The model that is drafted for.
        draft: The draft model: a folder, an .xml, or the folder of a checkpoint.

    Raises:
        ModelFileError: Nothing there, no IR, or several to choose from.
        TypeError: Neither or both of ``path`` and ``target``.
    """
    if path is not None and target is None:
        folder = Path(path)
        if draft is None and (folder / saving.GRAFT_FILE).is_file() and (folder / "draft").is_dir():
            return Graft(Package(folder / "target"), Package(folder / "draft"))
        target = path
    elif path is not None or target is None:
        raise TypeError("load() takes a path or target=")
    return Graft(Package(target), None if draft is None else Package(draft))
