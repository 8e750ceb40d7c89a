"""Inventory of attention and state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ovgraft import decoder, ir
from ovgraft.decoder.to_paged import convert_to_paged
from tests import support
from tests.decoder.nets import HEAD_SIZE, HEADS
from tests.decoder.test_layers import hybrid, read, shared_keys_and_values, written_out_attention

Zoo = Callable[[str], Path]
GROUPED = dict.fromkeys(("gpt2", "bloom", "mpt"), 4)


@pytest.mark.parametrize("name", support.DECODERS)
def test_heads_of_the_zoo(zoo: Zoo, name: str) -> None:
    found = decoder.read_decoder(ir.read_model(support.model_file(zoo(name))))
    attention = decoder.read_attention(found)
    assert [a.layer for a in attention] == [layer.index for layer in found.layers if layer.kind == "attention"]
    for a in attention:
        assert (a.heads, a.kv_heads, a.head_size, a.value_head_size) == (4, GROUPED.get(name, 2), 16, 16)
        assert a.sinks == (name == "gpt_oss")
        assert a.state_layer == a.layer
        assert [word in state for state, word in zip(a.states, ("key", "value"), strict=True)] == [True, True]


@pytest.mark.parametrize(
    ("name", "windows"),
    [("gpt_oss", [64, None] * 2), ("gemma3_text", [64, None] * 2), ("gemma4", [64, None] * 2), ("qwen3", [None] * 6)],
)
def test_windows_are_read_from_the_mask(zoo: Zoo, name: str, windows: list[int | None]) -> None:
    found = decoder.read_decoder(ir.read_model(support.model_file(zoo(name))))
    assert [a.window for a in decoder.read_attention(found)] == windows


def test_paged_attention(zoo: Zoo) -> None:
    model = ir.read_model(support.model_file(zoo("gpt_oss")))
    convert_to_paged(model, {})
    attention = decoder.read_attention(decoder.read_decoder(model))
    assert [(a.heads, a.kv_heads, a.head_size, a.window, a.sinks) for a in attention] == [
        (4, 2, 16, 64, True),
        (4, 2, 16, None, True),
    ] * 2
    assert all(a.states == () and a.state_layer is None for a in attention)


def test_states_of_a_hybrid() -> None:
    _, found, _ = read(hybrid)
    states = decoder.read_states(found)
    assert [(s.variable_id, s.layer, s.readers) for s in states] == [
        ("conv.0", 0, (0,)),
        ("past.0.key", 1, (1,)),
        ("past.0.value", 1, (1,)),
        ("conv.3", 2, (2,)),
        ("past.1.key", 3, (3,)),
        ("past.1.value", 3, (3,)),
    ]
    assert (states[1].element_type, states[1].shape) == ("f32", f"[?,{HEADS},?,{HEAD_SIZE}]")


def test_layers_that_share_keys_and_values() -> None:
    _, found, _ = read(shared_keys_and_values)
    assert [(a.layer, a.state_layer) for a in decoder.read_attention(found)] == [(0, 0), (1, 1), (2, 0), (3, 1), (4, 0)]
    assert [s.readers for s in decoder.read_states(found)] == [(0, 2, 4), (0, 2, 4), (1, 3), (1, 3)]


def test_attention_written_out_is_no_attention_op() -> None:
    _, found, _ = read(written_out_attention)
    assert decoder.read_attention(found) == ()
    assert [s.readers for s in decoder.read_states(found)] == [(0,), (0,), (1,), (1,), (2,), (2,)]
