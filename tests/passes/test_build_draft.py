"""build-draft: a checkpoint, with its target or alone, becomes a package with an IR and without checkpoint weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

import ovgraft
from ovgraft import decoder, ir
from ovgraft.checks.paged_runner import PagedRunner, Rows
from ovgraft.drafts.building.draft import SlidingInBlock, build_draft
from ovgraft.drafts.checkpoint import Checkpoint, read_checkpoint
from ovgraft.drafts.contract import FileName, Key
from ovgraft.errors import CheckpointError, ModelFileError, PreconditionError
from ovgraft.graft import Graft
from ovgraft.passes.build_draft import BuildDraft
from ovgraft.passes.pack_markov_head import PackMarkovHead
from ovgraft.pipeline import Pipeline, preset
from tests import models, pairs, support
from tests.blocks import WeightFormat
from tests.drafts import checkpoints
from tests.drafts.building import running
from tests.drafts.building.running import Array, Numpy, Step

EMBEDDING, LM_HEAD = "self.model.embed_tokens.weight", "self.lm_head.weight"
EVERY_FORM = ["sdpa", "per-row"]


def checkpoint(folder: Path, name: str, edit: running.Edit | None = None) -> Path:
    return running.tiny(folder, name, edit).path


def target(folder: Path, tables: Path | None = None, **decoder: Any) -> Path:
    """A decoder of the checkpoints' sizes; with a checkpoint's frozen copies as its tables."""
    given = {}
    if tables is not None:
        weights = read_checkpoint(tables).weights
        given = {
            EMBEDDING: weights.tensor("embed_tokens.weight").astype(np.float32),
            LM_HEAD: weights.tensor("lm_head.weight").astype(np.float32),
        }
    sizes: dict[str, Any] = {"layers": 6, "hidden": 16, "vocab": 64, "heads": 2, "kv_heads": 1, **decoder}
    return models.write_package(models.tiny_decoder(**sizes, given=given), folder)


def outputs(graft: Graft) -> list[str]:
    return [port.any_name for port in graft.package(graft.draft_role).model.outputs]


class TestTables:
    @pytest.mark.parametrize("weights", ["f32", "bf16", "f16", "int8"])
    def test_copies_of_the_target_are_left_out(self, tmp_path: Path, weights: WeightFormat) -> None:
        folder = checkpoint(tmp_path, "deepspec_vanilla")
        graft = pairs.open_pair(target(tmp_path / "target", folder, weights=weights), folder)
        (context,) = pairs.run_passes(graft, BuildDraft())
        assert outputs(graft) == ["last_hidden_state"]
        if weights != "f16":  # most bf16 numbers are f16 numbers too
            assert len(context.remarks) == (2 if weights == "int8" else 0)

    def test_another_targets_copies(self, tmp_path: Path) -> None:
        folder = checkpoint(tmp_path, "deepspec_vanilla")
        graft = pairs.open_pair(target(tmp_path / "target"), folder)
        with pytest.raises(CheckpointError, match=r"embed_tokens\.weight is not the target's"):
            pairs.run_passes(graft, BuildDraft())
        assert not graft.package("draft").models
        (context,) = pairs.run_passes(graft, BuildDraft(keep_copies=True))
        assert outputs(graft) == ["logits", "last_hidden_state"]  # the confidence head reads hidden rows
        assert any("stays with the draft" in remark for remark in context.remarks)

    def test_copies_without_a_target(self, tmp_path: Path) -> None:
        folder = checkpoint(tmp_path, "deepspec_vanilla")
        with pytest.raises(PreconditionError, match="copies of its target's embedding") as caught:
            pairs.run_passes(pairs.open_pair(folder), BuildDraft())
        assert "name the target" in (caught.value.hint or "")
        graft = pairs.open_pair(folder)
        pairs.run_passes(graft, BuildDraft(keep_copies=True))
        assert outputs(graft) == ["logits", "last_hidden_state"]  # the confidence head reads hidden rows

    @pytest.mark.parametrize("name", ["zlab_dflash", "zlab_dflash2", "modelopt", "specforge", "speculators_dspark"])
    def test_without_copies_no_target_is_needed(self, tmp_path: Path, name: str) -> None:
        graft = pairs.open_pair(checkpoint(tmp_path, name))
        (context, packed) = pairs.run_passes(graft, BuildDraft(), PackMarkovHead())
        assert [edit.model for edit in context.edits] == ["target"]
        assert bool(packed.edits) == (name != "zlab_dflash")

    def test_a_mask_row_of_the_target_that_was_never_trained(self, tmp_path: Path) -> None:
        table = np.random.default_rng(0).standard_normal((64, 16)).astype(np.float32)
        table[checkpoints.MASK] = 0
        model = models.tiny_decoder(6, 16, 64, 2, 1, given={EMBEDDING: table})
        graft = pairs.open_pair(models.write_package(model, tmp_path / "target"), checkpoint(tmp_path, "zlab_dflash"))
        (context,) = pairs.run_passes(graft, BuildDraft())
        assert any("mask token 3 is near zero" in remark for remark in context.remarks)

    @pytest.mark.parametrize(("name", "last"), [("zlab_dflash", 5), ("speculators_dspark", 6)])
    def test_the_last_layer_of_the_target_is_told(self, tmp_path: Path, name: str, last: int) -> None:
        """Once, whether the file says how many layers there are or the target does."""

        def edit(config: checkpoints.Config, tensors: checkpoints.Tensors) -> None:
            place = config.get("dflash_config", config)
            place["target_layer_ids" if name == "zlab_dflash" else "aux_hidden_state_layer_ids"] = [2, last]

        graft = pairs.open_pair(target(tmp_path / "target"), checkpoint(tmp_path, name, edit))
        (context,) = pairs.run_passes(graft, BuildDraft())
        assert [("last target layer (5)" in remark) for remark in context.remarks].count(True) == 1

    def test_a_mask_embedding_of_a_headless_draft_is_told(self, tmp_path: Path) -> None:
        folder = checkpoint(tmp_path, "zlab_dflash")
        vector = {"mask_embedding": np.ones(16, np.float32)}
        checkpoints.write_safetensors(folder / "mask_embedding.safetensors", vector)
        graft = pairs.open_pair(target(tmp_path / "target"), folder)
        (context,) = pairs.run_passes(graft, BuildDraft())
        assert any("mask embedding of its own" in remark for remark in context.remarks)
        assert ir.get_text(graft.package("draft").model, Key.DFLASH_MODE) is None  # GenAI would embed the bare row


class TestRefused:
    @pytest.mark.parametrize(
        ("decoder", "words"),
        [
            ({"hidden": 32}, "hidden states of width 16, the target has 32.*embedding of width 32"),
            ({"vocab": 80}, "trained for 64 tokens, the target has 80"),
            ({"layers": 7}, "trained for 6 target layers, the target has 7"),
            ({"layers": 4}, "layers 0 to 3, the draft reads 4"),
        ],
    )
    def test_another_target(self, tmp_path: Path, decoder: dict[str, Any], words: str) -> None:
        graft = pairs.open_pair(target(tmp_path / "target", **decoder), checkpoint(tmp_path, "zlab_dflash"))
        with pytest.raises(PreconditionError, match=f"does not fit the target: .*{words}") as caught:
            pairs.run_passes(graft, BuildDraft())
        assert caught.value.reasons
        assert not graft.package("draft").models

    def test_a_weight_that_is_not_finite(self, tmp_path: Path) -> None:
        def edit(config: checkpoints.Config, tensors: checkpoints.Tensors) -> None:
            tensors["layers.1.self_attn.k_norm.weight"][2] = np.nan

        graft = pairs.open_pair(checkpoint(tmp_path, "zlab_dflash", edit))
        with pytest.raises(CheckpointError, match=r"layers\.1\.self_attn\.k_norm\.weight holds a value"):
            pairs.run_passes(graft, BuildDraft())
        assert not graft.target.models

    def test_form_and_rope_that_do_not_go_together(self, tmp_path: Path) -> None:
        def edit(config: checkpoints.Config, tensors: checkpoints.Tensors) -> None:
            config["rope_parameters"] |= {"rope_type": "dynamic", "factor": 2.0}

        graft = pairs.open_pair(checkpoint(tmp_path, "zlab_dflash", edit))
        with pytest.raises(PreconditionError, match="rope type 'dynamic'"):
            pairs.run_passes(graft, BuildDraft(form="per-row"))
        pairs.run_passes(graft, BuildDraft())

    def test_a_key_or_tensor_that_is_not_understood(self, tmp_path: Path) -> None:
        def sinks(config: checkpoints.Config, tensors: checkpoints.Tensors) -> None:
            tensors["layers.0.self_attn.sinks"] = tensors["norm.weight"]

        with pytest.raises(CheckpointError, match=r"layers\.0\.self_attn\.sinks is not understood"):
            checkpoint(tmp_path, "zlab_dflash", sinks)

    def test_a_target_alone_that_is_no_checkpoint(self, tmp_path: Path) -> None:
        for each in (BuildDraft(), PackMarkovHead()):
            with pytest.raises(ModelFileError, match="there is no draft"):
                Pipeline([each]).run(pairs.open_pair(target(tmp_path / each.name)))


@pytest.mark.parametrize("kind", ["auto", "causal", "bidirectional"])
def test_rows_of_sliding_layers_are_as_asked_for(tmp_path: Path, kind: SlidingInBlock) -> None:
    """In z-lab's DFlash-2 they are causal unless something else is said."""
    folder = checkpoint(tmp_path, "zlab_dflash2")
    graft = pairs.open_pair(folder)
    pairs.run_passes(graft, BuildDraft(sliding_in_block=kind))
    for other in ("causal", "bidirectional"):
        wanted = build_draft(read_checkpoint(folder), sliding_in_block=other)
        same = ir.same_structure(graft.target.model, wanted) is None
        assert same == (other == ("causal" if kind == "auto" else kind))


def test_twice(tmp_path: Path) -> None:
    graft = pairs.open_pair(target(tmp_path / "target"), checkpoint(tmp_path, "zlab_dflash2"))
    pairs.run_passes(graft, BuildDraft(sliding_in_block="bidirectional"))
    before = graft.package("draft").model.clone()
    for same in (BuildDraft(sliding_in_block="bidirectional"), BuildDraft()):
        (context,) = pairs.run_passes(graft, same)
        assert context.remarks == ["unchanged: the draft was built already"]
    other = BuildDraft(form="per-row", sliding_in_block="causal")
    with pytest.raises(PreconditionError, match="has its IR already: its form is sdpa, not per-row") as caught:
        pairs.run_passes(graft, other)
    assert [reason.code for reason in caught.value.reasons] == ["form", "sliding-in-block"]
    assert "its sliding layers are bidirectional, not causal" in str(caught.value)
    graft.save(tmp_path / "out")
    saved = pairs.open_pair(tmp_path / "out" / "target", tmp_path / "out" / "draft")
    with pytest.raises(PreconditionError, match="its form is sdpa, not per-row"):
        pairs.run_passes(saved, other)
    assert ir.same_structure(graft.package("draft").model, before) is None


def test_a_draft_that_has_its_ir(tmp_path: Path) -> None:
    draft = models.write_package(models.tiny_dflash_draft(), tmp_path / "draft", config={})
    (context,) = pairs.run_passes(pairs.open_pair(target(tmp_path / "target"), draft), BuildDraft())
    assert context.remarks == ["unchanged: the draft has its IR"]
    none_slides = pairs.open_pair(target(tmp_path / "other"), draft)
    (context,) = pairs.run_passes(none_slides, BuildDraft(sliding_in_block="causal"))
    assert context.remarks == ["unchanged: the draft has its IR"]


def test_an_exported_draft_with_windows(zoo: Callable[[str], Path]) -> None:
    """The exporter lets a row see its whole block."""
    graft = pairs.open_pair(zoo("qwen3"), zoo("qwen3_dflash_draft_sliding"))
    (context,) = pairs.run_passes(graft, BuildDraft(sliding_in_block="bidirectional"))
    assert context.remarks == ["unchanged: the draft has its IR"]
    with pytest.raises(PreconditionError, match="its sliding layers are bidirectional, not causal"):
        pairs.run_passes(graft, BuildDraft(sliding_in_block="causal"))


@pytest.mark.parametrize("window", [1, 1 << 15])
@pytest.mark.parametrize("kind", ["causal", "bidirectional"])
def test_a_built_draft_knows_what_its_windows_are(tmp_path: Path, window: int, kind: SlidingInBlock) -> None:
    """Also where no mask could tell."""
    folder = checkpoint(tmp_path, "zlab_dflash2", lambda config, tensors: config.update(sliding_window=window))
    graft = pairs.open_pair(folder)
    pairs.run_passes(graft, BuildDraft(sliding_in_block=kind))
    (context,) = pairs.run_passes(graft, BuildDraft(sliding_in_block=kind))
    assert context.remarks == ["unchanged: the draft was built already"]
    other: SlidingInBlock = "bidirectional" if kind == "causal" else "causal"
    with pytest.raises(PreconditionError, match=f"its sliding layers are {kind}, not {other}"):
        pairs.run_passes(graft, BuildDraft(sliding_in_block=other))


def test_an_eagle3_draft_has_no_block(tmp_path: Path) -> None:
    draft = models.write_package(models.tiny_eagle3_draft(), tmp_path / "draft", config={})
    graft = pairs.open_pair(target(tmp_path / "target"), draft)
    with pytest.raises(PreconditionError, match="an Eagle-3 draft has no block"):
        pairs.run_passes(graft, BuildDraft(sliding_in_block="causal"))


class TestSaved:
    SIDE = ("config.json", "README.md", "dflash.py", "generation_config.json", "mask_embedding.safetensors")
    LEFT = (
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
        "merges.txt",
        "pytorch_model.bin",
        "chat_template.jinja",
    )

    def folder(self, tmp_path: Path) -> Path:
        folder = checkpoint(tmp_path, "speculators_dspark")
        for name in (*self.SIDE, *self.LEFT):
            if name not in ("config.json", "mask_embedding.safetensors"):
                (folder / name).write_text(name)
        vector = {"mask_embedding": np.ones(16, np.float32)}
        checkpoints.write_safetensors(folder / "mask_embedding.safetensors", vector)
        return folder

    def test_alone(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        graft = ovgraft.load(folder)
        Pipeline([BuildDraft(), PackMarkovHead()]).run(graft)
        graft.save(tmp_path / "out")
        irs = {f"{stem}{suffix}" for stem in (FileName.MODEL, FileName.MARKOV_HEAD) for suffix in (".xml", ".bin")}
        assert {file.name for file in (tmp_path / "out").iterdir()} == irs | set(self.SIDE)
        assert (tmp_path / "out" / "config.json").read_bytes() == (folder / "config.json").read_bytes()
        again = ovgraft.load(tmp_path / "out")
        assert ir.get_text(again.target.model, Key.PIPELINE) == "build-draft,pack-markov-head"

    def test_with_its_target(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        graft = pairs.open_pair(target(tmp_path / "target"), folder)
        Pipeline(preset("dspark").text).run(graft)
        graft.save(tmp_path / "out")
        assert set(self.SIDE) <= {file.name for file in (tmp_path / "out" / "draft").iterdir()}
        assert not set(self.LEFT) & {file.name for file in (tmp_path / "out" / "draft").iterdir()}
        assert not list((tmp_path / "out" / "draft").glob("model.*"))

    def test_weights_stay_while_there_is_no_ir(self, tmp_path: Path) -> None:
        """A head alone is no draft: what it was packed from stays with it."""
        graft = ovgraft.load(self.folder(tmp_path))
        Pipeline([PackMarkovHead()]).run(graft)
        graft.save(tmp_path / "out")
        assert (tmp_path / "out" / "model.safetensors").exists()

    def test_numbers_are_the_built_models(self, tmp_path: Path) -> None:
        folder = checkpoint(tmp_path, "speculators_dspark")
        graft = ovgraft.load(folder)
        Pipeline([BuildDraft()]).run(graft)
        graft.save(tmp_path / "out")
        built = running.own(read_checkpoint(folder))
        (step,) = running.random_steps(built, [(9, 8)])
        found = running.Sdpa(ir.read_model(tmp_path / "out" / "openvino_model.xml")).step(step)["logits"]
        np.testing.assert_allclose(found, Numpy(built).step(step), rtol=0, atol=3e-5)

    @pytest.mark.parametrize("form", EVERY_FORM)
    def test_twice_is_byte_equal(self, tmp_path: Path, form: str) -> None:
        files = []
        for run in ("one", "two"):
            (tmp_path / run).mkdir()
            graft = pairs.open_pair(target(tmp_path / run / "target"), checkpoint(tmp_path / run, "zlab_dflash2"))
            text = preset("dspark" if form == "sdpa" else "dspark-paged").text
            Pipeline(text).run(graft)
            graft.save(tmp_path / run / "out")
            out = tmp_path / run / "out"
            files.append({str(file.relative_to(out)): file.read_bytes() for file in sorted(out.rglob("*.*"))})
        assert files[0] == files[1]
        assert not any(str(tmp_path).encode() in content for content in files[0].values())

    def test_a_disk_without_room(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        graft = ovgraft.load(checkpoint(tmp_path, "speculators_dspark"))
        Pipeline([BuildDraft()]).run(graft)
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10_000))
        with pytest.raises(ModelFileError, match="not enough room on the disk"):
            graft.save(tmp_path / "out")
        assert not (tmp_path / "out").exists()


class TestWholeGraft:
    """From tokens to draft logits, through target states, FC, embedding and output layer of the target."""

    @pytest.mark.parametrize("name", ["zlab_dflash", "zlab_dflash2", "modelopt", "speculators_dspark", "deepspec_rnn"])
    @pytest.mark.parametrize("kind", ["dspark", "dspark-paged"])
    def test_preset(self, tmp_path: Path, name: str, kind: str) -> None:
        folder = checkpoint(tmp_path, name)
        frozen = name.startswith("deepspec")
        graft = pairs.open_pair(target(tmp_path / "target", folder if frozen else None, annotated=True), folder)
        plain = graft.target.model.clone()
        Pipeline(preset(kind).text).run(graft, strict=True)
        built = read_checkpoint(folder)
        if frozen:
            built = replace(built, spec=replace(built.spec, own_embedding=False, own_lm_head=False))
        hidden = {"last_hidden_state"} if built.spec.head.type.reads_hidden or built.spec.own_lm_head else set()
        assert {*outputs(graft)} == {"logits"} | hidden | ({"d2t"} if built.spec.vocabulary.pruned else set())
        assert (graft.package("draft").get(FileName.MARKOV_HEAD) is None) == (name == "zlab_dflash")

        tokens, blocks = pairs.tokens(14, vocabulary=64), [pairs.tokens(rows, rows, 64)[0] for rows in (8, 3)]
        states = pairs.target_states(plain, built.spec.layer_ids, tokens)[0]
        projected, offset = target_rows(graft, tokens), built.spec.candidate_position_offset
        runner = draft_runner(graft, built)
        formulas = Numpy(built)
        for rows, ids in zip((slice(0, 9), slice(9, 14)), blocks, strict=True):
            expected = expected_logits(plain, formulas, Step(states[rows], ids))[offset:]
            found = runner(Step(projected[rows], ids))[-len(expected) :]
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def is_paged(model: ov.Model) -> bool:
    return any("past_lens" in port.names for port in model.inputs)


def target_rows(graft: Graft, tokens: Array) -> Array:
    """What the grafted target gives its draft, ``[rows, H]``."""
    model = graft.target.model
    if not is_paged(model):
        rows: Array = support.run_decoder(model, tokens, split=(5,))["last_hidden_state"][0]
        return rows
    runner = PagedRunner(model, {**support.PARITY, **support.THREADS})
    parts = [runner.step([Rows("t", {"input_ids": part})])[0] for part in (tokens[0, :5], tokens[0, 5:])]
    return np.concatenate([part["last_hidden_state"] for part in parts])


def draft_runner(graft: Graft, built: Checkpoint) -> Callable[[Step], Array]:
    """Logits of the grafted draft, step by step."""
    model = graft.package("draft").model
    if not is_paged(model):
        stateful = running.Sdpa(model)
        return lambda step: stateful.step(step)["logits"]
    reads_ids = replace(built, spec=replace(built.spec, own_embedding=True))
    packed = running.PerRow(reads_ids, model)
    return lambda step: packed.step({"a": step})["a"]["logits"]


def expected_logits(plain: ov.Model, formulas: Numpy, step: Step) -> Array:
    """Numpy's logits of every block row, with the tables of the plain target where the draft has none."""
    spec = formulas.checkpoint.spec
    if not spec.own_embedding:
        table = values(decoder.read_embedding(plain).table)
        step = Step(step.hidden_states, table[step.block] * spec.input_embedding_scale)
    rows = formulas.step(step)
    return rows if spec.own_lm_head else rows @ values(decoder.read_lm_head(plain).weight).T.astype(np.float64)


def values(output: ov.Output) -> Array:
    """A weight, decompressed."""
    (copy,) = ir.clone_subgraph([output])
    return support.infer(ov.Model([ir.make_result(copy, "values")], []), {})["values"]
