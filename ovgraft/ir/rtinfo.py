"""Runtime info of models and nodes: text values only, because only text survives a round trip exactly."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import openvino as ov

from ovgraft.drafts.contract import RtPath

USER_DATA = "user_data"
"""Prefix of node-level keys that OpenVINO serializes (``ov::util::rt_info_set_user_data``)."""

WEIGHTLESS_CACHE = "WeightlessCacheAttribute_0"
"""Offset of a Constant in the .bin it was read from; wrong as soon as the Constant moves to another model."""

LAYOUT = "layout_0"
"""What the dimensions of an input or output mean; its value is asked of the node."""

_NEVER_SAVED = (WEIGHTLESS_CACHE, "precision_sensitive_0")
"""What the reader puts on constants and on inputs that take shapes; it is not written."""

_ATTRIBUTES = frozenset({"DisablePrecisionConversion_0", "decompression_0", "fused_names_0", LAYOUT})
"""Frequent node-level entries whose values Python cannot see; asking for one costs an exception."""

_IR_VERSION: RtPath = ("version",)  # the reader keeps the IR version here, as an int; never serialized


def _unwrap(value: Any) -> Any:
    """What an OVAny holds; None when Python has no form of it, as for OpenVINO's own attributes."""
    try:
        return getattr(value, "value", value)
    except TypeError:
        return None


def _leaf(value: Any) -> str | None:
    """Text of a leaf; None for a value that has no exact text form."""
    value = _unwrap(value)
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return None


def _walk(tree: Mapping[str, Any], path: RtPath) -> Iterator[tuple[RtPath, Any]]:
    for key in tree:
        value = _unwrap(tree[key])
        if isinstance(value, dict):
            yield from _walk(value, (*path, key))
        else:
            yield (*path, key), value


def leaves(model: ov.Model) -> dict[RtPath, Any]:
    """All model-level entries with their Python values, whatever their type."""
    return {path: value for path, value in _walk(model.get_rt_info(), ()) if path != _IR_VERSION}


def flatten(model: ov.Model) -> dict[RtPath, str]:
    """Model-level entries as text, in key order; entries without an exact text form are left out."""
    texts = ((path, _leaf(value)) for path, value in sorted(leaves(model).items(), key=lambda item: item[0]))
    return {path: text for path, text in texts if text is not None}


def _lookup(model: ov.Model, path: RtPath) -> Any:
    if not path:
        raise ValueError("an rt_info path needs at least one name")
    top = model.get_rt_info()
    if path[0] not in top:
        return None
    value = top[path[0]]
    for name in path[1:]:
        value = _unwrap(value)
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    return value


def get_text(model: ov.Model, path: RtPath) -> str | None:
    """Text at a path of the model-level rt_info; None when there is no such entry or it is a branch.

    Args:
        model: The model.
        path: Names from the top, for example ``("dflash", "mask_token_id")``.
    """
    value = _lookup(model, path)
    return _leaf(value)


def set_text(model: ov.Model, path: RtPath, value: str) -> None:
    """Write a model-level rt_info entry; branches on the way are made.

    Args:
        model: The model.
        path: Names from the top, none of them empty.
        value: Text; structure goes in as JSON.

    Raises:
        ValueError: The path is empty, or runs through an entry that is text itself.
        TypeError: The value is not text (other types do not survive a round trip).
    """
    if not isinstance(value, str):
        raise TypeError(f"rt_info values are text, got {type(value).__name__}")
    if not path or not all(path):
        raise ValueError(f"rt_info path {path!r} has an empty name")
    for depth in range(1, len(path)):
        if get_text(model, path[:depth]) is not None:
            raise ValueError(f"rt_info {'/'.join(path[:depth])} is text and can have no entry below it")
    model.set_rt_info(value, list(path))


def delete(model: ov.Model, path: RtPath) -> bool:
    """Remove an entry or a branch of the model-level rt_info, and branches that become empty.

    Returns:
        Whether there was something to remove.
    """
    if _lookup(model, path) is None:
        return False
    top = path[0]
    kept = {other: value for other, value in leaves(model).items() if other[0] == top and other[: len(path)] != path}
    del model.get_rt_info()[top]
    for other, value in kept.items():
        model.set_rt_info(value, list(other))
    return True


def get_user_data(node: ov.Node, key: str) -> str | None:
    """Serialized node-level entry ``user_data<key>``; None when absent."""
    info = node.get_rt_info()
    name = USER_DATA + key
    if name not in info:
        return None
    value = info[name]
    return str(getattr(value, "value", value))


def set_user_data(node: ov.Node, key: str, value: str) -> None:
    """Write a node-level entry that survives save and load and enters the compiled-model cache key."""
    node.get_rt_info()[USER_DATA + key] = value


def strip_weightless_cache(node: ov.Node) -> None:
    """Forget where in its own .bin a Constant came from.

    With ``CACHE_MODE=OPTIMIZE_SIZE`` a kept offset would be read from the .bin of the model the Constant moved to.
    """
    info = node.get_rt_info()
    if WEIGHTLESS_CACHE in info:
        del info[WEIGHTLESS_CACHE]


def node_info(node: ov.Node) -> dict[str, str]:
    """All node-level entries but the .bin offset; OpenVINO's own attributes count by their key alone."""
    return _texts(node.get_rt_info())


def port_infos(node: ov.Node) -> dict[str, dict[str, str]]:
    """Entries of inputs and outputs, by port; OpenVINO's own attributes but layouts count by their key alone."""
    found = {}
    for port in range(node.get_output_size()):
        if info := _texts(node.get_output_tensor(port).get_rt_info()):
            if LAYOUT in info and hasattr(node, "get_layout"):
                info[LAYOUT] = str(node.get_layout())
            found[f"output {port}"] = info
    if type(node) is not ov.op.Constant:
        for port, value in enumerate(node.inputs()):
            if info := _texts(value.get_rt_info()):
                found[f"input {port}"] = info
    return found


def _texts(info: Any) -> dict[str, str]:
    size = len(info)
    if size == 0 or (size == 1 and any(key in info for key in _NEVER_SAVED)):
        return {}
    # islice, because running an RTMap iterator to its end costs 30 us
    return {
        key: "" if key in _ATTRIBUTES else _leaf(info[key]) or ""
        for key in itertools.islice(info, size)
        if key not in _NEVER_SAVED
    }
