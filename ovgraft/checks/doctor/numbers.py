"""Checks that run the pair: one block, the per-row form, and what the target would accept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ovgraft import passes
from ovgraft.checks.doctor import causes, rows
from ovgraft.checks.doctor.facts import PairFacts
from ovgraft.checks.doctor.result import Answer, Check, failed, from_error, not_applicable, passed, warned
from ovgraft.checks.grafts import graft_of
from ovgraft.checks.pair import Taps
from ovgraft.checks.speculate import Acceptance, Speculator, Text, random_prompts, unmeasurable
from ovgraft.errors import OvgraftError, SpecError
from ovgraft.graft import Graft
from ovgraft.passbase import Context

MOST_CANDIDATES = 7
"""Candidates per window when the draft's block is longer; a random draft gains nothing from more."""

LITTLE = 1.1
"""Tokens per step below which other readings of the draft are tried out: a wrong one is right now and then."""

_DEFAULT_CANDIDATES = 4


@dataclass(frozen=True)
class RunOptions:
    """How to run a pair.

    Attributes:
        prompts: Token ids of each prompt; random ones when empty.
        count: Random prompts.
        length: Tokens of each.
        new_tokens: Tokens the target writes per prompt.
        candidates: Tokens proposed per window; None follows the draft's block.
        seed: Of the random prompts.
        device: OpenVINO device.
    """

    prompts: tuple[tuple[int, ...], ...] = ()
    count: int = 3
    length: int = 16
    new_tokens: int = 32
    candidates: int | None = None
    seed: int = 0
    device: str = "CPU"


@dataclass
class Run:
    """What the numeric checks share.

    Attributes:
        pair: Facts of the pair.
        options: How to run.
        graft: A copy whose draft is an IR.
        speculator: The pair, compiled.
        texts: Prompts with what the target made of them.
    """

    pair: PairFacts
    options: RunOptions
    graft: Graft
    speculator: Speculator | None = None
    texts: Sequence[Text] = ()


def run_checks(
    pair: PairFacts, options: RunOptions, stopped: Sequence[str], status: Callable[[str], None]
) -> list[Check]:
    """All numeric checks; each stops the ones behind it.

    Args:
        pair: Facts of the pair.
        options: How to run.
        stopped: Failed checks: numbers of a pair that does not fit mean nothing.
        status: Told what is being done.
    """
    found: list[Check] = []
    run = Run(pair, options, copy_of(pair.graft))
    for name, question, ask in _CHECKS:
        status(name)
        if stopped:
            answer = Answer("not-checked", f"after {', '.join(stopped)}")
        else:
            try:
                answer = ask(run)
            except OvgraftError as error:
                answer = from_error(error)
        if answer.status == "fail":
            stopped = [name]
        found.append(Check(name, question, answer))
    return found


def copy_of(graft: Graft) -> Graft:
    """The same pair with models of its own."""
    return graft_of(graft.snapshot(), graft)


def _build(run: Run) -> Answer:
    """The IR of a checkpoint, its frozen copies held against the target's tables."""
    if run.pair.draft.checkpoint is None:
        return not_applicable("the draft is an IR")
    context = Context()
    passes.BuildDraft().apply(run.graft, context)
    rounded = [remark for remark in context.remarks if "up to rounding" in remark]
    return passed(rounded[0] if rounded else context.edits[0].text)


def _finite(run: Run) -> Answer:
    """One block after one prompt."""
    problem = unmeasurable(run.graft, run.pair.layers() or ())
    if problem is not None:
        return not_applicable(problem)
    _prepare(run)
    assert run.speculator is not None
    outputs = run.speculator.block(run.texts[0])
    bad = [name for name, values in outputs.items() if not np.isfinite(values.astype(np.float64)).all()]
    largest = {name: float(np.abs(values.astype(np.float64)).max()) for name, values in outputs.items() if values.size}
    if bad:
        advice = "look for overflow: f16 weights, or states much larger than the draft was trained on"
        return failed(f"not finite: {', '.join(bad)}", advice, largest=_json(largest))
    again = run.speculator.block(run.texts[0])
    moved = [name for name in outputs if not np.array_equal(outputs[name], again[name])]
    if moved:
        advice = "something is read that nobody set: a state without initial value, or an input"
        return failed(f"the same block gives other numbers after a reset: {', '.join(moved)}", advice)
    return passed(f"finite, and the same again after a reset: {', '.join(outputs)}", largest=_json(largest))


def _json(numbers: dict[str, float]) -> dict[str, Any]:
    return {name: value if np.isfinite(value) else str(value) for name, value in numbers.items()}


def _prepare(run: Run) -> None:
    """Compile, and let the target write the texts."""
    layers = run.pair.layers()
    assert layers is not None
    block = run.pair.draft.block_size
    candidates = run.options.candidates or min(
        block - 1 if block and block > 1 else _DEFAULT_CANDIDATES, MOST_CANDIDATES
    )
    run.speculator = Speculator(run.graft, Taps(layers), candidates, device=run.options.device)
    prompts = _prompts(run)
    new_tokens = run.options.new_tokens + candidates + 2
    run.texts = [run.speculator.write(prompt, new_tokens) for prompt in prompts]


def _prompts(run: Run) -> Sequence[Sequence[int]]:
    vocab_size, options = run.pair.embedding.vocab_size, run.options
    if not options.prompts:
        return random_prompts(vocab_size, options.count, options.length, options.seed)
    for prompt in options.prompts:
        outside = [token for token in prompt if not 0 <= token < vocab_size]
        if outside or not prompt:
            found = f"token {outside[0]}" if outside else "no token"
            raise SpecError(f"a prompt has {found}; the target knows tokens 0 to {vocab_size - 1}")
    return options.prompts


def _per_row(run: Run) -> Answer:
    return rows.per_row(run.graft, run.pair, run.options.device)


def _acceptance(run: Run) -> Answer:
    """Tokens per step, by position; at exactly 1.000 the usual causes are tried out."""
    if run.speculator is None:
        return not_applicable("no block was run")
    found = run.speculator.measure(run.texts)
    numbers = {**found.to_dict(), "candidates": run.speculator.candidates, "texts": len(run.texts)}
    text = said(found)
    shifted = causes.shifted_rows(found)
    if found.tokens_per_step < LITTLE or shifted:
        tried = causes.try_out(run.graft, run.pair, run.texts, run.speculator.candidates, run.options.device)
        evidence = (*shifted, *tried)
        if found.tokens_per_step == 1:
            text = f"exactly 1.000 tokens per step over {found.windows} steps: nothing was accepted"
        if evidence:
            text = f"{text}; {evidence[0].message}"
        if evidence or found.tokens_per_step == 1:
            return warned(text, causes.advice(evidence, run.pair), *evidence, **numbers)
    return passed(text, **numbers)


def said(found: Acceptance) -> str:
    """Tokens per step and the rate of each position."""
    rates = " ".join(f"{count / found.windows:.2f}" for count in found.accepted)
    return f"{found.tokens_per_step:.3f} tokens per step over {found.windows} steps; accepted by position {rates}"


_CHECKS: tuple[tuple[str, str, Callable[[Run], Answer]], ...] = (
    ("build", "can the checkpoint be built for this target?", _build),
    ("finite-block", "is one block finite, and the same after a reset?", _finite),
    ("per-row", "does the per-row form compute the same?", _per_row),
    ("acceptance", "does the target accept what is proposed?", _acceptance),
)
