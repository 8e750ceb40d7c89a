"""What a draft is, in one normal form for every published format, and where each value came from.

Letters in shapes as in ``contract``: V target vocabulary, Dv draft vocabulary, H draft hidden width, Ht target hidden
width, n captured target layers, r head rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal

from ovgraft.drafts.contract import Key, RtPath
from ovgraft.errors import Reason

EMBEDDING_OUTPUT = -1
"""The layer id that stands for the target's embedding output, in the normal form and in DeepSpec files."""


class Family(StrEnum):
    """Draft families by their math."""

    DFLASH = "dflash"
    DFLASH2 = "dflash2"
    DSPARK = "dspark"


class HeadType(StrEnum):
    """Computations that correct a drafted token by the one before it."""

    NONE = "none"
    VANILLA = "vanilla"
    GATED = "gated"
    RNN = "rnn"
    DFLASH2 = "dflash2"

    @property
    def reads_hidden(self) -> bool:
        """Whether a correction depends on the draft's hidden state of its row."""
        return self in (HeadType.GATED, HeadType.RNN, HeadType.DFLASH2)


class Confidence(StrEnum):
    """What the acceptance predictor reads: nothing, the row's hidden state, or that and the Markov embedding."""

    NONE = "none"
    HIDDEN = "hidden"
    MARKOV = "markov"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value came from.

    Attributes:
        file: File name inside the checkpoint; empty when no file says it.
        key: Config key (``dflash_config.block_size``) or tensor name.
        note: What was done with it, or which convention gave the value.
    """

    file: str
    key: str
    note: str = ""

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.file, self.key) if part)
        return f"{place} ({self.note})" if place and self.note else place or self.note


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions.

    Attributes:
        type: transformers' ``rope_type``.
        theta: Base of the frequencies.
        parameters: The type's own values, for example ``factor``; sorted pairs.
    """

    type: str
    theta: float
    parameters: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Convolution:
    """Grouped dynamic causal convolutions around attention and MLP (DFlash-2).

    Attributes:
        kernel_size: Taps; tap t reaches t rows back inside the block.
        group_size: Channels that share one dynamic kernel; divides H.
    """

    kernel_size: int
    group_size: int


@dataclass(frozen=True, slots=True)
class Backbone:
    """The draft's decoder layers.

    Attributes:
        architecture: ``qwen3``: two norms per layer; ``gemma4``: four norms, a scalar per layer, values normed
            without a weight.
        hidden_size: H.
        target_hidden_size: Ht; the FC maps n * Ht to H.
        intermediate_size: Width of the MLP.
        num_hidden_layers: Layers of the draft.
        num_attention_heads: Query heads.
        num_key_value_heads: Key and value heads.
        head_dim: Width of a head.
        layer_types: ``full_attention`` or ``sliding_attention`` per layer.
        sliding_window: A sliding row sees keys with ``q_pos - k_pos < sliding_window``; None without sliding layers.
        causal: Per layer: inside a block, does a row see only rows up to itself?
        rope: Rotary positions, the same in every layer.
        max_position_embeddings: Positions the draft was configured for; None when no key says.
        rms_norm_eps: Epsilon of every norm.
        hidden_act: Activation of the MLP gate.
        attention_bias: q, k, v and o projections have a bias.
        qk_norm: Queries and keys are normed per head.
        attention_scale: Factor on query-key products.
        shared_key_value: Values are the key projection, before its norm (Gemma-4 ``attention_k_eq_v``).
        convolution: The DFlash-2 convolutions.
    """

    architecture: Literal["qwen3", "gemma4"]
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    layer_types: tuple[str, ...]
    sliding_window: int | None
    causal: tuple[bool, ...]
    rope: Rope
    max_position_embeddings: int | None
    rms_norm_eps: float
    hidden_act: str
    attention_bias: bool
    qk_norm: bool
    attention_scale: float
    shared_key_value: bool = False
    convolution: Convolution | None = None


@dataclass(frozen=True, slots=True)
class MarkovHead:
    """The head that corrects a candidate row by the token before it.

    Attributes:
        type: ``none`` for drafts without one.
        rank: r; for dflash2 the selector rank; 0 without a head.
        top_k: Candidates per row a scorer keeps unless told otherwise; None where no scorer exists (none, rnn).
    """

    type: HeadType = HeadType.NONE
    rank: int = 0
    top_k: int | None = None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Target and draft vocabulary.

    Attributes:
        size: V.
        draft_size: Dv, rows of logits that stand for a token; V when the draft is not pruned.
        lm_head_rows: Rows of the output layer and next-token table in the file: ``draft_size``, or more when they are
            padded; the padding is not read.
        d2t_sorted: The pruned tokens are in rising order; None for a full vocabulary.
        duplicate_tokens: Draft ids that repeat the token of another; 0 for a full vocabulary.
    """

    size: int
    draft_size: int
    lm_head_rows: int
    d2t_sorted: bool | None = None
    duplicate_tokens: int = 0

    @property
    def pruned(self) -> bool:
        """Draft ids are not target ids; ``d2t`` maps them: target id = i + d2t[i]."""
        return self.draft_size < self.size


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """A draft in normal form.

    Attributes:
        format: Name of the checkpoint format it was read from.
        family: Its math.
        version: 2 for DFlash-2, else 1 (DSpark's backbone is DFlash v1).
        layer_ids: Captured target layers as output-of-layer, in FC order; ``EMBEDDING_OUTPUT`` is the embedding.
        source_layer_ids: The same as the file has them.
        layer_id_convention: What an id in the file means: ``output of layer i`` or ``input of layer i``.
        num_target_layers: Layers of the target it was trained for; None when no key says.
        mask_token_id: Token of undecided block rows.
        block_size: Rows of a block as trained, the anchor row included.
        candidate_position_offset: Block rows before the first candidate: 1 when row j predicts the token at its own
            position, 0 when it predicts the one after.
        head: The Markov head or candidate selector.
        confidence: The acceptance predictor.
        vocabulary: V, Dv and how they map.
        output_multiplier: Factor on logits, before the soft cap.
        final_logit_softcapping: ``tanh(logits / cap) * cap``, before the head; None without.
        input_embedding_scale: Factor on the raw target embedding rows.
        activation_scale: ``ACTIVATIONS_SCALE_FACTOR`` recommended for f16 inference; None without a recommendation.
        own_embedding: The checkpoint carries an embedding table, ``[V, H]``.
        own_lm_head: The checkpoint carries an output layer, ``[Dv, H]``.
        frozen_copies: Its embedding and output layer are copies of the target's, made before training.
        own_mask_embedding: A vector replaces the embedding row of the mask token.
        backbone: The decoder layers.
        sources: Field name (``block_size``, ``backbone.rope``) -> where the value came from.
        warnings: What a user should know, found while reading.
    """

    format: str
    family: Family
    version: int
    layer_ids: tuple[int, ...]
    source_layer_ids: tuple[int, ...]
    layer_id_convention: str
    num_target_layers: int | None
    mask_token_id: int
    block_size: int
    candidate_position_offset: int
    head: MarkovHead
    confidence: Confidence
    vocabulary: Vocabulary
    output_multiplier: float
    final_logit_softcapping: float | None
    input_embedding_scale: float
    activation_scale: float | None
    own_embedding: bool
    own_lm_head: bool
    frozen_copies: bool
    own_mask_embedding: bool
    backbone: Backbone
    sources: Mapping[str, Source] = field(compare=False, hash=False, repr=False)
    warnings: tuple[Reason, ...] = ()

    @property
    def shares_embedding(self) -> bool:
        """Block rows are embedded with the target's table."""
        return not self.own_embedding

    @property
    def shares_lm_head(self) -> bool:
        """Logits come from the target's output layer."""
        return not self.own_lm_head

    @property
    def max_candidates(self) -> int:
        """Candidates of one block of the trained length."""
        return self.block_size - self.candidate_position_offset

    def rt_info(self) -> dict[RtPath, str]:
        """The metadata of the backbone IR as text, through the one table of keys.

        ``dflash_mode`` is left to the builder: it promises a runtime, not a draft. Neutral factors are left out.
        """
        info = {
            Key.VERSION: str(self.version),
            Key.MASK_TOKEN_ID: str(self.mask_token_id),
            Key.TARGET_LAYER_IDS: ",".join(map(str, self.layer_ids)),
            Key.CANDIDATE_POSITION_OFFSET: str(self.candidate_position_offset),
            Key.BLOCK_SIZE: str(self.block_size),
            Key.VOCAB_SIZE: str(self.vocabulary.size),
        }
        if self.vocabulary.pruned:
            info[Key.DRAFT_VOCAB_SIZE] = str(self.vocabulary.draft_size)
        if self.head.type is not HeadType.NONE:
            info[Key.MARKOV_HEAD_TYPE] = str(self.head.type)
            info[Key.MARKOV_RANK] = str(self.head.rank)
        if self.input_embedding_scale != 1.0:
            info[Key.INPUT_EMBEDDING_SCALE] = repr(self.input_embedding_scale)
        if self.output_multiplier != 1.0:
            info[Key.OUTPUT_MULTIPLIER] = repr(self.output_multiplier)
        if self.final_logit_softcapping is not None:
            info[Key.FINAL_LOGIT_SOFTCAPPING] = repr(self.final_logit_softcapping)
        if self.activation_scale is not None:
            info[Key.ACTIVATIONS_SCALE_FACTOR] = repr(self.activation_scale)
        return info

    def rows(self) -> list[tuple[str, str, str]]:
        """``(name, value, source)`` of every fact, in reading order, for tables and reports."""
        return [(name, _text(value), str(self.sources.get(name, ""))) for name, value in self._facts()]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: nested facts, then ``sources`` and ``warnings``."""
        data: dict[str, Any] = {}
        for name, value in self._facts():
            section, _, leaf = name.rpartition(".")
            (data.setdefault(section, {}) if section else data)[leaf] = _plain(value)
        data["sources"] = {
            name: {"file": source.file, "key": source.key, "note": source.note} for name, source in self.sources.items()
        }
        data["warnings"] = [warning.to_dict() for warning in self.warnings]
        return data

    def _facts(self) -> Iterator[tuple[str, Any]]:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in ("head", "vocabulary", "backbone"):
                yield from ((f"{item.name}.{leaf.name}", getattr(value, leaf.name)) for leaf in fields(value))
            elif item.name not in ("sources", "warnings"):
                yield item.name, value


def _plain(value: Any) -> Any:
    if isinstance(value, Rope):
        return {"type": value.type, "theta": value.theta, **{key: _plain(item) for key, item in value.parameters}}
    if isinstance(value, Convolution):
        return {"kernel_size": value.kernel_size, "group_size": value.group_size}
    if isinstance(value, StrEnum):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _text(value: Any) -> str:
    plain = _plain(value)
    if plain is None:
        return "-"
    if isinstance(plain, bool):
        return "yes" if plain else "no"
    if isinstance(plain, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in plain.items())
    if isinstance(plain, list):
        texts = [_text(item) for item in plain]
        return f"all {texts[0]}" if len(texts) > 1 and len(set(texts)) == 1 else ", ".join(texts)
    return str(plain)
