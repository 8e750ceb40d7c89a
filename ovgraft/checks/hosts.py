"""One way to run a model over sequences, whether it keeps its caches in states or in pages.

Feeds and outputs are those of the stateful form: a batch of one sequence. A paged model gets all sequences of a step
in one inference, row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft import passes
from ovgraft.checks.paged_runner import PagedRunner, Rows
from ovgraft.checks.ports import by_name, is_paged
from ovgraft.checks.run import PARITY, Feeds, Outputs, Runner, check_device
from ovgraft.drafts.contract import Port
from ovgraft.errors import MismatchError
from ovgraft.passbase import Context

Array = NDArray[Any]

_NOT_ROWS = frozenset({Port.ATTENTION_MASK, Port.BEAM_IDX, Port.POSITION_IDS})


class PagedHost:
    """One paged model; what :class:`~ovgraft.checks.run.Runner` is to a stateful one.

    A DFlash draft gets context rows, then block rows, which leave no trace in the cache; its outputs are those of the
    block rows, the anchor's included.

    Attributes:
        outputs: Output name -> port.

    Args:
        model: It is cloned before it is compiled.
        label: How errors call it.
        device: OpenVINO device.
        config: Compile properties.

    Raises:
        SpecError: There is no such device.
        MismatchError: It does not compile.
    """

    def __init__(self, model: ov.Model, label: str, *, device: str = "CPU", config: Mapping[str, Any] = PARITY) -> None:
        check_device(device)
        self._label = label
        inputs = by_name(model.inputs)
        self._is_block_draft = is_per_row_draft(model)
        self._has_token_types = Port.TOKEN_TYPE_IDS in inputs
        self._live: set[int] = set()
        try:
            self._runner = PagedRunner(model.clone(), config, device=device)
        except RuntimeError as error:
            raise MismatchError(f"{label} does not compile for {device}") from error
        self.outputs = by_name(self._runner.compiled.outputs)

    def reset(self) -> None:
        """Forget all sequences."""
        for sequence in self._live:
            self._runner.drop(sequence)
        self._live.clear()

    def run(self, feeds: Feeds, sequence: int = 0) -> Outputs:
        """One inference over the rows of one sequence; see :meth:`step`."""
        return self.step({sequence: feeds})[sequence]

    def step(self, batch: Mapping[int, Feeds]) -> dict[int, Outputs]:
        """One inference over new rows of several sequences.

        Args:
            batch: Sequence -> feeds of the stateful form, with a batch axis of one. Masks, positions and cache indices
                are left out: they follow from the rows.

        Returns:
            Sequence -> output name -> a copy with a batch axis of one.

        Raises:
            MismatchError: OpenVINO fails.
        """
        rows = [self._rows(sequence, feeds) for sequence, feeds in batch.items()]
        self._live |= set(batch)
        try:
            found = self._runner.step(rows)
        except RuntimeError as error:
            shapes = "; ".join(
                ", ".join(f"{name}{list(value.shape)}" for name, value in entry.inputs.items()) for entry in rows
            )
            raise MismatchError(f"{self._label} does not run on {shapes}") from error
        return {
            sequence: self._batched(entry, outputs) for sequence, entry, outputs in zip(batch, rows, found, strict=True)
        }

    def _rows(self, sequence: int, feeds: Feeds) -> Rows:
        if self._is_block_draft:
            return draft_rows(sequence, feeds)
        inputs = {name: value[0] for name, value in feeds.items() if name not in _NOT_ROWS and value.ndim > 1}
        if self._has_token_types and Port.TOKEN_TYPE_IDS not in inputs:
            inputs[Port.TOKEN_TYPE_IDS] = np.zeros(len(next(iter(inputs.values()))), np.int64)
        return Rows(sequence, inputs)

    def _batched(self, rows: Rows, outputs: Outputs) -> Outputs:
        first = rows.keep if self._is_block_draft else 0
        return {
            name: value[None, first:] if self.outputs[name].get_partial_shape()[0].is_dynamic else value
            for name, value in outputs.items()
        }


Host = Runner | PagedHost


def open_host(model: ov.Model, label: str, *, device: str = "CPU", config: Mapping[str, Any] = PARITY) -> Host:
    """Compile a model in the form it has; a per-row draft is run in its paged form.

    Raises:
        SpecError: There is no such device.
        MismatchError: It does not compile.
        StructureError: A per-row draft that cannot be paged.
    """
    model = runnable(model)
    if is_paged(model):
        return PagedHost(model, label, device=device, config=config)
    return Runner(model, label, device=device, config=config)


def runnable(model: ov.Model) -> ov.Model:
    """The form of a model that is run: of a per-row draft the paged one, else the model itself.

    Its stateful form keeps block rows in the states, which no host takes back out.

    Raises:
        StructureError: The draft cannot be paged.
    """
    if not is_per_row_draft(model) or is_paged(model):
        return model
    return passes.PagedAttention(model="draft").convert(model, Context()).model


def is_per_row_draft(model: ov.Model) -> bool:
    """Whether a model is a draft with context and block rows on one axis, paged or not."""
    return {Port.HIDDEN_STATES, Port.TOKEN_TYPE_IDS} <= by_name(model.inputs).keys()


def draft_rows(sequence: int, feeds: Feeds) -> Rows:
    """The feeds of an SDPA draft call on one row axis; each kind of row gets zeros where the other has values."""
    states = feeds[Port.HIDDEN_STATES][0]
    given = {name: feeds[name][0] for name in (Port.INPUT_IDS, Port.INPUTS_EMBEDS) if name in feeds}
    context, block = len(states), len(next(iter(given.values())))
    inputs: dict[str, Array] = {
        Port.HIDDEN_STATES: np.concatenate([states, np.zeros((block, states.shape[1]), states.dtype)]),
        Port.TOKEN_TYPE_IDS: np.repeat(np.arange(2), [context, block]),
    }
    for name, values in given.items():
        inputs[name] = np.concatenate([np.zeros((context, *values.shape[1:]), values.dtype), values])
    return Rows(sequence, inputs, keep=context)
