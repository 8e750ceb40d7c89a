"""Real exports and published code: what is built from a checkpoint equals what others made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from ovgraft import ir
from ovgraft.drafts.building.draft import Form, build_draft
from ovgraft.drafts.checkpoint import Checkpoint, read_checkpoint
from ovgraft.drafts.weight_source import StoredTensor, WeightSource
from tests import support
from tests.drafts import checkpoints
from tests.drafts.building import running
from tests.drafts.building.running import Array, Numpy, PerRow, Sdpa, Step

CALLS = [(13, 8), (1, 1), (5, 2), (30, 8), (1, 8)]
RUNTIME = ("dflash_mode", "dflash", "runtime_options")
"""rt_info of the exporter that runtimes read; the rest tells where the IR came from."""

EVERY = (
    "deepspec_gated",
    "deepspec_headless",
    "deepspec_rnn",
    "deepspec_vanilla",
    "minicpm_pruned",
    "modelopt_flat",
    "qwen3_dflash_draft",
    "speculators_dflash",
    "speculators_dspark",
    "zlab_dflash2",
)


@pytest.fixture
def source(shared: Path) -> Checkpoint:
    """The checkpoint the exported v1 drafts were made from."""
    return read_checkpoint(shared / "zoo" / "checkpoints" / "qwen3_dflash_draft")


def same(built: ov.Model, exported: Path, checkpoint: Checkpoint, tolerance: float) -> None:
    """Both run the same calls: blocks of 1, 2 and 8 rows, with and without past."""
    ours, theirs = Sdpa(built), Sdpa(support.compile_parity(exported))
    for step in running.random_steps(checkpoint, CALLS):
        found, expected = (each.step(step)["last_hidden_state"] for each in (ours, theirs))
        assert found.shape == expected.shape == (len(step.block) - 1, checkpoint.spec.backbone.hidden_size)
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def with_tensors(checkpoint: Checkpoint, read: Callable[[StoredTensor], Array]) -> Checkpoint:
    """The checkpoint with other values."""
    tensors = []
    for name in checkpoint.weights:
        values = read(checkpoint.weights.info(name))
        tensors.append(StoredTensor(name, values.dtype, values.shape, checkpoint.path, partial(np.asarray, values)))
    return replace(checkpoint, weights=WeightSource(checkpoint.path, tensors))


def test_v1_equals_the_exporters_ir(source: Checkpoint, zoo: Callable[[str], Path]) -> None:
    folder = zoo("qwen3_dflash_draft")
    built, exported = build_draft(source), ir.read_model(folder / "openvino_model.xml")
    same(built, folder / "openvino_model.xml", source, 1e-5)
    for ports, others in ((built.inputs, exported.inputs), (built.outputs, exported.outputs)):
        assert [(port.any_name, port.element_type, port.partial_shape) for port in ports] == [
            (port.any_name, port.element_type, port.partial_shape) for port in others
        ]
    variables = [
        sorted(
            (each.info.variable_id, str(each.info.data_type), str(each.info.data_shape))
            for each in model.get_variables()
        )
        for model in (built, exported)
    ]
    assert variables[0] == variables[1]
    theirs = {path: text for path, text in ir.flatten(exported).items() if path[0] in RUNTIME}
    assert len(theirs) == 5
    assert {path: ir.get_text(built, path) for path in theirs} == theirs


def test_sliding_v1_equals_the_exporters_ir(source: Checkpoint, zoo: Callable[[str], Path], tmp_path: Path) -> None:
    """The exporter stored f16, and lets a sliding layer see its whole block."""
    folder = zoo("qwen3_dflash_draft_sliding")
    tensors = {name: source.weights.tensor(name).astype(np.float16) for name in source.weights}
    (tmp_path / "sliding").mkdir()
    checkpoints.write_safetensors(tmp_path / "sliding" / "model.safetensors", tensors)
    (tmp_path / "sliding" / "config.json").write_bytes((folder / "config.json").read_bytes())
    checkpoint = read_checkpoint(tmp_path / "sliding")
    assert checkpoint.spec.backbone.layer_types == ("sliding_attention", "full_attention")
    exported = folder / "openvino_model.xml"
    built = {kind: build_draft(checkpoint, sliding_in_block=kind) for kind in ("bidirectional", "auto")}
    for model in built.values():
        round_frequencies(model)
    same(built["bidirectional"], exported, checkpoint, 1e-5)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        same(built["auto"], exported, checkpoint, 1e-2)


def round_frequencies(model: ov.Model) -> None:
    """That export stored the rotary frequencies as f16 too."""
    (node,) = [node for node in model.get_ordered_ops() if node.get_friendly_name() == "__module.rotary_emb/inv_freq"]
    rounded = ir.opset.constant(node.data.astype(np.float16).astype(np.float32))
    for reader in node.output(0).get_target_inputs():
        reader.replace_source_output(rounded.output(0))


def test_int8_equals_the_exporters_ir_within_the_formats_error(source: Checkpoint, zoo: Callable[[str], Path]) -> None:
    """With the values int8 stores it is the same draft, and those are half a step from the checkpoint's."""
    file = zoo("qwen3_dflash_draft-int8") / "openvino_model.xml"
    stored = decompressed(ir.read_model(file))
    steps = []

    def read(tensor: StoredTensor) -> Array:
        if tensor.name not in stored:
            return tensor.read()
        values, step = stored[tensor.name]
        steps.append(float(np.max(np.abs(values - tensor.read()) / step)))
        return values

    checkpoint = with_tensors(source, read)
    assert len(steps) == 1 + 7 * source.spec.backbone.num_hidden_layers
    assert max(steps) < 1.01  # half a step of the value, half of the rounded zero point
    same(build_draft(checkpoint), file, source, 1e-5)


def decompressed(model: ov.Model) -> dict[str, tuple[Array, Array]]:
    """Values and quantization steps of every compressed matrix, by tensor name."""
    found = {}
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul":
            continue
        root = ir.weight_root(node.input_value(1))
        if root is None or root.format != "u8":
            continue
        names = {constant.get_friendly_name(): constant for constant in root.constants}
        name = min(names, key=len)
        (copy,) = ir.clone_subgraph([root.output])
        values = support.infer(ov.Model([ir.make_result(copy, "values")], []), {})["values"]
        found[name.removeprefix("self.")] = values, names[f"{name}/scale"].data.astype(np.float32)
    return found


@pytest.mark.parametrize("name", ["deepspec_gated", "deepspec_headless", "deepspec_rnn", "deepspec_vanilla"])
def test_dspark_equals_the_published_code(shared: Path, name: str) -> None:
    """Every block row, without cache; graph and formulas."""
    checkpoint = read_checkpoint(shared / "zoo" / "checkpoints" / name)
    truth = np.load(shared / "zoo" / "truth_drafts" / f"{name}.npz")
    headless = replace(checkpoint, spec=replace(checkpoint.spec, own_embedding=False, own_lm_head=False))
    step = Step(truth["hidden_states"][0], truth["inputs_embeds"][0])
    np.testing.assert_array_equal(truth["position_ids"], np.arange(13 + len(step.block))[None])
    for rows in (
        Sdpa(build_draft(headless)).step(step)["last_hidden_state"],
        PerRow(headless, running.paged(headless)).step({"a": step})["a"]["last_hidden_state"],
        Numpy(headless).step(step),
    ):
        np.testing.assert_allclose(rows, truth["block_hidden"][0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("form", ["sdpa", "per-row"])
@pytest.mark.parametrize("name", EVERY)
def test_every_checkpoint_builds_and_runs(shared: Path, name: str, form: Form) -> None:
    checkpoint = running.own(read_checkpoint(shared / "zoo" / "checkpoints" / name))
    offset, output = checkpoint.spec.candidate_position_offset, running.output_name(checkpoint)
    formulas = Numpy(checkpoint)
    runner = Sdpa(build_draft(checkpoint)) if form == "sdpa" else PerRow(checkpoint, running.paged(checkpoint))
    for step in running.random_steps(checkpoint, CALLS):
        if isinstance(runner, Sdpa):
            found, expected = runner.step(step)[output], formulas.step(step)[offset:]
        else:
            found, expected = runner.step({"a": step})["a"][output], formulas.step(step)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_every_checkpoint_is_listed(shared: Path) -> None:
    assert sorted(path.name for path in (shared / "zoo" / "checkpoints").iterdir() if path.is_dir()) == list(EVERY)
