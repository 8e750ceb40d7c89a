"""Runs a PagedAttention model from Python: block tables and caches in numpy on one infer request.

It is the smallest host that continuous batching needs: several sequences of different length in one inference, chunked
prefill, decode, and roll back. It checks what the plugin does not: a table too short for its rows is silent corruption.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from ovgraft.checks.ports import by_name
from ovgraft.drafts.contract import Port
from ovgraft.errors import MismatchError, PreconditionError

Array = npt.NDArray[Any]

_CACHES = ("key_cache.", "value_cache.")
_STATE_TABLE = "_state_table."


@dataclass(frozen=True)
class Rows:
    """New rows of one sequence.

    Attributes:
        sequence: Which sequence they continue; a new name starts one.
        inputs: Port name -> values, first axis rows, for example ``{"input_ids": i64 [rows]}``.
        keep: How many of the rows stay in the cache after the step; all by default. A draft keeps context rows only.
        sampled: Which of the rows get logits, where the model takes ``sampled_tokens_indices``; all by default.
    """

    sequence: Hashable
    inputs: Mapping[str, Array]
    keep: int | None = None
    sampled: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))


@dataclass(slots=True)
class _Sequence:
    length: int = 0
    blocks: list[int] = field(default_factory=list)
    slot: int = -1


class PagedRunner:
    """One compiled PagedAttention model with its caches.

    Args:
        model: The paged model.
        config: Compile properties; ``KV_CACHE_PRECISION`` decides what the caches hold.
        blocks: Cache blocks at the start; more are added when they run out.
        device: OpenVINO device.

    Raises:
        PreconditionError: The model has no paged caches.
    """

    def __init__(
        self, model: ov.Model, config: Mapping[str, Any] | None = None, *, blocks: int = 16, device: str = "CPU"
    ) -> None:
        self.compiled = ov.Core().compile_model(model, device, dict(config or {}))
        self._request = self.compiled.create_infer_request()
        self._ports = {name: port for port in self.compiled.inputs for name in port.get_names()}
        self._caches = sorted(name for name in self._ports if name.startswith(_CACHES))
        self._tables = sorted(name for name in self._ports if _STATE_TABLE in name)
        if not self._caches and not self._tables:
            raise PreconditionError(
                "the model has no key_cache or state table inputs, it is not in PagedAttention form",
                hint="run the pass paged-attention first",
            )
        self.block_size = self._read_block_size()
        self._sequences: dict[Hashable, _Sequence] = {}
        self._free: list[int] = []
        self._free_slots: list[int] = []
        self._allocate(self._caches, blocks, self._free)
        self._allocate(self._tables, 4, self._free_slots)

    def _read_block_size(self) -> int:
        """Rows a block holds, from the value cache: a quantized key cache keeps its scales along the row axis."""
        values = [name for name in self._caches if name.startswith("value_cache.")]
        sizes = {self._ports[name].get_partial_shape()[2].get_length() for name in values}
        if len(sizes) > 1:
            raise PreconditionError(f"value caches disagree about the block size: {sorted(sizes)}")
        return sizes.pop() if sizes else 1

    def _allocate(self, names: Sequence[str], count: int, free: list[int]) -> None:
        """Give every cache of a kind room for ``count`` blocks, keeping what is there."""
        have = 0
        for name in names:
            port = self._ports[name]
            shape = port.get_partial_shape()
            dims = [count] + [shape[axis].get_length() for axis in range(1, len(shape))]
            tensor = ov.Tensor(port.get_element_type(), ov.Shape(dims))
            if tensor.get_size():
                _bytes(tensor)[...] = 0  # linear-attention states are read before they are written
            if self._sequences:
                old = self._request.get_tensor(name)
                have = old.shape[0]
                _bytes(tensor)[: _bytes(old).size] = _bytes(old)
            self._request.set_tensor(name, tensor)
        if names:
            free.extend(range(count - 1, have - 1, -1))

    def length(self, sequence: Hashable) -> int:
        """Rows of ``sequence`` in the cache."""
        return self._sequences[sequence].length

    def roll_back(self, sequence: Hashable, length: int) -> None:
        """Forget all rows of ``sequence`` from ``length`` on; the next rows overwrite them.

        Raises:
            PreconditionError: The model also carries linear-attention state, which cannot go back.
            ValueError: ``length`` is not within the sequence.
        """
        entry = self._sequences[sequence]
        if not 0 <= length <= entry.length:
            raise ValueError(f"cannot roll back to {length}: the sequence has {entry.length} rows")
        if self._tables and length != entry.length:
            raise PreconditionError("linear-attention state cannot be rolled back", found=f"{self._tables[0]}")
        entry.length = length

    def drop(self, sequence: Hashable) -> None:
        """End a sequence and reuse its blocks."""
        entry = self._sequences.pop(sequence)
        self._free.extend(reversed(entry.blocks))
        if entry.slot >= 0:
            for name in self._tables:
                tensor = self._request.get_tensor(name)
                _bytes(tensor).reshape(tensor.shape[0], -1)[entry.slot] = 0
            self._free_slots.append(entry.slot)

    def step(self, batch: Sequence[Rows]) -> list[dict[str, Array]]:
        """One inference over new rows of several sequences.

        Args:
            batch: One entry a sequence, each with at least one row.

        Returns:
            For each entry, output name -> values, first axis rows (those of ``logits`` lose the unit axis).

        Raises:
            MismatchError: An output whose rows belong to no entry.
            ValueError: An entry without rows, or a sequence twice.
        """
        if not all(len(rows) for rows in batch):
            raise ValueError("every entry of a batch needs a row")
        if len({rows.sequence for rows in batch}) != len(batch):
            raise ValueError("a sequence is in the batch twice")
        begins = np.cumsum([0] + [len(rows) for rows in batch])
        entries = [self._grow(rows) for rows in batch]
        sampled = [list(rows.sampled if rows.sampled is not None else range(len(rows))) for rows in batch]
        feeds = self._row_feeds(batch, entries) | self._table_feeds(batch, entries, begins)
        picked = [begin + index for begin, indices in zip(begins, sampled, strict=False) for index in indices]
        feeds[Port.SAMPLED_TOKENS_INDICES] = np.array(picked)
        for name, values in feeds.items():
            if name in self._ports:
                self._request.set_tensor(name, ov.Tensor(self._shaped(name, values)))
        self._request.infer()
        for rows, entry in zip(batch, entries, strict=True):
            entry.length += len(rows) if rows.keep is None else rows.keep
        return self._split(begins, np.cumsum([0] + [len(indices) for indices in sampled]))

    def _grow(self, rows: Rows) -> _Sequence:
        entry = self._sequences.setdefault(rows.sequence, _Sequence())
        need = -(-(entry.length + len(rows)) // self.block_size)
        while self._caches and len(entry.blocks) < need:
            if not self._free:
                self._allocate(self._caches, 2 * self._request.get_tensor(self._caches[0]).shape[0], self._free)
            entry.blocks.append(self._free.pop())
        if self._tables and entry.slot < 0:
            if not self._free_slots:
                self._allocate(self._tables, 2 * self._request.get_tensor(self._tables[0]).shape[0], self._free_slots)
            entry.slot = self._free_slots.pop()
        return entry

    def _row_feeds(self, batch: Sequence[Rows], entries: Sequence[_Sequence]) -> dict[str, Array]:
        names = {name for rows in batch for name in rows.inputs}
        feeds = {name: np.concatenate([rows.inputs[name] for rows in batch]) for name in sorted(names)}
        if Port.POSITION_IDS not in feeds:
            spans = [np.arange(e.length, e.length + len(r)) for r, e in zip(batch, entries, strict=True)]
            feeds[Port.POSITION_IDS] = np.concatenate(spans)
        return feeds

    def _table_feeds(self, batch: Sequence[Rows], entries: Sequence[_Sequence], begins: Array) -> dict[str, Array]:
        past = [entry.length for entry in entries]
        used = [
            entry.blocks[: -(-(entry.length + len(rows)) // self.block_size)]
            for rows, entry in zip(batch, entries, strict=True)
        ]
        feeds = {
            "past_lens": np.array(past),
            "subsequence_begins": begins,
            "block_indices": np.concatenate(used) if self._caches else np.zeros(0),
            "block_indices_begins": np.cumsum([0] + [len(blocks) for blocks in used]),
            "max_context_len": np.array(max(p + len(rows) for p, rows in zip(past, batch, strict=True))),
            "score_aggregation_window": np.zeros(len(batch)),
        }
        for name in self._ports:
            if name.startswith("block_indices."):
                feeds[name] = feeds["block_indices"]
        if self._tables:  # no prefix caching: each sequence reads and writes its one slot
            feeds |= {
                "la.block_indices": np.repeat([entry.slot for entry in entries], 2),
                "la.block_indices_begins": np.arange(len(batch) + 1) * 2,
                "la.past_lens": np.array(past),
                "la.cache_interval": np.zeros(len(batch)),
            }
        return feeds

    def _shaped(self, name: str, values: Array) -> Array:
        """The values in the port's type and rank; rows are the batch, so a sequence axis of one follows them."""
        port = self._ports[name]
        rank = port.get_partial_shape().rank.get_length()
        values = np.array(values, dtype=port.get_element_type().to_dtype(), order="C")
        if name == Port.POSITION_IDS and rank == 2 and values.ndim == 1:  # M-RoPE: the same position in each row
            return np.broadcast_to(values, (port.get_partial_shape()[0].get_length(), len(values))).copy()
        while 0 < values.ndim < rank:
            values = values[:, None]
        return values

    def _split(self, begins: Array, sampled: Array) -> list[dict[str, Array]]:
        """Outputs by entry; those behind the gather of sampled rows have their own bounds, tables go to every entry."""
        found: list[dict[str, Array]] = [{} for _ in begins[1:]]
        for name, port in by_name(self.compiled.outputs).items():
            values = self._request.get_tensor(port).data
            shape = port.get_partial_shape()
            if not len(shape) or shape[0].is_static:
                for outputs in found:
                    outputs[name] = values.copy()
                continue
            bounds = next((b for b in (begins, sampled) if values.shape[0] == b[-1]), None)
            if bounds is None:
                raise MismatchError(
                    f"output {name} has neither a row per token nor one per sampled row",
                    expected=f"{begins[-1]} or {sampled[-1]} rows",
                    found=str(list(values.shape)),
                )
            values = (values[:, 0] if values.ndim > 2 and values.shape[1] == 1 else values).copy()
            for outputs, (begin, end) in zip(found, itertools.pairwise(bounds), strict=True):
                outputs[name] = values[begin:end]
        return found


def _bytes(tensor: ov.Tensor) -> npt.NDArray[np.uint8]:
    """A tensor's memory, whatever its type."""
    return np.frombuffer(tensor.data.data.cast("B"), np.uint8) if tensor.get_size() else np.zeros(0, np.uint8)
