"""compress-weights: which matrix becomes what, the exporter's numbers, and everything that must stay as it is."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from ovgraft import decoder, ir
from ovgraft.drafts.checkpoint import read_checkpoint
from ovgraft.drafts.constant_rows import weight_rows
from ovgraft.drafts.contract import FileName, Key
from ovgraft.drafts.weight_source import StoredTensor, WeightSource
from ovgraft.errors import PostconditionError, PreconditionError, SpecError
from ovgraft.graft import Graft
from ovgraft.passes.annotate_hidden_states import AnnotateHiddenStates
from ovgraft.passes.build_draft import BuildDraft
from ovgraft.passes.compress_weights import CompressWeights
from ovgraft.passes.pack_markov_head import PackMarkovHead
from ovgraft.pipeline import Pipeline, preset
from tests import models, pairs, support
from tests.blocks import WeightFormat
from tests.drafts.building import running
from tests.drafts.building.running import Numpy, Sdpa

INT8, INT4 = {"u8", "i8"}, {"u4", "i4"}
STORED = {"int8": INT8, "int4": INT4, "bf16": {"bf16"}, "f32": {"f32"}}


@pytest.fixture(autouse=True)
def _nncf(request: pytest.FixtureRequest) -> None:
    if request.node.name != "test_without_nncf":
        pytest.importorskip("nncf", reason="nncf is not installed: pip install 'ovgraft[compress]'")


def built(folder: Path, name: str, edit: running.Edit | None = None) -> Graft:
    """A checkpoint alone, built; copies of its target's tables are its own."""
    graft = pairs.open_pair(running.tiny(folder, name, edit).path)
    pairs.run_passes(graft, BuildDraft(keep_copies=True))
    return graft


def formats(model: ov.Model) -> dict[str, set[str]]:
    """Formats by role."""
    found: dict[str, set[str]] = {}
    for matrix in decoder.read_matrices(model):
        found.setdefault(matrix.role, set()).add(matrix.weight.format)
    return found


def others(model: ov.Model) -> dict[str, bytes]:
    """Bytes of norms, biases, kernels and maps, by name."""
    names = ("norm.weight", ".bias", "base_kernel", "d2t", "layer_scalar")
    return {
        node.get_friendly_name(): node.data.tobytes()
        for node in model.get_ordered_ops()
        if node.get_type_name() == "Constant" and node.get_friendly_name().endswith(names)
    }


CASES: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({}, {"layer": "int8", "embedding": "int8", "lm_head": "int8"}),
    ({"mode": "int4"}, {"layer": "int4", "embedding": "int4", "lm_head": "int8"}),
    ({"mode": "int4", "all_layers": False}, {"layer": "int4", "embedding": "int8", "lm_head": "int8"}),
    ({"mode": "int4", "lm_head": "int4"}, {"layer": "int4", "embedding": "int4", "lm_head": "int4"}),
    ({"mode": "int4", "lm_head": "keep"}, {"layer": "int4", "embedding": "int4", "lm_head": "bf16"}),
    ({"lm_head": "keep"}, {"layer": "int8", "embedding": "int8", "lm_head": "bf16"}),
    ({"lm_head": "int4"}, {"layer": "int8", "embedding": "int8", "lm_head": "int4"}),
]


@pytest.mark.parametrize(
    ("name", "options", "wanted"),
    [
        *(("speculators_dspark", *case) for case in CASES),
        *((name, *case) for name in ("deepspec_gemma4", "zlab_dflash2") for case in CASES[:3]),
    ],
)
def test_what_becomes_what(tmp_path: Path, name: str, options: dict[str, Any], wanted: dict[str, str]) -> None:
    graft = built(tmp_path, name)
    before = others(graft.target.model)
    (context,) = pairs.run_passes(graft, CompressWeights(group_size=8, **options))
    found = formats(graft.target.model)
    assert set(found) == ({"layer"} if name == "zlab_dflash2" else {"layer", "embedding", "lm_head"})
    assert all(found[role] <= STORED[wanted[role]] for role in found)
    assert before
    assert others(graft.target.model) == before
    (edit,) = context.edits
    assert edit.text.startswith("matrices compressed: ")


@pytest.mark.parametrize("mode", ["int8", "int4"])
@pytest.mark.parametrize("name", ["zlab_dflash", "zlab_dflash2", "speculators_dspark", "deepspec_gemma4"])
def test_it_is_the_same_draft_with_rounded_weights(tmp_path: Path, name: str, mode: Any) -> None:
    """Graph against formulas over the decompressed values, which are at most a step from the checkpoint's."""
    graft = built(tmp_path, name)
    pairs.run_passes(graft, CompressWeights(mode=mode, group_size=8))
    checkpoint = running.own(read_checkpoint(graft.target.folder))
    stored, tensors = decompressed(graft.target.model), []
    for tensor in (checkpoint.weights.info(tensor) for tensor in checkpoint.weights):
        values = stored.pop(tensor.name, None)
        if values is not None:
            exact = tensor.read().astype(np.float32)
            step = np.abs(exact).max() / (7 if mode == "int4" else 100)
            assert np.abs(values - exact).max() <= step
            assert not np.array_equal(values, exact)
            read = partial(np.asarray, values)
            tensor = StoredTensor(tensor.name, values.dtype, values.shape, tensor.file, read)
        tensors.append(tensor)
    assert not stored
    rounded = replace(checkpoint, weights=WeightSource(checkpoint.path, tensors))
    runner, formulas = Sdpa(graft.target.model), Numpy(rounded)
    for step in running.random_steps(rounded, [(13, 8), (2, 5)]):
        expected = formulas.step(step)[rounded.spec.candidate_position_offset :]
        np.testing.assert_allclose(runner.step(step)[running.output_name(rounded)], expected, rtol=0, atol=1e-4)


def decompressed(model: ov.Model) -> dict[str, NDArray[Any]]:
    """Values of every matrix by tensor name."""
    found = {}
    for matrix in decoder.read_matrices(model):
        names = [constant.get_friendly_name() for constant in matrix.weight.constants]
        name = min((name for name in names if name.startswith("self.")), key=len)
        # in f32, as the plugin computes them behind a product; folded in f16 they would be rounded once more
        rows = int(matrix.weight.output.get_shape()[0])
        found[name.removeprefix("self.")] = weight_rows(matrix.weight, 0).read(0, rows)
    return found


@pytest.mark.parametrize(("draft", "options"), [("-int8", {}), ("-int4", {"mode": "int4", "group_size": 32})])
def test_it_equals_the_exporters_compressed_ir(
    shared: Path, zoo: Callable[[str], Path], draft: str, options: dict[str, Any]
) -> None:
    graft = pairs.open_pair(shared / "zoo" / "checkpoints" / "qwen3_dflash_draft")
    pairs.run_passes(graft, BuildDraft(), CompressWeights(**options))
    exported = support.compile_parity(zoo(f"qwen3_dflash_draft{draft}") / "openvino_model.xml")
    ours, theirs = Sdpa(graft.target.model), Sdpa(exported)
    for step in running.random_steps(running.own(read_checkpoint(graft.target.folder)), [(13, 8), (1, 2), (30, 8)]):
        found, expected = (each.step(step)["last_hidden_state"] for each in (ours, theirs))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_the_markov_head_is_not_touched(tmp_path: Path) -> None:
    graft = built(tmp_path, "deepspec_gated")
    pairs.run_passes(graft, PackMarkovHead())
    head = graft.target.get(FileName.MARKOV_HEAD)
    assert head is not None
    before = head.clone()
    pairs.run_passes(graft, CompressWeights())
    assert graft.target.get(FileName.MARKOV_HEAD) is head
    assert ir.same_structure(head, before) is None


@pytest.mark.parametrize("kind", ["dspark", "dspark-paged"])
def test_a_compressed_draft_is_grafted(tmp_path: Path, kind: str) -> None:
    target = models.write_package(models.tiny_decoder(6, 16, 64, 2, 1), tmp_path / "target")
    graft = pairs.open_pair(target, running.tiny(tmp_path, "modelopt").path)
    text = preset(kind).text
    first, _, rest = text.partition(",")
    Pipeline(f"{first},compress-weights{{mode=int4 group-size=8}},{rest}").run(graft, strict=True)
    assert formats(graft.package("draft").model)["layer"] <= INT4 | {"f32"}
    moved = [matrix for matrix in decoder.read_matrices(graft.target.model) if matrix.grafted]
    assert [matrix.weight.format in INT4 for matrix in moved] == [True]  # the FC went over as it was stored


def test_what_was_grafted_stays_the_other_models(tmp_path: Path) -> None:
    target = models.write_package(models.tiny_decoder(6, 16, 64, 2, 1), tmp_path / "target")
    graft = pairs.open_pair(target, running.tiny(tmp_path, "modelopt").path)
    Pipeline(preset("dspark").text).run(graft)
    run = Pipeline("compress-weights").run(graft, strict=True)
    assert run.records[0].remarks == ("2 grafted weights stay as they are",)
    again = Pipeline(preset("dspark").text).run(graft)
    assert {record.status for record in again.records} == {"unchanged"}  # digests on record still hold
    run = Pipeline("compress-weights{model=target}").run(graft, strict=True)
    assert run.records[0].remarks == ("1 grafted weights stay as they are",)
    for package in (graft.target, graft.package("draft")):
        for matrix in decoder.read_matrices(package.model):
            assert (matrix.weight.format in INT8) != matrix.grafted


class TestTargets:
    @pytest.mark.parametrize("weights", ["f32", "f16", "bf16"])
    @pytest.mark.parametrize("mode", ["int8", "int4"])
    def test_decoder(self, tmp_path: Path, weights: WeightFormat, mode: Any) -> None:
        folder = models.write_package(models.tiny_decoder(weights=weights, annotated=True), tmp_path / "target")
        graft = pairs.open_pair(folder)
        tokens = pairs.tokens(9, vocabulary=64)
        plain = support.run_decoder(graft.target.model, tokens)["logits"]
        (context,) = pairs.run_passes(graft, CompressWeights(model="target", mode=mode, group_size=16))
        assert context.edits[0].model == "target"
        found = formats(graft.target.model)
        assert found["lm_head"] <= INT8
        assert found["layer"] <= STORED[mode]
        rounded = support.run_decoder(graft.target.model, tokens)["logits"]
        error = np.abs(rounded - plain).max() / np.abs(plain).max()
        assert 0 < error < (0.05 if mode == "int8" else 0.6)
        (annotated,) = pairs.run_passes(graft, AnnotateHiddenStates())
        assert not annotated.edits  # the record of the layers still holds

    @pytest.mark.parametrize(
        ("options", "wanted"),
        [({}, "int8"), ({"mode": "int4"}, "int8"), ({"lm_head": "keep"}, "f32"), ({"lm_head": "int4"}, "int4")],
    )
    def test_a_tied_table_is_the_output_layers(self, tmp_path: Path, options: dict[str, Any], wanted: str) -> None:
        graft = pairs.open_pair(models.write_package(models.tiny_decoder(tied=True), tmp_path / "target"))
        pairs.run_passes(graft, CompressWeights(model="target", group_size=16, **options))
        found = formats(graft.target.model)
        assert set(found) == {"layer", "lm_head"}
        assert found["lm_head"] <= STORED[wanted]

    @pytest.mark.parametrize("weights", ["int8", "int4"])
    def test_what_is_compressed_already(self, tmp_path: Path, weights: WeightFormat) -> None:
        graft = pairs.open_pair(models.write_package(models.tiny_decoder(weights=weights), tmp_path / "target"))
        before = graft.target.model.clone()
        (context,) = pairs.run_passes(graft, CompressWeights(model="target"))
        assert not context.edits
        assert context.remarks[0].startswith("unchanged: no matrix is left to compress")
        assert any("fewer bits than asked for" in remark for remark in context.remarks) == (weights == "int4")
        assert ir.same_structure(graft.target.model, before) is None

    @pytest.mark.parametrize("name", ["qwen3_moe", "gemma3_text", "qwen3_5_text", "gpt2", "lfm2"])
    def test_zoo(self, zoo: Callable[[str], Path], name: str) -> None:
        graft = pairs.open_pair(zoo(name))
        tokens = pairs.tokens(9)
        plain = support.run_decoder(graft.target.model, tokens)["logits"]
        pairs.run_passes(graft, CompressWeights(model="target"))
        assert {form for each in formats(graft.target.model).values() for form in each} <= INT8
        rounded = support.run_decoder(graft.target.model, tokens)["logits"]
        assert np.abs(rounded - plain).max() < 0.2 * np.abs(plain).max()


class TestRepeatedNames:
    """OpenVINO lets friendly names repeat; NNCF goes by them."""

    @staticmethod
    def _graft(folder: Path, *, repeat: bool) -> Graft:
        graft = pairs.open_pair(models.write_package(models.tiny_decoder(layers=2), folder))
        model = graft.target.model
        for matrix in decoder.read_matrices(model) if repeat else ():
            matrix.node.set_friendly_name("dense")
            for constant in matrix.weight.constants:
                constant.set_friendly_name("weight")
        return graft

    @pytest.mark.parametrize("options", [{"lm_head": "keep"}, {"mode": "int4", "all_layers": False}])
    def test_every_matrix_becomes_what_it_would_by_another_name(self, tmp_path: Path, options: dict[str, Any]) -> None:
        found, logits = [], []
        for repeat in (False, True):
            graft = self._graft(tmp_path / str(repeat), repeat=repeat)
            kept = [matrix.weight.format for matrix in decoder.read_matrices(graft.target.model)]
            run = Pipeline([CompressWeights(model="target", group_size=16, **options)]).run(graft, strict=True)
            matrices = decoder.read_matrices(graft.target.model)
            assert len(matrices) == len(kept) > 10
            found.append(([(each.role, each.weight.format) for each in matrices], run.records[0].edits))
            logits.append(support.run_decoder(graft.target.model, pairs.tokens(9, vocabulary=64))["logits"])
        assert found[0] == found[1]
        assert len({stored for _, stored in found[0][0]}) == 2
        np.testing.assert_array_equal(logits[0], logits[1])
        assert {matrix.reader for matrix in matrices} == {"dense"}
        assert not graft.target.model.has_rt_info(["nncf", "friendly_names_were_updated"])  # else NNCF fails next time

    def test_a_constant_that_changes_is_seen_behind_a_name_it_shares(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import nncf

        graft = self._graft(tmp_path / "target", repeat=True)
        hidden = decoder.read_embedding(graft.target.model).width
        norms = [
            node
            for node in graft.target.model.get_ordered_ops()
            if node.get_type_name() == "Constant" and node.get_byte_size() == 4 * hidden
        ]
        assert len(norms) > 2
        for node in norms:
            node.set_friendly_name("norm")
        real = nncf.compress_weights

        def also_a_norm(model: ov.Model, **options: Any) -> ov.Model:
            done: ov.Model = real(model, **options)
            old = next(node for node in done.get_ordered_ops() if node.get_friendly_name().startswith("norm"))
            new = ir.opset.constant(old.data.astype(np.float16))
            new.set_friendly_name(old.get_friendly_name())
            back = ir.opset.convert(new, old.get_element_type())
            for target in old.output(0).get_target_inputs():
                target.replace_source_output(back.output(0))
            return done

        monkeypatch.setattr(nncf, "compress_weights", also_a_norm)
        with pytest.raises(PostconditionError, match="changed constants that are no matrices") as caught:
            pairs.run_passes(graft, CompressWeights(model="target"))
        assert caught.value.found == "norm"


class TestRefused:
    def test_rows_that_do_not_make_groups(self, tmp_path: Path) -> None:
        graft = built(tmp_path, "zlab_dflash")
        before = graft.target.model
        with pytest.raises(PreconditionError, match=r"\d+ matrices cannot be cut into groups of 64") as caught:
            pairs.run_passes(graft, CompressWeights(mode="int4"))
        assert any("down_proj" in reason.message and "40" in reason.message for reason in caught.value.reasons)
        assert caught.value.hint == "say group-size=-1 for one scale a row"
        assert graft.target.model is before
        assert formats(before) == {"layer": {"bf16"}}
        pairs.run_passes(graft, CompressWeights(mode="int4", group_size=-1))

    def test_the_hint_names_a_size_that_fits(self, shared: Path) -> None:
        graft = pairs.open_pair(shared / "zoo" / "checkpoints" / "qwen3_dflash_draft")
        pairs.run_passes(graft, BuildDraft())
        with pytest.raises(PreconditionError) as caught:
            pairs.run_passes(graft, CompressWeights(mode="int4", group_size=128))
        assert caught.value.hint == "group-size=64 divides them all"

    @pytest.mark.parametrize("size", [0, 1, -2])
    def test_no_group_size(self, tmp_path: Path, size: int) -> None:
        with pytest.raises(SpecError, match="group-size"):
            pairs.run_passes(built(tmp_path, "zlab_dflash"), CompressWeights(mode="int4", group_size=size))

    def test_without_nncf(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "nncf", None)
        graft = built(tmp_path, "zlab_dflash")
        with pytest.raises(PreconditionError, match="needs NNCF") as caught:
            pairs.run_passes(graft, CompressWeights())
        assert caught.value.hint == "pip install 'ovgraft[compress]'"
        assert formats(graft.target.model) == {"layer": {"bf16"}}

    def test_an_nncf_that_does_something_else(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import nncf

        monkeypatch.setattr(nncf, "compress_weights", lambda model, **options: model)
        with pytest.raises(PostconditionError, match="otherwise than planned"):
            pairs.run_passes(built(tmp_path, "zlab_dflash"), CompressWeights())


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    graft, level = built(tmp_path, "zlab_dflash"), logging.getLogger("nncf").level
    pairs.run_passes(graft, CompressWeights())
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""
    assert logging.getLogger("nncf").level == level


def test_twice(tmp_path: Path) -> None:
    graft = built(tmp_path, "zlab_dflash")
    pairs.run_passes(graft, CompressWeights())
    before = graft.target.model.clone()
    (context,) = pairs.run_passes(graft, CompressWeights())
    assert not context.edits
    assert ir.same_structure(graft.target.model, before) is None


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    files = []
    for run in ("one", "two"):
        graft = built(tmp_path / run, "speculators_dspark")
        Pipeline([CompressWeights(mode="int4", group_size=8)]).run(graft)
        graft.save(tmp_path / run / "out")
        out = tmp_path / run / "out"
        files.append([(out / name).read_bytes() for name in ("openvino_model.xml", "openvino_model.bin")])
        text = ir.get_text(ir.read_model(out / "openvino_model.xml"), Key.PIPELINE)
        assert text == "compress-weights{mode=int4 group-size=8}"
    assert files[0] == files[1]
    assert str(tmp_path).encode() not in files[0][0]
