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
from ovgraft.checks.exposed import recorded_convention
from ovgraft.checks.grafts import graft_of
from ovgraft.checks.head_walk import Walk, best_walk
from ovgraft.checks.pair import Taps
from ovgraft.checks.run import check_device
from ovgraft.checks.speculate import Acceptance, Speculator, Text, random_prompts, unmeasurable
from ovgraft.drafts.contract import FileName, Port
from ovgraft.errors import OvgraftError, SpecError
from ovgraft.graft import Graft
from ovgraft.passbase import Context

MOST_CANDIDATES = 15
"""Candidates per window when the draft's block is longer: that of the longest published drafts."""

LITTLE = 1.5
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
        before: What the checks before found.
        speculator: The pair, compiled.
        texts: Prompts with what the target made of them.
    """

    pair: PairFacts
    options: RunOptions
    graft: Graft
    before: Sequence[Check] = ()
    speculator: Speculator | None = None
    texts: Sequence[Text] = ()


def run_checks(
    pair: PairFacts,
    options: RunOptions,
    before: Sequence[Check],
    status: Callable[[str], None],
) -> list[Check]:
    """All numeric checks; each stops the ones behind it.

    Args:
        pair: Facts of the pair.
        options: How to run.
        before: What was found without running: numbers of a pair that does not fit mean nothing.
        status: Told what is being done.

    Raises:
        SpecError: A prompt has tokens the target does not know, or there is no such device.
    """
    found: list[Check] = []
    stopped = [check.id for check in before if check.answer.status in ("fail", "not-checked")]
    run = Run(pair, options, graft_of(pair.graft.snapshot(), pair.graft), before)
    if not stopped:
        _check_prompts(run)
        check_device(options.device)
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


def _build(run: Run) -> Answer:
    """The IR of a checkpoint, its frozen copies held against the target's tables, and its Markov head."""
    if run.pair.draft.checkpoint is None:
        return not_applicable("the draft is an IR")
    context = Context()
    passes.BuildDraft().apply(run.graft, context)
    passes.PackMarkovHead().apply(run.graft, context)
    rounded = [remark for remark in context.remarks if "up to rounding" in remark]
    text = rounded[0] if rounded else context.edits[0].text
    built = [edit.text for edit in context.edits if edit.text.startswith(FileName.MARKOV_HEAD)]
    return passed(f"{text}; {built[0]}" if built else text)


def _finite(run: Run) -> Answer:
    """One block after one prompt, and what it leaves behind."""
    problem = unmeasurable(run.graft)
    if problem is not None:
        return not_applicable(problem)
    _prepare(run)
    assert run.speculator is not None
    speculator, text = run.speculator, run.texts[0]
    outputs = speculator.block(text)
    bad = [name for name, values in outputs.items() if not np.isfinite(values.astype(np.float64)).all()]
    largest = {name: float(np.abs(values.astype(np.float64)).max()) for name, values in outputs.items() if values.size}
    if bad:
        advice = "look for overflow: f16 weights, or states much larger than the draft was trained on"
        return failed(f"not finite: {', '.join(bad)}", advice, largest=_json(largest))
    again = speculator.block(text)
    moved = [name for name in outputs if not np.array_equal(outputs[name], again[name])]
    if moved:
        advice = "something is read that nobody set: a state without initial value, or an input"
        return failed(f"the same block gives other numbers after a reset: {', '.join(moved)}", advice)
    if run.pair.draft.family != "eagle3":  # rows of a chain do stay, and hosts take them back
        other = (text.tokens[text.prompt] + 1) % run.pair.embedding.vocab_size
        after, changed = speculator.block_after(text), speculator.block_after(text, other)
        left = [name for name in after if not np.array_equal(after[name], changed[name])]
        if left:
            advice = "its states must keep context rows only: export it again"
            return failed(f"a block leaves something behind for the next one: {', '.join(left)}", advice)
    names = ", ".join(name for name in outputs if name != Port.HIDDEN_STATES)
    return passed(f"finite, the same after a reset, nothing left over: {names}", largest=_json(largest))


def _json(numbers: dict[str, float]) -> dict[str, Any]:
    return {name: value if np.isfinite(value) else str(value) for name, value in numbers.items()}


def _prepare(run: Run) -> None:
    """Compile, and let the target write the texts."""
    layers = run.pair.layers()
    assert layers is not None
    candidates = run.options.candidates or min(trained_candidates(run.pair) or _DEFAULT_CANDIDATES, MOST_CANDIDATES)
    taps = Taps(layers, recorded_convention(run.graft.target.model))
    run.speculator = Speculator(run.graft, taps, candidates, device=run.options.device)
    new_tokens = run.options.new_tokens + candidates + 2
    run.texts = [run.speculator.write(prompt, new_tokens) for prompt in _prompts(run)]


def trained_candidates(pair: PairFacts) -> int | None:
    """Candidates of a block of the trained length; None where nothing tells."""
    draft = pair.draft
    if draft.block_size is None or draft.family == "eagle3":
        return None
    return max(1, draft.block_size - draft.offset)


def _check_prompts(run: Run) -> None:
    """Prompts of another tokenizer say nothing of the pair."""
    vocab_size = run.pair.embedding.vocab_size
    for prompt in run.options.prompts:
        outside = [token for token in prompt if not 0 <= token < vocab_size]
        if outside or not prompt:
            found = f"token {outside[0]}" if outside else "no token"
            raise SpecError(f"a prompt has {found}; the target knows tokens 0 to {vocab_size - 1}")


def _prompts(run: Run) -> Sequence[Sequence[int]]:
    options = run.options
    return options.prompts or random_prompts(run.pair.embedding.vocab_size, options.count, options.length, options.seed)


def _per_row(run: Run) -> Answer:
    return rows.per_row(run.graft, run.pair, run.options.device)


def _acceptance(run: Run) -> Answer:
    """Tokens per step by position, with and without a Markov head; when they are few, the usual causes are tried."""
    if run.speculator is None:
        return not_applicable("no block was run")
    speculator, draft = run.speculator, run.graft.package("draft")
    without = found = speculator.measure(run.texts)
    walk = best_walk(draft.get(FileName.MARKOV_HEAD))
    if walk != "none":
        found = speculator.measure(run.texts, walk)
    numbers = _numbers(run, found, without, walk)
    text = _said(run, found, without, walk)
    evidence = (*causes.shifted_rows(without), *causes.harmful_head(found, without))
    warned_of = causes.warned_of(run.before)
    if found.tokens_per_step < LITTLE or evidence or warned_of:
        measured = causes.Measured(run.graft, run.pair, run.texts, speculator, walk, found, without, run.options.device)
        better, tried = causes.try_out(measured)
        evidence = (*evidence, *better)
        numbers["tried"] = list(tried)
        if not better and tried:
            text = f"{text}; {len(tried)} other readings get no more accepted"
    if not evidence and found.accepted[0] > 0:
        return passed(text, **numbers)
    shown = evidence or warned_of
    if evidence:
        text = f"{text}; {evidence[0].message}"
    return warned(text, causes.advice(shown, random_prompts=not run.options.prompts), *shown, **numbers)


def _numbers(run: Run, found: Acceptance, without: Acceptance, walk: Walk) -> dict[str, object]:
    assert run.speculator is not None
    numbers: dict[str, object] = {
        **found.to_dict(),
        "candidates": run.speculator.candidates,
        "trained_candidates": trained_candidates(run.pair),
        "texts": len(run.texts),
        "random_prompts": not run.options.prompts,
        "walk": walk,
    }
    if walk != "none":
        numbers["without_head"] = without.to_dict()
    return numbers


def _said(run: Run, found: Acceptance, without: Acceptance, walk: Walk) -> str:
    """Tokens per step, the rate of each position, and what else the numbers depend on."""
    assert run.speculator is not None
    steps = f"{found.windows} steps{'' if run.options.prompts else ' on random prompts'}"
    text = f"exactly 1.000 tokens per step over {steps}: nothing was accepted"
    if found.accepted[0]:
        rates = " ".join(f"{count / found.windows:.2f}" for count in found.accepted)
        text = f"{found.tokens_per_step:.3f} tokens per step over {steps}; accepted by position {rates}"
    if walk != "none":
        text = f"{text}; {without.tokens_per_step:.3f} without the Markov head ({walk} walk)"
    trained, asked = trained_candidates(run.pair), run.speculator.candidates
    return text if trained in (None, asked) else f"{text}; asked for {asked} candidates, trained with {trained}"


_CHECKS: tuple[tuple[str, str, Callable[[Run], Answer]], ...] = (
    ("build", "can the checkpoint be built for this target?", _build),
    ("finite-block", "is one block finite, and does it leave nothing behind?", _finite),
    ("per-row", "does the per-row form compute the same?", _per_row),
    ("acceptance", "does the target accept what is proposed?", _acceptance),
)
