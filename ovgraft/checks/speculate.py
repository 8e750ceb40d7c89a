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
from ovgraft.checks.draft_side import AS_SAID, DraftCall, DraftSide, Reading
from ovgraft.checks.feeds import CACHE_POSITION, Call, FeedMaker
from ovgraft.checks.head_walk import HeadWalk, Walk
from ovgraft.checks.pair import Taps, TargetSide
from ovgraft.checks.ports import by_name
from ovgraft.checks.run import Outputs, Runner
from ovgraft.drafts.contract import FileName, Key, Port
from ovgraft.errors import MismatchError

if TYPE_CHECKING:
    from ovgraft.graft import Graft, Package

Array = NDArray[Any]

SHIFTS = (-1, 0, 1)
"""Candidate j is also held against the token before and behind the one it stands for."""

_MADE_FROM_TOKENS = frozenset(
    {
        *(Port.INPUT_IDS, Port.INPUTS_EMBEDS, Port.ATTENTION_MASK, Port.POSITION_IDS, Port.BEAM_IDX),
        *(Port.TOKEN_TYPE_IDS, CACHE_POSITION),
    }
)


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


class Reader:
    """A target, compiled, that reads tokens: what it says next, and the states behind it.

    Args:
        target: It is not changed.
        taps: Sets of states to give; None takes what the target exposes.
        **compile: Arguments of :class:`~ovgraft.checks.run.Runner`.

    Raises:
        MismatchError: It does not compile.
    """

    def __init__(self, target: Package, taps: Sequence[Taps] | None, **compile: Any) -> None:
        self._target = TargetSide(target, taps, "the target", **compile)
        self._feeds = FeedMaker([target.model])
        self._known: dict[tuple[int, ...], list[Array]] = {}
        self._embedding: Runner | None = None
        if Port.INPUT_IDS not in self._feeds.ports:
            model = target.get(FileName.TEXT_EMBEDDINGS)
            assert model is not None  # unmeasurable says so otherwise
            self._embedding = Runner(model, "the target's embedding", **compile)
            self._ids = next(iter(by_name(model.inputs)))

    def write(self, prompt: Sequence[int], new_tokens: int) -> Text:
        """Continue a prompt greedily."""
        self._target.reset()
        tokens, past = list(prompt), 0
        while len(tokens) < len(prompt) + new_tokens:
            logits, _ = self._run(tokens[past:], past)
            past = len(tokens)
            tokens.append(int(logits[-1].argmax()))
        return Text(tuple(tokens), len(prompt))

    def states(self, tokens: tuple[int, ...], *, again: bool = False) -> list[Array]:
        """Each set of states f32 ``[1, rows, width]`` of all tokens, from an empty cache.

        Args:
            tokens: What to read.
            again: Read them even if they are known.
        """
        if again or tokens not in self._known:
            self._target.reset()
            self._known[tokens] = self._run(tokens, 0)[1]
        return self._known[tokens]

    def _run(self, tokens: Sequence[int], past: int) -> tuple[Array, list[Array]]:
        """``logits`` f32 ``[rows, V]`` and states of new tokens."""
        given: dict[str, Array] = {Port.INPUT_IDS: np.array([tokens], np.int64)}
        if self._embedding is not None:
            (given[Port.INPUTS_EMBEDS],) = self._embedding.run({self._ids: given.pop(Port.INPUT_IDS)}).values()
        call = Call("prefill" if not past else "step", past, len(tokens))
        outputs, states = self._target.step({0: self._feeds.feeds(call, 0, given)})[0]
        return outputs[Port.LOGITS].reshape(-1, outputs[Port.LOGITS].shape[-1]), states


class Speculator:
    """A pair, compiled, that measures.

    Attributes:
        candidates: Tokens proposed per window.
        reader: The target.

    Args:
        graft: Target and draft, grafted or not; neither is changed.
        taps: States the draft reads, used when the target exposes none.
        candidates: Tokens proposed per window.
        like: A speculator of the same target, which need not be compiled again.
        **compile: Arguments of :class:`~ovgraft.checks.run.Runner`.

    Raises:
        MismatchError: The pair is of a form that is not run here, or does not compile.
        StructureError: The state an Eagle-3 draft hands to its next step cannot be told.
    """

    def __init__(
        self, graft: Graft, taps: Taps, candidates: int, *, like: Speculator | None = None, **compile: Any
    ) -> None:
        problem = unmeasurable(graft)
        if problem is not None:
            raise MismatchError(problem, file=graft.package("draft").path)
        self._taps, self._compile = taps, compile
        exposed = Port.LAST_HIDDEN_STATE in by_name(graft.target.model.outputs)
        sets = None if exposed else [taps]
        self.reader: Reader = Reader(graft.target, sets, **compile) if like is None else like.reader
        self.candidates = candidates
        self._facts = drafts.read_draft(graft.package("draft"))
        self._is_chain = self._facts.family == "eagle3"
        wanted = (Port.LOGITS, Port.DRAFT_TOKEN_IDS)
        tables = None if like is None else like._draft.tables
        self._draft: DraftSide = DraftSide(graft, wanted, "the pair", chained=self._is_chain, tables=tables, **compile)
        self._package = graft.package("draft")
        self._heads: dict[Walk, HeadWalk] = {}

    def of(self, graft: Graft) -> Speculator:
        """The same with the draft of another graft of this target."""
        return Speculator(graft, self._taps, self.candidates, like=self, **self._compile)

    def write(self, prompt: Sequence[int], new_tokens: int) -> Text:
        """Let the target continue a prompt greedily."""
        return self.reader.write(prompt, new_tokens)

    def measure(
        self,
        texts: Sequence[Text],
        walk: Walk = "none",
        *,
        reading: Reading = AS_SAID,
        states: Mapping[Text, Array] | None = None,
        most_windows: int | None = None,
    ) -> Acceptance:
        """Ask the draft at every place of the texts where a host would ask it.

        Args:
            texts: What the target wrote.
            walk: What the draft's Markov head does to its rows; ``none`` leaves it out, as for a draft without one.
            reading: How to read what is not in the draft's graph.
            states: Others than the target's for these layers, f32 ``[1, rows, width]``.
            most_windows: Windows per text after which it is left; None goes to its end.

        Raises:
            MismatchError: A text is too short, or there is no such head or walk.
        """
        windows, accepted = 0, np.zeros(self.candidates, np.int64)
        agreed = {shift: np.zeros(self.candidates, np.int64) for shift in SHIFTS}
        for text in texts:
            self._draft.reset()
            seen = self.reader.states(text.tokens)[0] if states is None else states[text]
            tokens, known, anchor = np.array(text.tokens), 0, text.prompt
            last = len(tokens) - self.candidates - max(SHIFTS)
            for _ in range(len(tokens) if most_windows is None else most_windows):
                if anchor >= last:
                    break
                proposed = self._propose(tokens, seen, known, anchor, walk, reading)
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

    def propose(self, text: Text, walk: Walk = "none") -> NDArray[np.int64]:
        """The candidates of the first window of a text, from empty states: target ids i64 ``[candidates]``."""
        self._draft.reset()
        states = self.reader.states(text.tokens)[0]
        return self._propose(np.array(text.tokens), states, 0, text.prompt, walk, AS_SAID)

    def block(self, text: Text) -> Outputs:
        """All outputs of the draft, and the target's states, for the first window of a text, from empty states."""
        self._draft.reset()
        states = self.reader.states(text.tokens, again=True)[0]
        outputs = self._first(np.array(text.tokens), states, 0, text.prompt, AS_SAID)
        return {Port.HIDDEN_STATES: states[:, : text.prompt], **outputs}

    def block_after(self, text: Text, other_anchor: int | None = None) -> Outputs:
        """All outputs of the second block of a text, after a first one with the text's anchor or another."""
        self._draft.reset()
        states, tokens = self.reader.states(text.tokens)[0], np.array(text.tokens)
        before = tokens.copy()
        if other_anchor is not None:
            before[text.prompt] = other_anchor
        self._first(before, states, 0, text.prompt, AS_SAID)
        return self._first(tokens, states, text.prompt, text.prompt + 1, AS_SAID)

    def _propose(
        self, tokens: Array, states: Array, known: int, anchor: int, walk: Walk, reading: Reading
    ) -> NDArray[np.int64]:
        """Target ids i64 ``[candidates]``."""
        if self._is_chain:
            return self._chain(tokens, states, anchor, reading)
        outputs = self._first(tokens, states, known, anchor, reading)
        if walk == "none":
            found: NDArray[np.int64] = outputs[Port.DRAFT_TOKEN_IDS].reshape(-1)[-self.candidates :]
            return found
        if Port.LOGITS not in outputs:
            raise MismatchError("the draft gives tokens, not the logits its head reads", file=self._package.path)
        hidden = outputs.get(Port.LAST_HIDDEN_STATE)
        rows = slice(-self.candidates, None)
        return self._head(walk).tokens(
            outputs[Port.LOGITS][0, rows], None if hidden is None else hidden[0, rows], int(tokens[anchor])
        )

    def _chain(self, tokens: Array, states: Array, anchor: int, reading: Reading) -> NDArray[np.int64]:
        """One token a step; behind the first, the draft reads the state it gave for the token before.

        OpenVINO GenAI computes the rows of accepted tokens anew from the target's states; here all rows before the
        anchor are, from an empty cache, because nothing takes drafted rows back out of one.
        """
        self._draft.reset()
        outputs = self._first(tokens, states, 0, anchor, reading)
        drafted = [int(outputs[Port.DRAFT_TOKEN_IDS].reshape(-1)[-1])]
        for past in range(anchor, anchor + self.candidates - 1):
            hidden, ids = outputs[Port.LAST_HIDDEN_STATE][:, -1:], np.array([drafted[-1:]], np.int64)
            outputs = self._draft.step({0: DraftCall(Call("draft", past, 1), hidden, ids, own=True)}, reading)[0]
            drafted.append(int(outputs[Port.DRAFT_TOKEN_IDS].reshape(-1)[-1]))
        return np.array(drafted, np.int64)

    def _first(self, tokens: Array, states: Array, known: int, anchor: int, reading: Reading) -> Outputs:
        """One draft call at an anchor: states of the rows since ``known``, then what the draft decides about."""
        context = states[:, known:anchor]
        if self._is_chain:
            rows = DraftCall(Call("draft", known, anchor - known), context, tokens[None, known + 1 : anchor + 1])
            return self._draft.step({0: rows}, reading)[0]
        mask = self._facts.mask_token_id if reading.mask_token_id is None else reading.mask_token_id
        ids = np.full((1, self.candidates + rows_cut(self._facts)), mask, np.int64)
        ids[0, 0] = tokens[anchor]
        call = Call("draft", known, ids.shape[1], anchor - known)
        return self._draft.step({0: DraftCall(call, context, ids)}, reading)[0]

    def _head(self, walk: Walk) -> HeadWalk:
        if walk not in self._heads:
            model = self._package.get(FileName.MARKOV_HEAD)
            if model is None or walk == "none":
                raise MismatchError("the draft has no Markov head to walk with", file=self._package.path)
            self._heads[walk] = HeadWalk(model, walk, self._facts.d2t, **self._compile)
        return self._heads[walk]


def unmeasurable(graft: Graft) -> str | None:
    """Why a pair is not run here; None when it is."""
    target = FeedMaker([graft.target.model]).ports
    if Port.INPUT_IDS not in target and graft.target.get(FileName.TEXT_EMBEDDINGS) is None:
        return f"the target takes embeddings and there is no {FileName.TEXT_EMBEDDINGS}.xml to make them"
    unknown = [name for name in target if name not in _MADE_FROM_TOKENS]
    if unknown:
        return f"the target also reads {', '.join(unknown)}, which tokens alone do not give"
    return None


def rows_cut(draft: drafts.DraftIr) -> int:
    """Block rows before the first candidate; the exporter of drafts that say none drops one."""
    return int(ir.get_text(draft.model, Key.CANDIDATE_POSITION_OFFSET) or 1)


def random_prompts(vocab_size: int, count: int, length: int, seed: int) -> list[list[int]]:
    """Prompts of random tokens."""
    random = np.random.default_rng(seed)
    return [random.integers(0, vocab_size, length).tolist() for _ in range(count)]
