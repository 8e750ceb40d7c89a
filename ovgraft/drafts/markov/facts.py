"""What a head model says about itself in rt_info, and what a backbone advertises."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import openvino as ov

from ovgraft import ir
from ovgraft.drafts.contract import Key, Port, RtPath
from ovgraft.drafts.markov.computations import Computation, ambiguous_ports
from ovgraft.drafts.spec import HeadType
from ovgraft.errors import PreconditionError


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """Metadata of a head model.

    Attributes:
        type: Type of the head.
        rank: r; for dflash2 the selector rank.
        top_k: K of the scorer; 0 without one.
        vocab_size: V.
        draft_vocab_size: Dv; None when the vocabulary is not pruned.
        hidden_size: H; None when no computation reads hidden states.
    """

    type: HeadType
    rank: int
    top_k: int
    vocab_size: int
    draft_vocab_size: int | None = None
    hidden_size: int | None = None

    @property
    def max_top_k(self) -> int:
        """Most candidates a row has."""
        return min(self.vocab_size, self.draft_vocab_size or self.vocab_size)


def write_facts(model: ov.Model, facts: HeadFacts, present: Sequence[Computation]) -> None:
    """Write the metadata of a head with these computations; entries that do not hold for it are removed."""
    names = {name for port in model.inputs for name in port.names}
    reads_hidden = Port.DRAFT_HIDDEN_STATES in names
    entries: dict[RtPath, int | str | None] = {
        Key.MARKOV_HEAD_TYPE: str(facts.type),
        Key.MARKOV_RANK: facts.rank,
        Key.TOP_K: facts.top_k if Computation.SCORER in present else 0,
        Key.VOCAB_SIZE: facts.vocab_size,
        Key.DRAFT_VOCAB_SIZE: facts.draft_vocab_size,
        Key.HIDDEN_SIZE: facts.hidden_size if reads_hidden else None,
    }
    ambiguous = ambiguous_ports(facts.type, tuple(present))
    entries[Key.SELECT_COMPUTATION] = json.dumps(ambiguous, sort_keys=True) if ambiguous else None
    for key, value in entries.items():
        if value is None:
            ir.delete(model, key)
        else:
            ir.set_text(model, key, str(value))


def read_facts(model: ov.Model) -> HeadFacts:
    """The metadata of a head model.

    Raises:
        PreconditionError: An entry is missing or malformed.
    """
    return HeadFacts(
        type=_head_type(model, Key.MARKOV_HEAD_TYPE),
        rank=_count(model, Key.MARKOV_RANK),
        top_k=_count(model, Key.TOP_K),
        vocab_size=_count(model, Key.VOCAB_SIZE),
        draft_vocab_size=_optional_count(model, Key.DRAFT_VOCAB_SIZE),
        hidden_size=_optional_count(model, Key.HIDDEN_SIZE),
    )


def present_computations(model: ov.Model) -> tuple[Computation, ...]:
    """The computations whose outputs a model has."""
    names = {name for port in model.outputs for name in port.names}
    marks = {
        Computation.DENSE: Port.MARKOV_BIAS,
        Computation.SCORER: Port.EDGE_SCORES,
        Computation.CONFIDENCE: Port.CONFIDENCE,
    }
    return tuple(computation for computation, port in marks.items() if port in names)


def stored_precision(model: ov.Model) -> str:
    """Element type of a head's largest table."""
    tables = [node for node in model.get_ordered_ops() if node.get_type_name() == "Constant"]
    largest = max(tables, key=lambda node: int(node.get_byte_size()))
    return str(largest.get_output_element_type(0).get_type_name())


def read_advertised(backbone: ov.Model) -> tuple[HeadType, int]:
    """Type and rank of the head a backbone says it has; ``(none, 0)`` when it says nothing.

    Upstream change descriptions spell the keys without ``dflash/``; both are read.

    Raises:
        PreconditionError: A malformed entry, one without the other, or two spellings that disagree.
    """
    rank_key = _spelling(backbone, Key.MARKOV_RANK)
    type_key = _spelling(backbone, Key.MARKOV_HEAD_TYPE)
    rank = 0 if rank_key is None else _count(backbone, rank_key)
    head = HeadType.NONE if type_key is None else _head_type(backbone, type_key)
    if (rank > 0) != (head is not HeadType.NONE):
        raise PreconditionError(
            "the backbone's head metadata contradicts itself",
            expected="a head type and a rank above 0, or neither",
            found=f"markov_head_type {head}, markov_rank {rank}",
        )
    return head, rank


def _spelling(model: ov.Model, key: RtPath) -> RtPath | None:
    found = {path: text for path in (key, key[1:]) if (text := ir.get_text(model, path)) is not None}
    if len(set(found.values())) > 1:
        raise PreconditionError(
            f"two spellings of rt_info {key[-1]} disagree",
            found=", ".join(f"{'/'.join(path)} = {text}" for path, text in found.items()),
        )
    return next(iter(found), None)


def _head_type(model: ov.Model, key: RtPath) -> HeadType:
    text = ir.get_text(model, key)
    if text not in set(HeadType):
        raise PreconditionError(
            f"rt_info {'/'.join(key)} names no head type", expected=", ".join(HeadType), found=text or "nothing"
        )
    return HeadType(text)


def _count(model: ov.Model, key: RtPath) -> int:
    value = _optional_count(model, key)
    if value is None:
        raise PreconditionError(f"rt_info {'/'.join(key)} is missing", expected="a whole number")
    return value


def _optional_count(model: ov.Model, key: RtPath) -> int | None:
    text = ir.get_text(model, key)
    if text is None:
        return None
    if re.fullmatch(r"\d+", text) is None:
        raise PreconditionError(
            f"rt_info {'/'.join(key)} is malformed", expected="a whole number, 0 or more", found=repr(text)
        )
    return int(text)
