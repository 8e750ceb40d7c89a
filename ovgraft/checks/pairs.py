"""Two pairs end to end: tokens into the target, its states into the draft, over several steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ovgraft import drafts
from ovgraft.checks.comparison import Comparison, Tally, limits
from ovgraft.checks.draft_side import DraftCall
from ovgraft.checks.feeds import Call, FeedMaker, calls_of, vocabulary
from ovgraft.checks.hosts import is_per_row_draft
from ovgraft.checks.pair import Pair, find_taps
from ovgraft.checks.ports import by_name, is_paged
from ovgraft.checks.run import Outputs, Settings
from ovgraft.checks.tolerances import Tolerances
from ovgraft.drafts.kinds import model_kind
from ovgraft.errors import MismatchError
from ovgraft.ir import progress

if TYPE_CHECKING:
    from ovgraft.graft import Graft

Array = NDArray[Any]

PACKED = 3
"""Sequences of different lengths that share a batch where a model is paged."""


def compare_pairs(
    a: Graft, b: Graft, tolerances: Tolerances | None, settings: Settings, *, with_target: bool = True
) -> Comparison:
    """Run both pairs on the same tokens; each draft reads the states of its own target.

    Args:
        a: The pair that is right by definition.
        b: The other one.
        tolerances: Limits.
        settings: What is run.
        with_target: Also compare the outputs of the targets.

    Raises:
        MismatchError: They cannot be compared, or a model does not compile or run.
    """
    models = [package.model for graft in (a, b) for package in (graft.target, graft.package("draft"))]
    packed = any(is_paged(model) or is_per_row_draft(model) for model in models)
    group = PACKED if packed else 1
    samples = max(settings.samples, group)
    taps = find_taps((a, b))
    wanted = [name for model in models[1::2] for name in by_name(model.outputs)]
    progress.advance(0, 0, "compiling")
    pairs = [Pair(graft, taps, wanted, label, **settings.compile) for graft, label in ((a, "A"), (b, "B"))]
    shared = [name for name in pairs[0].draft_outputs if name in pairs[1].draft_outputs]
    if not shared:
        raise MismatchError("the drafts have no output in common")
    inputs = _Inputs(a, b, settings.seed)
    labels = tuple(call.label for call in inputs.calls(settings.steps, 0))
    tally: Tally | None = None
    given: list[Outputs] = []
    for first in range(0, samples, group):
        for pair in pairs:
            pair.reset()
        numbers = range(first, min(first + group, samples))
        for at, calls in enumerate(zip(*(inputs.calls(settings.steps, sample) for sample in numbers), strict=True)):
            progress.advance(first // group * len(labels) + at, -(-samples // group) * len(labels), labels[at])
            batch = dict(zip(numbers, calls, strict=True))
            found = [_step(pair, inputs, batch, with_target=with_target) for pair in pairs]
            for sample, call in batch.items():
                given = [side[sample] for side in found]
                names = [name for name in given[0] if name in given[1]]
                tally = tally or Tally(names, limits(tolerances, *models))
                tally.add(*_aligned(given[0], given[1], call), sample, call.label)
    assert tally is not None  # there is at least one call
    only_a, only_b = (tuple(name for name in one if name not in other) for one, other in (given, given[::-1]))
    return Comparison(
        "target and draft" if with_target else "draft",
        tally.differences(),
        only_a,
        only_b,
        inputs.unshared,
        samples,
        labels,
        settings.seed,
        settings.device,
    )


def _step(pair: Pair, inputs: _Inputs, batch: dict[int, Call], *, with_target: bool) -> dict[int, Outputs]:
    """One step of a pair over several sequences: what target and draft give, by sequence."""
    read = pair.target({sample: inputs.tokens(call, sample) for sample, call in batch.items()})
    drafted = pair.draft(
        {sample: DraftCall(call, read[sample][1], inputs.block(call, sample)) for sample, call in batch.items()}
    )
    prefix = "draft " if with_target else ""
    return {
        sample: {f"target {name}": value for name, value in read[sample][0].items() if with_target}
        | {f"{prefix}{name}": value for name, value in drafted[sample].items()}
        for sample in batch
    }


def _aligned(a: Outputs, b: Outputs, call: Call) -> tuple[Outputs, Outputs]:
    """The same block rows of both: an SDPA draft may keep the anchor's to itself, a per-row one gives all of them."""
    if not call.context:
        return a, b
    cut: tuple[Outputs, Outputs] = ({}, {})
    for name in a.keys() & b.keys():
        rows = [values[name].shape[1] if values[name].ndim > 1 else 0 for values in (a, b)]
        differ = sorted(rows) == [call.rows - 1, call.rows]
        for side, values in zip(cut, (a, b), strict=True):
            side[name] = values[name][:, -min(rows) :] if differ else values[name]
    return cut


class _Inputs:
    """Tokens for the targets, and blocks for the drafts: the anchor, one mask token where there is one, any others."""

    def __init__(self, a: Graft, b: Graft, seed: int) -> None:
        self._seed = seed
        self._targets = FeedMaker([a.target.model, b.target.model], seed)
        self.unshared = self._targets.unshared
        drafters = [graft.package("draft").model for graft in (a, b)]
        self._kind = model_kind(drafters[0])
        self._stateful = any(model.get_variables() or is_paged(model) for model in drafters)
        self._vocab_size = vocabulary(a.target.model) or 2
        self._mask_token_id = drafts.read_draft(a.package("draft")).mask_token_id

    def calls(self, steps: int, sample: int) -> tuple[Call, ...]:
        return calls_of(self._kind, self._stateful, steps, sample)

    def tokens(self, call: Call, sample: int) -> dict[str, Array]:
        """Feeds of the target."""
        return self._targets.feeds(Call(call.label, call.past, call.context or call.rows), sample)

    def block(self, call: Call, sample: int) -> NDArray[np.int64]:
        """i64 ``[1, rows]``."""
        random = np.random.default_rng([self._seed, sample, call.past, 1])
        ids = random.integers(0, self._vocab_size, (1, call.rows))
        if self._mask_token_id is not None and call.rows > 1:
            ids[0, 1] = self._mask_token_id
        return ids
