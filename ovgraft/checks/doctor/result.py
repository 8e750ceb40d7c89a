"""What a check finds, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from ovgraft.errors import OvgraftError, Reason
from ovgraft.noderef import NodeRef

Status = Literal["pass", "warn", "fail", "not-applicable", "not-checked"]
"""``not-applicable``: this pair has no such thing; ``not-checked``: an earlier check failed that this one builds on."""

SCHEMA = 1

Numbers = Mapping[str, object]
"""Name -> what JSON holds: the values behind an answer."""


@dataclass(frozen=True)
class Answer:
    """What one check says.

    Attributes:
        status: See :data:`Status`.
        text: One clause.
        evidence: Findings behind it, with their nodes.
        numbers: The values it was decided by.
        advice: What to do; empty when nothing is.
    """

    status: Status
    text: str
    evidence: tuple[Reason, ...] = ()
    numbers: Numbers = field(default_factory=lambda: MappingProxyType({}))
    advice: str = ""


@dataclass(frozen=True)
class Check:
    """One line of the diagnosis.

    Attributes:
        id: Stable kebab-case word.
        question: What it asks, for people.
        answer: What it found.
    """

    id: str
    question: str
    answer: Answer

    def to_dict(self) -> dict[str, object]:
        """The JSON form."""
        return {
            "id": self.id,
            "question": self.question,
            "status": self.answer.status,
            "text": self.answer.text,
            "evidence": [reason.to_dict() for reason in self.answer.evidence],
            "numbers": dict(self.answer.numbers),
            "advice": self.answer.advice,
        }


@dataclass(frozen=True)
class Diagnosis:
    """All checks of a pair, in order.

    Attributes:
        target: Name of the target's folder or file.
        draft: Name of the draft's.
        checks: What was found.
        ran: Numeric checks were asked for.
    """

    target: str
    draft: str
    checks: tuple[Check, ...]
    ran: bool

    @property
    def good(self) -> bool:
        """Nothing fails."""
        return not any(check.answer.status == "fail" for check in self.checks)

    @property
    def counts(self) -> dict[str, int]:
        """Status -> number of checks, for those that occur."""
        return dict(Counter(check.answer.status for check in self.checks))

    def __getitem__(self, id: str) -> Check:
        """The check of an id.

        Raises:
            KeyError: There is none.
        """
        for check in self.checks:
            if check.id == id:
                return check
        raise KeyError(id)

    def to_dict(self) -> dict[str, object]:
        """The JSON form."""
        return {
            "schema": SCHEMA,
            "good": self.good,
            "target": self.target,
            "draft": self.draft,
            "ran": self.ran,
            "counts": self.counts,
            "checks": [check.to_dict() for check in self.checks],
        }


def passed(text: str, *evidence: Reason, **numbers: object) -> Answer:
    """All is well."""
    return Answer("pass", text, evidence, numbers)


def not_applicable(text: str) -> Answer:
    """The pair has no such thing."""
    return Answer("not-applicable", text)


def failed(text: str, advice: str, *evidence: Reason, **numbers: object) -> Answer:
    """The graft would not work, or work with wrong numbers."""
    return Answer("fail", text, evidence, numbers, advice)


def warned(text: str, advice: str, *evidence: Reason, **numbers: object) -> Answer:
    """It would work; something may be other than meant, or costs acceptance."""
    return Answer("warn", text, evidence, numbers, advice)


def from_error(error: OvgraftError, advice: str = "repair what is named, or export the model again") -> Answer:
    """A failed check that is an error somewhere else."""
    nodes: tuple[NodeRef, ...] = () if error.node is None else (error.node,)
    evidence = error.reasons or ((Reason("refused", error.message, nodes),) if nodes else ())
    return Answer("fail", str(error), tuple(evidence), {}, error.hint or advice)
