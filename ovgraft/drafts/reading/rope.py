"""Rotary positions as transformers 4 (``rope_theta``, ``rope_scaling``) and 5 (``rope_parameters``) spell them."""

from __future__ import annotations

from typing import Any

from ovgraft.drafts.reading.config import Config, number
from ovgraft.drafts.spec import Rope

_COMMON = {"rope_type", "type", "rope_theta"}
# Read by vision-language rotary embeddings only; with three equal position rows they change nothing.
_INERT = {"mrope_section", "mrope_interleaved"}

# transformers' modeling_rope_utils: what each type needs, and what it may have.
_REQUIRED: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "yarn": {"factor"},
    "longrope": {"short_factor", "long_factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "proportional": set(),
}
_OPTIONAL: dict[str, set[str]] = {
    "dynamic": {"original_max_position_embeddings"},
    "yarn": {
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    },
    "longrope": {"factor", "attention_factor", "original_max_position_embeddings"},
    "proportional": {"factor", "partial_rotary_factor"},
}


def read_rope(config: Config, head_dim: int, *, layer_type: str | None = None, default_theta: float | None) -> Rope:
    """Rotary parameters of the draft.

    Args:
        config: The config.
        head_dim: Width of a head; checks the lengths of longrope's factors.
        layer_type: Takes the entry of this layer type where ``rope_parameters`` has one per type.
        default_theta: Base when no key names one; None when the format has no default.

    Raises:
        CheckpointError: An unknown type or parameter, a missing one, or two places that disagree.
    """
    found = config.find("rope_parameters", "rope_scaling")
    key, values = found if found is not None else ("rope_theta", {})
    if not isinstance(values, dict):
        config.refuse(key, f"{key} is not an object")
    if values and all(isinstance(value, dict) for value in values.values()):
        if layer_type not in values:
            config.refuse(key, f"{key} differs by layer type", expected="one set of parameters for all layers")
        key, values = f"{key}.{layer_type}", values[layer_type]
    named = {str(values[name]) for name in ("rope_type", "type") if values.get(name) is not None}
    if len(named) > 1:
        config.refuse(f"{key}.type", f"{key} names two types", expected=values["rope_type"])
    rope_type = named.pop() if named else "default"
    if rope_type not in _REQUIRED:
        config.refuse(f"{key}.rope_type", "a rope type that is not understood", expected=", ".join(_REQUIRED))
    theta = _theta(config, key, values, default_theta)
    place = found or config.find("rope_theta")
    if place is None:
        config.record("backbone.rope", "", "", "default of transformers")
    else:
        config.record("backbone.rope", config.file.name, place[0])
    _check_partial(config, key, values, rope_type)
    values = _with_original_length(config, key, values, rope_type)
    parameters: dict[str, Any] = {}
    for name, value in values.items():
        if value is None or name in _COMMON | _INERT:
            continue
        if name == "partial_rotary_factor" and rope_type != "proportional":
            continue  # 1, or it was refused
        if name not in _REQUIRED[rope_type] | _OPTIONAL.get(rope_type, set()):
            config.refuse(f"{key}.{name}", f"{name} is not understood for rope type {rope_type}")
        parameters[name] = _value(config, f"{key}.{name}", name, value, head_dim)
    for name in sorted(_REQUIRED[rope_type] - parameters.keys()):
        config.refuse(f"{key}.{name}", f"rope type {rope_type} needs {name}", expected=name)
    return Rope(rope_type, theta, tuple(sorted(parameters.items())))


def _with_original_length(config: Config, key: str, values: dict[str, Any], rope_type: str) -> dict[str, Any]:
    """Phi-3 made it a key of the config itself, which transformers moves to the parameters."""
    name = "original_max_position_embeddings"
    top = config.find(name)
    if top is None or name not in _REQUIRED[rope_type] | _OPTIONAL.get(rope_type, set()):
        return values
    if values.get(name) not in (None, top[1]):
        config.refuse(top[0], f"{top[0]} and {key}.{name} contradict each other", expected=values[name])
    return {**values, name: top[1]}


def _theta(config: Config, key: str, values: dict[str, Any], default: float | None) -> float:
    top, nested = config.find("rope_theta"), values.get("rope_theta")
    if top is not None and nested is not None and top[1] != nested:
        config.refuse(
            top[0], f"{top[0]} and {key}.rope_theta contradict each other", expected=f"{key}.rope_theta = {nested}"
        )
    value = nested if nested is not None else top[1] if top is not None else default
    if value is None:
        config.missing("rope_theta")
    try:
        return number(positive=True)(value)
    except ValueError as error:
        config.refuse(top[0] if nested is None and top else f"{key}.rope_theta", "a wrong rope base", expected=error)


def _check_partial(config: Config, key: str, values: dict[str, Any], rope_type: str) -> None:
    if rope_type == "proportional":
        return
    top = config.find("partial_rotary_factor")
    for place, value in ((f"{key}.partial_rotary_factor", values.get("partial_rotary_factor")), top or ("", None)):
        if value is not None and value != 1:
            config.refuse(place, "a rotation of part of the head is not understood here", expected=1.0)


def _value(config: Config, key: str, name: str, value: Any, head_dim: int) -> Any:
    if name in ("short_factor", "long_factor"):
        if not isinstance(value, list) or len(value) != head_dim // 2:
            config.refuse(key, f"{name} has one factor per frequency", expected=f"{head_dim // 2} numbers")
        return tuple(_number(config, key, item) for item in value)
    if name == "truncate":
        if not isinstance(value, bool):
            config.refuse(key, "a wrong rope parameter", expected="true or false")
        return value
    if name == "original_max_position_embeddings":
        if type(value) is not int or value < 1:
            config.refuse(key, "a wrong rope parameter", expected="an integer of at least 1")
        return value
    return _number(config, key, value)


def _number(config: Config, key: str, value: Any) -> float:
    try:
        return number()(value)
    except ValueError as error:
        config.refuse(key, "a wrong rope parameter", expected=error)
