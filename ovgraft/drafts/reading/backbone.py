"""The decoder layers of a draft, as its config describes them."""

from __future__ import annotations

from typing import Any

from ovgraft.drafts.formats.base import Format
from ovgraft.drafts.formats.keys import REFUSED
from ovgraft.drafts.reading.config import Config, boolean, choice, integer, number
from ovgraft.drafts.reading.rope import read_rope
from ovgraft.drafts.spec import Backbone, Convolution, Family
from ovgraft.drafts.tensors import QUANTIZED
from ovgraft.drafts.weight_source import WeightSource

_FULL, _SLIDING = "full_attention", "sliding_attention"

# Config classes whose layers are Qwen3-shaped once the draft's own code has built them.
_QWEN3_TYPES = ("qwen3", "llama", "qwen2", "qwen3_moe", "mistral", "dflash", "dspark")
_GEMMA4_TYPES = ("gemma4_text", "gemma4_unified_text")

_SIZE = integer(1)
_MOST_LAYERS = 1024  # what follows lists the tensors of every layer
_CLASS_NOTE = "default of transformers"

# transformers' Qwen3Config and LlamaConfig; a speculators config leaves out what equals them.
_CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    "qwen3": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 32768,
    },
    "llama": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
    },
}


def read_size(
    config: Config, form: Format, field: str, fallback: int | None = None, note: str = "", *, key: str | None = None
) -> int:
    """A dimension of the transformer config.

    Args:
        config: The config; the source is recorded on it.
        form: The checkpoint's format; where it leaves out class defaults, those hold.
        field: Name in the spec.
        fallback: What transformers computes without the key; None when the key must be there.
        note: Says so in the source record.
        key: Config key; the last part of ``field`` unless given.
    """
    name = key or field.rpartition(".")[2]
    default = class_default(config, form, name)
    if default is not None:
        fallback, note = int(default), _CLASS_NOTE
    return (
        config.read(field, _SIZE, name) if fallback is None else config.read_or(field, _SIZE, fallback, name, note=note)
    )


def class_default(config: Config, form: Format, name: str) -> int | float | None:
    """The value a missing key has in this format; None when it may not be missing."""
    value: int | float | None = _CLASS_DEFAULTS.get(_model_type(config), {}).get(name) if form.class_defaults else None
    return value


def read_backbone(config: Config, form: Format, family: Family, weights: WeightSource) -> Backbone:
    """The layers.

    Args:
        config: The config; sources are recorded on it.
        form: The checkpoint's format.
        family: Its family; DFlash-2 has convolutions.
        weights: Canonical tensors; their presence tells norms and Gemma-4 layers.

    Raises:
        CheckpointError: A value is missing, wrong, contradicted, or means layers that are not understood.
    """
    _refuse_variants(config)
    model_type = _model_type(config)
    named = config.find("model_type")
    config.record(
        "backbone.architecture",
        config.file.name if named else "",
        named[0] if named else "",
        f"{model_type}: layers as the draft's own code builds them",
    )
    config.record("backbone.shared_key_value", "", "", "Gemma-4 layers only")
    if model_type in _GEMMA4_TYPES:
        return _read_gemma4(config, form, weights)
    if model_type not in _QWEN3_TYPES:
        config.refuse(
            config.key_of("model_type"),
            "a layer type that is not understood",
            expected=", ".join(_QWEN3_TYPES + _GEMMA4_TYPES),
        )
    hidden_size = read_size(config, form, "backbone.hidden_size")
    heads = read_size(config, form, "backbone.num_attention_heads")
    layers = _layers(config, form)
    kv_heads, head_dim = _heads(config, form, heads, hidden_size)
    layer_types, window = _layer_types(config, layers)
    return Backbone(
        architecture="qwen3",
        hidden_size=hidden_size,
        target_hidden_size=_target_hidden_size(config, hidden_size),
        intermediate_size=read_size(config, form, "backbone.intermediate_size"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        layer_types=layer_types,
        sliding_window=window,
        causal=_causal(config, form, family, layer_types),
        rope=read_rope(config, head_dim, layer_types, default_theta=class_default(config, form, "rope_theta")),
        max_position_embeddings=_max_positions(config, form),
        rms_norm_eps=_norm_eps(config, form),
        hidden_act=config.read_or("backbone.hidden_act", choice("silu"), "silu", note=_CLASS_NOTE),
        attention_bias=config.read_or("backbone.attention_bias", boolean, False, note=_CLASS_NOTE),
        qk_norm=_qk_norm(config, weights, model_type),
        attention_scale=_attention_scale(config, head_dim),
        convolution=_convolution(config, hidden_size) if family is Family.DFLASH2 else None,
    )


def _read_gemma4(config: Config, form: Format, weights: WeightSource) -> Backbone:
    """DeepSpec's ``Gemma4DSparkModel``: full attention only, the wide heads of Gemma-4's full layers, scale 1."""
    hidden_size = config.read("backbone.hidden_size", _SIZE)
    layers = _layers(config, form)
    heads = config.read("backbone.num_attention_heads", _SIZE)
    head_dim = config.read("backbone.head_dim", _SIZE, "global_head_dim")
    shared = config.read("backbone.shared_key_value", boolean, "attention_k_eq_v")
    key = "num_global_key_value_heads" if shared else "num_key_value_heads"
    kv_heads = config.read("backbone.num_key_value_heads", _SIZE, key)
    _check_groups(config, key, heads, kv_heads)
    layer_types, _ = _layer_types(config, layers)
    if _SLIDING in layer_types:
        config.refuse(config.key_of("layer_types"), "a Gemma-4 draft has full attention only", expected=_FULL)
    config.record("backbone.qk_norm", "", "", "Gemma-4 layers")
    config.record("backbone.attention_scale", "", "", "Gemma-4 layers norm queries and keys instead")
    return Backbone(
        architecture="gemma4",
        hidden_size=hidden_size,
        target_hidden_size=_target_hidden_size(config, hidden_size),
        intermediate_size=config.read("backbone.intermediate_size", _SIZE),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        layer_types=layer_types,
        sliding_window=None,
        causal=_causal(config, form, Family.DSPARK, layer_types),
        rope=read_rope(config, head_dim, layer_types, default_theta=None),
        max_position_embeddings=_max_positions(config, form),
        rms_norm_eps=_norm_eps(config, form),
        hidden_act=config.read("backbone.hidden_act", choice("gelu_pytorch_tanh"), "hidden_activation"),
        attention_bias=config.read("backbone.attention_bias", boolean),
        qk_norm=True,
        attention_scale=1.0,
        shared_key_value=shared,
    )


def _layers(config: Config, form: Format) -> int:
    layers = read_size(config, form, "backbone.num_hidden_layers")
    if layers > _MOST_LAYERS:
        config.refuse(config.key_of("num_hidden_layers"), "a draft has few layers", expected=f"at most {_MOST_LAYERS}")
    return layers


def _model_type(config: Config) -> str:
    found = config.find("model_type")
    return str(found[1]) if found else "qwen3"


def _refuse_variants(config: Config) -> None:
    for name, neutral in REFUSED.items():
        found = config.find(name)
        if found is not None and found[1] != neutral:
            hint = f"{QUANTIZED}; if its tensors are not, remove the key" if name == "quantization_config" else None
            config.refuse(found[0], f"{found[0]} is not supported", expected=neutral, hint=hint)
    found = config.find("attention_mode")
    modes = config.find("attention_modes")
    said = ([found[1]] if found else []) + (modes[1] if modes and isinstance(modes[1], list) else [])
    if any(mode not in ("gqa", "mha") for mode in said):
        config.refuse(
            (found or modes or ("", None))[0], "an attention form that is not supported", expected="gqa or mha"
        )


def _heads(config: Config, form: Format, heads: int, hidden_size: int) -> tuple[int, int]:
    kv_heads = read_size(config, form, "backbone.num_key_value_heads", heads, "num_attention_heads")
    _check_groups(config, "num_key_value_heads", heads, kv_heads)
    split = max(1, hidden_size // heads)
    head_dim = read_size(config, form, "backbone.head_dim", split, "hidden_size / num_attention_heads")
    if head_dim % 2:
        says = "" if config.find("head_dim") else f"; without the key it is {hidden_size} // {heads} = {head_dim}"
        config.refuse(config.key_of("head_dim"), f"rotary positions need an even head_dim{says}")
    return kv_heads, head_dim


def _check_groups(config: Config, key: str, heads: int, kv_heads: int) -> None:
    if heads % kv_heads:
        config.refuse(
            config.key_of(key), f"{key} does not divide num_attention_heads", expected=f"a divisor of {heads}"
        )


def _target_hidden_size(config: Config, hidden_size: int) -> int:
    note = "hidden_size: the draft is as wide as its target"
    return config.read_or("backbone.target_hidden_size", _SIZE, hidden_size, note=note)


def _max_positions(config: Config, form: Format) -> int | None:
    if config.find("max_position_embeddings") is None and not form.class_defaults:
        config.record("backbone.max_position_embeddings", "", "", "no key says")
        return None
    return read_size(config, form, "backbone.max_position_embeddings")


def _norm_eps(config: Config, form: Format) -> float:
    default = class_default(config, form, "rms_norm_eps")
    if default is None:
        return config.read("backbone.rms_norm_eps", number(positive=True))
    return config.read_or("backbone.rms_norm_eps", number(positive=True), float(default), note=_CLASS_NOTE)


def _qk_norm(config: Config, weights: WeightSource, model_type: str) -> bool:
    """Whether queries and keys are normed: the tensors tell, and no key may say otherwise.

    Draft code builds Qwen3 layers whatever config class it borrows, so a Llama config with norms is usual; a Qwen3
    config without any is a damaged file unless it says so.
    """
    norms = [name for name in weights if name.endswith((".q_norm.weight", ".k_norm.weight"))]
    said = config.find("use_qk_norm")
    if not norms and (model_type in ("llama", "qwen2", "mistral") or (said is not None and said[1] is False)):
        config.record("backbone.qk_norm", weights.path.name, "", "no norm tensors")
        return False
    if norms and said is not None and said[1] is False:
        config.refuse(said[0], f"{said[0]} and the tensors contradict each other", expected=f"true: {norms[0]}")
    config.record("backbone.qk_norm", weights.path.name, norms[0] if norms else "", "norm tensors")
    return True


def _attention_scale(config: Config, head_dim: int) -> float:
    config.record("backbone.attention_scale", "", "", "head_dim ** -0.5")
    return float(head_dim**-0.5)


def _layer_types(config: Config, layers: int) -> tuple[tuple[str, ...], int | None]:
    found = config.find("layer_types")
    if found is None:
        used = config.find("use_sliding_window")
        # Mistral's config has a window and no flag; its layers are all windowed.
        windowed = used[1] is not False if used else _model_type(config) == "mistral" and config.find("sliding_window")
        if windowed:
            config.missing("layer_types")
        types = (_FULL,) * layers
        config.record("backbone.layer_types", "", "", "full attention unless layer_types says otherwise")
    else:
        key, value = found
        if not isinstance(value, list) or len(value) != layers:
            config.refuse(key, "layer_types does not fit num_hidden_layers", expected=f"{layers} entries")
        if any(item not in (_FULL, _SLIDING) for item in value):
            config.refuse(key, "a layer type that is not understood", expected=f"{_FULL} or {_SLIDING}")
        types = tuple(value)
        config.record("backbone.layer_types", config.file.name, key)
    # ModelOpt windows every layer with one flag and leaves layer_types full.
    flag = config.find("use_swa")
    if flag is not None and type(flag[1]) is not bool:
        config.refuse(flag[0], f"{flag[0]} has a wrong value", expected="true or false")
    if flag is not None and flag[1] and _SLIDING not in types:
        types = (_SLIDING,) * layers
        config.record("backbone.layer_types", config.file.name, flag[0], "every layer is windowed")
    if _SLIDING not in types:
        config.record("backbone.sliding_window", "", "", "no sliding layers")
        return types, None
    off = config.find("use_sliding_window") if flag is None else flag
    if off is not None and off[1] is False:
        config.refuse(off[0], f"{off[0]} contradicts layer_types", expected="true: layer_types has sliding layers")
    return types, config.read("backbone.sliding_window", _SIZE, "sliding_window", "swa_window_size")


def _causal(config: Config, form: Format, family: Family, layer_types: tuple[str, ...]) -> tuple[bool, ...]:
    """Causality inside the block per layer: a key for all layers, one for sliding ones, else the format's default."""
    if config.find("is_causal", "causal") is not None:
        value = config.read("backbone.causal", boolean, "is_causal", "causal", note="all layers")
        return (value,) * len(layer_types)
    if config.find("sliding_window_non_causal") is not None:
        value = not config.read("backbone.causal", boolean, "sliding_window_non_causal", note="sliding layers")
    else:
        value = form.sliding_causal(family)
        config.record("backbone.causal", "", "", f"default of {form.title}")
    return tuple(value and layer_type == _SLIDING for layer_type in layer_types)


def _convolution(config: Config, hidden_size: int) -> Convolution:
    kernel = config.read("backbone.convolution", _SIZE, "conv_kernel_size")
    group = config.read("backbone.convolution", _SIZE, "conv_group_size")
    keys = f"{config.key_of('conv_kernel_size')}, {config.key_of('conv_group_size')}"
    config.record("backbone.convolution", config.file.name, keys)
    if hidden_size % group:
        expected = f"a divisor of {hidden_size}"
        config.refuse(
            config.key_of("conv_group_size"), "conv_group_size does not divide hidden_size", expected=expected
        )
    return Convolution(kernel, group)
