"""The one table of port names and rt_info keys: what runtimes, exporters and ovgraft agree on.

Renaming a port or a key is one line here. Shapes use the letters of the draft papers: B requests, S rows of one
request, R packed rows of all requests, M requests still drafting, H draft hidden width, Ht target hidden width, n
captured target layers, V target vocabulary, Dv draft vocabulary, K candidates per row, r head rank.

rt_info keys are paths (a tuple of names); values are text, JSON where there is structure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Port(StrEnum):
    """Tensor names of inputs and outputs."""

    # decoder (optimum-intel)
    INPUT_IDS = "input_ids"
    INPUTS_EMBEDS = "inputs_embeds"
    ATTENTION_MASK = "attention_mask"
    POSITION_IDS = "position_ids"
    BEAM_IDX = "beam_idx"
    TOKEN_TYPE_IDS = "token_type_ids"
    LOGITS = "logits"
    # grafts (optimum-intel, OpenVINO GenAI)
    HIDDEN_STATES = "hidden_states"
    LAST_HIDDEN_STATE = "last_hidden_state"
    D2T = "d2t"
    # paged models, as OpenVINO GenAI adds it
    SAMPLED_TOKENS_INDICES = "sampled_tokens_indices"
    # Markov head
    DRAFT_LOGITS = "draft_logits"
    ANCHOR_TOKEN_IDS = "anchor_token_ids"
    BLOCK_BEGINS = "block_begins"
    PREV_TOKEN_IDS = "prev_token_ids"
    DRAFT_HIDDEN_STATES = "draft_hidden_states"
    RNN_STATE = "rnn_state"
    NEXT_RNN_STATE = "next_rnn_state"
    MARKOV_BIAS = "markov_bias"
    CANDIDATE_IDS = "candidate_ids"
    EDGE_SCORES = "edge_scores"
    CONFIDENCE = "confidence"
    # folded into the draft
    DRAFT_TOKEN_IDS = "draft_token_ids"


RtPath = tuple[str, ...]


class Key:
    """rt_info paths at model level."""

    # written by optimum-intel, read by OpenVINO GenAI
    HIDDEN_STATES_DECODER_LAYERS: RtPath = ("hidden_states_decoder_layers",)
    DFLASH_MODE: RtPath = ("dflash_mode",)
    EAGLE3_MODE: RtPath = ("eagle3_mode",)
    HIDDEN_LAYERS_LIST: RtPath = ("hidden_layers_list",)
    MASK_TOKEN_ID: RtPath = ("dflash", "mask_token_id")
    TARGET_LAYER_IDS: RtPath = ("dflash", "target_layer_ids")
    # the draft's own facts
    VERSION: RtPath = ("dflash", "version")
    CANDIDATE_POSITION_OFFSET: RtPath = ("dflash", "candidate_position_offset")
    BLOCK_SIZE: RtPath = ("dflash", "block_size")
    INPUT_EMBEDDING_SCALE: RtPath = ("dflash", "input_embedding_scale")
    OUTPUT_MULTIPLIER: RtPath = ("dflash", "output_multiplier")
    FINAL_LOGIT_SOFTCAPPING: RtPath = ("dflash", "final_logit_softcapping")
    INPUT_LAYOUT: RtPath = ("dflash", "input_layout")
    ACTIVATIONS_SCALE_FACTOR: RtPath = ("runtime_options", "ACTIVATIONS_SCALE_FACTOR")
    KV_CACHE_PRECISION: RtPath = ("runtime_options", "KV_CACHE_PRECISION")
    # the Markov head, on head and backbone; readers also accept the names without "dflash"
    MARKOV_HEAD_TYPE: RtPath = ("dflash", "markov_head_type")
    MARKOV_RANK: RtPath = ("dflash", "markov_rank")
    TOP_K: RtPath = ("dflash", "top_k")
    VOCAB_SIZE: RtPath = ("dflash", "vocab_size")
    HIDDEN_SIZE: RtPath = ("dflash", "hidden_size")
    DRAFT_VOCAB_SIZE: RtPath = ("dflash", "draft_vocab_size")
    # ovgraft's own record
    BIN_SIZE: RtPath = ("ovgraft", "bin_size")
    BIN_DIGEST: RtPath = ("ovgraft", "bin_blake3")
    PIPELINE: RtPath = ("ovgraft", "pipeline")
    EXPOSED: RtPath = ("ovgraft", "exposed_hidden_states")
    MOVED_FC: RtPath = ("ovgraft", "moved_fc")
    APPLIED: RtPath = ("ovgraft", "applied")
    BUILT: RtPath = ("ovgraft", "built")
    SELECT_COMPUTATION: RtPath = ("ovgraft", "select_computation")  # ports that wait for a computation to be selected
    MARKOV_HEAD_SOURCE: RtPath = ("ovgraft", "markov_head_source")


WEIGHT_DIGEST_KEY = "ovgraft.weight_digest"
"""Node-level rt_info name of the digest of moved weights, stored as official ``user_data``."""


@dataclass(frozen=True, slots=True)
class PortType:
    """What a port carries.

    Attributes:
        element_type: OpenVINO type name, for example ``f32``.
        dims: Symbolic dimensions, in the letters above.
    """

    element_type: str
    dims: tuple[str, ...]


MARKOV_PORTS: dict[Port, PortType] = {
    Port.DRAFT_LOGITS: PortType("f32", ("R", "V")),
    Port.ANCHOR_TOKEN_IDS: PortType("i64", ("B",)),
    Port.BLOCK_BEGINS: PortType("i64", ("B+1",)),
    Port.PREV_TOKEN_IDS: PortType("i64", ("M",)),
    Port.DRAFT_HIDDEN_STATES: PortType("f32", ("R|M", "H")),
    Port.RNN_STATE: PortType("f32", ("M", "r")),
    Port.NEXT_RNN_STATE: PortType("f32", ("M", "r")),
    Port.MARKOV_BIAS: PortType("f32", ("M", "V")),
    Port.CANDIDATE_IDS: PortType("i64", ("R", "K")),
    Port.EDGE_SCORES: PortType("f32", ("R", "K", "K")),
    Port.CONFIDENCE: PortType("f32", ("M",)),
}
"""Ports of ``openvino_markov_head_model.xml``; all ids are target token ids."""


class FileName(StrEnum):
    """IR names inside a package, without suffix."""

    MODEL = "openvino_model"
    LANGUAGE_MODEL = "openvino_language_model"
    TEXT_EMBEDDINGS = "openvino_text_embeddings_model"
    MARKOV_HEAD = "openvino_markov_head_model"


CHECKPOINT_WEIGHTS = ("*.safetensors", "*.npz", "*.onnx", "pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
"""Beside config.json, and without an IR, they make a folder a checkpoint; pickled ones too, to say why none is read."""
