"""All checks, in the order of the shortest useful pair check: each stops what builds on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ovgraft import decoder
from ovgraft.checks.doctor import head, layers, numbers, offset, runtime, tables, vocabulary, windows
from ovgraft.checks.doctor.facts import PairFacts, read_pair, short_name
from ovgraft.checks.doctor.result import Answer, Check, Diagnosis, from_error, passed, warned
from ovgraft.checks.hosts import is_per_row_draft
from ovgraft.checks.ports import is_paged
from ovgraft.errors import OvgraftError

if TYPE_CHECKING:
    from ovgraft.graft import Graft

Status = Callable[[str], None]


@dataclass(frozen=True)
class Question:
    """One check of the list.

    Attributes:
        id: Stable kebab-case word.
        text: What it asks.
        ask: Answers it.
        needs: Checks that must not have failed.
    """

    id: str
    text: str
    ask: Callable[[PairFacts], Answer]
    needs: tuple[str, ...] = ("target", "draft")


def _target(pair: PairFacts) -> Answer:
    target = pair.target
    error = target.error or target.embedding_error
    if error is not None:
        return from_error(error, "graft onto a decoder LM as optimum-intel exports it")
    structure = pair.structure
    output = structure.lm_head
    count = len(structure.layers)
    numbers: dict[str, object] = {"layers": count, "width": output.width, "vocab_size": output.vocab_size}
    text = f"{count} layers, {output.width} wide, {output.vocab_size} tokens"
    configured = decoder.configured_layer_count(target.package.config)
    if configured not in (None, count):
        text = f"{text}; its config.json speaks of {configured} layers"
        advice = "look at inspect --layers: layer ids count the layers that are in the graph"
        return warned(text, advice, **numbers, configured_layers=configured)
    return passed(f"{text}{', paged' if is_paged(target.model) else ''}", **numbers)


def _draft(pair: PairFacts) -> Answer:
    draft = pair.draft
    if draft.error is not None:
        return from_error(draft.error, "export the draft again, or repair what is named")
    if draft.checkpoint is None:
        model = draft.package.model
        form = "paged" if is_paged(model) else "per-row" if is_per_row_draft(model) else "SDPA"
        return passed(f"{draft.family} draft IR, {form} form", family=draft.family, form=form.lower())
    spec = draft.checkpoint.spec
    others = [reason for reason in spec.warnings if reason.code not in _ASKED_LATER]
    text = f"{draft.family} draft, {spec.format} checkpoint"
    if others:
        said = "; ".join(reason.message for reason in others)
        return Answer("warn", f"{text}: {said}", tuple(others), {"family": draft.family, "format": spec.format})
    return passed(text, family=draft.family, format=spec.format)


_ASKED_LATER = ("last-layer-ambiguous", "mask-row-near-zero", "duplicate-draft-tokens")

CHECKS: tuple[Question, ...] = (
    Question("target", "is the target a decoder that can be read?", _target, ()),
    Question("draft", "is the draft one that can be read?", _draft, ()),
    Question("vocabulary", "do both know the same tokens?", vocabulary.vocabulary),
    Question("mask-token", "is the mask token one of them?", vocabulary.mask_token, ("target", "draft", "vocabulary")),
    Question("layer-ids", "does the target have the layers the draft reads?", layers.layer_ids),
    Question("fc-width", "is the FC made for that many states?", layers.fc_width, ("target", "draft", "layer-ids")),
    Question("embedding", "is the embedding the one the draft was trained with?", tables.embedding),
    Question("embedding-scale", "are embedding rows scaled alike?", tables.embedding_scale),
    Question("lm-head", "does the output layer take the draft's rows?", tables.lm_head),
    Question("lm-head-format", "how is the output layer stored?", tables.stored_format),
    Question("d2t", "do draft tokens lead to target tokens?", vocabulary.token_map, ("target", "draft", "vocabulary")),
    Question("markov-head", "do head and draft agree?", head.markov_head),
    Question("candidate-offset", "which row is the first candidate?", offset.offset, ("draft",)),
    Question("attention", "does each layer see what it was trained to see?", windows.attention, ("draft",)),
    Question("locators", "do the recorded layers end at layer boundaries?", layers.locators, ("target", "layer-ids")),
    Question("exposed-states", "does the target expose what is read?", layers.exposed_states, ("target", "layer-ids")),
    Question("metadata", "is anything missing that runtimes look for?", runtime.metadata, ("draft",)),
    Question("runtime-options", "do both ask for the same options?", runtime.options),
    Question("states", "does every request start from nothing?", runtime.states),
)
"""Checks that only look at graphs and metadata."""


def diagnose(graft: Graft, *, run: numbers.RunOptions | None = None, status: Status = lambda text: None) -> Diagnosis:
    """Ask everything of a pair; nothing of it is changed.

    Args:
        graft: Target and draft; the draft may be the folder of a checkpoint.
        run: Also run the pair, on these prompts; None only looks.
        status: Told what is being done.

    Raises:
        ModelFileError: A file is missing or damaged, or there is no draft.
        SpecError: The pair cannot be run as asked for: see :func:`numbers.run_checks`.
    """
    status("reading both")
    pair = read_pair(graft)
    found: dict[str, Check] = {}
    for question in CHECKS:
        status(question.id)
        found[question.id] = Check(question.id, question.text, _answer(question, pair, found))
    if run is not None:
        for check in numbers.run_checks(pair, run, tuple(found.values()), status):
            found[check.id] = check
    target, draft = (short_name(package.path) for package in (graft.target, graft.package("draft")))
    return Diagnosis(target, draft, tuple(found.values()), run is not None)


def _answer(question: Question, pair: PairFacts, found: dict[str, Check]) -> Answer:
    stopped = [name for name in question.needs if found[name].answer.status in ("fail", "not-checked")]
    if stopped:
        return Answer("not-checked", f"after {', '.join(stopped)}")
    try:
        return question.ask(pair)
    except OvgraftError as error:
        return from_error(error)
