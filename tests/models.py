"""Tiny models of the shapes real exporters write, made from a seed: decoders, DFlash and Eagle-3 drafts."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from openvino._offline_transformations import compress_model_transformation

from tests import blocks
from tests.blocks import Given, WeightFormat, Weights

P = ParamSpec("P")


def kept(make: Callable[P, ov.Model]) -> Callable[P, ov.Model]:
    """Build a model once and hand out clones; they share the weights, which nothing writes into."""
    made: dict[str, ov.Model] = {}

    @functools.wraps(make)
    def clone(*arguments: P.args, **options: P.kwargs) -> ov.Model:
        if options.get("given") is not None:
            return make(*arguments, **options)
        key = repr((arguments, sorted(options.items())))
        if key not in made:
            made[key] = make(*arguments, **options)
        return made[key].clone()

    return clone


def _parameter(name: str, element_type: ov.Type, shape: list[int]) -> ov.op.Parameter:
    parameter = ops.parameter(shape, element_type)
    parameter.set_friendly_name(name)
    parameter.output(0).get_tensor().set_names({name})
    return parameter


def _result(output: ov.Node, tensor_name: str) -> ov.op.Result:
    output.output(0).get_tensor().add_names({tensor_name})
    result = ops.result(output)
    result.set_friendly_name(f"Result_{tensor_name}")
    return result


def _model(
    outputs: dict[str, ov.Node], sinks: list[ov.Node], parameters: list[ov.op.Parameter], weights: WeightFormat
) -> ov.Model:
    results = [_result(output, name) for name, output in outputs.items()]
    model = ov.Model(results, sinks, parameters, "Model0")
    model.set_rt_info("8.0", ["runtime_options", "ACTIVATIONS_SCALE_FACTOR"])
    if weights in ("f32", "f16", "bf16"):
        model.set_rt_info("f16", ["runtime_options", "KV_CACHE_PRECISION"])
    _name_the_unnamed(model)
    if weights == "f16":
        compress_model_transformation(model)
    model.validate_nodes_and_infer_types()
    return model


def _name_the_unnamed(model: ov.Model) -> None:
    """Type and position instead of OpenVINO's process-wide counter, so that the same arguments give the same file."""
    for index, node in enumerate(model.get_ordered_ops()):
        if node.get_friendly_name() == node.get_name():
            node.set_friendly_name(f"{node.get_type_name()}_{index}")


@kept
def tiny_decoder(
    layers: int = 3,
    hidden: int = 32,
    vocab: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    *,
    weights: WeightFormat = "f32",
    seed: int = 0,
    given: Given | None = None,
    **options: Any,
) -> ov.Model:
    """A small :func:`decoder` with weights drawn from a seed.

    Args:
        layers: Decoder layers.
        hidden: Width; a multiple of 32 for int4.
        vocab: Rows of embedding and output layer.
        heads: Query heads.
        kv_heads: Key and value heads.
        weights: Storage of the matrices; with int4 the embedding and the output layer are int8, as NNCF leaves them.
        seed: Of the weights.
        given: Values for weights by name instead of drawn ones.
        **options: Of :func:`decoder`.
    """
    return decoder(Weights(seed, weights, given), layers, hidden, vocab, heads, kv_heads, **options)


def decoder(
    draw: Weights,
    layers: int,
    hidden: int,
    vocab: int,
    heads: int,
    kv_heads: int,
    *,
    tied: bool = False,
    embedding_scale: float | None = None,
    softcap: float | None = None,
    inputs_embeds: bool = False,
    annotated: bool = False,
    qk_norm: bool = True,
) -> ov.Model:
    """A stateful Qwen3-like decoder language model.

    Args:
        draw: Makes the weights.
        layers: Decoder layers.
        hidden: Width.
        vocab: Rows of embedding and output layer.
        heads: Query heads.
        kv_heads: Key and value heads.
        tied: One table for embedding and output layer.
        embedding_scale: Factor between embedding and first layer (Gemma).
        softcap: Soft cap of the logits (Gemma 2).
        inputs_embeds: Language model of a vision-language package: ``inputs_embeds`` instead of ``input_ids``.
        annotated: Write ``hidden_states_decoder_layers`` as the exporter does.
        qk_norm: Per-head norms of Qwen3; without them it is Llama.

    Returns:
        Inputs ``input_ids`` i64 ``[B, S]`` (or ``inputs_embeds`` f32 ``[B, S, hidden]``), ``attention_mask`` i64
        ``[B, past+S]``, ``position_ids`` i64 ``[B, S]``, ``beam_idx`` i32 ``[B]``; output ``logits`` f32
        ``[B, S, vocab]``.
    """
    table_format = draw.table_format
    attention_mask = _parameter("attention_mask", ov.Type.i64, [-1, -1])
    position_ids = _parameter("position_ids", ov.Type.i64, [-1, -1])
    beam_idx = _parameter("beam_idx", ov.Type.i32, [-1])
    table = None
    if inputs_embeds:
        source = _parameter("inputs_embeds", ov.Type.f32, [-1, -1, hidden])
        x = source
    else:
        source = _parameter("input_ids", ov.Type.i64, [-1, -1])
        table = draw.weight("self.model.embed_tokens.weight", draw.normal(vocab, hidden), table_format)
        x = _embed("model.embed_tokens", table, source)
    if embedding_scale is not None:
        factor = blocks.constant(np.full((1, 1, 1), embedding_scale), np.float32)
        x = blocks.named(ops.multiply(x, factor), "__module.model.embed_tokens/aten::mul/Multiply")

    head_dim = hidden // heads
    batch = blocks.size(source, 0)
    cosine, sine = blocks.rotary_tables("model.rotary_emb", position_ids, head_dim)
    shared = blocks.Attention(hidden, heads, kv_heads, head_dim, batch, beam_idx, cosine, sine)
    sinks: list[ov.Node] = []
    causal: blocks.Causal | None = None
    producers: list[str] = []
    for layer in range(layers):
        scope = f"model.layers.{layer}"
        attention = f"{scope}.self_attn"
        normed = blocks.rms_norm(draw, f"{scope}.input_layernorm", x, hidden)
        query = blocks.project(draw, attention, normed, shared, heads, "q", norm=qk_norm, width=hidden)
        key = blocks.project(draw, attention, normed, shared, kv_heads, "k", norm=qk_norm, width=hidden)
        value = blocks.project(draw, attention, normed, shared, kv_heads, "v", norm=False, width=hidden)
        query = blocks.rotate(query, cosine, sine, head_dim)
        key = blocks.rotate(key, cosine, sine, head_dim)
        past, key = blocks.cached(shared, layer, "key", key, sinks)
        _, value = blocks.cached(shared, layer, "value", value, sinks)
        causal = causal or blocks.causal_lengths(past, normed, attention_mask)
        key = blocks.repeat_heads(key, batch, causal.total, heads, kv_heads, head_dim)
        value = blocks.repeat_heads(value, batch, causal.total, heads, kv_heads, head_dim)
        x = blocks.residual(scope, x, blocks.attend(draw, attention, query, key, value, causal.mask, shared), 0)
        x = blocks.feed_forward(draw, scope, x, hidden)
        producers.append(x.get_friendly_name())

    final = blocks.rms_norm(draw, "model.norm", x, hidden)
    producers[-1] = final.get_friendly_name()
    head = table if tied and table is not None else _head_weight(draw, "lm_head", vocab, hidden, table_format)
    logits = blocks.named(ops.matmul(final, head, False, True), "__module.lm_head/aten::linear/MatMul")
    if softcap is not None:
        logits = _softcapped(logits, softcap)
    parameters = [source, attention_mask, position_ids, beam_idx]
    model = _model({"logits": logits}, sinks, parameters, draw.weights)
    if annotated:
        model.set_rt_info(annotation(producers), ["hidden_states_decoder_layers"])
    return model


def annotation(producers: list[str]) -> str:
    """The exporter's JSON text for ``hidden_states_decoder_layers``."""
    layers = {str(index): {"producer": name, "output_index": 0} for index, name in enumerate(producers)}
    return json.dumps({"layers": layers}, separators=(",", ":"))


def _embed(scope: str, table: ov.Node, ids: ov.Node) -> ov.Node:
    path = f"__module.{scope}/aten::embedding"
    ids = blocks.named(ops.convert(ids, ov.Type.i32), f"{path}/Convert")
    axis = blocks.named(ops.constant(np.int32(0)), f"{path}/Constant")
    return blocks.named(ops.gather(table, ids, axis), f"{path}/Gather", "hidden_states.1")


def _head_weight(draw: Weights, scope: str, vocab: int, hidden: int, weights: WeightFormat) -> ov.Node:
    return draw.weight(f"self.{scope}.weight", draw.normal(vocab, hidden, scale=2 * hidden**-0.5), weights)


def _softcapped(logits: ov.Node, cap: float) -> ov.Node:
    factor = np.full((1, 1, 1), cap)
    logits = blocks.named(ops.divide(logits, blocks.constant(factor, np.float32)), "__module/aten::div/Divide")
    logits = blocks.named(ops.tanh(logits), "__module/aten::tanh/Tanh")
    return blocks.named(ops.multiply(logits, blocks.constant(factor, np.float32)), "__module/aten::mul/Multiply")


@kept
def tiny_text_embeddings(
    hidden: int = 32, vocab: int = 64, *, weights: WeightFormat = "f32", seed: int = 0
) -> ov.Model:
    """The embedding IR of a vision-language package.

    ``input`` i64 ``[B, S]`` to ``inputs_embeds`` f32 ``[B, S, hidden]``. With the seed of a :func:`tiny_decoder` it
    holds the table that decoder would have had.
    """
    draw = Weights(seed, weights)
    table_format = draw.table_format
    ids = _parameter("input", ov.Type.i64, [-1, -1])
    table = draw.weight("self.weight", draw.normal(vocab, hidden), table_format)
    cast = blocks.named(ops.convert(ids, ov.Type.i32), "aten::embedding/Convert")
    axis = blocks.named(ops.constant(np.int32(0)), "aten::embedding/Constant")
    rows = blocks.named(ops.gather(table, cast, axis), "aten::embedding/Gather")
    return _model({"inputs_embeds": rows}, [], [ids], weights)


@kept
def tiny_dflash_draft(
    layers: int = 2,
    target_width: int = 32,
    n: int = 3,
    *,
    hidden: int = 32,
    heads: int = 4,
    kv_heads: int = 2,
    weights: WeightFormat = "f32",
    fc_bias: bool = False,
    target_layer_ids: tuple[int, ...] | None = None,
    mask_token_id: int = 3,
    seed: int = 1,
    given: Given | None = None,
) -> ov.Model:
    """A DFlash draft as exported: the states hold context rows only, the anchor row is dropped from the output.

    Args:
        layers: Draft layers.
        target_width: Hidden width of the target, Ht.
        n: Captured target layers.
        hidden: Draft width, H.
        heads: Query heads.
        kv_heads: Key and value heads.
        weights: Storage of the matrices, the FC included.
        fc_bias: Give the FC a bias, which the exporter never does.
        target_layer_ids: Written to rt_info; 0..n-1 when None.
        mask_token_id: Written to rt_info.
        seed: Of the weights.
        given: Values for weights by name instead of drawn ones.

    Returns:
        Inputs ``inputs_embeds`` f32 ``[B, block, H]``, ``hidden_states`` f32 ``[B, context, n*Ht]``,
        ``position_ids`` i64 ``[B, context+block]``, ``attention_mask`` i64 ``[B, past+context+block]``, ``beam_idx``
        i32 ``[B]``; output ``last_hidden_state`` f32 ``[B, block-1, H]``.
    """
    draw = Weights(seed, weights, given)
    embeds = _parameter("inputs_embeds", ov.Type.f32, [-1, -1, hidden])
    states = _parameter("hidden_states", ov.Type.f32, [-1, -1, n * target_width])
    position_ids = _parameter("position_ids", ov.Type.i64, [-1, -1])
    attention_mask = _parameter("attention_mask", ov.Type.i64, [-1, -1])
    beam_idx = _parameter("beam_idx", ov.Type.i32, [-1])
    head_dim = hidden // heads

    projected = blocks.linear(draw, "fc", states, hidden, n * target_width, bias=fc_bias)
    context = blocks.rms_norm(draw, "hidden_norm", projected, hidden)
    batch = blocks.size(embeds, 0)
    block_rows = blocks.size(embeds, 1)
    lengths = ops.concat([blocks.size(context, 1), block_rows], 0)
    cosine, sine = blocks.rotary_tables("rotary_emb", position_ids, head_dim)
    first = ops.multiply(block_rows, blocks.constant([-1]))
    tables = [blocks.slice_axis(table, first, blocks.INT64_MAX, 2) for table in (cosine, sine)]
    shared = blocks.Attention(hidden, heads, kv_heads, head_dim, batch, beam_idx, cosine, sine)
    mask = _padding_mask(attention_mask)
    sinks: list[ov.Node] = []
    x = embeds
    for layer in range(layers):
        scope = f"layers.{layer}"
        attention = f"{scope}.self_attn"
        normed = blocks.rms_norm(draw, f"{scope}.input_layernorm", x, hidden)
        rows = ops.concat([context, normed], 1)
        query = blocks.project(draw, attention, normed, shared, heads, "q", norm=True, width=hidden)
        query = blocks.rotate(query, tables[0], tables[1], head_dim)
        key = blocks.project(draw, attention, rows, shared, kv_heads, "k", norm=True, width=hidden)
        key = blocks.rotate(key, cosine, sine, head_dim)
        value = blocks.project(draw, attention, rows, shared, kv_heads, "v", norm=False, width=hidden)
        seen = []
        for kind, current in (("key", key), ("value", value)):
            split = ops.variadic_split(current, blocks.constant(2), lengths)
            _, committed = blocks.cached(shared, layer, kind, split.output(0), sinks)
            whole = ops.concat([committed, split.output(1)], 2)
            total = blocks.size(whole, 2)
            seen.append(blocks.repeat_heads(whole, batch, total, heads, kv_heads, head_dim))
        x = blocks.residual(scope, x, blocks.attend(draw, attention, query, seen[0], seen[1], mask, shared), 0)
        x = blocks.feed_forward(draw, scope, x, hidden)
    final = blocks.rms_norm(draw, "norm", x, hidden)
    kept = blocks.constant([1]), blocks.constant([blocks.INT64_MAX]), blocks.constant([1]), blocks.constant([1])
    output = blocks.named(ops.slice(final, *kept), "aten::slice/Slice_4")
    parameters = [embeds, states, position_ids, attention_mask, beam_idx]
    model = _model({"last_hidden_state": output}, sinks, parameters, weights)
    ids = tuple(range(n)) if target_layer_ids is None else target_layer_ids
    model.set_rt_info("True", ["dflash_mode"])
    model.set_rt_info(str(mask_token_id), ["dflash", "mask_token_id"])
    model.set_rt_info(",".join(map(str, ids)), ["dflash", "target_layer_ids"])
    return model


def _padding_mask(attention_mask: ov.Node) -> ov.Node:
    """Additive mask f32 ``[B, 1, 1, past+context+block]``: padding only, every block row sees every row."""
    mask = ops.unsqueeze(attention_mask, blocks.constant([1, 2]))
    mask = ops.convert(mask, ov.Type.f32)
    one = blocks.constant(np.ones((1, 1, 1, 1)), np.float32)
    lowest = blocks.constant(np.full((1, 1, 1, 1), np.finfo(np.float32).min), np.float32)
    return ops.multiply(ops.subtract(one, mask), lowest)


@kept
def tiny_eagle3_draft(
    target_width: int = 32,
    n: int = 3,
    *,
    hidden: int = 32,
    vocab: int = 64,
    draft_vocab: int = 16,
    heads: int = 4,
    kv_heads: int = 2,
    weights: WeightFormat = "f32",
    seed: int = 2,
    given: Given | None = None,
) -> ov.Model:
    """An Eagle-3 draft as exported: one layer over ``[embedding, FC of hidden_states]``, own tables.

    Returns:
        Inputs ``input_ids`` i64 ``[B, S]``, ``hidden_states`` f32 ``[B, S, ?]`` (n*Ht wide), ``attention_mask``,
        ``position_ids``, ``beam_idx``; outputs ``logits`` f32 ``[B, S, draft_vocab]`` and ``d2t`` i64
        ``[draft_vocab]``.
    """
    draw = Weights(seed, weights, given)
    table_format = draw.table_format
    input_ids = _parameter("input_ids", ov.Type.i64, [-1, -1])
    states = _parameter("hidden_states", ov.Type.f32, [-1, -1, -1])
    attention_mask = _parameter("attention_mask", ov.Type.i64, [-1, -1])
    position_ids = _parameter("position_ids", ov.Type.i64, [-1, -1])
    beam_idx = _parameter("beam_idx", ov.Type.i32, [-1])
    head_dim = hidden // heads
    scope, attention = "model.midlayer", "model.midlayer.self_attn"

    table = draw.weight("self.model.embed_tokens.weight", draw.normal(vocab, hidden), table_format)
    embedded = _embed("model.embed_tokens", table, input_ids)
    x = blocks.linear(draw, "model.fc", states, hidden, n * target_width)
    normed = [
        blocks.rms_norm(draw, f"{scope}.input_layernorm", embedded, hidden),
        blocks.rms_norm(draw, f"{scope}.hidden_norm", x, hidden),
    ]
    joined = blocks.named(ops.concat(normed, -1), f"__module.{scope}/aten::cat/Concat")
    batch = blocks.size(input_ids, 0)
    cosine, sine = blocks.rotary_tables("model.rotary_emb", position_ids, head_dim)
    shared = blocks.Attention(hidden, heads, kv_heads, head_dim, batch, beam_idx, cosine, sine)
    sinks: list[ov.Node] = []
    query = blocks.project(draw, attention, joined, shared, heads, "q", norm=False, width=2 * hidden)
    key = blocks.project(draw, attention, joined, shared, kv_heads, "k", norm=False, width=2 * hidden)
    value = blocks.project(draw, attention, joined, shared, kv_heads, "v", norm=False, width=2 * hidden)
    query = blocks.rotate(query, cosine, sine, head_dim)
    key = blocks.rotate(key, cosine, sine, head_dim)
    past, key = blocks.cached(shared, 0, "key", key, sinks)
    _, value = blocks.cached(shared, 0, "value", value, sinks)
    causal = blocks.causal_lengths(past, joined, attention_mask)
    key = blocks.repeat_heads(key, batch, causal.total, heads, kv_heads, head_dim)
    value = blocks.repeat_heads(value, batch, causal.total, heads, kv_heads, head_dim)
    x = blocks.residual(scope, x, blocks.attend(draw, attention, query, key, value, causal.mask, shared), 0)
    x = blocks.feed_forward(draw, scope, x, hidden)
    final = blocks.rms_norm(draw, "model.norm", x, hidden)
    head = _head_weight(draw, "model.lm_head", draft_vocab, hidden, table_format)
    logits = blocks.named(ops.matmul(final, head, False, True), "__module.model.lm_head/aten::linear/MatMul")
    offsets = np.arange(draft_vocab, dtype=np.int64) * (vocab // draft_vocab - 1)
    d2t = blocks.named(ops.constant(offsets), "self.model.d2t")
    parameters = [input_ids, states, attention_mask, position_ids, beam_idx]
    model = _model({"logits": logits, "d2t": d2t}, sinks, parameters, weights)
    model.set_rt_info("True", ["eagle3_mode"])
    return model


def write_package(
    model: ov.Model,
    folder: Path,
    *,
    config: dict[str, Any] | None = None,
    name: str = "openvino_model",
    others: dict[str, ov.Model] | None = None,
) -> Path:
    """Save a model and its side files as the exporter lays them out.

    Args:
        model: The main IR.
        folder: Created when missing.
        config: Content of ``config.json``; ``{"model_type": "qwen3"}`` when None.
        name: Stem of the main IR.
        others: Further IRs of the package by stem.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for stem, part in {name: model, **(others or {})}.items():
        ov.save_model(part, folder / f"{stem}.xml", compress_to_fp16=False)
    content = {"model_type": "qwen3"} if config is None else config
    (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}) + "\n", encoding="utf-8")
    return folder
