"""What a decoder or a draft is made of, as live nodes, or why that cannot be told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import openvino as ov

from ovgraft import decoder, drafts, ir
from ovgraft.errors import Reason, StructureError
from ovgraft.ir.constants import constant_address

Found = TypeVar("Found")

DRAFTS = ("dflash draft", "eagle3 draft")


@dataclass(frozen=True, eq=False)
class Structure:
    """Parts of a model; each is None where there is none, or where it cannot be told.

    Attributes:
        stack: The layers.
        embedding: The token embedding.
        lm_head: The output layer.
        fc: The projection of the target's states, of a draft.
        reasons: Why there are no layers.
    """

    stack: decoder.LayerStack | None = None
    embedding: decoder.Embedding | None = None
    lm_head: decoder.LmHead | None = None
    fc: drafts.HiddenStateFc | None = None
    reasons: tuple[Reason, ...] = ()

    @property
    def tied(self) -> bool:
        """Whether embedding and output layer are one table, be it one Constant or two that lie at one place."""
        return bool(self._both) and max(map(_place, self._both[0])) == max(map(_place, self._both[1]))

    def repeated(self, graph: ir.Graph) -> frozenset[int]:
        """Constants of the output layer that only say again where the embedding's lie; a .bin holds their bytes once.

        Args:
            graph: Indexed view of the model.
        """
        if not self._both:
            return frozenset()
        own, again = ({graph.index(node): _place(node) for node in constants} for constants in self._both)
        places = set(own.values())
        return frozenset(index for index, place in again.items() if place in places and index not in own)

    @cached_property
    def _both(self) -> tuple[Sequence[ov.Node], ...]:
        """Constants of the embedding and of the output layer; empty when one is missing or computed."""
        if self.embedding is None or self.lm_head is None:
            return ()
        table, weight = ir.weight_root(self.embedding.table), ir.weight_root(self.lm_head.weight)
        return () if table is None or weight is None else (table.constants, weight.constants)


def read_structure(model: ov.Model, graph: ir.Graph, kind: str) -> Structure:
    """Read a model.

    Args:
        model: The model; not changed.
        graph: Its indexed view.
        kind: What it looks like, see :data:`ovgraft.drafts.kinds.ModelKind`.
    """
    if kind == "decoder":
        return _read_decoder(model, graph)
    if kind in DRAFTS:
        tables = drafts.read_draft_tables(model, graph)
        stack, reasons = _or_reasons(lambda: drafts.read_draft_layers(model, graph, tables))
        return Structure(stack, tables.embedding, tables.lm_head, tables.fc, reasons)
    if kind == "text embeddings":
        return Structure(embedding=_if_found(lambda: decoder.read_embedding(model, graph)))
    return Structure()


def _read_decoder(model: ov.Model, graph: ir.Graph) -> Structure:
    found, reasons = _or_reasons(lambda: decoder.read_decoder(model, graph))
    if found is not None:
        return Structure(found, found.embedding, found.lm_head)
    embedding = _if_found(lambda: decoder.read_embedding(model, graph))
    lm_head = _if_found(lambda: decoder.read_lm_head(model, graph))
    return Structure(embedding=embedding, lm_head=lm_head, reasons=reasons)


def _or_reasons(read: Callable[[], Found]) -> tuple[Found | None, tuple[Reason, ...]]:
    try:
        return read(), ()
    except StructureError as error:
        return None, error.reasons or (Reason("structure", error.message),)


def _place(constant: ov.Node) -> tuple[int, int]:
    """How many bytes there are, and where they lie in memory."""
    return int(constant.get_byte_size()), constant_address(constant.data)


def _if_found(read: Callable[[], Found]) -> Found | None:
    with contextlib.suppress(StructureError):
        return read()
    return None
