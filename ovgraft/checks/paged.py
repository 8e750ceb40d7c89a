"""Two decoders, one or both of them paged, on the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import openvino as ov

from ovgraft.checks.comparison import PAGED_TOLERANCES, Comparison, Tally, shared_outputs
from ovgraft.checks.feeds import Array, Call, FeedMaker
from ovgraft.checks.paged_runner import PagedRunner, Rows
from ovgraft.checks.ports import by_name, is_paged
from ovgraft.checks.run import PARITY, Runner
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
    wanted: list[dict[str, Array]] = []
    rows = []
    hosts = [_Host(model, label, device, config) for model, label in ((a, "A"), (b, "B"))]
    for sample, length in enumerate(lengths):
        feeds = maker.feeds(Call("prefill", 0, length), sample)
        rows.append(_per_row(feeds, length))
        wanted += hosts[0].run([rows[-1]], [length], whole)
    for label, schedule in SCHEDULES.items():
        for sample, found in enumerate(hosts[1].run(rows, lengths, schedule)):
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


class _Host:
    """One model, stateful or paged, behind one way to run sequences."""

    def __init__(self, model: ov.Model, label: str, device: str, config: Mapping[str, Any]) -> None:
        self._model, self._device, self._config = model, device, config
        self._stateful = None if is_paged(model) else Runner(model, label, device=device, config=config)
        self._ports = by_name(model.inputs)

    def run(
        self, rows: Sequence[Mapping[str, Array]], lengths: Sequence[int], schedule: Schedule
    ) -> list[dict[str, Array]]:
        """Outputs of each sequence, first axis rows."""
        if self._stateful is None:
            return _run(PagedRunner(self._model, self._config, device=self._device, blocks=4), rows, lengths, schedule)
        return [self._alone(entry, length, schedule) for entry, length in zip(rows, lengths, strict=True)]

    def _alone(self, rows: Mapping[str, Array], length: int, schedule: Schedule) -> dict[str, Array]:
        assert self._stateful is not None
        self._stateful.reset()
        parts = []
        for start, stop in schedule(length):
            feeds = {name: self._batched(name, value[start:stop]) for name, value in rows.items()}
            feeds |= {
                Port.ATTENTION_MASK: np.ones((1, stop), np.int64),
                Port.BEAM_IDX: np.zeros(1, np.int32),
                "cache_position": np.arange(start, stop),
            }
            outputs = self._stateful.run(feeds)
            parts.append({name: value[0] for name, value in outputs.items() if value.ndim > 1})
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _batched(self, name: str, values: Array) -> Array:
        """Rows as a batch of one, in the shape the port has."""
        port = self._ports.get(name)
        if name == Port.POSITION_IDS and port is not None and len(port.get_partial_shape()) == 3:
            return np.ascontiguousarray(
                np.broadcast_to(values, (port.get_partial_shape()[0].get_length(), 1, len(values)))
            )
        return np.ascontiguousarray(values[None])


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
