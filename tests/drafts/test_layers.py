"""The layers of drafts of every family and form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import openvino as ov
import openvino.opset13 as ops
import pytest

import ovgraft
from ovgraft import decoder, drafts, ir
from ovgraft.drafts.building.draft import Form
from ovgraft.drafts.contract import Port
from ovgraft.errors import StructureError
from ovgraft.pipeline import Pipeline, preset
from tests import models
from tests.decoder.nets import HIDDEN, Net
from tests.drafts.building import running
from tests.support import DFLASH_DRAFTS

CHECKPOINTS = (
    *("deepspec_gated", "deepspec_headless", "deepspec_rnn", "deepspec_vanilla", "minicpm_pruned", "modelopt_flat"),
    *("qwen3_dflash_draft", "speculators_dflash", "speculators_dspark", "zlab_dflash2"),
)
FORMS: tuple[Form, ...] = ("sdpa", "per-row")
TABLES = ("embedding", "lm_head", "fc")


def read(model: ov.Model) -> tuple[decoder.LayerStack, drafts.DraftTables]:
    graph = ir.Graph(model)
    tables = drafts.read_draft_tables(model, graph)
    return drafts.read_draft_layers(model, graph, tables), tables


def ends(stack: decoder.LayerStack) -> list[str]:
    """The nodes layers end in; their names are the tests' witness, the code looks at none."""
    return [layer.output.get_node().get_friendly_name() for layer in stack.layers]


def sees(stack: decoder.LayerStack) -> list[tuple[int, bool] | str]:
    """Window and direction of each layer's attention."""
    nodes = [stack.graph.index(found.node) for found in decoder.read_attention(stack)]
    found = drafts.read_row_attention(stack.graph, nodes)
    return [each if isinstance(each, str) else (each.window, each.bidirectional) for each in found]


def heads(stack: decoder.LayerStack) -> list[tuple[int | None, ...]]:
    found = decoder.read_attention(stack)
    return [(each.layer, each.heads, each.kv_heads, each.head_size, each.value_head_size) for each in found]


def owned(tables: drafts.DraftTables) -> list[str]:
    return [name for name in TABLES if getattr(tables, name) is not None]


@pytest.mark.parametrize("name", DFLASH_DRAFTS)
def test_exported_dflash_drafts(zoo: Callable[[str], Path], name: str) -> None:
    stack, tables = read(ir.read_model(zoo(name) / "openvino_model.xml"))
    assert ends(stack) == [f"__module.layers.{i}/aten::add/Add_1" for i in range(2)]
    assert [layer.kind for layer in stack.layers] == ["attention"] * 2
    assert [len(layer.residuals) for layer in stack.layers] == [2, 2]
    assert heads(stack) == [(0, 4, 2, 16, 16), (1, 4, 2, 16, 16)]
    assert sees(stack) == ([(16, True), (0, True)] if "sliding" in name else [(0, True)] * 2)
    assert [(state.layer, state.readers) for state in decoder.read_states(stack)] == [(0, (0,))] * 2 + [(1, (1,))] * 2
    assert owned(tables) == ["fc"]
    assert Port.INPUTS_EMBEDS in stack.source.get_names()


def test_the_trained_draft(shared: Path) -> None:
    stack, _ = read(ir.read_model(shared / "models" / "smollm2-135m-dflash-ir" / "openvino_model.xml"))
    assert heads(stack) == [(i, 9, 3, 64, 64) for i in range(3)]
    assert sees(stack) == [(0, True)] * 3


def test_an_eagle3_draft(zoo: Callable[[str], Path]) -> None:
    stack, tables = read(ir.read_model(zoo("qwen3_12l_eagle3_draft") / "openvino_model.xml"))
    assert ends(stack) == ["__module.model.midlayer/aten::add/Add_1"]
    assert heads(stack) == [(0, 4, 2, 16, 16)]
    assert [state.layer for state in decoder.read_states(stack)] == [0, 0]
    assert owned(tables) == ["embedding", "lm_head", "fc"]
    assert tables.fc is not None
    assert stack.source.get_node() is tables.fc.output.get_node()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_built_drafts(shared: Path, name: str, form: Form) -> None:
    checkpoint = drafts.read_checkpoint(shared / "zoo" / "checkpoints" / name)
    spec = checkpoint.spec
    stack, tables = read(drafts.build_draft(checkpoint, form))
    assert ends(stack) == [f"__module.layers.{i}/Add_1" for i in range(2)]
    assert {layer.kind for layer in stack.layers} == {"attention+convolution" if "dflash2" in name else "attention"}
    assert heads(stack) == [(0, 4, 2, 16, 16), (1, 4, 2, 16, 16)]
    assert sees(stack) == ([(64, False)] * 2 if "dflash2" in name else [(0, True)] * 2)
    assert [state.layer for state in decoder.read_states(stack)] == [0, 0, 1, 1]
    wanted = [spec.own_embedding, spec.own_lm_head, True]
    assert owned(tables) == [table for table, there in zip(TABLES, wanted, strict=True) if there]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("name", "last", "kind", "seen"),
    [
        ("deepspec_gemma4", "Multiply", "attention", (0, True)),
        ("speculators_dflash2", "Add_1", "attention+convolution", (32, True)),
        ("zlab_dflash2", "Add_1", "attention+convolution", (32, False)),
    ],
)
def test_layers_of_other_makes(
    tmp_path: Path, name: str, last: str, kind: str, seen: tuple[int, bool], form: Form
) -> None:
    """Four norms and a scalar (Gemma-4); kernels made from the row around each branch (DFlash-2)."""
    stack, _ = read(drafts.build_draft(running.tiny(tmp_path, name), form))
    assert ends(stack) == [f"__module.layers.{i}/{last}" for i in range(2)]
    assert [(layer.kind, len(layer.residuals)) for layer in stack.layers] == [(kind, 2)] * 2
    assert sees(stack) == [seen] * 2


def grafted(text: str, target: ov.Model, draft: ov.Model, folder: Path) -> ov.Model:
    pair = [models.write_package(model, folder / name) for name, model in (("target", target), ("draft", draft))]
    graft = ovgraft.load(target=pair[0], draft=pair[1])
    Pipeline(text).run(graft)
    assert graft.draft is not None
    return graft.draft.model


DFLASH = preset("dflash").text
EAGLE3 = preset("eagle3").text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (DFLASH, ["embedding", "lm_head"]),
        (f"{DFLASH},fold-draft-argmax{{keep-logits=false}}", ["embedding", "lm_head"]),
        (f"{DFLASH},per-row-draft", ["embedding", "lm_head"]),
        ("per-row-draft", ["fc"]),
        (preset("dflash-paged").text, ["embedding", "lm_head"]),
        ("per-row-draft,paged-attention{model=draft}", ["fc"]),
    ],
)
def test_grafted_dflash_drafts(tmp_path: Path, text: str, wanted: list[str]) -> None:
    stack, tables = read(grafted(text, models.tiny_decoder(layers=4), models.tiny_dflash_draft(layers=2), tmp_path))
    assert ends(stack) == ends(read(models.tiny_dflash_draft(layers=2))[0])
    assert heads(stack) == [(0, 4, 2, 8, 8), (1, 4, 2, 8, 8)]
    assert sees(stack) == [(0, True)] * 2
    assert owned(tables) == wanted


def test_a_grafted_eagle3_draft(tmp_path: Path) -> None:
    stack, tables = read(grafted(EAGLE3, models.tiny_decoder(layers=10), models.tiny_eagle3_draft(), tmp_path))
    assert ends(stack) == ends(read(models.tiny_eagle3_draft())[0])
    assert owned(tables) == ["embedding", "lm_head"]
    assert Port.HIDDEN_STATES in stack.source.get_names()
    given = drafts.find_result(stack.model, Port.LAST_HIDDEN_STATE)
    assert given is not None
    assert given.input_value(0).get_node() is stack.layers[0].output.get_node()


def test_a_draft_that_joins_its_two_inputs_first() -> None:
    """EAGLE's first form: both inputs lead through one product into the layers, and either tells the same ones."""
    net = Net()
    states = net.input(Port.HIDDEN_STATES, [-1, -1, HIDDEN])
    x = net.linear(ops.concat([net.embed(), states], -1), HIDDEN, 2 * HIDDEN)
    for _ in range(2):
        x = net.block(x)
    stack, _ = read(net.finish(net.norm(x)))
    assert [layer.output.get_node() is wanted for layer, wanted in zip(stack.layers, net.outputs, strict=True)] == [
        True,
        True,
    ]


def test_states_may_enter_between_layers() -> None:
    net = Net()
    x = net.block(net.block(net.embed()))
    x = net.block(ops.add(x, net.input(Port.HIDDEN_STATES, [-1, -1, HIDDEN])))
    stack, _ = read(net.finish(net.norm(x)))
    assert [layer.output.get_node() is wanted for layer, wanted in zip(stack.layers, net.outputs, strict=True)] == [
        True,
        True,
        True,
    ]


def test_a_context_whose_keys_are_made_apart() -> None:
    """Keys and values of context rows depend on no layer then; the cache is still the one's that reads it."""
    net = Net()
    context, x = net.input(Port.HIDDEN_STATES, [-1, -1, HIDDEN]), net.input(Port.INPUTS_EMBEDS, [-1, -1, HIDDEN])
    for _ in range(2):
        normed = net.norm(x)
        own = [net.split_heads(net.linear(normed)) for _ in range(2)]
        keys, values = (ops.concat([kept, new], 2) for kept, new in zip(net.cache(context), own, strict=True))
        x = net.block(x, attention=net.attention(normed, cached=(keys, values)))
    hidden = net.norm(x)
    hidden.output(0).get_tensor().set_names({Port.LAST_HIDDEN_STATE})
    stack, _ = read(ov.Model([ops.result(hidden)], net.sinks, net.inputs[1:], "draft"))
    assert [state.layer for state in decoder.read_states(stack)] == [0, 0, 1, 1]
    assert [layer.states for layer in stack.layers] == [(f"past.{i}.key", f"past.{i}.value") for i in range(2)]
    assert [found.state_layer for found in decoder.read_attention(stack)] == [0, 1]


def test_two_stacks_that_meet_are_refused() -> None:
    net = Net()

    def block(x: ov.Node) -> ov.Node:
        """Without a cache, whose variables would tell the two streams from each other before."""
        normed = net.norm(x)
        keys, values = (net.split_heads(net.linear(normed)) for _ in range(2))
        return net.block(x, attention=net.attention(normed, cached=(keys, values)))

    states = net.input(Port.HIDDEN_STATES, [-1, -1, HIDDEN])
    x = net.block(ops.add(block(net.embed()), block(states)))
    with pytest.raises(StructureError) as caught:
        read(net.finish(net.norm(x)))
    assert [reason.code for reason in caught.value.reasons] == ["several-streams"]


def test_a_draft_without_layers_says_so() -> None:
    net = Net()
    states = net.input(Port.HIDDEN_STATES, [-1, -1, HIDDEN])
    with pytest.raises(StructureError) as caught:
        read(net.finish(net.norm(ops.add(net.embed(), states))))
    assert {reason.code for reason in caught.value.reasons} == {"no-layers"}


def test_a_draft_that_gives_nothing_out_says_so() -> None:
    net = Net()
    states = net.input(Port.HIDDEN_STATES, [-1, -1, HIDDEN])
    other = ov.Model([ops.result(net.norm(states))], net.sinks, net.inputs, "net")
    with pytest.raises(StructureError, match="cannot be told") as caught:
        read(other)
    assert [reason.code for reason in caught.value.reasons] == ["no-output"]
