"""What a target's output ``last_hidden_state`` is made of."""

from __future__ import annotations

from dataclasses import dataclass

import openvino as ov

from ovgraft import decoder, ir
from ovgraft.drafts.contract import Key
from ovgraft.drafts.records import read_record

Convention = decoder.LayerConvention


@dataclass(frozen=True, eq=False)
class Exposed:
    """The states behind the output, and the projection between, where a draft's FC has moved.

    Attributes:
        states: One output a layer, in the order they are joined.
        joined: All of them side by side.
        weight: The FC's weight; None without one.
    """

    states: tuple[ov.Output, ...]
    joined: ov.Output
    weight: ov.Node | None


def read_exposed(result: ov.Node) -> Exposed:
    """Follow the output up to the states.

    Args:
        result: The Result of ``last_hidden_state``.
    """
    output = result.input_value(0)
    weight: ov.Node | None = None
    while True:
        node = output.get_node()
        kind = node.get_type_name()
        if kind == "Concat":
            return Exposed(tuple(node.input_values()), output, weight)
        if kind not in ("MatMul", "Convert", "Add"):
            return Exposed((output,), output, weight)
        varying = [source for source in node.input_values() if ir.weight_root(source) is None]
        if len(varying) != 1:
            return Exposed((output,), output, weight)
        if kind == "MatMul":
            weight = next(s.get_node() for s in node.input_values() if s.get_node() is not varying[0].get_node())
        output = varying[0]


def recorded_convention(target: ov.Model) -> Convention:
    """How the layers of the record of exposed states count; outputs of layers where nothing says."""
    record = read_record(target, Key.EXPOSED) or {}
    return "input" if record.get("convention") == "input" else "output"


def same_output(a: ov.Output, b: ov.Output) -> bool:
    """Whether two live outputs are one."""
    return a.get_node() is b.get_node() and a.get_index() == b.get_index()
