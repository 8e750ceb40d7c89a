"""Where in a decoder an output lies, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import openvino as ov

from ovgraft.decoder.dataflow import Value
from ovgraft.decoder.kinds import layer_of_nodes
from ovgraft.decoder.types import Decoder

Role = Literal["source", "entry", "residual", "output", "hidden", "logits", "inside", "before", "behind"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an output lies.

    Attributes:
        role: ``source`` (token values), ``entry``, ``residual`` or raw ``output`` of a layer, ``hidden`` (enters
            lm_head), ``logits``, ``inside`` a layer's branch, ``before`` the first layer or ``behind`` the last one.
        layer: The layer, None where there is none.
        text: The same for people, a noun phrase.
    """

    role: Role
    layer: int | None
    text: str

    def __str__(self) -> str:
        return self.text


def describe_output(decoder: Decoder, output: ov.Output) -> Place:
    """Tell where an output of the decoder's model lies.

    Args:
        decoder: The decoder, as read from the model's present state.
        output: Any output of that model.

    Raises:
        KeyError: The output is none of that model.
    """
    value = _value(decoder, output)
    named = _named_values(decoder)
    if value in named:
        return named[value]
    residuals = [(layer.index, branch) for layer in decoder.layers for branch in range(len(layer.residuals))]
    begins = [_value(decoder, decoder.layers[0].entry)]
    begins += [_value(decoder, output) for layer in decoder.layers for output in layer.residuals]
    reached = layer_of_nodes(decoder.graph, begins)[value[0]]
    if reached < 0:
        return Place("before", None, "a value that depends on no layer")
    if reached == len(residuals):
        return Place("behind", None, "a value behind the last layer")
    layer, branch = residuals[reached]
    return Place("inside", layer, f"a value inside {_branch_name(branch)} of layer {layer}")


def _named_values(decoder: Decoder) -> dict[Value, Place]:
    """The values that have a name of their own; where one value has several, the most telling wins."""
    last = len(decoder.layers) - 1
    places: dict[Value, Place] = {}

    def add(output: ov.Output, role: Role, layer: int | None, text: str) -> None:
        places[_value(decoder, output)] = Place(role, layer, text)

    for layer in decoder.layers:
        add(layer.entry, "entry", layer.index, f"the input of layer {layer.index}")
    add(decoder.source, "source", None, "the token values before the first layer")
    for layer in decoder.layers:
        for branch, output in enumerate(layer.residuals):
            text = "the post-attention residual" if branch == 0 else f"the residual after {_branch_name(branch)}"
            add(output, "residual", layer.index, f"{text} of layer {layer.index}")
    for layer in decoder.layers:
        raw = ", before the final norm" if layer.index == last else ""
        add(layer.output, "output", layer.index, f"the output of layer {layer.index}{raw}")
    add(decoder.lm_head.logits, "logits", None, "the logits")
    add(decoder.lm_head.hidden, "hidden", last, "the value that enters lm_head")
    return places


def _branch_name(branch: int) -> str:
    return "the attention branch" if branch == 0 else f"branch {branch + 1}"


def _value(decoder: Decoder, output: ov.Output) -> Value:
    return decoder.graph.index(output.get_node()), output.get_index()
