"""Where the bytes of a Constant lie and what they are."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import openvino as ov


def constant_address(view: np.ndarray[Any, Any]) -> int:
    """Address of the first byte of ``Constant.data``.

    Equal for a Constant and its clones; inside the mapped .bin for one read from disk.
    """
    return int(view.__array_interface__["data"][0])


def constant_bytes(constant: ov.Node) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The stored bytes, packed sub-byte types as they are, as a view (u8, one axis); JSON for strings."""
    if constant.get_element_type() == ov.Type.string:
        # .data of a string Constant is an array of empty strings
        return np.frombuffer(json.dumps(constant.get_value_strings()).encode(), np.uint8)
    return constant.data.reshape(-1).view(np.uint8)  # type: ignore[no-any-return]
