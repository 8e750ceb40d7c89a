"""A stateful decoder against its PagedAttention form on the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import openvino as ov

from ovgraft.checks.compare import Comparison, Tally, shared_outputs
from ovgraft.checks.feeds import Array, Call, FeedMaker
from ovgraft.checks.paged_runner import PagedRunner, Rows
from ovgraft.checks.ports import by_name
from ovgraft.checks.run import PARITY, Runner
from ovgraft.checks.tolerances import Tolerances
from ovgraft.drafts.contract import Port
from ovgraft.errors import PreconditionError

LENGTHS = (70, 5, 33)
"""Tokens of the sequences that share one batch, against cache blocks of 32 rows."""

PAGED_TOLERANCES = Tolerances(atol=1e-4, rtol=1e-4)
"""Other kernels sum in another order."""

Schedule = Callable[[int], Iterator[tuple[int, int]]]


def whole(length: int) -> Iterator[tuple[int, int]]:
    """All rows in one step."""
    yield 0, length


def chunks(length: int) -> Iterator[tuple[int, int]]:
    """Seven rows a step."""
    yield from ((start, min(start + 7, length)) for start in range(0, length, 7))


def single(length: int) -> Iterator[tuple[int, int]]:
    """One row a step."""
    yield from ((start, start + 1) for start in range(length))


SCHEDULES: Mapping[str, Schedule] = MappingProxyType({"whole": whole, "chunks of 7": chunks, "one by one": single})


def is_paged(model: ov.Model) -> bool:
    """Whether a model has paged caches for inputs."""
    return "block_indices" in by_name(model.inputs) or any(
        name.startswith(("key_cache.", "block_indices.")) for port in model.inputs for name in port.names
    )


def compare_paged(
    stateful: ov.Model,
    paged: ov.Model,
    *,
    subject: str = "stateful and paged",
    tolerances: Tolerances = PAGED_TOLERANCES,
    lengths: Sequence[int] = LENGTHS,
    seed: int = 0,
    device: str = "CPU",
    config: Mapping[str, Any] = PARITY,
) -> Comparison:
    """Run sequences of several lengths alone in the stateful model and together in the paged one.

    The paged model gets them in one batch under each of :data:`SCHEDULES`; the stateful one, one by one and whole.

    Args:
        stateful: The model that is right by definition.
        paged: The other form.
        subject: What to call them in the result.
        tolerances: Limits.
        lengths: Tokens of each sequence.
        seed: Of the inputs.
        device: OpenVINO device.
        config: Compile properties of both.

    Raises:
        PreconditionError: The models have no output in common.
    """
    reference = Runner(stateful, "the stateful model", device=device, config=config)
    names = shared_outputs(by_name(stateful.outputs), by_name(paged.outputs))
    if not names:
        raise PreconditionError("the stateful and the paged model have no output in common")
    maker = FeedMaker([stateful], seed)
    tally = Tally(names, tolerances)
    rows, wanted = [], []
    for sample, length in enumerate(lengths):
        feeds = maker.feeds(Call("prefill", 0, length), sample)
        reference.reset()
        wanted.append({name: value[0] for name, value in reference.run(feeds).items() if value.ndim > 1})
        rows.append(_per_row(feeds, length))
    for label, schedule in SCHEDULES.items():
        runner = PagedRunner(paged, config, device=device, blocks=4)
        for sample, found in enumerate(_run(runner, rows, lengths, schedule)):
            tally.add(wanted[sample], {name: found[other] for name, other in names.items()}, sample, label)
    return Comparison(
        subject,
        tally.differences(),
        tuple(name for name in by_name(stateful.outputs) if name not in names),
        tuple(name for name in by_name(paged.outputs) if name not in names.values()),
        samples=len(lengths),
        calls=tuple(SCHEDULES),
        seed=seed,
        device=device,
    )


def _per_row(feeds: Mapping[str, Array], length: int) -> dict[str, Array]:
    """The feeds of one stateful prefill as rows: the batch axis goes, masks and cache indices stay behind."""
    rows = {}
    for name, value in feeds.items():
        if name in (Port.ATTENTION_MASK, Port.BEAM_IDX, "cache_position"):
            continue
        axis = value.ndim - 1 if name == Port.POSITION_IDS else 1
        if value.ndim > axis and value.shape[axis] == length:
            moved = np.moveaxis(value, axis, 0)
            rows[name] = moved[:, 0, 0] if name == Port.POSITION_IDS and value.ndim == 3 else moved[:, 0]
    return rows


def _run(
    runner: PagedRunner, rows: Sequence[Mapping[str, Array]], lengths: Sequence[int], schedule: Schedule
) -> list[dict[str, Array]]:
    """All sequences together; a shorter one leaves the batch early."""
    plans = [list(schedule(length)) for length in lengths]
    found: list[list[dict[str, Array]]] = [[] for _ in lengths]
    for step in range(max(map(len, plans))):
        batch = [
            Rows(sequence, {name: value[slice(*plan[step])] for name, value in rows[sequence].items()})
            for sequence, plan in enumerate(plans)
            if step < len(plan)
        ]
        for entry, outputs in zip(batch, runner.step(batch), strict=True):
            found[int(str(entry.sequence))].append(outputs)
    return [{name: np.concatenate([part[name] for part in parts]) for name in parts[0]} for parts in found]
