"""Which model of a graft is the Markov head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovgraft.drafts import markov
from ovgraft.drafts.contract import FileName
from ovgraft.errors import PreconditionError
from ovgraft.passbase import ModelRole

if TYPE_CHECKING:
    import openvino as ov

    from ovgraft.graft import Graft


def find_head(graft: Graft) -> tuple[ModelRole, ov.Model]:
    """The one model given when it is a head; else the head beside the draft, or beside the one model given.

    Raises:
        PreconditionError: There is no head.
    """
    if graft.draft is None:
        main = graft.target.get(graft.target.main_name)
        if main is not None and markov.present_computations(main):
            return "target", main
    roles: tuple[ModelRole, ...] = ("target",) if graft.draft is None else ("draft", "target")
    for role in roles:
        head = graft.package(role).get(FileName.MARKOV_HEAD)
        if head is not None:
            return role, head
    raise PreconditionError(
        f"no {FileName.MARKOV_HEAD}.xml",
        file=(graft.draft or graft.target).path,
        hint="pack-markov-head builds one from a checkpoint",
    )
