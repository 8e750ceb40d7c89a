"""Config keys of the draft namespaces whose meaning is known; everything else there is refused."""

from __future__ import annotations

DRAFT = frozenset(
    {
        "attention_mode",
        "attention_modes",
        "attention_sink_bias",
        "block_size",
        "candidate_position_offset",
        "causal",
        "confidence_head_with_markov",
        "conv_group_size",
        "conv_kernel_size",
        "draft_vocab_size",
        "dspark_backbone_conv_enabled",
        "enable_confidence_head",
        "fc_layernorm",
        "final_logit_softcapping",
        "input_embedding_scale",
        "is_causal",
        "markov_head_type",
        "markov_rank",
        "mask_token_id",
        "num_target_layers",
        "output_multiplier",
        "projector_type",
        "selector_rank",
        "selector_top_k",
        "shift_label",
        "sliding_window",
        "swa_window_size",
        "target_layer_ids",
        "use_confidence_head",
        "use_swa",
    }
)
"""What changes the computation, or is refused where it would."""

TRAINING = frozenset(
    {
        "ce_loss_alpha",
        "confidence_head_alpha",
        "l1_loss_alpha",
        "loss_decay_gamma",
        "loss_fn",
        "max_anchors",
        "num_anchors",
        "per_position_loss_weight",
    }
)
"""What only training reads."""

DFLASH_CONFIG = DRAFT | TRAINING
"""``dflash_config`` of z-lab, SpecForge and ModelOpt."""

SPECULATORS = (
    DRAFT
    | TRAINING
    | {
        "aux_hidden_state_layer_ids",
        "aux_hidden_state_scales",
        "embed_requires_grad",
        "fc_norm",
        "norm_before_fc",
        "sample_from_anchor",
        "sliding_window_non_causal",
        "speculators_config",
        "speculators_model_type",
        "speculators_version",
        "target_hidden_size",
        "transformer_layer_config",
        "use_aux_hidden_state",
        # Domino, written with its neutral values by the class DFlash shares with it
        "auf",
        "emb_dim",
        "gru_hidden_dim",
        "lambda_base_decay_ratio",
        "lambda_base_start",
        "pure_draft_prefix_len",
        # transformers' own
        "_name_or_path",
        "architectures",
        "auto_map",
        "bos_token_id",
        "chunk_size_feed_forward",
        "dtype",
        "eos_token_id",
        "has_no_defaults_at_init",
        "id2label",
        "is_encoder_decoder",
        "label2id",
        "model_type",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "problem_type",
        "quantization_config",
        "return_dict",
        "tie_word_embeddings",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Top of a speculators config, which holds nothing of the target's."""

REFUSED: dict[str, object] = {
    "attention_sink_bias": False,
    "aux_hidden_state_scales": None,
    "dspark_backbone_conv_enabled": False,
    "enable_moe_block": False,
    "enable_qwen35_gated_q_proj": False,
    "fc_layernorm": False,
    "fc_norm": False,
    "hidden_size_per_layer_input": 0,
    "mlp_bias": False,
    "norm_before_fc": False,
    "quantization_config": None,
}
"""Keys of draft variants that compute something else, with the value that means "not used"."""
