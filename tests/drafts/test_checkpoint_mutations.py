"""A checkpoint that was changed anywhere is refused, with the file and the key it is about."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ovgraft.drafts.checkpoint import Checkpoint, read_checkpoint
from ovgraft.drafts.tensors import expected_tensors
from ovgraft.errors import CheckpointError
from tests.drafts.checkpoints import BUILDERS, Config, Tensors, write_checkpoint, write_shards

FORMATS = pytest.mark.parametrize("name", BUILDERS)

# Tensors without which a file is another draft that is as valid: their absence is told in the spec.
OPTIONAL = {
    "minicpm_pruned": {"embed_tokens.weight"},
    "speculators_dflash": {"embed_tokens.weight", "t2d"},
    "speculators_dspark": {"embed_tokens.weight", "t2d"},
}

# Integers nothing else in a checkpoint contradicts; they have bounds, tested below.
UNCHECKED = {
    "mask_token_id",
    "block_size",
    "max_position_embeddings",
    "sliding_window",
    "num_anchors",
    "selector_top_k",
}
# Only the range of layer ids depends on it.
RANGE = {"num_target_layers"}
# A headless draft holds no tensor with a row per token.
NO_TOKEN_TABLE = {"zlab_dflash": {"vocab_size"}, "deepspec_headless": {"markov_rank"}}
# A Gemma-4 draft reads the sizes of the full-attention layers only.
UNUSED = {"deepspec_gemma4": {"head_dim", "num_key_value_heads", "hidden_size_per_layer_input"}}


def refused(folder: Path, config: Config, tensors: Tensors) -> CheckpointError:
    write_checkpoint(folder, config, tensors)
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(folder)
    error = caught.value
    assert error.file is not None, error
    assert error.key is not None, error
    assert str(error.file) in str(error)
    return error


def read(folder: Path, config: Config, tensors: Tensors) -> Checkpoint:
    return read_checkpoint(write_checkpoint(folder, config, tensors))


@FORMATS
def test_without_each_tensor(name: str, tmp_path: Path) -> None:
    config, tensors = BUILDERS[name]()
    for missing in tensors:
        left = {key: value for key, value in tensors.items() if key != missing}
        if missing in OPTIONAL.get(name, ()):
            spec = read(tmp_path, config, left).spec
            assert missing == "t2d" or spec.shares_embedding
        else:
            assert refused(tmp_path, config, left).key == missing


@FORMATS
def test_each_matrix_transposed(name: str, tmp_path: Path) -> None:
    config, tensors = BUILDERS[name]()
    for turned, value in tensors.items():
        if value.ndim < 2 or value.shape == value.shape[::-1]:
            assert value.ndim == 1 or turned.endswith("base_kernel"), turned
            continue
        error = refused(tmp_path, config, tensors | {turned: np.ascontiguousarray(value.T)})
        assert error.key == turned or "confidence" in turned
        assert str(list(value.T.shape)) in str(error) or "confidence" in turned


@FORMATS
def test_each_tensor_one_row_short(name: str, tmp_path: Path) -> None:
    config, tensors = BUILDERS[name]()
    for cut, value in tensors.items():
        assert refused(tmp_path, config, tensors | {cut: value[1:]}).key == cut


@FORMATS
def test_each_tensor_of_another_type(name: str, tmp_path: Path) -> None:
    config, tensors = BUILDERS[name]()
    for changed, value in tensors.items():
        error = refused(tmp_path, config, tensors | {changed: value.astype(np.int8)})
        assert error.key == changed
        assert error.found == np.int8


@FORMATS
@pytest.mark.parametrize(
    "extra", ["layers.0.self_attn.sinks", "layers.2.mlp.up_proj.weight", "encoder.fc.weight", "fc.bias", "x"]
)
def test_an_unknown_tensor(name: str, extra: str, tmp_path: Path) -> None:
    config, tensors = BUILDERS[name]()
    error = refused(tmp_path, config, tensors | {extra: np.zeros(4, np.float32)})
    assert error.key == extra


def test_all_problems_are_listed(tmp_path: Path) -> None:
    config, tensors = BUILDERS["zlab_dflash"]()
    tensors["norm.bias"] = tensors.pop("norm.weight")
    reasons = [str(reason) for reason in refused(tmp_path, config, tensors).reasons]
    assert len(reasons) == 2
    assert "norm.weight is missing" in reasons[0]
    assert "norm.bias is not understood" in reasons[1]


def integers(config: Config, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in config.items():
        if type(value) is int:
            yield (*path, key)
        elif isinstance(value, dict):
            yield from integers(value, (*path, key))


def changed(config: Config, path: tuple[str, ...], value: Any) -> Config:
    result = copy.deepcopy(config)
    place = result
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return result


@FORMATS
@pytest.mark.parametrize("by", [-1, 1, 1000])
def test_each_config_integer_changed(name: str, by: int, tmp_path: Path) -> None:
    config, tensors = BUILDERS[name]()
    free = UNCHECKED | RANGE | NO_TOKEN_TABLE.get(name, set()) | UNUSED.get(name, set())
    checked = [path for path in integers(config) if path[-1] not in free]
    assert len(checked) >= 6
    for path in checked:
        value: Any = config
        for part in path:
            value = value[part]
        refused(tmp_path, changed(config, path, value + by), tensors)


@FORMATS
@pytest.mark.parametrize("value", [-5, 0, "8", 8.5, True, [8], pytest.param(10**400, id="huge")])
def test_each_config_integer_out_of_bounds(name: str, value: Any, tmp_path: Path) -> None:
    config, tensors = BUILDERS[name]()
    free = UNUSED.get(name, set()) | {"num_anchors", "sliding_window"}
    if value == 0:
        free |= {"mask_token_id", "markov_rank"}
    for path in integers(config):
        if path[-1] in free:
            continue
        error = refused(tmp_path, changed(config, path, value), tensors)
        assert error.key is not None


@FORMATS
@pytest.mark.parametrize("key", ["mask_token_id", "block_size", "target_layer_ids", "aux_hidden_state_layer_ids"])
def test_without_what_is_never_guessed(name: str, key: str, tmp_path: Path) -> None:
    config, tensors = BUILDERS[name]()
    places = [place for place in (config, config.get("dflash_config") or {}) if key in place]
    if not places:
        assert key.endswith("layer_ids")
        return
    for place in places:
        del place[key]
    error = refused(tmp_path, config, tensors)
    assert error.key == key
    assert error.expected is not None


@FORMATS
@pytest.mark.parametrize(
    "ids", [[], [1, 1], [-2, 4], [1, 6.0], ["1"], "1,4", [1, 7], [1, 2, 4], [1], [[1, 4]], [True, 4]]
)
def test_layer_ids_that_cannot_be(name: str, ids: Any, tmp_path: Path) -> None:
    config, tensors = BUILDERS[name]()
    key = "aux_hidden_state_layer_ids" if "speculators" in name else "target_layer_ids"
    place = config if key in config else config["dflash_config"]
    if ids == [1, 7] and "speculators" in name:  # the number of target layers is not in the file
        return
    error = refused(tmp_path, config | {key: ids} if place is config else _nested(config, key, ids), tensors)
    assert error.key in (key, f"dflash_config.{key}", "fc.weight")


def _nested(config: Config, key: str, value: Any) -> Config:
    return config | {"dflash_config": config["dflash_config"] | {key: value}}


@FORMATS
@given(cut=st.floats(0, 1, exclude_max=True), sharded=st.booleans())
@settings(max_examples=12, suppress_health_check=list(HealthCheck), deadline=None)
def test_a_truncated_weight_file(
    name: str, cut: float, sharded: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    config, tensors = BUILDERS[name]()
    write_checkpoint(folder, config, tensors)
    file = folder / "model.safetensors"
    if sharded:
        file.unlink()
        write_shards(folder, tensors)
        file = folder / "model-00002-of-00003.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * cut)])
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(folder)
    assert caught.value.file == file


@pytest.mark.parametrize("left", [0, 1, 100, -1])
def test_a_truncated_config(left: int, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, *BUILDERS["zlab_dflash"]())
    text = (folder / "config.json").read_bytes()
    (folder / "config.json").write_bytes(text[:left])
    with pytest.raises(CheckpointError, match="JSON") as caught:
        read_checkpoint(folder)
    assert caught.value.file == folder / "config.json"


@pytest.mark.parametrize("text", ["[]", '{"a": 1, "a": 2}', '{"a": NaN}', '{"a": Infinity}', "\xff", "[" * 100_000])
def test_a_config_that_is_no_json_object(text: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, *BUILDERS["zlab_dflash"]())
    (folder / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError):
        read_checkpoint(folder)


@pytest.mark.parametrize("number", ["1" + "0" * 30, f"[[2, 1{'0' * 30}]]", "-1" + "0" * 5000, "1e999", "-1e400"])
def test_a_number_that_nothing_holds(number: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, *BUILDERS["zlab_dflash"]())
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace("{", f'{{"pad_token_id": {number}, ', 1))
    with pytest.raises(CheckpointError, match="a number out of all range") as caught:
        read_checkpoint(folder)
    assert len(str(caught.value)) < 300


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such checkpoint folder"):
        read_checkpoint(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="needs a config"):
        read_checkpoint(tmp_path)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@FORMATS
@given(data=st.data())
@settings(max_examples=25, suppress_health_check=list(HealthCheck), deadline=None)
def test_any_value_anywhere_is_read_or_refused(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No config makes the reader fail in another way than by saying what is wrong."""
    config, tensors = BUILDERS[name]()
    places = [(key,) for key in config] + [
        (key, inner) for key, value in config.items() if isinstance(value, dict) for inner in value
    ]
    config = changed(config, data.draw(st.sampled_from(places)), data.draw(_JSON))
    try:
        read(tmp_path_factory.mktemp("any"), config, tensors)
    except CheckpointError as error:
        assert error.file is not None  # noqa: PT017
        assert str(error)  # noqa: PT017


@FORMATS
def test_expected_tensors_are_what_the_format_has(name: str, tmp_path: Path) -> None:
    config, tensors = BUILDERS[name]()
    checkpoint = read(tmp_path, config, tensors)
    assert set(checkpoint.weights) <= set(expected_tensors(checkpoint.spec))
