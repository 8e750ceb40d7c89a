"""A complete pass of one's own: options, checks before and after, a noted edit, and "unchanged" on a second run.

ovgraft apply TARGET -p 'stamp-owner{owner="team lasagna"}' -o OUT
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import ovgraft
from ovgraft import ir
from ovgraft.errors import PostconditionError, PreconditionError

OWNER = ("sample", "owner")


@dataclass(frozen=True, kw_only=True)
class StampOwner(ovgraft.Pass):
    """Write who owns a model into its metadata.

    Only metadata changes, so saving rewrites no weight.
    """

    name: ClassVar[str] = "stamp-owner"

    owner: str = ovgraft.option("nobody", "who to name", example="team lasagna")
    replace: bool = ovgraft.option(False, "name another owner than the one there is")

    def requires(self, graft: ovgraft.Graft) -> None:
        """Refuse an owner without letters; nothing was touched yet."""
        if not self.owner.strip():
            raise PreconditionError("an owner needs a name", expected="some text", found=repr(self.owner))

    def apply(self, graft: ovgraft.Graft, ctx: ovgraft.Context) -> None:
        """Write it, unless it is there."""
        model = graft.target.model
        there = ir.get_text(model, OWNER)
        if there == self.owner:
            ctx.remark(f"unchanged: {self.owner} owns it already")
            return
        if there is not None and not self.replace:
            raise PreconditionError("the model has an owner", expected=self.owner, found=there, hint="say replace=true")
        ir.set_text(model, OWNER, self.owner)
        ctx.note("metadata", "target", f"{'/'.join(OWNER)} = {self.owner}")

    def ensures(self, graft: ovgraft.Graft) -> None:
        """The metadata says so."""
        found = ir.get_text(graft.target.model, OWNER)
        if found != self.owner:
            raise PostconditionError("the owner was not written", expected=self.owner, found=found)
