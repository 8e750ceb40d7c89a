"""Packages on disk and the pair of them that passes edit."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from ovgraft import ir
from ovgraft.drafts.contract import FileName
from ovgraft.errors import ModelFileError
from ovgraft.passbase import ModelRole

if TYPE_CHECKING:
    import openvino as ov

_TOKENIZERS = ("openvino_tokenizer", "openvino_detokenizer")


class Package:
    """A folder with IRs and their side files, or one .xml.

    Attributes:
        path: The folder or the .xml.
        kind: Which of the two.
    """

    def __init__(self, path: str | Path) -> None:
        """Look at the files; nothing is read yet.

        Raises:
            ModelFileError: Nothing there, no IR in the folder, or several candidates for the main one.
        """
        self.path = Path(path)
        self.kind: Literal["folder", "xml"] = "xml" if self.path.suffix == ".xml" else "folder"
        if not self.path.exists():
            raise ModelFileError(f"no such file or folder: {path}", file=self.path)
        self.is_checkpoint = False
        self.main_name = self._find_main()
        self._models: dict[str, ov.Model] = {}
        self._pristine: dict[str, ov.Model] = {}

    def _find_main(self) -> str:
        if self.kind == "xml":
            return self.path.stem
        known = [str(n) for n in (FileName.MODEL, FileName.LANGUAGE_MODEL) if self.xml(n).is_file()]
        names = known or sorted(p.stem for p in self.path.glob("*.xml") if p.stem not in _TOKENIZERS)
        if len(names) > 1:
            raise ModelFileError(f"several IRs to choose from: {', '.join(names)}", file=self.path)
        if names:
            return names[0]
        if (self.path / "config.json").is_file() and any(self.path.glob("*.safetensors")):
            self.is_checkpoint = True
            return str(FileName.MODEL)
        raise ModelFileError("no OpenVINO IR in this folder", file=self.path)

    @property
    def folder(self) -> Path:
        """Where the files lie."""
        return self.path.parent if self.kind == "xml" else self.path

    def xml(self, name: str) -> Path:
        """File of an IR of this package, whether it exists or not."""
        return self.folder / f"{name}.xml"

    @property
    def models(self) -> Mapping[str, ov.Model]:
        """The IRs read or added so far, by file name without suffix."""
        return MappingProxyType(self._models)

    def get(self, name: str) -> ov.Model | None:
        """An IR of the package, read at first use; None when there is none of this name."""
        if name not in self._models and self.xml(name).is_file():
            model = ir.read_model(self.xml(name))
            self._models[name] = model
            self._pristine[name] = model.clone()
        return self._models.get(name)

    def add(self, name: str, model: ov.Model) -> None:
        """Put a new IR, or another model under a known name, into the package; saved with it."""
        self._models[str(name)] = model

    @property
    def model(self) -> ov.Model:
        """The live main IR."""
        model = self.get(self.main_name)
        if model is None:
            raise ModelFileError(
                "this is a checkpoint, not an OpenVINO IR",
                file=self.path,
                hint="build the draft model from it first",
            )
        return model

    @model.setter
    def model(self, model: ov.Model) -> None:
        self._models[self.main_name] = model

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """config.json, {} when there is none."""
        file = self.folder / "config.json"
        if not file.is_file():
            return {}
        try:
            data = json.loads(file.read_text("utf-8"))
        except ValueError as error:
            raise ModelFileError("config.json is not valid JSON", file=file) from error
        if not isinstance(data, dict):
            raise ModelFileError("config.json is not a JSON object", file=file)
        return data


@dataclass(frozen=True)
class Snapshot:
    """Clones of all models of a graft at one moment."""

    models: Mapping[ModelRole, Mapping[str, ov.Model]]


@dataclass
class Graft:
    """The one thing passes edit: a target and, when there is one, its draft."""

    target: Package
    draft: Package | None = None

    def package(self, role: ModelRole) -> Package:
        """The package of a role.

        Raises:
            ModelFileError: There is no draft.
        """
        if role == "target":
            return self.target
        if self.draft is None:
            raise ModelFileError("this graft has no draft", hint="name one with --draft")
        return self.draft

    def _packages(self) -> dict[ModelRole, Package]:
        packages: dict[ModelRole, Package] = {"target": self.target}
        if self.draft is not None:
            packages["draft"] = self.draft
        return packages

    def snapshot(self) -> Snapshot:
        """Remember all loaded models; weight memory is shared."""
        return Snapshot(
            {
                role: {name: model.clone() for name, model in package._models.items()}
                for role, package in self._packages().items()
            }
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Bring all models back to a snapshot, which stays usable; IRs read or added since are forgotten."""
        for role, package in self._packages().items():
            models = snapshot.models[role]
            package._models = {name: model.clone() for name, model in models.items()}
            package._pristine = {name: model for name, model in package._pristine.items() if name in models}

    def save(
        self,
        out: str | Path | None = None,
        *,
        force: bool = False,
        in_place: bool = False,
        weights: Literal["copy", "link"] = "copy",
        extra_files: Mapping[str, bytes] | None = None,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        """Write the packages (to be hardened)."""
        import shutil

        import openvino as ov

        if out is None:
            raise ModelFileError("in-place save is not there yet")
        out = Path(out)
        if out.exists() and not force:
            raise ModelFileError(f"{out} exists", file=out, hint="say --force to replace it")
        roots = {"target": out / "target", "draft": out / "draft"} if self.draft is not None else {"target": out}
        for role, package in self._packages().items():
            root = roots[role]
            if package.kind == "folder":
                shutil.copytree(package.path, root, dirs_exist_ok=True, copy_function=shutil.copyfile)
            for name, model in package.models.items():
                file = root if root.suffix == ".xml" else root / f"{name}.xml"
                ov.save_model(model, file, compress_to_fp16=False)
        for name, data in (extra_files or {}).items():
            (out / name).write_bytes(data)


def load(path: str | Path | None = None, *, target: str | Path | None = None, draft: str | Path | None = None) -> Graft:
    """Open one model, or a target with its draft.

    Args:
        path: A folder or .xml; the same as ``target``.
        target: The model that is drafted for.
        draft: The draft model: a folder, an .xml, or the folder of a checkpoint.

    Raises:
        ModelFileError: Nothing there, no IR, or several to choose from.
    """
    if (path is None) == (target is None):
        raise TypeError("give either a path or target=")
    first = Package(path if path is not None else target)  # type: ignore[arg-type]
    return Graft(first, None if draft is None else Package(draft))
