"""Folders as people have them: caches full of links, prefixes of trainers, mixed types, files that are not there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import openvino as ov
import pytest

import ovgraft
from ovgraft import ir
from ovgraft.drafts.building.draft import build_draft
from ovgraft.drafts.checkpoint import read_checkpoint
from ovgraft.errors import CheckpointError
from ovgraft.passes.build_draft import BuildDraft
from ovgraft.pipeline import Pipeline
from tests.drafts.building import running
from tests.drafts.checkpoints import (
    BF16,
    BUILDERS,
    Config,
    Tensors,
    write_checkpoint,
    write_safetensors,
    write_shards,
)


def built(folder: Path, out: Path) -> Path:
    """The draft's package, by way of the pass."""
    graft = ovgraft.load(folder)
    Pipeline([BuildDraft()]).run(graft)
    graft.save(out)
    return out


def cached(source: Path, root: Path) -> Path:
    """The folder as huggingface_hub keeps it: files in blobs, relative links to them in a snapshot."""
    blobs, snapshot = root / "models--org--draft" / "blobs", root / "models--org--draft" / "snapshots" / "0123abcd"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(source.iterdir())):
        file.rename(blobs / f"{number:064}")
        (snapshot / file.name).symlink_to(os.path.relpath(blobs / f"{number:064}", snapshot))
    return snapshot


class TestCache:
    @pytest.mark.parametrize("sharded", [False, True])
    def test_links_are_followed_and_not_copied(self, tmp_path: Path, sharded: bool) -> None:
        config, tensors = BUILDERS["zlab_dflash"]()
        source = write_checkpoint(tmp_path / "source", config, tensors)
        (source / "generation_config.json").write_text("{}")
        digest = read_checkpoint(source).digest()
        if sharded:
            (source / "model.safetensors").unlink()
            write_shards(source, tensors)
        folder = cached(source, tmp_path / "hub")
        assert read_checkpoint(folder).digest() == digest
        out = built(folder, tmp_path / "out")
        assert {file.name for file in out.iterdir()} == {
            "config.json",
            "generation_config.json",
            "openvino_model.xml",
            "openvino_model.bin",
        }
        assert not any(file.is_symlink() for file in out.iterdir())
        ir.read_model(out / "openvino_model.xml")

    def test_a_blob_that_was_never_fetched(self, tmp_path: Path) -> None:
        folder = cached(write_checkpoint(tmp_path / "source", *BUILDERS["zlab_dflash"]()), tmp_path / "hub")
        target = (folder / "model.safetensors").readlink()
        (folder / target).unlink()
        with pytest.raises(CheckpointError, match="weights cannot be read") as caught:
            built(folder, tmp_path / "out")
        assert caught.value.file == folder / "model.safetensors"
        assert str(target) in str(caught.value.found)


class TestPrefix:
    @pytest.mark.parametrize("prefix", ["model.", "draft_model.", "module.model."])
    @pytest.mark.parametrize("name", ["zlab_dflash2", "deepspec_vanilla", "speculators_dspark"])
    def test_a_module_around_the_draft(self, name: str, prefix: str, tmp_path: Path) -> None:
        config, tensors = BUILDERS[name]()
        outside = ("lm_head.", "markov_head.", "d2t")
        wrapped = {(key if key.startswith(outside) else prefix + key): value for key, value in tensors.items()}
        plain = read_checkpoint(write_checkpoint(tmp_path / "plain", config, tensors))
        found = read_checkpoint(write_checkpoint(tmp_path / "wrapped", config, wrapped))
        assert found.spec == plain.spec
        assert found.digest() == plain.digest()

    def test_errors_name_the_tensors_of_the_file(self, tmp_path: Path) -> None:
        config, tensors = BUILDERS["zlab_dflash"]()
        wrapped = {f"model.{key}": value for key, value in tensors.items()}
        name = "model.layers.0.self_attn.q_proj.weight"
        wrapped[name] = np.ascontiguousarray(wrapped[name].T)
        with pytest.raises(CheckpointError, match="does not fit the config") as caught:
            read_checkpoint(write_checkpoint(tmp_path, config, wrapped))
        assert caught.value.key == name

    def test_another_module_is_no_prefix(self, tmp_path: Path) -> None:
        config, tensors = BUILDERS["zlab_dflash"]()
        tensors["encoder.fc.weight"] = tensors.pop("fc.weight")
        with pytest.raises(CheckpointError) as caught:
            read_checkpoint(write_checkpoint(tmp_path, config, tensors))
        assert caught.value.key == "fc.weight"

    def test_one_name_with_and_without(self, tmp_path: Path) -> None:
        config, tensors = BUILDERS["deepspec_vanilla"]()
        wrapped = {f"model.{key}": value for key, value in tensors.items()}
        with pytest.raises(CheckpointError, match="two tensors are the same one"):
            read_checkpoint(write_checkpoint(tmp_path, config, wrapped | {"lm_head.weight": tensors["lm_head.weight"]}))


def test_an_output_layer_tied_to_the_embedding(tmp_path: Path) -> None:
    """Frameworks store a shared table once."""
    config, tensors = BUILDERS["deepspec_vanilla"]()
    table = tensors["embed_tokens.weight"]
    twice = read_checkpoint(write_checkpoint(tmp_path / "twice", config, tensors | {"lm_head.weight": table}))
    del tensors["lm_head.weight"]
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        read_checkpoint(write_checkpoint(tmp_path / "lost", config, tensors))
    tied = read_checkpoint(write_checkpoint(tmp_path / "tied", config | {"tie_word_embeddings": True}, tensors))
    assert tied.spec.own_lm_head
    assert tied.spec.frozen_copies
    assert tied.digest() == twice.digest()


def test_float_types_may_be_mixed(tmp_path: Path) -> None:
    def edit(config: Config, tensors: Tensors) -> None:
        types = (np.float32, np.float16, BF16)
        for number, name in enumerate(tensors):
            # + 1/3 fills the mantissa of every type: a value read as another type is far off
            tensors[name] = (tensors[name].astype(np.float32) + np.float32(1 / 3) / 16).astype(types[number % 3])

    checkpoint = running.tiny(tmp_path, "deepspec_gated", edit)
    assert len({checkpoint.weights.info(name).dtype for name in checkpoint.weights}) == 3
    formulas = running.Numpy(checkpoint)
    ov.save_model(build_draft(checkpoint), tmp_path / "draft.xml", compress_to_fp16=False)
    stateful = running.Sdpa(ir.read_model(tmp_path / "draft.xml"))
    for step in running.random_steps(checkpoint, [(9, 8), (2, 7)]):
        np.testing.assert_allclose(stateful.step(step)["logits"], formulas.step(step), rtol=0, atol=3e-5)


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, np.float64])
def test_types_that_are_not_built(dtype: type, tmp_path: Path) -> None:
    config, tensors = BUILDERS["zlab_dflash"]()
    name = "layers.1.mlp.up_proj.weight"
    tensors[name] = tensors[name].astype(dtype)
    with pytest.raises(CheckpointError, match=name) as caught:
        read_checkpoint(write_checkpoint(tmp_path, config, tensors))
    assert ("quantized" in str(caught.value.hint)) == (dtype is not np.float64)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "draft.pt"])
def test_pickled_weights_are_refused_with_a_way_out(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BUILDERS["zlab_dflash"]()[0]))
    (tmp_path / name).write_bytes(b"\x80\x02")
    with pytest.raises(CheckpointError, match="no weights") as caught:
        built(tmp_path, tmp_path / "out")
    assert caught.value.found == name
    assert "safetensors" in str(caught.value.hint)


def test_a_git_lfs_pointer(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, *BUILDERS["zlab_dflash"]())
    (folder / "model.safetensors").write_text("version 1\noid sha256:0\nsize 1\n")
    with pytest.raises(CheckpointError, match="Git LFS pointer") as caught:
        read_checkpoint(folder)
    assert "git lfs pull" in str(caught.value.hint)


def test_a_path_with_spaces_and_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "mein Entwurf ü 草稿", *BUILDERS["zlab_dflash"]())
    for path in (*folder.iterdir(), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        out = built(folder, tmp_path / "aus gabe 输出")
    finally:
        folder.chmod(0o755)
    assert os.access(out / "config.json", os.W_OK)
    ir.read_model(out / "openvino_model.xml")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_that_may_not_be_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, read = write_checkpoint(tmp_path, *BUILDERS["zlab_dflash"]()), Path.open

    def refuse(self: Path, *args: Any, **options: Any) -> Any:
        if self.name == name:
            raise PermissionError(13, "Permission denied", str(self))
        return read(self, *args, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CheckpointError, match="Permission denied") as caught:
        read_checkpoint(folder)
    assert caught.value.file == folder / name


def test_a_side_file_beside_shards(tmp_path: Path) -> None:
    config, tensors = BUILDERS["zlab_dflash"]()
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_shards(tmp_path, tensors)
    write_safetensors(tmp_path / "mask_embedding.safetensors", {"mask": np.ones(16, np.float32)})
    assert read_checkpoint(tmp_path).spec.own_mask_embedding
