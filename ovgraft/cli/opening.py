"""Opens what a path on the command line names: one model, or a graft folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import ovgraft
from ovgraft.errors import ModelFileError, SpecError

if TYPE_CHECKING:
    from ovgraft.graft import Graft


def open_graft(path: Path, draft: Path | None = None) -> Graft:
    """A model, a package, or a folder with ``target/`` and ``draft/``.

    Args:
        path: What the user named.
        draft: The draft of a plain target.

    Raises:
        SpecError: A draft for a path that has one already.
        ModelFileError: Nothing there, or nothing ovgraft reads.
    """
    from ovgraft import inspection

    if not inspection.is_graft(path):
        return ovgraft.load(target=path, draft=draft)
    if draft is not None:
        raise SpecError(f"{path} holds a draft already", hint="leave --draft out")
    return ovgraft.load(target=path / "target", draft=path / "draft")


def check_parent(file: Path) -> None:
    """Refuse a place in a folder that is not there: no command makes one.

    Raises:
        ModelFileError: There is no such folder.
    """
    parent = file.absolute().parent
    if not parent.is_dir():
        raise ModelFileError(f"no such folder: {parent}", file=file)
