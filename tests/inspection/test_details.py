from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset16 as ops

import ovgraft
from ovgraft import inspection, ir
from ovgraft.errors import SpecError
from ovgraft.inspection import Request
from ovgraft.inspection.layout import UNICODE, plain
from ovgraft.pipeline import Pipeline
from tests import models
from tests.support import DECODERS

EVERYTHING = Request(layers=True, weights=True, states=True)
SECTIONS = ("layers", "ops", "weights", "states", "rt-info")


@pytest.mark.parametrize(("weights", "main"), [("f32", "f32"), ("f16", "f16"), ("int8", "u8"), ("int4", "i4")])
def test_layers_own_their_weights(weights: str, main: str) -> None:
    model = models.tiny_decoder(layers=4, hidden=64, vocab=128, weights=weights)  # type: ignore[arg-type]
    info = inspection.collect_model(model, "m", EVERYTHING)
    by_layer = {part.layer: part for part in info.parts if part.part == "layer"}
    assert sorted(layer for layer in by_layer if layer is not None) == [0, 1, 2, 3]
    # what a layer owns is told by its names here, which the code never looks at
    for layer in info.layers:
        assert layer.details is not None
        named = [
            node
            for node in model.get_ops()
            if node.get_type_name() == "Constant" and f"layers.{layer.index}." in node.get_friendly_name()
        ]
        assert named
        assert layer.details.weights[0].element_type == main
        assert layer.details.bytes >= sum(node.get_byte_size() for node in named)
        assert layer.details.bytes == by_layer[layer.index].bytes
        assert layer.details.boundary.shape == "[?,?,64]"
    assert sum(part.bytes for part in info.parts) == sum(entry.bytes for entry in info.weights)
    assert sum(part.constants for part in info.parts) == sum(entry.constants for entry in info.weights)
    assert next(part for part in info.parts if part.part == "shared").bytes < 2000


def test_tables_have_parts_of_their_own_and_a_tied_one_counts_once() -> None:
    free = inspection.collect_model(models.tiny_decoder(), "m", EVERYTHING)
    tied = inspection.collect_model(models.tiny_decoder(tied=True), "m", EVERYTHING)
    assert free.lm_head is not None
    assert {part.part: part.bytes for part in free.parts}["lm_head"] == free.lm_head.bytes
    assert "lm_head" not in {part.part for part in tied.parts}
    assert "embedding" in {part.part for part in tied.parts}


def test_a_table_that_two_constants_read_from_one_place_counts_once(tmp_path: Path) -> None:
    target = models.write_package(models.tiny_decoder(layers=6, tied=True), tmp_path / "target")
    draft = models.write_package(models.tiny_dflash_draft(), tmp_path / "draft")
    graft = ovgraft.load(target=target, draft=draft)
    ovgraft.Pipeline("expose-hidden-states,move-fc,attach-embedding,attach-lm-head").run(graft)
    graft.save(tmp_path / "out")
    file = tmp_path / "out" / "draft" / "openvino_model"
    info = inspection.collect_model(ovgraft.load(file.with_suffix(".xml")).target.model, "m", EVERYTHING)
    stored = file.with_suffix(".bin").stat().st_size
    table = 64 * 32 * 4
    assert abs(sum(entry.bytes for entry in info.weights) - stored) < table / 4  # small ones are counted each
    assert sum(part.bytes for part in info.parts) == sum(entry.bytes for entry in info.weights)


def test_a_tied_table_that_two_constants_hold_counts_once_as_in_the_bin(tmp_path: Path) -> None:
    table = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    given = {"self.model.embed_tokens.weight": table, "self.lm_head.weight": table}
    package = models.write_package(models.tiny_decoder(given=given), tmp_path)
    info = inspection.collect_model(ir.read_model(package / "openvino_model.xml"), "m", EVERYTHING)
    assert info.embedding is not None
    assert info.lm_head is not None
    assert info.lm_head.tied
    assert "lm_head" not in {part.part for part in info.parts}
    held = sum(entry.bytes for entry in info.weights)
    assert sum(part.bytes for part in info.parts) == held
    assert abs(held - (package / "openvino_model.bin").stat().st_size) < table.nbytes / 2


def test_attention_and_who_updates_which_state() -> None:
    info = inspection.collect_model(models.tiny_decoder(layers=3, hidden=32, heads=4, kv_heads=2), "m", EVERYTHING)
    for layer in info.layers:
        assert layer.details is not None
        (attention,) = layer.details.attention
        assert (attention.heads, attention.kv_heads, attention.head_size) == (4, 2, 8)
        assert (attention.window, attention.sinks, attention.state_layer) == (None, False, layer.index)
        assert sorted(attention.states) == sorted(layer.states)
    assert [state.layer for state in info.states] == [0, 0, 1, 1, 2, 2]
    assert all(state.readers == (state.layer,) for state in info.states)


def test_nothing_of_it_is_collected_unasked() -> None:
    info = inspection.collect_model(models.tiny_decoder(), "m")
    assert all(layer.details is None for layer in info.layers)
    assert (info.parts, info.nodes, info.graph) == ((), (), None)
    assert all(state.layer is None for state in info.states)


def test_what_all_layers_draw_on_is_no_part_of_the_first(zoo: Callable[[str], Path]) -> None:
    """Per-layer inputs of Gemma 4 are computed once, from what enters layer 0."""
    info = inspection.collect_model(ir.read_model(zoo("gemma4") / "openvino_language_model.xml"), "m", EVERYTHING)
    sizes = [entry.details.weights[0].bytes for entry in info.layers if entry.details is not None]
    assert max(sizes) < 1.01 * min(sizes)


def _branchy() -> ov.Model:
    """``a`` feeds ``b`` and ``c``; both feed ``d``; two nodes are called ``twin``."""
    a = ops.parameter([2, 2], np.float32, name="a")
    b, c = ops.relu(a), ops.sigmoid(a)
    b.set_friendly_name("b")
    c.set_friendly_name("c[0]")
    d = ops.add(b, c)
    d.set_friendly_name("d")
    twins = [ops.relu(d), ops.tanh(d)]
    for twin in twins:
        twin.set_friendly_name("twin")
    return ov.Model([ops.result(twin) for twin in twins], [a], "m")


def _named(request: Request) -> dict[str, int | None]:
    return {node.node.name: node.distance for node in inspection.collect_model(_branchy(), "m", request).nodes}


def test_nodes_by_pattern_and_by_their_very_name() -> None:
    assert _named(Request(node=("[bc]*",))) == {"b": None, "c[0]": None}
    assert _named(Request(node=("c[0]", "d"))) == {"c[0]": None, "d": None}
    assert _named(Request(node=("nothing",))) == {}


def test_neighbours_by_distance() -> None:
    assert _named(Request(around="d", hops=0)) == {"d": 0}
    assert _named(Request(around="b", hops=1)) == {"a": 1, "b": 0, "d": 1}
    assert _named(Request(around="b", hops=2)) == {"a": 1, "b": 0, "c[0]": 2, "d": 1, "twin": 2}
    assert _named(Request(around="c[0]", hops=0)) == {"c[0]": 0}


def test_a_name_that_several_nodes_have_needs_a_number() -> None:
    with pytest.raises(SpecError, match="2 nodes are called 'twin'") as caught:
        _named(Request(around="twin"))
    first, second = re.findall(r"#(\d+)", caught.value.hint or "")
    assert _named(Request(around=f"#{first}", hops=0)) == {"twin": 0}
    assert first != second


def test_a_node_in_full() -> None:
    (node,) = inspection.collect_model(_branchy(), "m", Request(node=("d",))).nodes
    assert [source.node.name for source in node.inputs if source.node] == ["b", "c[0]"]
    assert [consumer.name for consumer in node.outputs[0].consumers] == ["twin", "twin"]
    assert node.attributes["auto_broadcast"] == "numpy"
    assert (node.outputs[0].element_type, node.outputs[0].shape) == ("f32", "[2,2]")


def test_columns_hold_every_node_and_edge() -> None:
    model = models.tiny_decoder()
    graph = inspection.collect_model(model, "m", Request(graph=True)).graph
    assert graph is not None
    nodes = model.get_ordered_ops()
    assert graph.names == tuple(node.get_friendly_name() for node in nodes)
    assert [len(inputs) for inputs in graph.inputs] == [node.get_input_size() for node in nodes]
    assert all(producer < i for i, inputs in enumerate(graph.inputs) for producer in inputs)


@pytest.mark.parametrize("name", DECODERS)
def test_every_decoder_of_the_zoo_in_full(zoo: Callable[[str], Path], name: str) -> None:
    found = inspection.inspect(zoo(name), EVERYTHING)
    main = found.packages[0].models[0]
    details = [layer.details for layer in main.layers if layer.details is not None]
    assert len(details) == len(main.layers)
    assert sum(part.bytes for part in main.parts) == sum(entry.bytes for entry in main.weights)
    by_layers = sum(entry.bytes for entry in details)
    assert by_layers > 0.25 * sum(part.bytes for part in main.parts)
    assert all(entry.bytes > 1000 for entry in details)
    assert all(state.layer is not None for state in main.states)
    text = plain(inspection.render_text(found, UNICODE, sections=SECTIONS))
    assert "\nlayers\n" in text


def test_subgraph_bodies_are_counted() -> None:
    condition, x = ops.parameter([], np.bool_, name="c"), ops.parameter([2], np.float32, name="x")
    branches = []
    for op in (ops.relu, ops.tanh):
        parameter = ops.parameter([2], np.float32)
        result = ops.result(op(parameter))
        branches.append((ov.Model([result], [parameter], "body"), parameter, result))
    choice = ops.if_op(condition)
    choice.set_then_body(branches[0][0])
    choice.set_else_body(branches[1][0])
    choice.set_input(x.output(0), branches[0][1], branches[1][1])
    output = choice.set_output(branches[0][2], branches[1][2])
    model = ov.Model([ops.result(output)], [condition, x], "m")
    nodes = inspection.collect_model(model, "m", Request(node=("*",))).nodes
    assert [node.bodies for node in nodes if node.node.type == "If"] == [(3, 3)]


def test_the_paged_form_of_a_decoder(tmp_path: Path) -> None:
    folder = models.write_package(models.tiny_decoder(layers=2), tmp_path / "p")
    graft = ovgraft.load(target=folder)
    Pipeline("paged-attention").run(graft)
    plain_info = inspection.collect_model(models.tiny_decoder(layers=2), "m", EVERYTHING)
    info = inspection.collect_model(graft.target.model, "m", EVERYTHING)
    for layer, before in zip(info.layers, plain_info.layers, strict=True):
        assert layer.details is not None
        assert before.details is not None
        assert abs(layer.details.bytes - before.details.bytes) < 1000
        (attention,) = layer.details.attention
        assert (attention.heads, attention.kv_heads, attention.head_size) == (4, 2, 8)
        assert attention.states == (f"key_cache.{layer.index}", f"value_cache.{layer.index}")
