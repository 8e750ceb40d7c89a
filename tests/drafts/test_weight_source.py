"""Tensors of a checkpoint, whatever files hold them."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ovgraft.drafts.weight_source import WeightSource, open_mask_embedding, open_weights
from ovgraft.errors import CheckpointError
from tests.drafts.checkpoints import BF16, write_npz, write_onnx, write_safetensors, write_shards

TENSORS: dict[str, NDArray[Any]] = {
    "half": np.arange(12, dtype=np.float32).reshape(3, 4).astype(BF16),
    "single": np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5),
    "short": np.arange(3, dtype=np.float16),
    "map": np.array([5, -2, 1], np.int64),
    "mask": np.array([True, False, True]),
    "empty": np.zeros((0, 4), np.float32),
}


LAYOUTS: dict[str, Callable[[Path], Any]] = {
    "safetensors": lambda folder: write_safetensors(folder / "model.safetensors", TENSORS),
    "other name": lambda folder: write_safetensors(folder / "draft.safetensors", TENSORS),
    "shards": lambda folder: write_shards(folder, TENSORS),
    "npz": lambda folder: write_npz(folder / "model.npz", TENSORS),
    "compressed npz": lambda folder: write_npz(folder / "model.npz", TENSORS, compressed=True),
    "onnx": lambda folder: write_onnx(folder / "model.onnx", TENSORS),
    "onnx external": lambda folder: write_onnx(folder / "model.onnx", TENSORS, external=True),
}


@pytest.fixture(params=sorted(LAYOUTS))
def source(request: pytest.FixtureRequest, tmp_path: Path) -> WeightSource:
    LAYOUTS[request.param](tmp_path)
    return open_weights(tmp_path)


def test_every_layout_holds_the_same_tensors(source: WeightSource) -> None:
    assert set(source) == set(TENSORS)
    for name, value in TENSORS.items():
        assert source.info(name).shape == value.shape
        assert source.info(name).dtype == value.dtype
        assert source.info(name).nbytes == value.nbytes
        read = source.tensor(name)
        assert read.dtype == value.dtype
        assert read.tobytes() == value.tobytes()
        assert not read.flags.writeable


def test_the_digest_does_not_depend_on_the_layout(
    source: WeightSource, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("single")
    write_safetensors(folder / "model.safetensors", dict(reversed(TENSORS.items())))
    assert source.digest() == open_weights(folder).digest()
    assert source.digest(["single"]) != source.digest(["short"])


@pytest.mark.parametrize("change", ["name", "type", "shape", "value"])
def test_the_digest_sees(change: str, tmp_path: Path) -> None:
    tensors: dict[str, NDArray[Any]] = {"a": np.arange(4, dtype=np.float32)}
    changed: dict[str, dict[str, NDArray[Any]]] = {
        "name": {"b": tensors["a"]},
        "type": {"a": tensors["a"].view(np.int32)},
        "shape": {"a": tensors["a"].reshape(2, 2)},
        "value": {"a": tensors["a"] + 1},
    }
    digests = set()
    for number, content in enumerate((tensors, changed[change])):
        write_safetensors(tmp_path / f"{number}.safetensors", content)
        digests.add(open_weights(tmp_path / f"{number}.safetensors").digest())
    assert len(digests) == 2


def test_the_safetensors_library_agrees(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", TENSORS)
    source = open_weights(tmp_path)
    with safetensors.safe_open(tmp_path / "model.safetensors", "numpy") as file:
        assert set(file.keys()) == set(source)
        for name in ("single", "short", "map", "mask"):
            np.testing.assert_array_equal(file.get_tensor(name), source.tensor(name))


@pytest.mark.parametrize("layout", ["safetensors", "shards", "onnx external"])
def test_tensors_are_views_of_the_mapped_file(layout: str, tmp_path: Path) -> None:
    LAYOUTS[layout](tmp_path)
    array = open_weights(tmp_path).tensor("single")
    assert array.base is not None
    assert not array.flags.owndata


def test_unaligned_tensors_are_read_right(tmp_path: Path) -> None:
    tensors = {"odd": np.array([True]), "float": np.arange(3, dtype=np.float32)}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    array = open_weights(tmp_path).tensor("float")
    assert array.flags.aligned
    np.testing.assert_array_equal(array, tensors["float"])


def test_renamed_tensors_keep_their_values() -> None:
    source = WeightSource(Path("x"), ())
    assert len(source.renamed({})) == 0
    with pytest.raises(CheckpointError, match="no tensor a"):
        source.renamed({"b": "a"})


class TestDamage:
    def check(self, path: Path, match: str, key: str | None = None) -> CheckpointError:
        with pytest.raises(CheckpointError, match=match) as caught:
            open_weights(path)
        assert caught.value.file is not None
        assert key is None or caught.value.key == key
        return caught.value

    @given(cut=st.floats(0, 1, exclude_max=True))
    @settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    def test_a_truncated_file(self, tmp_path: Path, cut: float) -> None:
        file = tmp_path / "model.safetensors"
        write_safetensors(file, TENSORS)
        data = file.read_bytes()
        file.write_bytes(data[: int(len(data) * cut)])
        error = self.check(file, "truncated|JSON")
        assert error.found is not None

    def test_a_cut_inside_a_tensor_names_it(self, tmp_path: Path) -> None:
        write_safetensors(tmp_path / "model.safetensors", {"first": TENSORS["single"], "last": TENSORS["single"]})
        data = (tmp_path / "model.safetensors").read_bytes()
        (tmp_path / "model.safetensors").write_bytes(data[:-1])
        self.check(tmp_path, "truncated", key="last")

    @pytest.mark.parametrize("layout", ["npz", "compressed npz", "onnx", "onnx external"])
    @pytest.mark.parametrize("left", [0.0, 0.3, 0.9])
    def test_a_truncated_file_of_other_kinds(self, tmp_path: Path, layout: str, left: float) -> None:
        LAYOUTS[layout](tmp_path)
        largest = max(tmp_path.iterdir(), key=lambda file: (file.suffix == ".data", file.stat().st_size))
        data = largest.read_bytes()
        largest.write_bytes(data[: int(len(data) * left)])
        if layout == "onnx" and left == 0.0:  # an empty protobuf is an empty model
            assert len(open_weights(tmp_path)) == 0
        else:
            with pytest.raises(CheckpointError):
                open_weights(tmp_path)

    def test_bytes_after_the_last_tensor(self, tmp_path: Path) -> None:
        write_safetensors(tmp_path / "model.safetensors", TENSORS)
        with (tmp_path / "model.safetensors").open("ab") as file:
            file.write(b"x")
        self.check(tmp_path, "bytes after")

    @pytest.mark.parametrize(
        ("entry", "match"),
        [
            ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "size of tensor a"),
            ({"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}, "overlap"),
            ({"dtype": "Q4", "shape": [2], "data_offsets": [0, 8]}, "type that is not read"),
            ({"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}, "type that is not read"),
            ({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}, "damaged header"),
            ({"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}, "damaged header"),
            ({"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}, "damaged header"),
            ({"dtype": "F32", "shape": [2]}, "damaged header"),
            ({"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 8]}, "size of tensor a"),
            ([], "damaged header"),
        ],
    )
    def test_a_damaged_header(self, tmp_path: Path, entry: Any, match: str) -> None:
        text = json.dumps({"a": entry}).encode()
        (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
        self.check(tmp_path, match, key="a")

    def test_a_name_that_stands_twice(self, tmp_path: Path) -> None:
        text = (
            b'{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}'
        )
        (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(1))
        self.check(tmp_path, "stands twice", key="a")

    def test_no_safetensors_at_all(self, tmp_path: Path) -> None:
        (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
        self.check(tmp_path, "not a safetensors file")

    def test_an_index_that_names_a_missing_shard(self, tmp_path: Path) -> None:
        write_shards(tmp_path, TENSORS)
        (tmp_path / "model-00002-of-00003.safetensors").unlink()
        error = self.check(tmp_path, "shard is missing", key="single")
        assert error.expected == "model-00002-of-00003.safetensors"

    @pytest.mark.parametrize(
        ("change", "key"),
        [
            ({"new": "model-00001-of-00003.safetensors"}, "new"),
            ({"half": "model-00002-of-00003.safetensors"}, "half"),
            ({"half": None}, "half"),
        ],
    )
    def test_an_index_that_disagrees_with_its_shards(self, tmp_path: Path, change: dict[str, Any], key: str) -> None:
        index = write_shards(tmp_path, TENSORS)
        content = json.loads(index.read_text())
        content["weight_map"] = {k: v for k, v in (content["weight_map"] | change).items() if v is not None}
        index.write_text(json.dumps(content))
        self.check(tmp_path, "index", key=key)

    def test_an_index_that_leaves_its_folder(self, tmp_path: Path) -> None:
        (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x.safetensors"}}')
        self.check(tmp_path, "beside its index")

    @pytest.mark.parametrize(
        ("content", "match"),
        [
            ("[]", "not a JSON object"),
            ("{}", "maps tensor names"),
            ('{"weight_map": {"a": 1}}', "maps tensor names"),
            ("{", "not valid JSON"),
            ('{"weight_map": NaN}', "JSON does not have"),
        ],
    )
    def test_a_damaged_index(self, tmp_path: Path, content: str, match: str) -> None:
        (tmp_path / "model.safetensors.index.json").write_text(content)
        self.check(tmp_path, match)

    def test_external_data_that_leaves_its_folder(self, tmp_path: Path) -> None:
        write_onnx(tmp_path / "model.onnx", TENSORS, external=True)
        data = (tmp_path / "model.onnx").read_bytes()
        (tmp_path / "model.onnx").write_bytes(data.replace(b"model.onnx.data", b"../../../secret"))
        self.check(tmp_path, "beside its model")

    @pytest.mark.parametrize(
        "name", ["model.safetensors", "a.safetensors.index.json", "model.npz", "model.onnx", "mask_embedding.npz"]
    )
    def test_a_pipe_is_never_opened(self, tmp_path: Path, name: str) -> None:
        os.mkfifo(tmp_path / name)
        if name.startswith("mask"):
            assert open_mask_embedding(tmp_path) is None
        else:
            self.check(tmp_path, "not a regular file")

    def test_external_data_in_a_pipe(self, tmp_path: Path) -> None:
        write_onnx(tmp_path / "model.onnx", TENSORS, external=True)
        (tmp_path / "model.onnx.data").unlink()
        os.mkfifo(tmp_path / "model.onnx.data")
        self.check(tmp_path, "external data is missing")

    def test_objects_in_an_archive(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "model.npz", a=np.array([{}], dtype=object))
        self.check(tmp_path, "no array|type that is not read", key="a")

    def test_column_order(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "model.npz", a=np.asfortranarray(np.ones((2, 3))))
        self.check(tmp_path, "row order", key="a")


class TestChoice:
    def test_pickles_are_named_and_not_read(self, tmp_path: Path) -> None:
        (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
        with pytest.raises(CheckpointError, match="no weights") as caught:
            open_weights(tmp_path)
        assert caught.value.found == "pytorch_model.bin"
        assert "safetensors" in str(caught.value.hint)

    def test_two_files_without_an_index(self, tmp_path: Path) -> None:
        for name in ("model-00001-of-00002", "model-00002-of-00002"):
            write_safetensors(tmp_path / f"{name}.safetensors", TENSORS)
        with pytest.raises(CheckpointError, match="no index"):
            open_weights(tmp_path)

    def test_the_file_called_model_is_it(self, tmp_path: Path) -> None:
        write_safetensors(tmp_path / "model.safetensors", TENSORS)
        write_safetensors(tmp_path / "other.safetensors", {})
        assert len(open_weights(tmp_path)) == len(TENSORS)

    def test_two_indexes(self, tmp_path: Path) -> None:
        for name in ("model", "other"):
            (tmp_path / f"{name}.safetensors.index.json").write_text("{}")
        with pytest.raises(CheckpointError, match="two shard indexes"):
            open_weights(tmp_path)

    def test_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="no weights"):
            open_weights(tmp_path)
        with pytest.raises(CheckpointError, match="no such checkpoint"):
            open_weights(tmp_path / "absent")
        (tmp_path / "x.txt").write_text("")
        with pytest.raises(CheckpointError, match="not a weight file"):
            open_weights(tmp_path / "x.txt")


class TestMaskEmbedding:
    def test_absent(self, tmp_path: Path) -> None:
        assert open_mask_embedding(tmp_path) is None

    def test_safetensors_and_npz(self, tmp_path: Path) -> None:
        vector = np.arange(4, dtype=np.float32)
        np.savez(tmp_path / "mask_embedding.npz", vector=vector)
        found = open_mask_embedding(tmp_path)
        assert found is not None
        np.testing.assert_array_equal(found.read(), vector)
        write_safetensors(tmp_path / "mask_embedding.safetensors", {"embedding": vector.astype(BF16)})
        found = open_mask_embedding(tmp_path)
        assert found is not None
        assert found.dtype == BF16

    def test_a_pickled_one_is_refused_with_a_way_out(self, tmp_path: Path) -> None:
        (tmp_path / "mask_embedding.pt").write_bytes(b"\x80\x02cos\nsystem\n.")
        with pytest.raises(CheckpointError, match="pickle") as caught:
            open_mask_embedding(tmp_path)
        assert "save_file" in str(caught.value.hint)

    def test_a_side_file_is_not_mistaken_for_the_weights(self, tmp_path: Path) -> None:
        write_safetensors(tmp_path / "draft.safetensors", TENSORS)
        write_safetensors(tmp_path / "mask_embedding.safetensors", {"embedding": TENSORS["single"]})
        assert set(open_weights(tmp_path)) == set(TENSORS)

    def test_more_than_one_tensor(self, tmp_path: Path) -> None:
        write_safetensors(tmp_path / "mask_embedding.safetensors", TENSORS)
        with pytest.raises(CheckpointError, match="one tensor"):
            open_mask_embedding(tmp_path)
