"""select-markov-computation: what a runtime does when it loads a head, as a pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from ovgraft.drafts import markov
from ovgraft.errors import PostconditionError
from ovgraft.passbase import Context, Pass
from ovgraft.passes._markov_head import find_head

if TYPE_CHECKING:
    from ovgraft.graft import Graft


@dataclass(frozen=True, kw_only=True)
class SelectMarkovComputation(Pass):
    """Keep one computation of the Markov head: its outputs, and the inputs they read.

    A gated head needs this before it runs: ``draft_hidden_states`` has a row per candidate for the scorer and a row per
    request for the dense step.
    """

    name: ClassVar[str] = "select-markov-computation"

    keep: Literal["dense", "scorer", "confidence"] = field(
        metadata={"help": "the computation that stays", "example": "scorer"}
    )

    def apply(self, graft: Graft, ctx: Context) -> None:
        """Drop the others.

        Raises:
            PreconditionError: There is no head, it breaks the contract, or it does not have this computation.
        """
        role, head = find_head(graft)
        markov.require_head(head)
        gone = markov.select_computation(head, markov.Computation(self.keep))
        if gone:
            ctx.note("remove", role, f"ports {', '.join(gone)} of the Markov head; {self.keep} stays")
        else:
            ctx.remark(f"unchanged: {self.keep} is the only computation")

    def ensures(self, graft: Graft) -> None:
        """One computation is left and the head keeps the contract.

        Raises:
            PostconditionError: It does not.
        """
        _, head = find_head(graft)
        if markov.present_computations(head) != (self.keep,) or markov.head_reasons(head):
            found = "; ".join([*markov.present_computations(head), *map(str, markov.head_reasons(head))])
            raise PostconditionError("the head is not the selected computation", expected=self.keep, found=found)
