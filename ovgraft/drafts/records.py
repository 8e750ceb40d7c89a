"""What ovgraft writes about its own grafts: JSON objects in model-level rt_info."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openvino as ov

from ovgraft import ir
from ovgraft.drafts.contract import RtPath
from ovgraft.errors import PreconditionError


def read_record(model: ov.Model, key: RtPath, file: Path | None = None) -> dict[str, Any] | None:
    """The record under ``key``; None when there is none.

    Raises:
        PreconditionError: The text is no JSON object.
    """
    text = ir.get_text(model, key)
    if text is None:
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise PreconditionError(
            f"rt_info {'/'.join(key)} is damaged", file=file, expected="a JSON object", found=repr(text)
        )
    return record


def write_record(model: ov.Model, key: RtPath, record: Mapping[str, Any]) -> None:
    """Write a record; equal records give equal text."""
    ir.set_text(model, key, json.dumps(record, sort_keys=True, separators=(",", ":")))
