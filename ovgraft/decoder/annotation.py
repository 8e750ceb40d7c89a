"""The exporter's record of layer outputs, rt_info ``hidden_states_decoder_layers``: read, write and check it.

OpenVINO GenAI looks a layer's producer up by friendly name and wants exactly one live node of that name.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import openvino as ov

from ovgraft.decoder.places import describe_output
from ovgraft.decoder.types import Decoder
from ovgraft.drafts.contract import Key
from ovgraft.errors import PreconditionError, Reason
from ovgraft.ir.rtinfo import get_text
from ovgraft.noderef import NodeRef

_NAME = "/".join(Key.HIDDEN_STATES_DECODER_LAYERS)
_NUMBER = re.compile(r"(?<![A-Za-z])(?:layers?|blocks?|h)[._]?(\d+)")
_HINT = "annotate-hidden-states{replace=true} rewrites it"


def annotation_text(decoder: Decoder) -> str:
    """The record in the exporter's exact form; the last layer's entry is what enters lm_head.

    Raises:
        PreconditionError: A friendly name it would have to write is borne by several nodes, or empty. Renaming is not
            done here: a name may be what another tool, or a record elsewhere, finds the node by.
    """
    count = Counter(decoder.graph.names)
    layers: dict[str, dict[str, object]] = {}
    reasons: list[Reason] = []
    for layer in decoder.layers:
        output = decoder.hidden_state(layer.index)
        index = decoder.graph.index(output.get_node())
        name = decoder.graph.names[index]
        if count[name] != 1 or not name:
            text = f"layer {layer.index}: the friendly name of its output is borne by {count[name]} nodes"
            reasons.append(Reason("ambiguous-producer", text, (decoder.graph.ref(index),)))
        layers[str(layer.index)] = {"producer": name, "output_index": output.get_index()}
    if reasons:
        raise PreconditionError(
            "the outputs of layers cannot be named: friendly names repeat",
            reasons=tuple(reasons),
            hint="give these nodes names of their own",
        )
    return json.dumps({"layers": layers}, separators=(",", ":"))


def parse_annotation(text: str) -> dict[int, tuple[str, int]]:
    """Read the record: layer -> (friendly name of the producer, its output port), in layer order.

    Raises:
        PreconditionError: It is not of the exporter's form: bad JSON, missing keys, layer ids that are no whole
            numbers, repeat, or leave gaps, producers or ports of the wrong type.
    """
    try:
        data = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _malformed(f"not valid JSON ({error})", found=_shortened(text)) from None
    if not isinstance(data, dict) or not isinstance(data.get("layers"), dict):
        raise _malformed("no object 'layers' in it", found=_shortened(text))
    entries: dict[int, tuple[str, int]] = {}
    for key, entry in data["layers"].items():
        if not key.isascii() or not key.isdigit() or key != str(int(key)):
            raise _malformed("a layer id is no whole number", found=repr(key))
        entries[int(key)] = _entry(key, entry)
    missing = sorted(set(range(max(entries, default=0) + 1)) - entries.keys())
    if missing:
        raise _malformed(f"no entry for layer {', '.join(map(str, missing))}", found=f"layers {sorted(entries)}")
    return dict(sorted(entries.items()))


def resolve_annotation(model: ov.Model) -> tuple[ov.Output, ...]:
    """The outputs that the model's record names, by the rule of OpenVINO GenAI: exactly one live node of each name.

    Raises:
        PreconditionError: There is no record, it is malformed, or a producer is absent or ambiguous.
    """
    entries = parse_annotation(_text(model))
    by_name: dict[str, list[tuple[int, ov.Node]]] = {producer: [] for producer, _ in entries.values()}
    for index, node in enumerate(model.get_ordered_ops()):
        if (name := node.get_friendly_name()) in by_name:
            by_name[name].append((index, node))
    outputs: list[ov.Output] = []
    reasons: list[Reason] = []
    for i, (producer, port) in entries.items():
        nodes = by_name[producer]
        refs = tuple(NodeRef(producer, node.get_type_name(), index) for index, node in nodes)
        if not nodes:
            reasons.append(Reason("no-producer", f"layer {i}: no node is named '{producer}'"))
        elif len(nodes) > 1:
            text = f"layer {i}: {len(nodes)} nodes are named '{producer}'"
            reasons.append(Reason("ambiguous-producer", text, refs))
        elif port >= nodes[0][1].get_output_size():
            reasons.append(Reason("no-producer", f"layer {i}: producer '{producer}' has no output {port}", refs))
        else:
            outputs.append(nodes[0][1].output(port))
    if reasons:
        raise _wrong(reasons)
    return tuple(outputs)


def check_annotation(model: ov.Model, decoder: Decoder) -> tuple[ov.Output, ...]:
    """Resolve the model's record and compare it with the structure.

    Args:
        model: The annotated model.
        decoder: The same model, read.

    Returns:
        The output of each layer, in order: ``decoder.hidden_state(i)``.

    Raises:
        PreconditionError: There is no record, it is malformed, a producer is absent or ambiguous, or the record says
            other than the structure; one reason for each layer that is wrong.
    """
    graph = decoder.graph
    outputs = resolve_annotation(model)
    if len(outputs) != len(decoder.layers):
        raise PreconditionError(
            f"{_NAME} disagrees with the structure",
            expected=f"{len(decoder.layers)} layers",
            found=f"{len(outputs)} layers",
            hint=_HINT,
        )
    reasons: list[Reason] = []
    for i, output in enumerate(outputs):
        node, right = graph.index(output.get_node()), decoder.hidden_state(i)
        right_node = graph.index(right.get_node())
        if (node, output.get_index()) != (right_node, right.get_index()):
            text = (
                f"layer {i}: producer '{graph.names[node]}' is {describe_output(decoder, output)}, "
                f"shape {output.get_partial_shape()}; the structure says '{graph.names[right_node]}'"
            )
            reasons.append(Reason("wrong-producer", text, (graph.ref(node),)))
    if reasons:
        raise _wrong(reasons)
    return outputs


def configured_layer_count(config: Mapping[str, Any]) -> int | None:
    """Number of decoder layers that a ``config.json`` speaks of, of its text part if it has one; None if it doesn't."""
    for part in (config.get("text_config"), config.get("llm_config"), config):
        if isinstance(part, Mapping):
            for key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
                count = part.get(key)
                if isinstance(count, int) and not isinstance(count, bool):
                    return count
    return None


def numbers_in_names(decoder: Decoder) -> tuple[int | None, ...]:
    """The number behind ``layers``, ``h`` or ``blocks`` in the name of each layer's raw output: a second opinion.

    None where the name has no such number. Names are what an exporter chose; the structure does not depend on them.
    """
    matches = (_NUMBER.search(layer.output.get_node().get_friendly_name()) for layer in decoder.layers)
    return tuple(int(match[1]) if match else None for match in matches)


def _text(model: ov.Model) -> str:
    key = list(Key.HIDDEN_STATES_DECODER_LAYERS)
    if not model.has_rt_info(key):
        raise PreconditionError(f"the model has no {_NAME}", hint="annotate-hidden-states writes it")
    text = get_text(model, Key.HIDDEN_STATES_DECODER_LAYERS)
    if text is None:
        raise _malformed("not text but a tree of rt_info entries", found="a tree")
    return text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"key '{repeated}' repeats")
    return data


def _entry(key: str, entry: object) -> tuple[str, int]:
    if not isinstance(entry, dict):
        raise _malformed(f"layer {key} is no object", found=repr(entry))
    producer, port = entry.get("producer"), entry.get("output_index")
    if not isinstance(producer, str):
        raise _malformed(f"layer {key} has no text 'producer'", found=json.dumps(entry))
    if not isinstance(port, int) or isinstance(port, bool) or port < 0:
        raise _malformed(
            f"layer {key}, producer '{producer}': 'output_index' is no port number", found=json.dumps(port)
        )
    return producer, port


def _malformed(what: str, *, found: str) -> PreconditionError:
    return PreconditionError(
        f"{_NAME} is malformed: {what}",
        found=found,
        hint=_HINT,
    )


def _wrong(reasons: list[Reason]) -> PreconditionError:
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    message = f"{_NAME} is wrong: {reasons[0].message}{more}"
    return PreconditionError(message, reasons=tuple(reasons), hint=_HINT)


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
