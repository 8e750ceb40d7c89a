"""How much of what a draft proposes would its target accept? Measured against the target's own greedy text.

Greedy verification accepts a candidate exactly when it is the token the target says next, so the text can be written
first and the draft asked at every place a host would ask it. Nothing is rolled back in the target, which is why targets
with linear attention can be measured too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ovgraft import drafts, ir
from ovgraft.checks.feeds import Call, FeedMaker
from ovgraft.checks.head_walk import HeadWalk, Walk
from ovgraft.checks.pair import Pair, Taps
from ovgraft.checks.ports import by_name
from ovgraft.checks.run import Runner
from ovgraft.drafts.contract import FileName, Key, Port
from ovgraft.errors import MismatchError

if TYPE_CHECKING:
    from ovgraft.graft import Graft

Array = NDArray[Any]

SHIFTS = (-1, 0, 1)
"""Candidate j is also held against the token before and behind the one it stands for."""


@dataclass(frozen=True)
class Text:
    """A prompt the target has continued.

    Attributes:
        tokens: Prompt and continuation.
        prompt: Tokens of the prompt.
    """

    tokens: tuple[int, ...]
    prompt: int


@dataclass(frozen=True)
class Acceptance:
    """What was accepted over all windows of all texts.

    Attributes:
        windows: Target calls after the prompts.
        accepted: Per position: windows that accepted this candidate and all before it.
        agreed: Shift -> per position: candidates equal to the token so many places further on; 0 is the right one.
    """

    windows: int
    accepted: tuple[int, ...]
    agreed: Mapping[int, tuple[int, ...]]

    @property
    def tokens_per_step(self) -> float:
        """1 when nothing is accepted: the target's own token alone."""
        return 1 + sum(self.accepted) / self.windows

    def agreement(self, shift: int = 0) -> float:
        """Part of all candidates that are the token ``shift`` places further on than they should."""
        return sum(self.agreed[shift]) / (self.windows * len(self.accepted))

    def to_dict(self) -> dict[str, object]:
        """The JSON form."""
        return {
            "windows": self.windows,
            "tokens_per_step": self.tokens_per_step,
            "accepted_by_position": [count / self.windows for count in self.accepted],
            "agreement_by_position": [count / self.windows for count in self.agreed[0]],
            "agreement_by_shift": {str(shift): self.agreement(shift) for shift in SHIFTS},
        }


class Speculator:
    """A pair, compiled, that measures.

    Args:
        graft: Target and draft, grafted or not; neither is changed.
        taps: States the draft reads, used when the target exposes none.
        candidates: Tokens proposed per window; Eagle-3 drafts propose one.
        walk: What the draft's Markov head does to its rows; ``none`` leaves it out, as for a draft without one.
        **compile: Arguments of :class:`~ovgraft.checks.run.Runner`.

    Raises:
        MismatchError: The pair is of a form that is not run here, or does not compile.
    """

    def __init__(self, graft: Graft, taps: Taps, candidates: int, *, walk: Walk = "none", **compile: Any) -> None:
        problem = unmeasurable(graft, taps.layers)
        if problem is not None:
            raise MismatchError(problem, file=graft.package("draft").path)
        facts = drafts.read_draft(graft.package("draft"))
        self._facts = facts
        self._is_block = facts.family == "dflash"
        self.candidates = candidates if self._is_block else 1
        self._pair = Pair(graft, taps, (Port.DRAFT_TOKEN_IDS,), "the pair", **compile)
        self._feeds = FeedMaker([graft.target.model])
        self._head: HeadWalk | None = None
        if walk != "none":
            head = graft.package("draft").get(FileName.MARKOV_HEAD)
            if head is None:
                raise MismatchError("the draft has no Markov head to walk with", file=graft.package("draft").path)
            self._head = HeadWalk(head, walk, facts.d2t, **compile)
        self._embedding: Runner | None = None
        if Port.INPUT_IDS not in self._feeds.ports:
            model = graft.target.get(FileName.TEXT_EMBEDDINGS)
            assert model is not None  # unmeasurable says so otherwise
            self._embedding = Runner(model, "the target's embedding", **compile)
            self._ids = next(iter(by_name(model.inputs)))

    def write(self, prompt: Sequence[int], new_tokens: int) -> Text:
        """Let the target continue a prompt greedily."""
        self._pair.reset()
        tokens, past = list(prompt), 0
        while len(tokens) < len(prompt) + new_tokens:
            logits, _ = self._run_target(tokens[past:], past)
            past = len(tokens)
            tokens.append(int(logits[-1].argmax()))
        return Text(tuple(tokens), len(prompt))

    def measure(self, texts: Sequence[Text]) -> Acceptance:
        """Ask the draft at every place of the texts where a host would ask it."""
        windows, accepted = 0, np.zeros(self.candidates, np.int64)
        agreed = {shift: np.zeros(self.candidates, np.int64) for shift in SHIFTS}
        for text in texts:
            self._pair.reset()
            _, states = self._run_target(list(text.tokens), 0)
            tokens, known, anchor = np.array(text.tokens), 0, text.prompt
            while anchor + self.candidates + max(SHIFTS) < len(tokens):
                proposed = self._propose(tokens, states, known, anchor)
                known = anchor
                for shift in SHIFTS:
                    first = anchor + 1 + shift
                    agreed[shift] += proposed == tokens[first : first + self.candidates]
                right = proposed == tokens[anchor + 1 : anchor + 1 + self.candidates]
                count = self.candidates if right.all() else int(right.argmin())
                accepted[:count] += 1
                windows += 1
                anchor += count + 1
        if not windows:
            raise MismatchError("the texts are too short for one window", expected=f"{self.candidates + 2} new tokens")
        counts = {shift: tuple(map(int, values)) for shift, values in agreed.items()}
        return Acceptance(windows, tuple(map(int, accepted)), counts)

    def block(self, text: Text) -> dict[str, Array]:
        """All outputs of the draft, and the target's states, for the first window of a text, from empty states."""
        self._pair.reset()
        _, states = self._run_target(list(text.tokens[: text.prompt]), 0)
        outputs = self._draft(np.array(text.tokens), states, 0, text.prompt)
        return {Port.HIDDEN_STATES: states, **outputs}

    def _run_target(self, tokens: Sequence[int], past: int) -> tuple[Array, Array]:
        """``logits`` f32 ``[rows, V]`` and states f32 ``[1, rows, width]`` of new tokens."""
        given: dict[str, Array] = {Port.INPUT_IDS: np.array([tokens], np.int64)}
        if self._embedding is not None:
            (given[Port.INPUTS_EMBEDS],) = self._embedding.run({self._ids: given.pop(Port.INPUT_IDS)}).values()
        call = Call("prefill" if not past else "step", past, len(tokens))
        outputs, states = self._pair.target(self._feeds.feeds(call, 0, given))
        return outputs[Port.LOGITS].reshape(-1, outputs[Port.LOGITS].shape[-1]), states

    def _propose(self, tokens: Array, states: Array, known: int, anchor: int) -> Array:
        outputs = self._draft(tokens, states, known, anchor)
        if self._head is not None:
            hidden = outputs.get(Port.LAST_HIDDEN_STATE)
            return self._head.tokens(
                outputs[Port.LOGITS][0], None if hidden is None else hidden[0], int(tokens[anchor])
            )
        return outputs[Port.DRAFT_TOKEN_IDS].reshape(-1)[-self.candidates :]

    def _draft(self, tokens: Array, states: Array, known: int, anchor: int) -> dict[str, Array]:
        """One draft call at an anchor: states of the rows since ``known``, then what the draft decides about."""
        context = states[:, known:anchor]
        if not self._is_block:
            ids = tokens[None, known + 1 : anchor + 1]
            return self._pair.draft(Call("draft", known, anchor - known), 0, context, ids)
        rows = self.candidates + rows_cut(self._facts)
        ids = np.full((1, rows), self._facts.mask_token_id, np.int64)
        ids[0, 0] = tokens[anchor]
        return self._pair.draft(Call("draft", known, rows, anchor - known), 0, context, ids)


def unmeasurable(graft: Graft, layers: Sequence[int]) -> str | None:
    """Why a pair is not run here; None when it is."""
    target, draft = (by_name(package.model.inputs) for package in (graft.target, graft.package("draft")))
    if Port.TOKEN_TYPE_IDS in draft or "block_indices" in draft:
        return "the draft is in the per-row form: measure the one it was made from"
    if "block_indices" in target:
        return "the target is in the PagedAttention form: measure the one it was made from"
    if Port.INPUT_IDS not in target and graft.target.get(FileName.TEXT_EMBEDDINGS) is None:
        return f"the target takes embeddings and there is no {FileName.TEXT_EMBEDDINGS}.xml to make them"
    if min(layers, default=0) < 0:
        return "the draft reads the embedding's output, which is no layer's"
    return None


def rows_cut(draft: drafts.DraftIr) -> int:
    """Rows an SDPA draft drops in front: its candidate offset; the exporter of drafts that say none drops one."""
    return int(ir.get_text(draft.model, Key.CANDIDATE_POSITION_OFFSET) or 1)


def random_prompts(vocab_size: int, count: int, length: int, seed: int) -> list[list[int]]:
    """Prompts of random tokens."""
    random = np.random.default_rng(seed)
    return [random.integers(0, vocab_size, length).tolist() for _ in range(count)]
