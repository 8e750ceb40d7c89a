"""What a built draft says about itself, and what is not built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from ovgraft import ir
from ovgraft.drafts.building.draft import Form, build_draft
from ovgraft.drafts.building.finite import check_finite
from ovgraft.drafts.contract import Key
from ovgraft.drafts.weight_source import WeightSource
from ovgraft.errors import CheckpointError, PreconditionError
from tests.drafts import checkpoints
from tests.drafts.building import running
from tests.drafts.checkpoints import BUILDERS

SDPA_PORTS = ["hidden_states", "position_ids", "attention_mask", "beam_idx"]
PER_ROW_PORTS = ["hidden_states", "position_ids", "attention_mask", "token_type_ids", "beam_idx"]


@pytest.mark.parametrize("form", ["sdpa", "per-row"])
@pytest.mark.parametrize("name", BUILDERS)
def test_ports_and_metadata(tmp_path: Path, name: str, form: Form) -> None:
    checkpoint = running.tiny(tmp_path, name)
    spec, model = checkpoint.spec, build_draft(checkpoint, form)
    tokens = "input_ids" if spec.own_embedding else "inputs_embeds"
    assert [port.any_name for port in model.inputs] == [tokens, *(SDPA_PORTS if form == "sdpa" else PER_ROW_PORTS)]
    width = len(spec.layer_ids) * spec.backbone.target_hidden_size
    assert model.input("hidden_states").partial_shape == ov.PartialShape([-1, -1, width])
    outputs = [port.any_name for port in model.outputs]
    assert outputs[0] == ("logits" if spec.own_lm_head else "last_hidden_state")
    assert ("d2t" in outputs) == spec.vocabulary.pruned
    states = {variable.info.variable_id for variable in model.get_variables()}
    assert states == {
        f"past_key_values.{layer}.{what}present.{layer}.{what}"
        for layer in range(spec.backbone.num_hidden_layers)
        for what in ("key", "value")
    }
    for path, text in spec.rt_info().items():
        said = ir.get_text(model, path)
        factor = path in (Key.INPUT_EMBEDDING_SCALE, Key.OUTPUT_MULTIPLIER, Key.FINAL_LOGIT_SOFTCAPPING)
        assert said == text or (factor and said in ("1", "0"))
    assert ir.get_text(model, Key.INPUT_LAYOUT) == ("per_row" if form == "per-row" else None)


@pytest.mark.parametrize(
    ("name", "edit", "said"),
    [
        ("zlab_dflash", {}, True),
        ("deepspec_headless", {}, False),  # another row offset
        ("zlab_dflash2", {}, False),  # it cannot run the selector
        ("speculators_dflash", {}, False),  # it would graft another output layer
        ("zlab_dflash", {"input_embedding_scale": 4.0}, False),  # it embeds without a factor
        ("zlab_dflash", {"candidate_position_offset": 0}, False),
    ],
)
def test_dflash_mode_is_for_what_genai_drafts_with(
    tmp_path: Path, name: str, edit: dict[str, float], said: bool
) -> None:
    checkpoint = running.tiny(tmp_path, name, lambda config, tensors: config.update(edit))
    assert ir.get_text(build_draft(checkpoint), Key.DFLASH_MODE) == ("True" if said else None)
    assert ir.get_text(build_draft(checkpoint, "per-row"), Key.DFLASH_MODE) is None


def test_names_hold_no_process_counter(tmp_path: Path) -> None:
    model = build_draft(running.tiny(tmp_path, "speculators_dflash2"))
    names = [node.get_friendly_name() for node in model.get_ordered_ops()]
    assert len(set(names)) == len(names)
    for node in model.get_ordered_ops():
        assert node.get_friendly_name() != node.get_name()


def test_weights_are_viewed_in_the_mapped_file(tmp_path: Path) -> None:
    checkpoint = running.tiny(tmp_path, "zlab_dflash2")
    addresses = {
        node.data.__array_interface__["data"][0]
        for node in build_draft(checkpoint).get_ordered_ops()
        if node.get_type_name() == "Constant" and node.get_friendly_name().startswith("self.")
    }
    backbone = [name for name in checkpoint.weights if not name.startswith("candidate_selector")]
    assert addresses == {checkpoint.weights.tensor(name).__array_interface__["data"][0] for name in backbone}


def test_a_window_shorter_than_the_block_is_not_paged(tmp_path: Path) -> None:
    def edit(config: checkpoints.Config, tensors: checkpoints.Tensors) -> None:
        config |= {"layer_types": ["sliding_attention"] * 2, "sliding_window": 7, "use_sliding_window": True}

    checkpoint = running.tiny(tmp_path, "zlab_dflash", edit)
    build_draft(checkpoint, "per-row")  # causal: the window holds inside the block too
    build_draft(checkpoint, sliding_in_block="bidirectional")
    with pytest.raises(PreconditionError, match="layer 0 would see more of its block") as caught:
        build_draft(checkpoint, "per-row", sliding_in_block="bidirectional")
    assert caught.value.expected == "a window of at least block_size 8"


class TestFinite:
    @pytest.mark.parametrize("dtype", [checkpoints.BF16, np.float16, np.float32])
    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_one_bad_value_is_named(self, tmp_path: Path, dtype: type, bad: float) -> None:
        def edit(config: checkpoints.Config, tensors: checkpoints.Tensors) -> None:
            name = "layers.1.mlp.down_proj.weight"
            tensors[name] = tensors[name].astype(dtype)
            tensors[name][3, 5] = bad

        checkpoint = running.tiny(tmp_path, "zlab_dflash", edit)
        with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.down_proj\.weight .* not finite") as caught:
            check_finite(checkpoint)
        assert caught.value.key == "layers.1.mlp.down_proj.weight"
        assert caught.value.found == f"{bad} at [3, 5]"

    def test_the_largest_finite_values_pass(self, tmp_path: Path) -> None:
        def edit(config: checkpoints.Config, tensors: checkpoints.Tensors) -> None:
            for name, dtype in (("fc.weight", np.float16), ("norm.weight", np.float32)):
                tensors[name] = tensors[name].astype(dtype)
                tensors[name].flat[0] = np.finfo(dtype).max
                tensors[name].flat[1] = np.finfo(dtype).smallest_subnormal

        seen: list[str] = []
        checkpoint = running.tiny(tmp_path, "zlab_dflash", edit)
        check_finite(checkpoint, lambda done, total, name: seen.append(f"{done}/{total}"))
        assert seen[0] == f"0/{len(checkpoint.weights)}"
        assert len(seen) == len(checkpoint.weights)

    def test_it_looks_behind_the_first_block(self, tmp_path: Path) -> None:
        values = np.zeros((3, 1 << 20), np.float16)
        values[2, 17] = np.inf
        checkpoint = running.tiny(tmp_path, "zlab_dflash")
        wide = replace(
            checkpoint.weights.info("fc.weight"), dtype=values.dtype, shape=values.shape, read=lambda: values
        )
        with pytest.raises(CheckpointError) as caught:
            check_finite(replace(checkpoint, weights=WeightSource(tmp_path, [wide])))
        assert caught.value.found == "inf at [2, 17]"


def test_matrices_are_widened_where_they_are_used(tmp_path: Path) -> None:
    """A marked Convert keeps the stored type in the compiled model; vectors and kernels fold."""
    model = build_draft(running.tiny(tmp_path, "speculators_dflash2"))
    ov.save_model(model, tmp_path / "draft.xml", compress_to_fp16=False)
    for each in (model, ir.read_model(tmp_path / "draft.xml")):
        marked: dict[bool, set[int]] = {True: set(), False: set()}
        for node in each.get_ordered_ops():
            source = node.input_value(0).get_node() if node.get_type_name() == "Convert" else None
            if source is not None and source.get_friendly_name().startswith("self."):
                keys = set(node.get_rt_info().keys())
                marked["decompression_0" in keys].add(len(source.get_output_shape(0)))
        assert marked == {True: {2}, False: {1, 3}}


@pytest.mark.parametrize("form", ["sdpa", "per-row"])
@pytest.mark.parametrize("name", ["zlab_dflash2", "speculators_dspark"])
def test_output_widths_are_static(tmp_path: Path, name: str, form: Form) -> None:
    """What attach-lm-head and hosts size their own layers by."""
    checkpoint = running.tiny(tmp_path, name)
    widths = {"last_hidden_state": checkpoints.HIDDEN, "logits": checkpoints.DRAFT_VOCAB}
    for port in build_draft(checkpoint, form).outputs:
        if port.any_name in widths:
            assert port.partial_shape == ov.PartialShape([-1, -1, widths[port.any_name]])
