"""Rotary positions as transformers 4 (``rope_theta``, ``rope_scaling``) and 5 (``rope_parameters``) spell them."""

from __future__ import annotations

from collections.abc import Iterable
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
# Phi-3's spelling, and that of partly rotated heads.
_TOP_LEVEL = ("original_max_position_embeddings", "partial_rotary_factor")
# Zero means "not set"; every other number is positive.
_MAY_BE_ZERO = {"beta_fast", "beta_slow", "mscale", "mscale_all_dim"}


def read_rope(config: Config, head_dim: int, layer_types: Iterable[str], *, default_theta: float | None) -> Rope:
    """Rotary parameters of the draft.

    Args:
        config: The config.
        head_dim: Width of a head; checks the lengths of longrope's factors.
        layer_types: Types of the draft's layers: where ``rope_parameters`` has an entry per type, theirs count, and
            must be the same.
        default_theta: Base when no key names one; None when the format has no default.

    Raises:
        CheckpointError: An unknown type or parameter, a missing one, one that no formula takes, or two places that
            disagree.
    """
    found = config.find("rope_parameters", "rope_scaling")
    key, values = found if found is not None else ("rope_theta", {})
    if not isinstance(values, dict):
        config.refuse(key, f"{key} is not an object")
    if values and all(isinstance(value, dict) for value in values.values()):
        key, values = _of_layers(config, key, values, sorted(set(layer_types)))
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
    values = _with_top_level(config, key, values, rope_type)
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
    if rope_type == "llama3" and parameters["low_freq_factor"] >= parameters["high_freq_factor"]:
        config.refuse(f"{key}.low_freq_factor", "a wrong rope parameter", expected="less than high_freq_factor")
    if rope_type == "dynamic" and head_dim <= 2:
        config.refuse(f"{key}.rope_type", f"rope type dynamic cannot turn a head of width {head_dim}")
    return Rope(rope_type, theta, tuple(sorted(parameters.items())))


def _of_layers(
    config: Config, key: str, by_type: dict[str, dict[str, Any]], layer_types: list[str]
) -> tuple[str, dict[str, Any]]:
    """The entry of the draft's layer types, of which a target's config may name more."""
    for layer_type in layer_types:
        if by_type.get(layer_type) != by_type.get(layer_types[0]) or layer_type not in by_type:
            config.refuse(
                key,
                f"{key} differs by layer type",
                expected=f"one set of parameters for {' and '.join(layer_types)}",
            )
    return f"{key}.{layer_types[0]}", by_type[layer_types[0]]


def _with_top_level(config: Config, key: str, values: dict[str, Any], rope_type: str) -> dict[str, Any]:
    """Parameters that older files hold as keys of the config itself; transformers moves them, and so does this."""
    moved = dict(values)
    for name in _TOP_LEVEL:
        top = config.find(name)
        if top is None or name not in _REQUIRED[rope_type] | _OPTIONAL.get(rope_type, set()):
            continue
        if values.get(name) not in (None, top[1]):
            config.refuse(top[0], f"{top[0]} and {key}.{name} contradict each other", expected=values[name])
        moved[name] = top[1]
    return moved


def _theta(config: Config, key: str, values: dict[str, Any], default: float | None) -> float:
    top, nested = config.find("rope_theta"), values.get("rope_theta")
    if top is not None and nested is not None and top[1] != nested:
        config.refuse(
            top[0], f"{top[0]} and {key}.rope_theta contradict each other", expected=f"{key}.rope_theta = {nested}"
        )
    value = nested if nested is not None else top[1] if top is not None else default
    if value is None:
        config.missing("rope_theta")
    place = top[0] if nested is None and top else f"{key}.rope_theta"
    theta = _number(config, place, value)
    if theta <= 1:
        config.refuse(place, "a wrong rope base", expected="a number above 1")
    return theta


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
    if name in _MAY_BE_ZERO and type(value) in (int, float) and value == 0:
        return 0.0
    if name == "partial_rotary_factor" and _number(config, key, value) > 1:
        config.refuse(key, "a wrong rope parameter", expected="at most 1")
    if name == "truncate":
        if not isinstance(value, bool):
            config.refuse(key, "a wrong rope parameter", expected="true or false")
        return value
    if name == "original_max_position_embeddings":
        if type(value) is not int or value < 2:
            config.refuse(key, "a wrong rope parameter", expected="an integer of at least 2")
        return value
    return _number(config, key, value)


def _number(config: Config, key: str, value: Any) -> float:
    try:
        return number(positive=True)(value)
    except ValueError as error:
        config.refuse(key, "a wrong rope parameter", expected=error)
