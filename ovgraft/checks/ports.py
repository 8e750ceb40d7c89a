"""The one name a port goes by, out of the several it may have."""

from __future__ import annotations

from collections.abc import Sequence

import openvino as ov

from ovgraft.drafts.contract import Port

_KNOWN = frozenset(map(str, Port))


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
