"""A package: a folder or one .xml, its IRs read when asked for."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from ovgraft import ir
from ovgraft.drafts.contract import CHECKPOINT_WEIGHTS, FileName
from ovgraft.errors import ModelFileError
from ovgraft.paths import path_name
from ovgraft.side_files import CONFIG_FILE, ConfigFile

if TYPE_CHECKING:
    import openvino as ov

    from ovgraft.ir.save import Plan, Pristine, Source

_MAIN = (str(FileName.MODEL), str(FileName.LANGUAGE_MODEL))
_NEVER_MAIN = ("openvino_tokenizer", "openvino_detokenizer", "openvino_text_embeddings", "openvino_vision")
_LEFT_BEHIND = (
    *(*CHECKPOINT_WEIGHTS, "*.safetensors.index.json", "*.onnx.data", "*.onnx_data"),
    *("*.bin", "*.bin.index.json", "*.pkl", "*.gguf"),
    *("tokenizer*", "openvino_tokenizer.*", "openvino_detokenizer.*", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "chat_template*", "*.tiktoken", "spiece.model", "sentencepiece*.model"),
)
"""Weights and tokenizers of a checkpoint."""
_MASK_EMBEDDING = ("mask_embedding.safetensors", "mask_embedding.npz")


class Package:
    """A folder with IRs and their side files, or one .xml, or the folder of a checkpoint that has no main IR yet.

    Attributes:
        path: The folder or the .xml.
        kind: Which of the two.
        is_checkpoint: The folder holds config.json and weights, but no main IR.
        config_file: Its config.json.
        main_name: File name without suffix of the main IR: ``openvino_model``, ``openvino_language_model``, or what
            the only .xml is called; for a checkpoint the name its IR would have.
    """

    def __init__(self, path: str | Path) -> None:
        """Look at the files; none is read yet.

        Raises:
            ModelFileError: Nothing there, no IR in the folder, several candidates for the main one, or what is left of
                a save that died while it moved files.
        """
        self.path = Path(path)
        if not self.path.exists():
            raise ModelFileError(f"no such file or folder: {path}", file=self.path)
        self.kind: Literal["folder", "xml"] = "folder" if self.path.is_dir() else "xml"
        if self.kind == "xml" and self.path.suffix != ".xml":
            of_checkpoint = self.path.suffix in (".json", ".safetensors", ".npz", ".onnx")
            raise ModelFileError(
                f"{path_name(self.path)} is neither a folder nor an .xml file",
                file=self.path,
                hint="name the folder of the checkpoint" if of_checkpoint else None,
            )
        _refuse_leftovers(self.path, self.kind)
        self.is_checkpoint = False
        self.main_name = self.path.stem if self.kind == "xml" else self._find_main()
        self.config_file = ConfigFile(self.folder / CONFIG_FILE)
        self._models: dict[str, ov.Model] = {}
        self._pristine: dict[str, Pristine] = {}
        self._unseen: dict[str, Source] = {}  # read, and in nobody's hands yet

    def _find_main(self) -> str:
        known = [name for name in _MAIN if self.xml(name).is_file()]
        others = sorted(
            xml.stem
            for xml in self.path.glob("*.xml")
            if xml.is_file() and xml.stem != FileName.MARKOV_HEAD and not xml.stem.startswith(_NEVER_MAIN)
        )
        names = known or others
        if len(names) > 1:
            raise ModelFileError(
                f"{path_name(self.path)} holds several models to choose from: {', '.join(names)}",
                file=self.path,
                hint="name the .xml itself",
            )
        if names:
            return names[0]
        if (self.path / "config.json").is_file() and any(
            next(self.path.glob(pattern), None) for pattern in CHECKPOINT_WEIGHTS
        ):
            self.is_checkpoint = True
            return _MAIN[0]
        raise ModelFileError(f"there is no OpenVINO model in the folder {path_name(self.path)}", file=self.path)

    @property
    def folder(self) -> Path:
        """Where the files lie."""
        return self.path.parent if self.kind == "xml" else self.path

    def xml(self, name: str) -> Path:
        """File of an IR of this package, whether it exists or not."""
        return self.folder / f"{name}.xml"

    def bin(self, name: str) -> Path:
        """Weights of an IR of this package, whether they exist or not."""
        return self.xml(name).with_suffix(".bin")

    @property
    def models(self) -> Mapping[str, ov.Model]:
        """The live IRs read or added so far, by file name without suffix."""
        self._show_all()
        return MappingProxyType(self._models)

    def read(self, name: str) -> bool:
        """Read an IR of the package and hand it to nobody yet.

        Returns:
            Whether there is one of this name.

        Raises:
            ModelFileError: Its files are damaged or do not belong together.
        """
        xml = self.xml(name)
        named = self.kind == "xml" and name == self.main_name  # the reader refuses one that is a pipe
        if name not in self._models and (named or xml.is_file()):
            from ovgraft.ir.save import Source

            source = Source.of(xml)
            model = ir.read_model(xml)
            source.check()  # in the middle of a save the .xml may have been the old one and the .bin the new one
            self._models[name], self._unseen[name] = model, source
        return name in self._models

    def get(self, name: str) -> ov.Model | None:
        """An IR of the package, read at first use; None when there is none of this name.

        Raises:
            ModelFileError: Its files are damaged or do not belong together.
        """
        self.read(name)
        self._show(name)
        return self._models.get(name)

    def add(self, name: str, model: ov.Model) -> None:
        """Put an IR into the package, new or instead of the one of this name; it is saved with the package."""
        self._show_all()
        self._models[str(name)] = model

    @property
    def model(self) -> ov.Model:
        """The live main IR.

        Raises:
            ModelFileError: Its files are damaged, or the package is a checkpoint without IR.
        """
        model = self.get(self.main_name)
        if model is None:
            raise ModelFileError(
                f"{path_name(self.path)} is a checkpoint, not an OpenVINO model",
                file=self.path,
                hint="use a pass that builds a model from it, or export it first",
            )
        return model

    @model.setter
    def model(self, model: ov.Model) -> None:
        self.add(self.main_name, model)

    @property
    def config(self) -> dict[str, Any]:
        """config.json; {} when there is none.

        Raises:
            ModelFileError: It is not a JSON object.
        """
        return self.config_file.content

    def carries(self, file: Path) -> bool:
        """Whether a side file goes along when the package is saved.

        A checkpoint whose IR was built leaves behind its weights, which the IR holds, and its tokenizer, which is the
        target's. A mask embedding goes along: attach-embedding reads it.

        Args:
            file: Relative to the folder.
        """
        if not (self.is_checkpoint and self.main_name in self._models):
            return True
        of_ir = file.suffix == ".bin" and self.xml(str(file.with_suffix(""))).is_file()
        name = file.with_suffix(".xml").name if of_ir else file.name
        return name in _MASK_EMBEDDING or not any(fnmatch.fnmatchcase(name, pattern) for pattern in _LEFT_BEHIND)

    def snapshot(self) -> Mapping[str, ov.Model]:
        """Clones of the live IRs; weight memory is shared."""
        clones = {name: model.clone() for name, model in self._models.items()}
        for name in tuple(self._unseen):
            self._show(name, clones[name])
        return clones

    def _show(self, name: str, clone: ov.Model | None = None) -> None:
        """From now on somebody may edit an IR: remember how it was read."""
        if name in self._unseen:
            from ovgraft.ir.save import Pristine

            self._pristine[name] = Pristine.of(self._models[name], self._unseen.pop(name), clone)

    def _show_all(self) -> None:
        for name in tuple(self._unseen):
            self._show(name)

    def restore(self, models: Mapping[str, ov.Model]) -> None:
        """Go back to a snapshot, which stays usable; IRs read since are read again when asked for."""
        self._show_all()
        self._models = {name: model.clone() for name, model in models.items()}
        self._pristine = {name: pristine for name, pristine in self._pristine.items() if name in models}

    def plan_save(self) -> dict[str, Plan]:
        """What saving each live IR takes.

        Raises:
            ModelFileError: Somebody changed its files since they were read.
        """
        from ovgraft.ir.save import plan_save

        plans = {}
        for name, model in self.models.items():
            was = self._pristine.get(name)
            plans[name] = (
                plan_save(model, None, None) if was is None else plan_save(model, was.model, was.source, was.ops)
            )
        return plans

    def check_files(self) -> None:
        """Refuse files that somebody has changed since they were read.

        Raises:
            ModelFileError: Somebody has.
        """
        for pristine in self._pristine.values():
            pristine.source.check()
        self.config_file.check()

    def looks_kept(self, name: str) -> bool:
        """Whether a live IR has as many ops as when it was read: a guess, made before anything is compared."""
        if name not in self._pristine:
            return False
        return len(self._models[name].get_ordered_ops()) == len(self._pristine[name].ops)

    def settle(self, plans: Mapping[str, Plan]) -> None:
        """Take the live IRs for what is on disk; called after an in-place save by these plans."""
        from ovgraft.ir.save import Pristine, Source, adopt_rt_info

        self.config_file.settle()
        for name, plan in plans.items():
            xml = self.xml(name)
            if plan.change == "full":
                self._pristine[name] = Pristine.of(self._models[name], Source.of(xml))
            else:
                self._pristine[name] = replace(self._pristine[name], source=Source.of(xml))
            adopt_rt_info(xml, self._models[name], self._pristine[name].model)


def _refuse_leftovers(path: Path, kind: Literal["folder", "xml"]) -> None:
    """A save that died in its swap has moved files of this package away, here or in the graft around it."""
    from ovgraft.ir.staging import refuse_leftover, stage_of

    if kind == "xml":
        refuse_leftover(stage_of(path.parent, path.stem))
        path = path.parent
    refuse_leftover(stage_of(path))
    place = Path(os.path.abspath(path))
    refuse_leftover(stage_of(place.parent), within=Path(place.name))
