"""set-markov-top-k: how many candidates per row the scorer keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from ovgraft.drafts import markov
from ovgraft.drafts.contract import Port
from ovgraft.errors import PostconditionError
from ovgraft.passbase import Context, Pass
from ovgraft.passes._markov_head import find_head

if TYPE_CHECKING:
    from ovgraft.graft import Graft


@dataclass(frozen=True, kw_only=True)
class SetMarkovTopK(Pass):
    """Change K of the Markov head's scorer.

    One Constant, ``markov_head_top_k``, is replaced; every shape follows from it.
    """

    name: ClassVar[str] = "set-markov-top-k"

    k: int = field(metadata={"help": "candidates per row, 1 to the draft vocabulary", "example": "16"})

    def apply(self, graft: Graft, ctx: Context) -> None:
        """Change it.

        Raises:
            PreconditionError: There is no head, it breaks the contract or has no scorer, or K is out of range.
        """
        role, head = find_head(graft)
        markov.require_head(head)
        before = markov.set_top_k(head, self.k)
        if before == self.k:
            ctx.remark(f"unchanged: top-k is {self.k}")
        else:
            ctx.note("update", role, f"top-k of the Markov head: {before} -> {self.k}")

    def ensures(self, graft: Graft) -> None:
        """Metadata and shapes have the new K.

        Raises:
            PostconditionError: They do not.
        """
        _, head = find_head(graft)
        shapes = {
            name: port.get_partial_shape()
            for port in head.outputs
            for name in port.names & {Port.CANDIDATE_IDS, Port.EDGE_SCORES}
        }
        if markov.read_facts(head).top_k != self.k or any(shape[-1] != self.k for shape in shapes.values()):
            raise PostconditionError("top-k did not change", expected=self.k, found=shapes)
