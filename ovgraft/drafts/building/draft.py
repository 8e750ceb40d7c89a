"""The IR of a draft, from its spec and tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import openvino as ov

from ovgraft.drafts.building.attention import Inputs, attend
from ovgraft.drafts.building.cache import Cache
from ovgraft.drafts.building.convolution import DynamicConvolution
from ovgraft.drafts.building.graph import Scope, ints, scalar
from ovgraft.drafts.building.layout import Layout, PerRowLayout, SdpaLayout
from ovgraft.drafts.building.rotary import LENGTH_DEPENDENT, rotary
from ovgraft.drafts.checkpoint import Checkpoint
from ovgraft.drafts.contract import Key, Port
from ovgraft.drafts.per_row import RowAttention
from ovgraft.drafts.spec import Backbone, Confidence, DraftSpec, Family
from ovgraft.drafts.tensors import D2T, EMBEDDING, LM_HEAD, MASK_EMBEDDING
from ovgraft.errors import PreconditionError
from ovgraft.ir import make_parameter, make_result, name_by_place, opset, set_text

Form = Literal["sdpa", "per-row"]
SlidingInBlock = Literal["auto", "causal", "bidirectional"]

_SLIDING = "sliding_attention"

_RUNTIME_OPTIONS = {Key.ACTIVATIONS_SCALE_FACTOR: "8.0", Key.KV_CACHE_PRECISION: "f16"}
"""What the released exporter writes into every IR with float weights, where the draft recommends nothing else."""


@dataclass(frozen=True)
class _Ports:
    """Inputs of the draft, in the exporter's order."""

    tokens: ov.Node
    hidden_states: ov.Node
    position_ids: ov.Node
    attention_mask: ov.Node
    beam_idx: ov.Node
    token_type_ids: ov.Node | None

    def all(self) -> list[ov.Node]:
        """Those the draft has."""
        every = (
            self.tokens,
            self.hidden_states,
            self.position_ids,
            self.attention_mask,
            self.token_type_ids,
            self.beam_idx,
        )
        return [port for port in every if port is not None]


def build_draft(checkpoint: Checkpoint, form: Form = "sdpa", *, sliding_in_block: SlidingInBlock = "auto") -> ov.Model:
    """Build the backbone of a draft.

    Args:
        checkpoint: Spec and tensors; the constants look into its mapped files.
        form: ``sdpa`` has the released exporter's ports and states: ``hidden_states`` holds the context rows and
            ``inputs_embeds`` the block; ``per-row`` has one row axis for both, told apart by ``token_type_ids``.
        sliding_in_block: Whether a row of a sliding layer sees later rows of its block; ``auto`` is the spec's word.

    Returns:
        A stateful model; ``inputs_embeds`` or, with an embedding of its own, ``input_ids`` in; ``last_hidden_state``
        f32 ``[B, rows, H]`` or, with an output layer of its own, ``logits`` ``[B, rows, Dv]`` (and ``d2t`` when pruned)
        out. The SDPA form leaves out rows before the first candidate, the per-row form leaves out none.

    Raises:
        PreconditionError: Form and family do not go together.
    """
    spec, backbone = checkpoint.spec, checkpoint.spec.backbone
    per_row = form == "per-row"
    sees = row_attention(backbone, sliding_in_block)
    if per_row:
        _check_per_row(checkpoint, sees)
    scope = Scope(checkpoint.weights)
    ports = _make_ports(spec, per_row)
    tokens = _embed(scope, spec, ports)
    context = scope.linear(ports.hidden_states.output(0), "fc")
    context = scope.norm(context, "hidden_norm", backbone.rms_norm_eps)
    mask = ports.attention_mask.output(0)
    layout: Layout
    if ports.token_type_ids is None:
        layout = SdpaLayout(tokens, context, mask)
    else:
        layout = PerRowLayout(scope, ports.token_type_ids.output(0), mask)
    cache = Cache(tokens, ports.beam_idx.output(0))
    inputs = Inputs(context, rotary(scope, ports.position_ids.output(0), backbone), cache, layout)
    rows = layout.block_rows(tokens)
    for layer, seen in enumerate(sees):
        rows = _layer(scope, layer, rows, seen, inputs, backbone)
    rows = scope.norm(rows, "norm", backbone.rms_norm_eps)
    offset = spec.candidate_position_offset
    if offset and not per_row:
        cut = opset.slice(rows, ints(offset), ints(np.iinfo(np.int64).max), ints(1), ints(1))
        rows = scope.name(cut, "candidate_rows")
    results = _results(scope, checkpoint, rows, layout)
    model = ov.Model(results, cache.assigns, ports.all(), "draft")
    model.validate_nodes_and_infer_types()
    name_by_place(model)
    _write_metadata(model, spec, form)
    return model


def row_attention(backbone: Backbone, sliding_in_block: SlidingInBlock = "auto") -> list[RowAttention]:
    """What a block row of each layer sees."""
    found = []
    for kind, causal in zip(backbone.layer_types, backbone.causal, strict=True):
        sliding = kind == _SLIDING
        if sliding and sliding_in_block != "auto":
            causal = sliding_in_block == "causal"
        found.append(RowAttention((backbone.sliding_window or 0) if sliding else 0, not causal))
    return found


def sliding_rows(spec: DraftSpec, sliding_in_block: SlidingInBlock = "auto") -> str:
    """What rows of sliding layers see of their block: ``causal``, ``bidirectional`` or both; empty when none slides."""
    sees = row_attention(spec.backbone, sliding_in_block)
    return " or ".join(sorted({layer.in_block for layer in sees if layer.window}))


def _check_per_row(checkpoint: Checkpoint, sees: list[RowAttention]) -> None:
    """Refuse what one row axis for several requests cannot compute."""
    spec = checkpoint.spec
    hint = "build with form sdpa"
    if spec.backbone.rope.type in LENGTH_DEPENDENT:
        raise PreconditionError(
            f"rope type '{spec.backbone.rope.type}' depends on the longest sequence of a call",
            file=checkpoint.path,
            expected="a rope type that packed requests cannot change for each other",
            hint=hint,
        )
    for layer, seen in enumerate(sees):
        # PagedAttention lets a row see its whole block, whatever the window
        if seen.bidirectional and 0 < seen.window < spec.block_size:
            raise PreconditionError(
                f"layer {layer} would see more of its block than its window of {seen.window}",
                file=checkpoint.path,
                expected=f"a window of at least block_size {spec.block_size}",
                found=seen.window,
                hint=hint,
            )


def _make_ports(spec: DraftSpec, per_row: bool) -> _Ports:
    backbone = spec.backbone
    width = len(spec.layer_ids) * backbone.target_hidden_size
    tokens = (
        make_parameter(Port.INPUT_IDS, "i64", [-1, -1])
        if spec.own_embedding
        else make_parameter(Port.INPUTS_EMBEDS, "f32", [-1, -1, backbone.hidden_size])
    )
    return _Ports(
        tokens,
        make_parameter(Port.HIDDEN_STATES, "f32", [-1, -1, width]),
        make_parameter(Port.POSITION_IDS, "i64", [-1, -1]),
        make_parameter(Port.ATTENTION_MASK, "i64", [-1, -1]),
        make_parameter(Port.BEAM_IDX, "i32", [-1]),
        make_parameter(Port.TOKEN_TYPE_IDS, "i64", [-1, -1]) if per_row else None,
    )


def _embed(scope: Scope, spec: DraftSpec, ports: _Ports) -> ov.Output:
    """Block rows as the first layer takes them."""
    if not spec.own_embedding:
        return ports.tokens.output(0)
    table = scope.matrix(EMBEDDING)
    rows = scope.name(opset.gather(table, ports.tokens, scalar(0)), "embed_tokens/Gather")
    if spec.own_mask_embedding:
        is_mask = opset.unsqueeze(opset.equal(ports.tokens, scalar(spec.mask_token_id)), ints(2))
        rows = scope.name(opset.select(is_mask, scope.weight(MASK_EMBEDDING), rows), "embed_tokens/mask")
    if spec.input_embedding_scale != 1.0:
        rows = scope.name(opset.multiply(rows, scope.number(spec.input_embedding_scale)), "embed_tokens/scale")
    return rows


def _layer(
    scope: Scope,
    layer: int,
    rows: ov.Output,
    sees: RowAttention,
    inputs: Inputs,
    backbone: Backbone,
) -> ov.Output:
    """One decoder layer, as transformers computes those of Qwen3 and Gemma-4, with DFlash-2's convolutions."""
    name, eps = f"layers.{layer}", backbone.rms_norm_eps
    gemma = backbone.architecture == "gemma4"

    def attention(normed: ov.Output) -> ov.Output:
        return attend(scope, layer, normed, sees, inputs, backbone)

    def feed_forward(normed: ov.Output) -> ov.Output:
        return _mlp(scope, f"{name}.mlp", normed, backbone.hidden_act)

    branches = (
        ("input_layernorm", "post_attention_layernorm" if gemma else None, "attention_conv", attention),
        (
            "pre_feedforward_layernorm" if gemma else "post_attention_layernorm",
            "post_feedforward_layernorm" if gemma else None,
            "mlp_conv",
            feed_forward,
        ),
    )
    for count, (before, behind, convolution, branch) in enumerate(branches):
        normed = scope.norm(rows, f"{name}.{before}", eps)
        if backbone.convolution is None:
            out = branch(normed)
        else:
            convolve = DynamicConvolution(scope, f"{name}.{convolution}", normed, inputs.layout, backbone)
            out = convolve(branch(convolve(normed, 0)), 1)
        if behind is not None:
            out = scope.norm(out, f"{name}.{behind}", eps)
        rows = scope.name(opset.add(rows, out), f"{name}/Add" if count == 0 else f"{name}/Add_1")
    if gemma:
        rows = scope.name(opset.multiply(rows, scope.weight(f"{name}.layer_scalar")), f"{name}/Multiply")
    return rows


def _mlp(scope: Scope, name: str, rows: ov.Output, activation: str) -> ov.Output:
    gate = scope.linear(rows, f"{name}.gate_proj")
    active = opset.swish(gate) if activation == "silu" else opset.gelu(gate, "tanh")
    return scope.linear(opset.multiply(active, scope.linear(rows, f"{name}.up_proj")).output(0), f"{name}.down_proj")


def _results(scope: Scope, checkpoint: Checkpoint, rows: ov.Output, layout: Layout) -> list[ov.Node]:
    spec = checkpoint.spec
    hidden = layout.output_rows(rows)
    if not spec.own_lm_head:
        return [make_result(hidden, Port.LAST_HIDDEN_STATE)]
    logits = opset.matmul(rows, scope.matrix(LM_HEAD), False, True)
    if spec.output_multiplier != 1.0:
        logits = opset.multiply(logits, scope.number(spec.output_multiplier))
    cap = spec.final_logit_softcapping
    if cap is not None:
        logits = opset.multiply(opset.tanh(opset.divide(logits, scope.number(cap))), scope.number(cap))
    named = scope.name(logits, "lm_head/logits")
    results = [make_result(layout.output_rows(named), Port.LOGITS)]
    if spec.vocabulary.pruned:
        table = np.ascontiguousarray(checkpoint.weights.tensor(D2T), np.int64)
        results.append(make_result(scope.constant(table, D2T), Port.D2T))
    if spec.head.type.reads_hidden or spec.confidence is not Confidence.NONE:
        results.append(make_result(hidden, Port.LAST_HIDDEN_STATE))
    return results


def _write_metadata(model: ov.Model, spec: DraftSpec, form: Form) -> None:
    info = spec.rt_info()
    applied = {
        Key.INPUT_EMBEDDING_SCALE: ("1", spec.own_embedding),
        Key.OUTPUT_MULTIPLIER: ("1", spec.own_lm_head),
        Key.FINAL_LOGIT_SOFTCAPPING: ("0", spec.own_lm_head),
    }
    for path, text in {**_RUNTIME_OPTIONS, **info}.items():
        neutral, in_graph = applied.get(path, ("", False))
        set_text(model, path, neutral if in_graph else text)
    if form == "per-row":
        set_text(model, Key.INPUT_LAYOUT, "per_row")
    elif _genai_drafts_with(spec):
        set_text(model, Key.DFLASH_MODE, "True")


def _genai_drafts_with(spec: DraftSpec) -> bool:
    """Whether OpenVINO GenAI 2026.4.1 was seen to accept tokens of such a draft in its SDPA form.

    It embeds the block with the target's bare table, drops no row, and takes the best token of each.
    """
    return (
        spec.family is Family.DFLASH
        and spec.candidate_position_offset == 1
        and spec.input_embedding_scale == 1.0
        and not (spec.own_embedding or spec.own_lm_head or spec.own_mask_embedding)
    )
