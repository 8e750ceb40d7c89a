"""Two models compared: nodes, ports, metadata, and the bytes of weights when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import openvino as ov
from blake3 import blake3

from ovgraft import ir
from ovgraft.checks.diff.alignment import Alignment, align
from ovgraft.checks.diff.colors import is_structure
from ovgraft.checks.diff.result import Difference, ModelDiff, WeightDifference
from ovgraft.checks.diff.words import tell
from ovgraft.checks.ports import by_name
from ovgraft.drafts.contract import Key
from ovgraft.ir import progress
from ovgraft.ir.constants import constant_address, constant_bytes
from ovgraft.ir.graph import Graph

_OF_THE_FILE = {Key.BIN_SIZE, Key.BIN_DIGEST}
"""Say how the weights lie in a .bin; what they are is told by the nodes."""

_SHOWN = 60

Status = Callable[[str], None]


def diff_models(
    a: ov.Model, b: ov.Model, *, name: str = "model", weights: bool = False, status: Status = lambda text: None
) -> ModelDiff:
    """Compare two models by structure.

    Friendly names and names of variables do not count, tensor names of inputs and outputs do. Constants count by type
    and shape; small integers and single numbers by value.

    Args:
        a: The one differences are told from.
        b: The other one.
        name: What to call them.
        weights: Also compare the bytes of all constants.
        status: Told what is being done.
    """
    status(f"comparing {name}")
    found = align(Graph(a), Graph(b))
    nodes = tuple(_differences(found))
    ports, metadata = tuple(_ports(a, b)), _metadata(a, b)
    other: tuple[WeightDifference, ...] | None = None
    compared = 0
    if weights:
        status(f"reading the weights of {name}")
        other, compared = _weights(found)
    changed = {(node.kind, node.b.index if node.b else -1) for node in nodes}
    both = [(i, j) for i, j in enumerate(found.to_b) if j >= 0]
    different = {index for kind, index in changed if kind in ("changed", "rewired")}
    return ModelDiff(
        name=name,
        same=sum(j not in different for _, j in both),
        renamed=sum(found.a.names[i] != found.b.names[j] for i, j in both),
        nodes=nodes,
        ports=ports,
        metadata=metadata,
        weights=other,
        compared_bytes=compared,
        words=tuple(tell(found, nodes, ports, metadata, other)),
    )


def _differences(found: Alignment) -> Iterator[Difference]:
    a, b = found.a, found.b
    for i, j in enumerate(found.to_b):
        if j < 0:
            yield Difference("removed", a.ref(i), None)
    for j, i in enumerate(found.to_a):
        if i < 0:
            yield Difference("added", None, b.ref(j))
    relabeled = {i: j for i, j in found.relabeled()}
    for i, j in relabeled.items():
        yield Difference("changed", a.ref(i), b.ref(j), _change(a.nodes[i], b.nodes[j]))
    for i, j, ports in found.rewired():
        if i not in relabeled:
            yield Difference("rewired", a.ref(i), b.ref(j), _rewiring(found, i, j, ports))


def _change(a: ov.Node, b: ov.Node) -> str:
    if a.get_type_name() == "Constant":
        kinds = [
            f"{node.get_output_element_type(0).get_type_name()}{list(node.get_output_shape(0))}" for node in (a, b)
        ]
        if kinds[0] != kinds[1]:
            return f"{kinds[0]} became {kinds[1]}"
        if a.get_output_element_type(0) == ov.Type.string:
            return "other text"
        return f"{_values(a)} became {_values(b)}"
    before, after = a.get_attributes(), b.get_attributes()
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key) and key != "variable_id"]
    said = ", ".join(f"{key} {before.get(key)} became {after.get(key)}" for key in keys)
    return said or "another body"


def _values(constant: ov.Node) -> str:
    text = str(constant.data.tolist())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _rewiring(found: Alignment, i: int, j: int, ports: tuple[int, ...]) -> str:
    parts = []
    for at in ports:
        sources = [graph.inputs[node][at : at + 1] for graph, node in ((found.a, i), (found.b, j))]
        texts = [
            str(graph.ref(source[0][0])) if source else "nothing"
            for graph, source in zip((found.a, found.b), sources, strict=True)
        ]
        parts.append(f"input {at} reads {texts[1]} instead of {texts[0]}")
    return "; ".join(parts)


def _ports(a: ov.Model, b: ov.Model) -> Iterator[str]:
    for what, sides in (("input", (a.inputs, b.inputs)), ("output", (a.outputs, b.outputs))):
        left, right = (by_name(ports) for ports in sides)
        for name in [name for name in left if name not in right]:
            yield f"{what} {name} removed"
        for name in [name for name in right if name not in left]:
            yield f"{what} {name} added: {_kind(right[name])}"
        shared = [name for name in left if name in right]
        for name in shared:
            kinds = _kind(left[name]), _kind(right[name])
            if kinds[0] != kinds[1]:
                yield f"{what} {name} is {kinds[1]} instead of {kinds[0]}"
            elif left[name].names != right[name].names:
                names = [", ".join(sorted(ports[name].names)) for ports in (left, right)]
                yield f"{what} {name} is called {names[1]} instead of {names[0]}"
        if shared != [name for name in right if name in left]:
            yield f"{what}s are in another order"


def _kind(port: ov.Output) -> str:
    return f"{port.get_element_type().get_type_name()} {port.get_partial_shape()}"


def _metadata(a: ov.Model, b: ov.Model) -> dict[str, tuple[str | None, str | None]]:
    left, right = ir.flatten(a), ir.flatten(b)
    paths = sorted(path for path in left.keys() | right.keys() if path not in _OF_THE_FILE)
    values = {"/".join(path): (left.get(path), right.get(path)) for path in paths}
    return {path: (before, after) for path, (before, after) in values.items() if before != after}


def _weights(found: Alignment) -> tuple[tuple[WeightDifference, ...], int]:
    """Constants of one type and shape with other bytes, and how many bytes were looked at."""
    different, compared = [], 0
    total = sum(found.a.nodes[i].get_byte_size() for i in found.a.find("Constant"))
    for i, j in enumerate(found.to_b):
        if j < 0 or found.a.types[i] != "Constant" or found.colors_a.label[i] != found.colors_b.label[j]:
            continue
        a, b = found.a.nodes[i], found.b.nodes[j]
        if is_structure(a) or a.get_output_element_type(0) == ov.Type.string:
            continue
        progress.advance(compared, total, unit="B")
        compared += a.get_byte_size()
        if constant_address(a.data) == constant_address(b.data):
            continue
        contents = constant_bytes(a), constant_bytes(b)
        if not np.array_equal(*contents):  # a quarter of the time of two digests
            digests = [blake3(content.data).hexdigest() for content in contents]
            different.append(WeightDifference(found.a.ref(i), found.b.ref(j), a.get_byte_size(), *digests))
    return tuple(different), compared
