"""Two grafts on the same inputs: model by model where the ports allow it, else target and draft as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import openvino as ov

from ovgraft.checks.comparison import STEPS, Comparison, compare, limits, shared_outputs
from ovgraft.checks.feeds import hidden_states_width
from ovgraft.checks.hosts import is_per_row_draft
from ovgraft.checks.paged import compare_paged
from ovgraft.checks.pairs import compare_pairs
from ovgraft.checks.ports import by_name, is_paged, static_last
from ovgraft.checks.run import PARITY, Settings
from ovgraft.checks.tolerances import Tolerances
from ovgraft.drafts.contract import FileName, Port
from ovgraft.errors import MismatchError, Reason
from ovgraft.graft import Graft, Package

if TYPE_CHECKING:
    from ovgraft.graft import Snapshot
    from ovgraft.passbase import ModelRole

SIDE_MODELS = (FileName.TEXT_EMBEDDINGS, FileName.MARKOV_HEAD)
"""Models beside the main one whose inputs the checks know how to make."""

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

    Where target and draft can each be fed alike, they are compared one by one; else both pairs are run end to end.
    Paged targets also meet several sequences in one batch, whole, in chunks and row by row.

    Args:
        a: The graft that is right by definition.
        b: The other one.
        tolerances: Limits; default 1e-5 absolute plus 1e-5 relative, 1e-4 where one of the models is paged.
        seed: Of the inputs.
        samples: Independent runs.
        steps: Decode steps of each.
        device: OpenVINO device.
        config: Compile properties.

    Raises:
        MismatchError: They cannot be compared, or a model does not compile or run.
    """
    settings = Settings(seed, samples, steps, device, config)
    options: dict[str, Any] = {"tolerances": tolerances, **vars(settings)}
    sides = list(_side_comparisons(a, b, options))
    targets = a.target.model, b.target.model
    paged_targets: list[Comparison] = []
    if any(map(is_paged, targets)):
        common = {"seed": seed, "tolerances": limits(tolerances, *targets), **settings.compile}
        paged_targets.append(compare_paged(*targets, subject="target", **common))
    drafts_of = [None if graft.draft is None else graft.draft.get(graft.draft.main_name) for graft in (a, b)]
    if drafts_of[0] is None or drafts_of[1] is None:
        notes = () if drafts_of == [None, None] else ("only one side has a draft IR; it was not compared",)
        target = paged_targets or [compare(*targets, subject="target", **options)]
        return Verification((*target, *sides), notes)
    if not paged_targets and _one_by_one(targets, (drafts_of[0], drafts_of[1])):
        both = [
            compare(*models, subject=subject, **options)
            for models, subject in ((targets, "target"), (drafts_of, "draft"))
        ]
        return Verification((*both, *sides))
    pair = compare_pairs(a, b, tolerances, settings, with_target=not paged_targets)
    return Verification((*paged_targets, pair, *sides))


def _side_comparisons(a: Graft, b: Graft, options: Mapping[str, Any]) -> Iterator[Comparison]:
    """Models beside the main ones that both grafts have and whose inputs are known."""
    for role in (role for role in a.packages if role in b.packages):
        for name in SIDE_MODELS:
            models = [
                graft.package(role).get(name) if graft.package(role).kind == "folder" else None for graft in (a, b)
            ]
            if models[0] is not None and models[1] is not None:
                yield compare(models[0], models[1], subject=f"{role} {name}", **options)


def _one_by_one(targets: tuple[ov.Model, ov.Model], drafts: tuple[ov.Model, ov.Model]) -> bool:
    """Whether each of the models can be held against its counterpart alone."""
    exposing = [Port.LAST_HIDDEN_STATE in by_name(model.outputs) for model in targets]
    packed = any(is_per_row_draft(model) or is_paged(model) for model in drafts)
    return exposing[0] == exposing[1] and not packed and _comparable(*targets) and _comparable(*drafts)


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
