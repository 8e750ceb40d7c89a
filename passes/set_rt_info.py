"""set-rt-info: one entry of a model's metadata."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ovgraft import ir
from ovgraft.drafts.contract import Key, RtPath
from ovgraft.errors import PostconditionError, PreconditionError
from ovgraft.passbase import Context, Pass, option
from ovgraft.passes._selection import FILE_HELP, MODEL_HELP, select

if TYPE_CHECKING:
    import openvino as ov

    from ovgraft.graft import Graft

OWN_BRANCH = Key.PIPELINE[0]
"""What ovgraft keeps itself; a wrong entry there makes packages unreadable."""


@dataclass(frozen=True, kw_only=True)
class SetRtInfo(Pass):
    """Write or delete one entry of a model's rt_info.

    Values are text. ``delete`` also removes a whole branch, with all entries below the key.
    """

    name: ClassVar[str] = "set-rt-info"
    metadata_only: ClassVar[bool] = True

    key: str = option(dataclasses.MISSING, "path of the entry, names separated by /", example="dflash/mask_token_id")
    value: str | None = option(None, "text to write", example="151669")
    delete: bool = option(False, "remove the entry instead")
    model: Literal["target", "draft", "both"] = option("target", MODEL_HELP)
    file: str | None = option(None, FILE_HELP)

    def __post_init__(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            ValueError: An empty name in the key, a key of ovgraft's own, or not exactly one of value and delete.
        """
        if not all(self._path):
            raise ValueError(f"key '{self.key}' has an empty name")
        if self._path[0] == OWN_BRANCH:
            raise ValueError(f"entries under '{OWN_BRANCH}' are kept by ovgraft itself")
        if (self.value is None) != self.delete:
            raise ValueError("give either value=TEXT or delete=true")

    @property
    def _path(self) -> RtPath:
        return tuple(self.key.split("/"))

    def requires(self, graft: Graft) -> None:
        """The key runs through no text and replaces no branch.

        Raises:
            PreconditionError: It does.
        """
        if self.value is None:
            return
        path = self._path
        for role, model in select(graft, self.model, self.file):
            for other in ir.flatten(model):
                if other[: len(path)] == path and other != path:
                    raise PreconditionError(f"rt_info '{self.key}' of the {role} has entries below it: {_said(other)}")
                if path[: len(other)] == other and other != path:
                    raise PreconditionError(f"rt_info '{_said(other)}' of the {role} is text, nothing goes below it")

    def apply(self, graft: Graft, ctx: Context) -> None:
        """Write or delete."""
        for role, model in select(graft, self.model, self.file):
            before = ir.get_text(model, self._path)
            if self.value is None:
                if ir.delete(model, self._path):
                    ctx.note("metadata", role, f"rt_info {self.key} deleted")
            elif before != self.value:
                ir.set_text(model, self._path, self.value)
                was = "" if before is None else f", was {before!r}"
                ctx.note("metadata", role, f"rt_info {self.key} = {self.value!r}{was}")
        if not ctx.edits:
            ctx.remark("unchanged: " + ("there is no such entry" if self.delete else "the entry says so already"))

    def ensures(self, graft: Graft) -> None:
        """The entry is as asked."""
        for role, model in select(graft, self.model, self.file):
            if not self._holds(model):
                raise PostconditionError(f"rt_info '{self.key}' of the {role} is not as asked")

    def _holds(self, model: ov.Model) -> bool:
        if self.value is not None:
            return ir.get_text(model, self._path) == self.value
        return not any(other[: len(self._path)] == self._path for other in ir.flatten(model))


def _said(path: RtPath) -> str:
    return "/".join(path)
