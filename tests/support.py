"""What tests share: where the shared data lies, exact compile settings, and one way to run a decoder."""

from __future__ import annotations

import hashlib
import itertools
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("OVGRAFT_SHARED") or ROOT.parent / "shared")
SHARED_MISSING = "shared data not found"
"""Start of the skip reason of every test that needs the shared data and has none."""

PARITY: dict[str, Any] = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
}
"""Compile settings under which equal graphs give equal numbers, whatever the IR's runtime_options say."""

THREADS = {"INFERENCE_NUM_THREADS": 1}
"""Tests run side by side; one thread each."""

DECODERS = (
    *("qwen3", "qwen3-int8", "qwen3-int4_sym_g32", "qwen3_12l", "qwen3_agree", "llama", "qwen3_moe", "gemma3_text"),
    *("gpt_oss", "qwen3_5_text", "gpt2", "bloom", "phi3", "mpt", "mamba", "lfm2", "qwen3_next", "gemma4", "qwen2_vl"),
)
"""Folders of the zoo that hold a decoder."""

ANNOTATED = (
    *("qwen3", "qwen3-int8", "qwen3-int4_sym_g32", "qwen3_12l", "qwen3_agree", "qwen3_moe", "qwen3_5_text", "gemma4"),
)
"""Decoders of the zoo that carry the exporter's ``hidden_states_decoder_layers``."""

DFLASH_DRAFTS = (
    *("qwen3_dflash_draft", "qwen3_dflash_draft-int8", "qwen3_dflash_draft-int4", "qwen3_dflash_draft_sliding"),
    "qwen3_agree_dflash_draft",
)
"""DFlash drafts of the zoo."""


def model_file(folder: Path) -> Path:
    """The decoder IR of a package folder."""
    language = folder / "openvino_language_model.xml"
    return language if language.exists() else folder / "openvino_model.xml"


def compile_parity(model: ov.Model | Path | str, **config: Any) -> ov.CompiledModel:
    """Compile for the CPU with the settings of :data:`PARITY`; the model itself is left as it is.

    A small model that was compiled before, byte by byte the same when saved, is not compiled again. States are of
    requests, so none are shared.
    """
    core = ov.Core()
    loaded = core.read_model(str(model)) if isinstance(model, (Path, str)) else model
    return compile_once(core, loaded, "CPU", {**PARITY, **THREADS, **config})


_COMPILE = ov.Core.compile_model
_COMPILED: dict[tuple[str, str, str], ov.CompiledModel] = {}
"""By content, device and settings; the one used last at the end."""
_KEPT = 96
_SMALL = 32 * 2**20


def compile_once(core: ov.Core, model: ov.Model, device: str, config: dict[str, Any]) -> ov.CompiledModel:
    """``ov.Core.compile_model``, but for small models that were compiled before and are not to be cached in files."""
    content = None if "CACHE_DIR" in config else _content(model)
    if content is None:
        return _COMPILE(core, model, device, config)
    key = content, device, repr(sorted(config.items()))
    compiled = _COMPILED.pop(key, None) or _COMPILE(core, model, device, config)
    _COMPILED[key] = compiled
    if len(_COMPILED) > _KEPT:
        del _COMPILED[next(iter(_COMPILED))]
    return compiled


def _content(model: ov.Model) -> str | None:
    """A hash of a model's IR files; None for many weights, and for paged models: files lack their head sizes."""
    weights = 0
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        if kind == "PagedAttentionExtension":
            return None
        weights += node.get_byte_size() if kind == "Constant" else 0
    if weights > _SMALL:
        return None
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "model.xml"), Path(folder, "model.bin")
        ov.serialize(model, *files)
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def infer(model: ov.Model | Path | str, feeds: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Run once from empty states.

    Args:
        model: A model or the path of one.
        feeds: Input name -> array.

    Returns:
        Output name -> array, a copy.
    """
    return _outputs(compile_parity(model).create_infer_request(), feeds)


def decoder_feeds(
    inputs: Sequence[ov.Output], tokens: NDArray[np.int64], past: int, embeds: NDArray[np.float32] | None = None
) -> dict[str, NDArray[Any]]:
    """Feeds of one call: ones in the mask, positions counting on from ``past``.

    Args:
        inputs: Inputs of the model.
        tokens: i64 ``[B, S]``.
        past: Tokens already in the states.
        embeds: f32 ``[B, S, H]`` for models with ``inputs_embeds``.
    """
    batch, rows = tokens.shape
    positions = np.broadcast_to(np.arange(past, past + rows, dtype=np.int64), (batch, rows))
    known: dict[str, NDArray[Any]] = {
        "input_ids": tokens,
        "attention_mask": np.ones((batch, past + rows), np.int64),
        "position_ids": positions,
        "cache_position": np.arange(past, past + rows, dtype=np.int64),
        "beam_idx": np.arange(batch, dtype=np.int32),
        "token_type_ids": np.zeros((batch, rows), np.int64),
    }
    if embeds is not None:
        known["inputs_embeds"] = embeds
    feeds = {}
    for port in inputs:
        name = next((name for name in known if name in port.names), None)
        if name is None:
            raise KeyError(f"no value for input {port.any_name}")
        value = known[name]
        if name == "position_ids" and len(port.partial_shape) == 3:
            value = np.broadcast_to(value, (port.partial_shape[0].get_length(), batch, rows))
        feeds[name] = np.ascontiguousarray(value)
    return feeds


def run_decoder(
    model: ov.Model | Path | str,
    tokens: NDArray[np.int64] | Sequence[int],
    *,
    split: Sequence[int] = (),
    embeds: NDArray[np.float32] | None = None,
    extra: Mapping[str, NDArray[Any]] | None = None,
) -> dict[str, NDArray[Any]]:
    """Run a stateful decoder over tokens, in several calls when asked.

    Args:
        model: A decoder or the path of one.
        tokens: i64 ``[S]`` or ``[B, S]``.
        split: Where to cut the rows, for example ``(5, 6)``: a prefill of five rows, one row, the rest.
        embeds: f32 ``[B, S, H]`` for models with ``inputs_embeds``.
        extra: Further inputs whose axis 1 runs over the rows.

    Returns:
        Output name -> array, the calls joined along axis 1; outputs without rows (``d2t``) as they are.
    """
    ids = np.atleast_2d(np.asarray(tokens, np.int64))
    compiled = compile_parity(model)
    request = compiled.create_infer_request()
    ports = [port for port in compiled.inputs if not (set(extra or ()) & set(port.names))]
    bounds = [0, *split, ids.shape[1]]
    calls = []
    for start, stop in itertools.pairwise(bounds):
        rows = None if embeds is None else embeds[:, start:stop]
        feeds = decoder_feeds(ports, ids[:, start:stop], start, rows)
        feeds |= {name: np.ascontiguousarray(value[:, start:stop]) for name, value in (extra or {}).items()}
        calls.append(_outputs(request, feeds))
    rows_of = {name for name, value in calls[0].items() if value.ndim > 1}
    return {
        name: np.concatenate([call[name] for call in calls], axis=1) if name in rows_of else value
        for name, value in calls[-1].items()
    }


def _outputs(request: ov.InferRequest, feeds: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    request.infer(dict(feeds))
    ports = request.get_compiled_model().outputs
    return {port.any_name: np.array(request.get_tensor(port).data) for port in ports}


def draft_feeds(
    context: NDArray[np.float32], block: NDArray[np.float32] | NDArray[np.int64], past: int = 0
) -> dict[str, NDArray[Any]]:
    """Feeds of one DFlash draft call.

    Args:
        context: ``hidden_states`` f32 ``[B, context, width]``.
        block: ``inputs_embeds`` f32 ``[B, block, H]``, or ``input_ids`` i64 ``[B, block]``.
        past: Context rows already in the states.
    """
    batch, rows = context.shape[0], context.shape[1] + block.shape[1]
    positions = np.broadcast_to(np.arange(past, past + rows, dtype=np.int64), (batch, rows))
    return {
        "input_ids" if block.ndim == 2 else "inputs_embeds": block,
        "hidden_states": context,
        "position_ids": np.ascontiguousarray(positions),
        "attention_mask": np.ones((batch, past + rows), np.int64),
        "beam_idx": np.arange(batch, dtype=np.int32),
    }
