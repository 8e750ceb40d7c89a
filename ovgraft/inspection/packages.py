"""What lies at a path: one .xml, a package, a graft of two packages, or a draft checkpoint."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ovgraft import drafts, ir
from ovgraft.drafts import markov
from ovgraft.drafts.contract import FileName
from ovgraft.errors import ModelFileError, OvgraftError, SpecError
from ovgraft.graft import Package
from ovgraft.inspection.checkpoints import collect_checkpoint
from ovgraft.inspection.collect import collect_model
from ovgraft.inspection.facts import draft_facts, graft_facts, head_facts
from ovgraft.inspection.onnx_file import collect_onnx
from ovgraft.inspection.request import SUMMARY, Request
from ovgraft.inspection.tree import FactInfo, FileInfo, Inspection, ModelInfo, PackageInfo

if TYPE_CHECKING:
    import openvino as ov

_TOKENIZERS = frozenset({"openvino_tokenizer", "openvino_detokenizer"})
_MAIN = (FileName.MODEL, FileName.LANGUAGE_MODEL)
_ROLES = ("target", "draft")


def inspect(path: Path, request: Request = SUMMARY) -> Inspection:
    """Read everything at a path.

    Args:
        path: An .xml, a folder of IRs, a folder with ``target/`` and ``draft/``, a draft checkpoint, or an .onnx file.
        request: What is wanted beyond the summary.

    Raises:
        SpecError: The request names one node, and none or several are called so.
        ModelFileError: Nothing there, nothing ovgraft reads, or a damaged file.
        CheckpointError: A checkpoint that is not understood.
    """
    if not path.exists():
        raise ModelFileError(f"no such file or folder: {path}", file=path)
    if not path.is_dir() and not path.is_file():
        raise ModelFileError(f"{path} is no regular file", file=path)
    if is_graft(path):
        packages = tuple(_package(path / role, role, request) for role in _ROLES)
        found = Inspection(packages, _record(path / "graft.json"))
    else:
        found = Inspection((_package(path, "", request),))
    if request.around is not None:
        _check_around(found, request.around)
    return found


def _check_around(found: Inspection, name: str) -> None:
    nodes = [node for package in found.packages for model in package.models for node in model.nodes]
    if not any(node.distance == 0 for node in nodes):
        raise SpecError(f"no node is called '{name}'", hint="--node '*PART*' shows all whose names have this part")


def is_graft(path: Path) -> bool:
    """Whether this is a folder that holds a target and its draft."""
    return all((path / role).is_dir() for role in _ROLES)


def _package(path: Path, role: str, request: Request) -> PackageInfo:
    folder = path if path.is_dir() else path.parent
    names = _ir_names(path) if path.is_dir() else [path.stem]
    name = path.resolve().name
    files = _files(folder) if path.is_dir() else _files(folder, (path.name, path.with_suffix(".bin").name))
    if not names:
        return PackageInfo(name, role, files, (), checkpoint=collect_checkpoint(path))
    problems: list[str] = []
    if path.is_file() and path.suffix == ".onnx":
        return PackageInfo(name, role, files, (collect_onnx(path, request),))
    if path.is_file() and path.suffix != ".xml":
        raise ModelFileError("an OpenVINO IR is named by its .xml file", file=path)
    models: list[ModelInfo] = []
    by_kind: dict[str, ov.Model] = {}
    for stem in names:
        package = Package(folder / f"{stem}.xml")  # tells of files that a killed save moved away
        model = ir.read_model(package.path)
        package.add(stem, model)
        info = _with_facts(collect_model(model, stem, request), package, problems)
        models.append(info)
        by_kind.setdefault("draft" if info.kind.endswith("draft") else info.kind, model)
    head = folder / f"{FileName.MARKOV_HEAD}.xml"
    if "draft" in by_kind and "markov head" not in by_kind and head.is_file():
        by_kind["markov head"] = ir.read_model(head)  # the draft was named alone
    return PackageInfo(name, role, files, tuple(models), (*problems, *_head_problems(by_kind)))


def _ir_names(folder: Path) -> list[str]:
    """The main IR first; tokenizers need an extension to be read and are only listed as files."""
    names = sorted(file.stem for file in folder.glob("*.xml") if file.stem not in _TOKENIZERS)
    return sorted(names, key=lambda name: (name not in _MAIN, name))


def _files(folder: Path, names: tuple[str, ...] | None = None) -> tuple[FileInfo, ...]:
    found = sorted(file for file in folder.iterdir() if file.is_file() and (names is None or file.name in names))
    return tuple(FileInfo(file.name, file.stat().st_size) for file in found)


def _with_facts(info: ModelInfo, package: Package, problems: list[str]) -> ModelInfo:
    """What a draft or a head says about itself."""
    facts: tuple[FactInfo, ...] = ()
    if info.kind in ("dflash draft", "eagle3 draft"):
        try:
            facts = draft_facts(drafts.read_draft(package), info.rt_info, package.config)
        except OvgraftError as error:
            problems.append(str(error))
    elif info.kind == "markov head":
        facts = head_facts(info.rt_info)
    return dataclasses.replace(info, draft=facts, graft=graft_facts(info.rt_info))


def _head_problems(models: Mapping[str, ov.Model]) -> list[str]:
    """What is wrong with a Markov head, or does not fit between it and the draft that advertises it."""
    head, backbone = models.get("markov head"), models.get("draft")
    reasons = [] if head is None else [*markov.head_reasons(head)]
    if backbone is not None:
        reasons += markov.backbone_reasons(backbone, head, None)
    return list(map(str, reasons))


def _record(file: Path) -> dict[str, Any] | None:
    """The content of a graft.json."""
    if not file.is_file():
        return None
    try:
        record = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{file.name} is not valid JSON", file=file) from error
    if not isinstance(record, Mapping):
        raise ModelFileError(f"{file.name} is not a JSON object", file=file)
    return dict(record)
