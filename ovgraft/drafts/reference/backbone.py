"""The backbone of a draft in numpy at f64: a block behind its context, or the packed rows of several requests.

Letters as in ``ovgraft.drafts.contract``. Formulas: ``c_p = hidden_norm(fc(hidden_p))`` for context rows; per layer
``q = rope(q_norm(Wq n1(x)))``, keys and values of a context row from ``c_p`` itself and of a block row from ``n1(x)``;
``x += Wo attention``, ``x += mlp(n2(x))``; DFlash-2 convolves block rows in front of and behind both sublayers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ovgraft.drafts.reference.heads import sigmoid
from ovgraft.drafts.reference.rotary import rotary_frequencies, rotate_half
from ovgraft.drafts.spec import Backbone

Array = NDArray[Any]
Tensors = Mapping[str, Array]


@dataclass
class ReferenceCache:
    """Keys (rotated) and values of the context rows of one request, per layer ``[rows, key heads, head size]``."""

    keys: list[Array] = field(default_factory=list)
    values: list[Array] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Context rows."""
        return len(self.keys[0]) if self.keys else 0


@dataclass(frozen=True)
class ReferenceBackbone:
    """A draft's decoder layers.

    Attributes:
        backbone: Sizes, layer kinds, rope.
        tensors: Weights by canonical name, of any float type.
        sliding_in_block: Whether a row of a sliding layer sees later rows of its block; ``auto`` is the spec's word.
    """

    backbone: Backbone
    tensors: Tensors
    sliding_in_block: Literal["auto", "causal", "bidirectional"] = "auto"

    def step(self, cache: ReferenceCache, hidden_states: Array, block: Array) -> Array:
        """One call of the SDPA form.

        Args:
            cache: Context rows of earlier calls; gets the new ones.
            hidden_states: ``[context, n * Ht]``, rows committed since.
            block: ``[rows, H]``, embedded and scaled.

        Returns:
            ``[rows, H]``, every row of the block, after the last norm.
        """
        context, past = self._context(hidden_states), cache.length
        anchor = past + len(context)
        positions = np.arange(past, anchor + len(block))
        begins = np.array([0, len(block)])

        def attention(layer: int, normed: Array) -> Array:
            keys, values = self._keys_values(layer, np.concatenate([context, normed]), positions)
            self._keep(cache, layer, keys[: len(context)], values[: len(context)])
            keys = np.concatenate([cache.keys[layer], keys[len(context) :]])
            values = np.concatenate([cache.values[layer], values[len(context) :]])
            queries = self._queries(layer, normed, positions[len(context) :], int(positions.max()) + 1)
            seen = self._sees(layer, positions[len(context) :, None], np.arange(anchor + len(block))[None])
            return self._attend(layer, queries, keys, values, seen)

        return self._layers(block, attention, begins)

    def step_packed(
        self,
        caches: Sequence[ReferenceCache],
        rows: Array,
        hidden_states: Array,
        token_type_ids: Array,
        subsequence_begins: Array,
    ) -> Array:
        """One call of the per-row form.

        Args:
            caches: One per request; each gets its new context rows.
            rows: ``[R, H]``, embedded and scaled; what context rows hold is not read.
            hidden_states: ``[R, n * Ht]``; what block rows hold is not read.
            token_type_ids: ``[R]``: 0 context, 1 block; every block follows a context row.
            subsequence_begins: ``[B + 1]``, first row of each request, then R.

        Returns:
            ``[R, H]``: block rows after the last norm; context rows are NaN, nobody may read them.
        """
        is_block = token_type_ids == 1
        context = self._context(hidden_states)
        starts = np.flatnonzero(is_block & ~np.r_[False, is_block[:-1]])
        lengths = np.add.reduceat(is_block, starts) if len(starts) else np.zeros(0, np.int64)
        begins = np.r_[0, np.cumsum(lengths)]
        spans = list(zip(caches, subsequence_begins[:-1], subsequence_begins[1:], strict=True))
        positions = np.concatenate([cache.length + np.arange(end - begin) for cache, begin, end in spans])
        longest = int(positions.max()) + 1

        def attention(layer: int, normed: Array) -> Array:
            source = context.copy()
            source[is_block] = normed
            keys, values = self._keys_values(layer, source, positions)
            queries = np.zeros((len(rows), self.backbone.num_attention_heads, self.backbone.head_dim))
            queries[is_block] = self._queries(layer, normed, positions[is_block], longest)
            mixed = np.zeros((len(rows), self.backbone.hidden_size))
            for cache, begin, end in spans:
                types = is_block[begin:end]
                all_keys = np.concatenate([*cache.keys[layer : layer + 1], keys[begin:end]])
                all_values = np.concatenate([*cache.values[layer : layer + 1], values[begin:end]])
                at = positions[begin:end][:, None]
                seen = self._sees(layer, at, np.arange(len(all_keys))[None])
                mixed[begin:end] = self._attend(layer, queries[begin:end], all_keys, all_values, seen)
                self._keep(cache, layer, keys[begin:end][~types], values[begin:end][~types])
            out: Array = mixed[is_block]
            return out

        out = np.full((len(rows), self.backbone.hidden_size), np.nan)
        out[is_block] = self._layers(rows[is_block], attention, begins)
        return out

    def _layers(self, rows: Array, attention: Callable[[int, Array], Array], begins: Array) -> Array:
        """All layers over block rows, blocks back to back; ``begins`` are the blocks' first rows, then their number."""
        x = np.asarray(rows, np.float64)
        gemma = self.backbone.architecture == "gemma4"
        for layer in range(self.backbone.num_hidden_layers):
            name = f"layers.{layer}"
            normed = self._norm(x, f"{name}.input_layernorm")
            out = self._convolved(f"{name}.attention_conv", normed, begins, partial(attention, layer))
            x = x + (self._norm(out, f"{name}.post_attention_layernorm") if gemma else out)
            normed = self._norm(x, f"{name}.{'pre_feedforward' if gemma else 'post_attention'}_layernorm")
            out = self._convolved(f"{name}.mlp_conv", normed, begins, partial(self._mlp, layer))
            x = x + (self._norm(out, f"{name}.post_feedforward_layernorm") if gemma else out)
            if gemma:
                x = x * self._tensor(f"{name}.layer_scalar")
        return self._norm(x, "norm")

    def _convolved(self, name: str, normed: Array, begins: Array, sublayer: Callable[[Array], Array]) -> Array:
        convolution = self.backbone.convolution
        if convolution is None:
            return sublayer(normed)
        base, taps = self._tensor(f"{name}.base_kernel"), convolution.kernel_size
        kernels = (normed @ self._tensor(f"{name}.kernel_projection.weight").T).reshape(
            len(normed), 2, taps, base.shape[-1] // convolution.group_size
        )
        before = grouped_convolution(normed, begins, base[0], kernels[:, 0])
        return grouped_convolution(sublayer(before), begins, base[1], kernels[:, 1])

    def _context(self, hidden_states: Array) -> Array:
        return self._norm(self._linear(np.asarray(hidden_states, np.float64), "fc"), "hidden_norm")

    def _keys_values(self, layer: int, rows: Array, positions: Array) -> tuple[Array, Array]:
        name, heads = f"layers.{layer}.self_attn", self.backbone.num_key_value_heads
        keys = self._heads(rows, f"{name}.k_proj", heads)
        values = keys if self.backbone.shared_key_value else self._heads(rows, f"{name}.v_proj", heads)
        if self.backbone.qk_norm:
            keys = self._norm(keys, f"{name}.k_norm")
        if self.backbone.architecture == "gemma4":
            values = self._norm(values, None)
        return self._rotated(keys, positions, int(positions.max()) + 1), values

    def _queries(self, layer: int, rows: Array, positions: Array, longest: int) -> Array:
        name = f"layers.{layer}.self_attn"
        queries = self._heads(rows, f"{name}.q_proj", self.backbone.num_attention_heads)
        if self.backbone.qk_norm:
            queries = self._norm(queries, f"{name}.q_norm")
        return self._rotated(queries, positions, longest)

    def _rotated(self, heads: Array, positions: Array, longest: int) -> Array:
        return rotate_half(heads, positions, *rotary_frequencies(self.backbone, longest))

    def _attend(self, layer: int, queries: Array, keys: Array, values: Array, seen: Array) -> Array:
        repeat = self.backbone.num_attention_heads // self.backbone.num_key_value_heads
        keys, values = np.repeat(keys, repeat, 1), np.repeat(values, repeat, 1)
        scores = np.einsum("qhd,khd->hqk", queries, keys) * self.backbone.attention_scale
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), values)
        return self._linear(
            mixed.reshape(len(queries), self.backbone.num_attention_heads * self.backbone.head_dim),
            f"layers.{layer}.self_attn.o_proj",
        )

    def _sees(self, layer: int, query: Array, key: Array) -> Array:
        """Whether block rows at positions ``query`` see keys at ``key``; the last key is the last row of the block."""
        causal = self.backbone.causal[layer]
        sliding = self.backbone.layer_types[layer] == "sliding_attention"
        if sliding and self.sliding_in_block != "auto":
            causal = self.sliding_in_block == "causal"
        seen = key <= query if causal else np.ones(np.broadcast_shapes(query.shape, key.shape), bool)
        if sliding:
            assert self.backbone.sliding_window is not None
            seen = seen & (query - key < self.backbone.sliding_window)
        return seen

    @staticmethod
    def _keep(cache: ReferenceCache, layer: int, keys: Array, values: Array) -> None:
        for rows, new in ((cache.keys, keys), (cache.values, values)):
            if len(rows) == layer:
                rows.append(new)
            else:
                rows[layer] = np.concatenate([rows[layer], new])

    def _mlp(self, layer: int, rows: Array) -> Array:
        name = f"layers.{layer}.mlp"
        gate = self._linear(rows, f"{name}.gate_proj")
        if self.backbone.hidden_act == "silu":
            active = gate * sigmoid(gate)
        else:
            active = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        return self._linear(active * self._linear(rows, f"{name}.up_proj"), f"{name}.down_proj")

    def _heads(self, rows: Array, name: str, heads: int) -> Array:
        return self._linear(rows, name).reshape(len(rows), heads, self.backbone.head_dim)

    def _linear(self, rows: Array, name: str) -> Array:
        product: Array = rows @ self._tensor(f"{name}.weight").T
        return product + self._tensor(f"{name}.bias") if f"{name}.bias" in self.tensors else product

    def _norm(self, rows: Array, name: str | None) -> Array:
        normed: Array = rows / np.sqrt(np.mean(rows**2, -1, keepdims=True) + self.backbone.rms_norm_eps)
        return normed if name is None else normed * self._tensor(f"{name}.weight")

    def _tensor(self, name: str) -> Array:
        return np.asarray(self.tensors[name]).astype(np.float64)


def grouped_convolution(rows: Array, block_begins: Array, base: Array, kernels: Array) -> Array:
    """``y[i, c] = sum_t (base[t, c] + kernels[i, t, c // g]) * rows[i - t, c]``, zero before the block's first row.

    Args:
        rows: ``[R, H]``, blocks back to back.
        block_begins: First row of each block, then R.
        base: ``[taps, H]``.
        kernels: ``[R, taps, H / g]``.
    """
    count, width = rows.shape
    first = np.repeat(block_begins[:-1], np.diff(block_begins))
    out = np.zeros_like(rows)
    for tap in range(len(base)):
        kernel = base[tap] + np.repeat(kernels[:, tap], width // kernels.shape[-1], axis=1)
        for row in range(count):
            if row - tap >= first[row]:
                out[row] += kernel[row] * rows[row - tap]
    return out
