"""The one name a port goes by, out of the several it may have, and who fills it."""

from __future__ import annotations

from collections.abc import Sequence

import openvino as ov

from ovgraft.drafts.contract import Port

_KNOWN = frozenset(map(str, Port))

_TABLES = frozenset(
    {"past_lens", "subsequence_begins", "max_context_len", "score_aggregation_window", Port.SAMPLED_TOKENS_INDICES}
)
_TABLE_PREFIXES = ("key_cache.", "value_cache.", "block_indices", "la.")
_STATE_TABLE = "_state_table."


def port_name(port: ov.Output, at: int) -> str:
    """A name of :class:`Port` when it has one, else the first in alphabetical order, else its position."""
    names = sorted(port.names)
    return next((name for name in names if name in _KNOWN), names[0] if names else f"#{at}")


def by_name(ports: Sequence[ov.Output]) -> dict[str, ov.Output]:
    """Name -> port, in the order of the ports."""
    return {port_name(port, at): port for at, port in enumerate(ports)}


def static_last(port: ov.Output) -> int | None:
    """The last dimension, when it is fixed."""
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic or not len(shape) or shape[-1].is_dynamic:
        return None
    return int(shape[-1].get_length())


def is_paged(model: ov.Model) -> bool:
    """Whether a model has paged caches for inputs."""
    return any(_is_table(name) and name not in _TABLES for port in model.inputs for name in port.names)


def fed_by_tables(port: ov.Output) -> bool:
    """Whether a host of paged models fills a port from its block tables and caches, not with values of sequences."""
    return any(_is_table(name) for name in port.names)


def _is_table(name: str) -> bool:
    return name in _TABLES or name.startswith(_TABLE_PREFIXES) or _STATE_TABLE in name
