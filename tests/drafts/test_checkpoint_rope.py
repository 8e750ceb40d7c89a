"""Rope parameters of a config: by layer type, in older places, contradictory, or such that no formula takes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ovgraft.drafts.spec import DraftSpec
from ovgraft.errors import CheckpointError
from tests.drafts.checkpoints import BUILDERS, Config, Tensors

Reader = Callable[[Config, Tensors], DraftSpec]
Refuser = Callable[..., CheckpointError]


@pytest.mark.parametrize(
    ("parameters", "key"),
    [
        ({"rope_type": "linear", "factor": 0}, "factor"),
        ({"rope_type": "linear", "factor": -2.0}, "factor"),
        ({"rope_type": "yarn", "factor": 4.0, "attention_factor": 0}, "attention_factor"),
        ({"rope_type": "yarn", "factor": 4.0, "mscale": -1}, "mscale"),
        ({"rope_type": "yarn", "factor": 4.0, "beta_fast": True}, "beta_fast"),
        ({"rope_type": "yarn", "factor": 4.0, "truncate": 1}, "truncate"),
        ({"rope_type": "longrope", "short_factor": [1, 1, 1, 0], "long_factor": [1] * 4}, "short_factor"),
        (
            {
                "rope_type": "longrope",
                "short_factor": [1] * 4,
                "long_factor": [1] * 4,
                "original_max_position_embeddings": 1,
            },
            "original_max_position_embeddings",
        ),
        (
            {
                "rope_type": "llama3",
                "factor": 8,
                "low_freq_factor": 4,
                "high_freq_factor": 4,
                "original_max_position_embeddings": 64,
            },
            "low_freq_factor",
        ),
        ({"rope_type": "proportional", "partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"rope_type": "proportional", "partial_rotary_factor": 0}, "partial_rotary_factor"),
    ],
)
def test_rope_parameters_no_formula_takes(parameters: Config, key: str, refused: Refuser) -> None:
    """Each of these divides by zero, or turns pairs by NaN or the other way round."""
    config, tensors = BUILDERS["zlab_dflash"]()
    error = refused(config | {"rope_parameters": parameters | {"rope_theta": 1e4}}, tensors, f"rope_parameters.{key}")
    assert f"rope_parameters.{key}" in str(error)


def test_rope_parameters_by_layer_type(read: Reader, refused: Refuser) -> None:
    """A target's config may name types its draft has no layer of; what the draft has must be one rope."""
    config, tensors = BUILDERS["zlab_dflash"]()
    linear = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    both = {"full_attention": linear, "sliding_attention": {"rope_type": "default", "rope_theta": 1e6}}
    spec = read(config | {"rope_parameters": both}, tensors)
    assert spec == read(config | {"rope_parameters": linear}, tensors)
    mixed = {
        "layer_types": ["full_attention", "sliding_attention"],
        "sliding_window": 32,
        "use_sliding_window": True,
    }
    refused(config | mixed | {"rope_parameters": both}, tensors, "rope_parameters", "differs by layer type")
    same = {"full_attention": linear, "sliding_attention": linear}
    assert read(config | mixed | {"rope_parameters": same}, tensors).backbone.rope.type == "linear"


def test_a_partial_rotation_may_stand_beside_the_rope_parameters(read: Reader, refused: Refuser) -> None:
    config, tensors = BUILDERS["deepspec_gemma4"]()
    nested = read(config, tensors)
    del config["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    assert read(config | {"partial_rotary_factor": 0.25}, tensors).backbone == nested.backbone
    config["rope_parameters"]["full_attention"]["partial_rotary_factor"] = 0.5
    refused(config | {"partial_rotary_factor": 0.25}, tensors, "partial_rotary_factor", "contradict")


def test_two_readings_of_a_yarn_factor_are_told(read: Reader) -> None:
    config, tensors = BUILDERS["zlab_dflash"]()
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 1e4}
    assert read(config | {"rope_parameters": yarn, "max_position_embeddings": 512}, tensors).warnings == ()
    (warning,) = read(config | {"rope_parameters": yarn, "max_position_embeddings": 160}, tensors).warnings
    assert warning.code == "yarn-factor-ambiguous"
    assert "160 / 128" in warning.message
