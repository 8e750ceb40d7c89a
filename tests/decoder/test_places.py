"""Saying in words where an output lies."""

from __future__ import annotations

import openvino as ov
import pytest

from ovgraft import decoder
from tests.decoder.nets import Net
from tests.decoder.test_layers import deepstack, plain, read, three_branches


def test_every_boundary_has_its_words() -> None:
    _, found, hidden = read(three_branches)
    first, _, last = found.layers
    cases: list[tuple[ov.Output, str]] = [
        (found.source, "the token values before the first layer"),
        (first.residuals[0], "the post-attention residual of layer 0"),
        (first.residuals[1], "the residual after branch 2 of layer 0"),
        (first.output, "the output of layer 0"),
        (last.output, "the output of layer 2, before the final norm"),
        (hidden.output(0), "the value that enters lm_head"),
        (found.lm_head.logits, "the logits"),
    ]
    for output, words in cases:
        assert str(decoder.describe_output(found, output)) == words


def test_inputs_of_layers_that_are_not_the_output_before() -> None:
    _, found, _ = read(deepstack)
    place = decoder.describe_output(found, found.layers[1].entry)
    assert (place.role, place.layer, place.text) == ("entry", 1, "the input of layer 1")
    assert decoder.describe_output(found, found.layers[0].output).role == "output"


def test_values_inside_layers_and_beside_them() -> None:
    _, found, hidden = read(plain)
    query = found.layers[1].attention[0].input_value(0)
    assert str(decoder.describe_output(found, query)) == "a value inside the attention branch of layer 1"
    product = found.layers[2].output.get_node().input_value(1)
    assert str(decoder.describe_output(found, product)) == "a value inside branch 2 of layer 2"
    assert decoder.describe_output(found, hidden.input_value(1)).role == "behind"
    assert decoder.describe_output(found, found.lm_head.weight).role == "before"


def test_an_output_of_another_model_is_refused() -> None:
    _, found, _ = read(plain)
    with pytest.raises(KeyError):
        decoder.describe_output(found, Net().embed().output(0))
