"""Which models of a graft a housekeeping pass works on: its options ``model`` and ``file``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ovgraft.errors import PreconditionError
from ovgraft.passbase import ModelRole

if TYPE_CHECKING:
    import openvino as ov

    from ovgraft.graft import Graft

Selection = Literal["target", "draft", "both"]

MODEL_HELP = "whose model: target, draft, or both (of those the graft has)"
FILE_HELP = "IR of the package by file name without suffix, for example openvino_markov_head_model; none: the main one"


def select(graft: Graft, model: Selection, file: str | None) -> list[tuple[ModelRole, ov.Model]]:
    """The selected models with the role of their package, target first.

    Raises:
        PreconditionError: There is no draft, or a package has no such IR.
    """
    if model == "draft" and graft.draft is None:
        raise PreconditionError("the graft has no draft", hint="name one with --draft")
    roles: tuple[ModelRole, ...] = ("target", "draft") if model == "both" else (model,)
    found = []
    for role in roles:
        if role == "draft" and graft.draft is None:
            continue
        package = graft.package(role)
        chosen = package.model if file is None else package.get(file)
        if chosen is None:
            raise PreconditionError(f"the {role} package has no {file}", file=package.path)
        found.append((role, chosen))
    return found
