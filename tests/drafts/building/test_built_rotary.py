"""Rope types: what transformers computes, from the formulas and from numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from ovgraft import ir
from ovgraft.drafts.building.draft import build_draft
from ovgraft.drafts.building.graph import Scope
from ovgraft.drafts.building.rotary import frequencies, rotary
from ovgraft.drafts.reference.rotary import rotary_frequencies
from ovgraft.drafts.spec import Backbone, Rope
from ovgraft.drafts.weight_source import WeightSource
from ovgraft.errors import CheckpointError, PreconditionError
from tests import support
from tests.drafts.building import running
from tests.drafts.building.running import Numpy, Sdpa

LENGTH = 64
TYPES: dict[str, list[dict[str, Any]]] = {
    "default": [{}],
    "linear": [{"factor": 4.0}],
    "dynamic": [{"factor": 4.0}, {"factor": 2.0, "original_max_position_embeddings": 16}],
    "llama3": [
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 40},
        {"factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 3.0, "original_max_position_embeddings": 100},
    ],
    "yarn": [
        {"factor": 4.0, "original_max_position_embeddings": 32},
        {"factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0, "attention_factor": 0.7},
        {"factor": 8.0, "mscale": 0.7, "mscale_all_dim": 1.3, "truncate": False},
        {"factor": 0.5, "beta_fast": 1.0, "beta_slow": 1.0},
        {"factor": 4.0, "truncate": False, "original_max_position_embeddings": 4096},
        {"factor": 4.0, "original_max_position_embeddings": 2**24},  # the last pair to slow lies behind the head
    ],
    "longrope": [
        {"short_factor": (1.0, 1.1, 1.2, 1.3), "long_factor": (1.0, 2.0, 3.0, 4.0), "factor": 4.0},
        {"short_factor": (1.0,) * 4, "long_factor": (2.0,) * 4, "original_max_position_embeddings": 16},
        {"short_factor": (1.5,) * 4, "long_factor": (2.5,) * 4, "attention_factor": 1.25},
    ],
    "proportional": [{"partial_rotary_factor": 0.25}, {"partial_rotary_factor": 0.5, "factor": 3.0}],
}
CASES = [(kind, values) for kind, each in TYPES.items() for values in each]


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    checkpoint = running.tiny(tmp_path_factory.mktemp("rope"), "zlab_dflash")
    return replace(checkpoint.spec.backbone, max_position_embeddings=LENGTH)


def of_type(backbone: Backbone, kind: str, values: dict[str, Any], theta: float = 10000.0) -> Backbone:
    return replace(backbone, rope=Rope(kind, theta, tuple(sorted(values.items()))))


@pytest.mark.parametrize(("kind", "values"), CASES)
@pytest.mark.parametrize("last", [7, 63, 64, 200])
def test_graph_is_the_formulas(backbone: Backbone, kind: str, values: dict[str, Any], last: int) -> None:
    typed = of_type(backbone, kind, values)
    positions = ir.make_parameter("position_ids", "i64", [-1, -1])
    source = WeightSource(Path(), [])
    both = rotary(Scope(source), positions.output(0), typed)
    results = [ir.make_result(both.cos, "cos"), ir.make_result(both.sin, "sin")]
    ids = np.array([[0, 1, last // 2, last]])
    found = support.infer(ov.Model(results, [positions]), {"position_ids": ids})
    angles, factor = rotary_frequencies(typed, last + 1)
    turned = np.tile(ids[0][:, None] * angles, 2)
    np.testing.assert_allclose(found["cos"][0], factor * np.cos(turned), rtol=0, atol=2e-5)
    np.testing.assert_allclose(found["sin"][0], factor * np.sin(turned), rtol=0, atol=2e-5)


def test_every_type_the_reader_lets_through_is_built(backbone: Backbone) -> None:
    from ovgraft.drafts.reading import rope

    assert set(TYPES) == set(rope._REQUIRED)
    with pytest.raises(PreconditionError, match="'spiral' is not understood"):
        frequencies(of_type(backbone, "spiral", {}))


class TestByHand:
    """Numbers from the definitions, so that builder and reference cannot be wrong together."""

    def test_linear_stretches_positions(self, backbone: Backbone) -> None:
        plain = 10000.0 ** (-np.arange(4) / 4)
        np.testing.assert_allclose(rotary_frequencies(of_type(backbone, "linear", {"factor": 4.0}))[0], plain / 4)

    def test_dynamic_at_twice_the_length(self, backbone: Backbone) -> None:
        """base' = base * (4 * 2 - 3) ** (8 / 6) for head width 8."""
        grown = 10000.0 * 5 ** (8 / 6)
        angles, _ = rotary_frequencies(of_type(backbone, "dynamic", {"factor": 4.0}), 2 * LENGTH)
        np.testing.assert_allclose(angles, grown ** (-np.arange(4) / 4))

    def test_llama3_leaves_fast_pairs_and_slows_slow_ones(self, backbone: Backbone) -> None:
        values = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        typed = of_type(backbone, "llama3", values | {"original_max_position_embeddings": 40})
        plain = 10000.0 ** (-np.arange(4) / 4)
        # pair 0 turns 40 / 2 pi = 6.37 times over the original length, pair 1 0.64 times
        np.testing.assert_allclose(rotary_frequencies(typed)[0], plain / [1, 8, 8, 8])
        # at length 12, pair 0 turns 1.91 times: 0.303 of the way from 1 to 4
        typed = of_type(backbone, "llama3", values | {"original_max_position_embeddings": 12})
        mix = (12 / (2 * math.pi) - 1) / 3
        np.testing.assert_allclose(rotary_frequencies(typed)[0][0], (1 - mix) / 8 + mix)

    def test_yarn_attention_factor(self, backbone: Backbone) -> None:
        values: dict[str, Any] = {"factor": 4.0, "original_max_position_embeddings": 32}
        assert rotary_frequencies(of_type(backbone, "yarn", values))[1] == pytest.approx(0.1 * math.log(4) + 1)

    def test_yarn_slows_the_last_pair_by_the_factor(self, backbone: Backbone) -> None:
        values: dict[str, Any] = {"factor": 4.0, "original_max_position_embeddings": 32}
        angles, _ = rotary_frequencies(of_type(backbone, "yarn", values))
        plain = 10000.0 ** (-np.arange(4) / 4)
        np.testing.assert_allclose(angles[0], plain[0])
        np.testing.assert_allclose(angles[-1], plain[-1] / 4)

    def test_longrope_attention_factor(self, backbone: Backbone) -> None:
        values: dict[str, Any] = {"short_factor": (1.0,) * 4, "long_factor": (2.0,) * 4}
        typed = of_type(backbone, "longrope", values | {"original_max_position_embeddings": 16})
        assert rotary_frequencies(typed)[1] == pytest.approx(math.sqrt(1 + math.log(4) / math.log(16)))

    def test_proportional_turns_the_first_pairs_only(self, backbone: Backbone) -> None:
        angles, _ = rotary_frequencies(of_type(backbone, "proportional", {"partial_rotary_factor": 0.5}))
        np.testing.assert_allclose(angles, [1, 0.1, 0, 0])


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "yarn", "llama3"])
def test_drafts_past_the_original_length(tmp_path: Path, kind: str) -> None:
    """Cached keys keep the turn of the call they came in."""
    values = TYPES[kind][0]
    backbone = running.tiny(tmp_path, "zlab_dflash").spec.backbone
    rope = Rope(kind, 10000.0, tuple(sorted(values.items())))
    checkpoint = running.with_backbone(
        running.tiny(tmp_path, "zlab_dflash"),
        rope=rope,
        max_position_embeddings=LENGTH,
        layer_types=backbone.layer_types,
    )
    built, formulas = Sdpa(build_draft(checkpoint)), Numpy(checkpoint)
    for step in running.random_steps(checkpoint, [(50, 8), (10, 8), (30, 8)]):
        found = built.step(step)["last_hidden_state"]
        np.testing.assert_allclose(found, formulas.step(step)[1:], rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_packed_requests_must_not_change_each_others_turn(tmp_path: Path, kind: str) -> None:
    rope = Rope(kind, 10000.0, tuple(sorted(TYPES[kind][0].items())))
    checkpoint = running.with_backbone(running.tiny(tmp_path, "zlab_dflash"), rope=rope)
    with pytest.raises(PreconditionError, match="longest sequence of a call") as caught:
        build_draft(checkpoint, "per-row")
    assert caught.value.hint == "build with form sdpa"


def test_a_type_that_needs_a_length_nobody_says(backbone: Backbone) -> None:
    silent = replace(of_type(backbone, "yarn", {"factor": 4.0}), max_position_embeddings=None)
    with pytest.raises(PreconditionError, match="needs the length"):
        frequencies(silent)


def test_the_original_length_may_stand_beside_the_rope_parameters(tmp_path: Path) -> None:
    def edit(config: dict[str, Any], tensors: dict[str, Any]) -> None:
        values = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
        config |= {"rope_parameters": values, "original_max_position_embeddings": 16, "max_position_embeddings": 64}

    backbone = running.tiny(tmp_path, "zlab_dflash", edit).spec.backbone
    assert dict(backbone.rope.parameters)["original_max_position_embeddings"] == 16
    assert frequencies(backbone)[1] == pytest.approx(math.sqrt(1 + math.log(4) / math.log(16)))

    def contradict(config: dict[str, Any], tensors: dict[str, Any]) -> None:
        edit(config, tensors)
        config["rope_parameters"]["original_max_position_embeddings"] = 32

    with pytest.raises(CheckpointError, match="contradict each other"):
        running.tiny(tmp_path, "zlab_dflash", contradict)
