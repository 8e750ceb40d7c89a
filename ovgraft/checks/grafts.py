"""Two grafts on the same inputs: model by model where the ports allow it, else target and draft as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft import drafts
from ovgraft.checks.comparison import STEPS, Comparison, Tally, compare, shared_outputs
from ovgraft.checks.feeds import Call, FeedMaker, calls_of, hidden_states_width, vocabulary
from ovgraft.checks.paged import PAGED_TOLERANCES, compare_paged, is_paged
from ovgraft.checks.pair import Pair, find_taps
from ovgraft.checks.ports import by_name, static_last
from ovgraft.checks.run import PARITY
from ovgraft.checks.tolerances import Tolerances
from ovgraft.drafts.contract import FileName, Port
from ovgraft.drafts.kinds import model_kind
from ovgraft.errors import MismatchError, Reason
from ovgraft.graft import Graft, Package

if TYPE_CHECKING:
    from ovgraft.graft import Snapshot
    from ovgraft.passbase import ModelRole

SIDE_MODELS = (FileName.TEXT_EMBEDDINGS, FileName.MARKOV_HEAD)
"""Models beside the main one whose inputs the checks know how to make."""

Array = NDArray[Any]

_DATA = (Port.INPUT_IDS, Port.INPUTS_EMBEDS, Port.HIDDEN_STATES)


@dataclass(frozen=True)
class Verification:
    """All comparisons of two grafts.

    Attributes:
        comparisons: One for target and draft each, or one for both as a pair.
        notes: What was not compared, and why.
    """

    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Every output is within its limits."""
        return all(comparison.same for comparison in self.comparisons)

    def to_dict(self) -> dict[str, object]:
        """The JSON form."""
        return {
            "same": self.same,
            "comparisons": [comparison.to_dict() for comparison in self.comparisons],
            "notes": list(self.notes),
        }

    def require(self) -> None:
        """Raise when they are not the same.

        Raises:
            MismatchError: With the outputs, the differences and the limits.
        """
        if self.same:
            return
        reasons = tuple(
            Reason("numbers-differ", f"{comparison.subject}: {output.sentence()}")
            for comparison in self.comparisons
            for output in comparison.outputs
            if not output.same
        )
        raise MismatchError("the numbers are not the same", reasons=reasons)


def graft_of(snapshot: Snapshot, like: Graft) -> Graft:
    """A snapshot as a graft of its own; side models that were not read yet come from the files.

    Args:
        snapshot: Taken of ``like`` at some moment; shared, not copied.
        like: The graft, for its paths.
    """

    def package(role: ModelRole, source: Package) -> Package:
        copy = Package(source.path)
        for name, model in snapshot.models[role].items():
            copy.add(name, model)
        return copy

    return Graft(package("target", like.target), like.draft and package("draft", like.draft))


def compare_grafts(
    a: Graft,
    b: Graft,
    *,
    tolerances: Tolerances | None = None,
    seed: int = 0,
    samples: int = 1,
    steps: int = STEPS,
    device: str = "CPU",
    config: Mapping[str, Any] = PARITY,
) -> Verification:
    """Compare the numbers of two grafts, for example before and after passes.

    Args:
        a: The graft that is right by definition.
        b: The other one.
        tolerances: Limits; default 1e-5 absolute plus 1e-5 relative.
        seed: Of the inputs.
        samples: Independent runs.
        steps: Decode steps of each.
        device: OpenVINO device.
        config: Compile properties.

    Raises:
        MismatchError: They cannot be compared, or a model does not compile or run.
    """
    options: dict[str, Any] = {
        "tolerances": tolerances,
        "seed": seed,
        "samples": samples,
        "steps": steps,
        "device": device,
        "config": config,
    }
    sides = list(_side_comparisons(a, b, options))
    if is_paged(a.target.model) or is_paged(b.target.model):
        return _compare_paged_targets(a, b, sides, tolerances, seed, device, config)
    drafts_of = [None if graft.draft is None else graft.draft.get(graft.draft.main_name) for graft in (a, b)]
    if None in drafts_of:
        notes = () if drafts_of == [None, None] else ("only one side has a draft IR; it was not compared",)
        target = compare(a.target.model, b.target.model, subject="target", **options)
        return Verification((target, *sides), notes)
    models = [(a.target.model, b.target.model), (a.package("draft").model, b.package("draft").model)]
    exposing = [Port.LAST_HIDDEN_STATE in by_name(graft.target.model.outputs) for graft in (a, b)]
    if exposing[0] == exposing[1] and all(_comparable(*pair) for pair in models):
        subjects = ("target", "draft")
        both = [compare(*pair, subject=subject, **options) for pair, subject in zip(models, subjects, strict=True)]
        return Verification((*both, *sides))
    return Verification((compare_pairs(a, b, **options), *sides))


def _compare_paged_targets(
    a: Graft,
    b: Graft,
    sides: Sequence[Comparison],
    tolerances: Tolerances | None,
    seed: int,
    device: str,
    config: Mapping[str, Any],
) -> Verification:
    """Targets of which one or both are paged; drafts in two forms take other rows and are left to the tests."""
    limits = tolerances or PAGED_TOLERANCES
    target = compare_paged(
        a.target.model, b.target.model, subject="target", tolerances=limits, seed=seed, device=device, config=config
    )
    notes = () if a.draft is None and b.draft is None else ("a target is paged, so the drafts were not compared",)
    return Verification((target, *sides), notes)


def _side_comparisons(a: Graft, b: Graft, options: Mapping[str, Any]) -> Iterator[Comparison]:
    """Models beside the main ones that both grafts have and whose inputs are known."""
    for role in (role for role in a.packages if role in b.packages):
        for name in SIDE_MODELS:
            models = [
                graft.package(role).get(name) if graft.package(role).kind == "folder" else None for graft in (a, b)
            ]
            if models[0] is not None and models[1] is not None:
                yield compare(models[0], models[1], subject=f"{role} {name}", **options)


def compare_pairs(
    a: Graft,
    b: Graft,
    *,
    tolerances: Tolerances | None = None,
    seed: int = 0,
    samples: int = 1,
    steps: int = STEPS,
    device: str = "CPU",
    config: Mapping[str, Any] = PARITY,
) -> Comparison:
    """Run both pairs end to end: tokens into the target, its states into the draft, both over several steps.

    Arguments and errors are those of :func:`compare_grafts`.
    """
    targets = FeedMaker([a.target.model, b.target.model], seed)
    draft_models = [graft.package("draft").model for graft in (a, b)]
    stateful = any(len(model.get_variables()) > 0 for model in draft_models)
    calls = calls_of(model_kind(draft_models[0]), stateful, steps)
    taps = find_taps((a, b))
    wanted = [name for model in draft_models for name in by_name(model.outputs)]
    pairs = [Pair(graft, taps, wanted, label, device=device, config=config) for graft, label in ((a, "A"), (b, "B"))]
    names = [name for name in pairs[0].draft_outputs if name in pairs[1].draft_outputs]
    if not names:
        raise MismatchError("the drafts have no output in common")
    limits = tolerances or Tolerances()
    ids = _TokenMaker(a, seed)
    tally: Tally | None = None
    found: list[dict[str, Array]] = []
    for sample in range(samples):
        for pair in pairs:
            pair.reset()
        for call in calls:
            feeds = targets.feeds(Call(call.label, call.past, call.context or call.rows), sample)
            block = ids.block(call, sample)
            found = []
            for pair in pairs:
                outputs, hidden = pair.target(feeds)
                drafted = pair.draft(call, sample, hidden, block)
                named = {f"target {name}": value for name, value in outputs.items()}
                found.append(named | {f"draft {name}": drafted[name] for name in names})
            tally = tally or Tally([name for name in found[0] if name in found[1]], limits)
            tally.add(found[0], found[1], sample, call.label)
    assert tally is not None  # there is at least one call
    only_a, only_b = (
        (
            *(name for name in one if name not in other),
            *(f"draft {name}" for name in pair.draft_outputs if name not in names),
        )
        for one, other, pair in zip(found, reversed(found), pairs, strict=True)
    )
    return Comparison(
        "target and draft",
        tally.differences(),
        only_a,
        only_b,
        targets.unshared,
        samples,
        tuple(call.label for call in calls),
        seed,
        device,
    )


def _comparable(a: ov.Model, b: ov.Model) -> bool:
    """Whether the same inputs mean the same to both and outputs of one name are of one width."""
    inputs = by_name(a.inputs), by_name(b.inputs)
    for name in _DATA:
        ports = [port[name] for port in inputs if name in port]
        if len(ports) == 1 or (ports and not ports[0].get_partial_shape().compatible(ports[1].get_partial_shape())):
            return False
    hidden = hidden_states_width(a), hidden_states_width(b)
    if None not in hidden and hidden[0] != hidden[1]:
        return False
    outputs = by_name(a.outputs), by_name(b.outputs)
    shared = shared_outputs(*outputs)
    widths = [(static_last(outputs[0][name]), static_last(outputs[1][other])) for name, other in shared.items()]
    return bool(shared) and all(None in pair or pair[0] == pair[1] for pair in widths)


class _TokenMaker:
    """Tokens of a draft's block: the anchor, one mask token where the draft has one, and any others."""

    def __init__(self, graft: Graft, seed: int) -> None:
        self._seed = seed
        self._vocab_size = vocabulary(graft.target.model) or 2
        self._mask_token_id = drafts.read_draft(graft.package("draft")).mask_token_id

    def block(self, call: Call, sample: int) -> NDArray[np.int64]:
        """i64 ``[1, rows]``."""
        random = np.random.default_rng([self._seed, sample, call.past, 1])
        ids = random.integers(0, self._vocab_size, (1, call.rows))
        if self._mask_token_id is not None and call.rows > 1:
            ids[0, 1] = self._mask_token_id
        return ids
