"""Two decoders, one or both of them paged, on the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import openvino as ov

from ovgraft.checks.comparison import PAGED_TOLERANCES, Comparison, Tally, shared_outputs
from ovgraft.checks.feeds import Array, Call, FeedMaker
from ovgraft.checks.hosts import Host, open_host
from ovgraft.checks.ports import by_name, is_paged
from ovgraft.checks.run import PARITY, Feeds, Outputs
from ovgraft.checks.tolerances import Tolerances
from ovgraft.drafts.contract import Port
from ovgraft.errors import PreconditionError

LENGTHS = (70, 5, 33)
"""Tokens of the sequences that share one batch, against cache blocks of 32 rows."""

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


def compare_paged(
    a: ov.Model,
    b: ov.Model,
    *,
    subject: str = "stateful and paged",
    tolerances: Tolerances = PAGED_TOLERANCES,
    lengths: Sequence[int] = LENGTHS,
    seed: int = 0,
    device: str = "CPU",
    config: Mapping[str, Any] = PARITY,
) -> Comparison:
    """Run sequences of several lengths: whole and alone in ``a``, under each of :data:`SCHEDULES` in ``b``.

    A paged ``b`` gets them together in one batch; a stateful one gets them one after the other.

    Args:
        a: The model that is right by definition.
        b: The other one.
        subject: What to call them in the result.
        tolerances: Limits.
        lengths: Tokens of each sequence.
        seed: Of the inputs.
        device: OpenVINO device.
        config: Compile properties of both.

    Raises:
        PreconditionError: The models have no output in common.
    """
    names = shared_outputs(by_name(a.outputs), by_name(b.outputs))
    if not names:
        raise PreconditionError("the two models have no output in common")
    maker = FeedMaker([b if is_paged(a) and not is_paged(b) else a], seed)
    tally = Tally(names, tolerances)
    first, second = (open_host(model, label, device=device, config=config) for model, label in ((a, "A"), (b, "B")))
    rows, wanted = [], []
    for sample, length in enumerate(lengths):
        feeds = maker.feeds(Call("prefill", 0, length), sample)
        wanted.append(first.run(feeds, sample))
        rows.append({name: value for name, value in feeds.items() if _runs_over_rows(name, value, length)})
    for label, schedule in SCHEDULES.items():
        second.reset()
        for sample, found in enumerate(_run(second, maker, rows, lengths, schedule)):
            tally.add(wanted[sample], {name: found[other] for name, other in names.items()}, sample, label)
    return Comparison(
        subject,
        tally.differences(),
        tuple(name for name in by_name(a.outputs) if name not in names),
        tuple(name for name in by_name(b.outputs) if name not in names.values()),
        samples=len(lengths),
        calls=tuple(SCHEDULES),
        seed=seed,
        device=device,
    )


def _runs_over_rows(name: str, value: Array, length: int) -> bool:
    """Whether an input holds a value a row, and not a mask or a position, which each call has its own of."""
    made = (Port.ATTENTION_MASK, Port.POSITION_IDS, Port.BEAM_IDX)
    return name not in made and value.ndim > 1 and value.shape[1] == length


def _run(
    host: Host, maker: FeedMaker, rows: Sequence[Feeds], lengths: Sequence[int], schedule: Schedule
) -> list[Outputs]:
    """All sequences together; a shorter one leaves the batch early."""
    plans = [list(schedule(length)) for length in lengths]
    parts: list[list[Outputs]] = [[] for _ in lengths]
    for step in range(max(map(len, plans))):
        batch = {}
        for sequence, plan in enumerate(plans):
            if step < len(plan):
                start, stop = plan[step]
                given = {name: np.ascontiguousarray(value[:, start:stop]) for name, value in rows[sequence].items()}
                batch[sequence] = maker.feeds(Call("step", start, stop - start), sequence, given)
        for sequence, outputs in host.step(batch).items():
            parts[sequence].append(outputs)
    return [_joined(part) for part in parts]


def _joined(parts: Sequence[Outputs]) -> Outputs:
    """The rows of all calls in one array; tables as they are."""
    return {
        name: np.concatenate([part[name] for part in parts], axis=1) if value.ndim > 1 else value
        for name, value in parts[0].items()
    }
