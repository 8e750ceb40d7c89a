"""Why is nothing accepted? The usual causes, measured where they can be and named where not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ovgraft.checks.doctor.facts import PairFacts
from ovgraft.checks.doctor.readings import Other, all_readings
from ovgraft.checks.doctor.result import Check
from ovgraft.checks.head_walk import Walk
from ovgraft.checks.speculate import Acceptance, Reader, Speculator, Text
from ovgraft.errors import OvgraftError, Reason
from ovgraft.graft import Graft

CLEARLY = 0.2
"""How much more must agree, or be accepted per step, for another reading to be the likely one."""

SUSPECTS = ("mask-token", "layer-ids", "embedding", "embedding-scale", "candidate-offset", "d2t", "attention", "states")
"""Checks whose warnings name a cause of low acceptance; the other readings are tried then, whatever is accepted."""

_FIXES = {
    "wrong-offset": "correct candidate_position_offset",
    "wrong-layer": "correct the layer ids: they are counted by another convention, or belong to another draft",
    "wrong-order": "correct the order of the layer ids",
    "wrong-scale": "correct input_embedding_scale",
    "wrong-mask-token": "correct mask_token_id",
    "wrong-d2t": "correct d2t: it holds target id - draft id, in the order of the draft's output layer",
    "wrong-embedding": "attach the target's embedding: attach-embedding",
    "wrong-lm-head": "leave the draft's own output layer out: it is not the one its rows were trained for",
    "wrong-head": "take the Markov head of this draft: this one lowers what is accepted",
}

_PART = 0.25  # of what is accepted already: the more that is, the more another reading must bring
_FIRST_WINDOWS = 18  # a reading that brings nothing in these is left
_MOST_NAMED = 3


def shifted_rows(found: Acceptance) -> tuple[Reason, ...]:
    """Candidates that are right for the token before or behind the one they stand for."""
    right = found.agreement(0)
    for shift, offset in ((1, 0), (-1, 1)):
        if found.agreement(shift) >= right + CLEARLY:
            where = "behind" if shift > 0 else "before"
            text = (
                f"{found.agreement(shift):.0%} of the candidates are the token {where} the one they stand for "
                f"({right:.0%} are right): the draft is read with offset {1 - offset}, its rows mean offset {offset}"
            )
            return (Reason("wrong-offset", text),)
    return ()


def harmful_head(with_head: Acceptance, without: Acceptance) -> tuple[Reason, ...]:
    """A head that takes away what the rows alone would get accepted is another draft's."""
    lost = without.tokens_per_step - with_head.tokens_per_step
    if lost < max(CLEARLY, _PART * (without.tokens_per_step - 1)):
        return ()
    text = (
        f"with its Markov head {with_head.tokens_per_step:.3f} tokens per step are accepted, without it "
        f"{without.tokens_per_step:.3f}"
    )
    return (Reason("wrong-head", text),)


@dataclass(frozen=True)
class Measured:
    """A pair as it is read so far, and what is accepted of it.

    Attributes:
        graft: The pair; its draft is an IR.
        facts: What the checks know of it.
        texts: What the target wrote.
        speculator: The pair, compiled.
        walk: Of its Markov head.
        found: What is accepted.
        without: The same without the head.
        device: OpenVINO device.
    """

    graft: Graft
    facts: PairFacts
    texts: Sequence[Text]
    speculator: Speculator
    walk: Walk
    found: Acceptance
    without: Acceptance
    device: str


def try_out(pair: Measured) -> tuple[tuple[Reason, ...], tuple[str, ...]]:
    """Measure the pair again, read in other ways.

    The rows alone are compared: a Markov head makes up for part of what is wrong with them.

    Returns:
        The readings that get clearly more accepted, best first; and in words all that were measured.
    """
    others = all_readings(pair.graft, pair.facts)
    states = _states_of(pair, [other for other in others if other.taps is not None])
    better: list[tuple[float, Reason]] = []
    measured = []
    for other in others:
        try:
            found = _more_accepted(pair, other, states.get(id(other)))
        except OvgraftError:
            continue  # this reading is none
        measured.append(other.what)
        if found is not None:
            better.append(found)
    best = sorted(better, key=lambda entry: -entry[0])[:_MOST_NAMED]
    return tuple(reason for _, reason in best), tuple(measured)


def _more_accepted(pair: Measured, other: Other, states: Mapping[Text, Any] | None) -> tuple[float, Reason] | None:
    """Tokens per step of another reading and what to say of it; None when it is not clearly better."""
    speculator = pair.speculator if other.graft is None else pair.speculator.of(other.graft)
    asked: dict[str, Any] = {"reading": other.reading, "states": states}
    now = pair.without.tokens_per_step
    most = -(-_FIRST_WINDOWS // len(pair.texts))
    if speculator.measure(pair.texts, most_windows=most, **asked).tokens_per_step < now + CLEARLY / 2:
        return None
    accepted = speculator.measure(pair.texts, **asked).tokens_per_step
    if accepted < now + max(CLEARLY, _PART * (now - 1)):
        return None
    text = f"with {other.what}: {accepted:.3f} tokens per step instead of {now:.3f}"
    if pair.walk != "none":
        headed = speculator.measure(pair.texts, pair.walk, **asked).tokens_per_step
        text = f"{text}, and {headed:.3f} instead of {pair.found.tokens_per_step:.3f} with the Markov head"
    return accepted, Reason(other.code, text)


def _states_of(pair: Measured, others: Sequence[Other]) -> Mapping[int, Mapping[Text, Any]]:
    """The states each reading takes, by its id; the target is compiled once for all of them."""
    taps = [other.taps for other in others if other.taps is not None]
    if not taps:
        return {}
    reader = Reader(pair.graft.target, taps, device=pair.device)
    by_text = {text: reader.states(text.tokens) for text in pair.texts}
    return {id(other): {text: by_text[text][at] for text in pair.texts} for at, other in enumerate(others)}


def warned_of(checks: Sequence[Check]) -> tuple[Reason, ...]:
    """What the checks before have warned of that could be a cause, as evidence."""
    return tuple(
        Reason(f"see-{check.id}", f"{check.id}: {check.answer.text}")
        for check in checks
        if check.id in SUSPECTS and check.answer.status == "warn"
    )


def advice(measured: Sequence[Reason], *, random_prompts: bool) -> str:
    """What to do: the measured cause, else what is left once the checks before have excluded the rest."""
    fixes = [_FIXES[reason.code] for reason in measured if reason.code in _FIXES]
    if fixes:
        return "; ".join(dict.fromkeys(fixes))
    named = [reason.code.removeprefix("see-") for reason in measured if reason.code.startswith("see-")]
    first = f"look at {', '.join(named)} first; " if named else ""
    prompts = "random prompts or an untrained draft also give 1.000: try --prompts with real text"
    rest = (
        "likely causes: layer ids of another draft, another mask token or a mask row that was never trained, a draft, "
        "d2t or Markov head of another target, another chat template than it was trained with"
    )
    return f"{first}{rest}" + (f"; {prompts}" if random_prompts else "; an untrained draft also gives 1.000")
