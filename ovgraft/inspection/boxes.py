"""Layers and tables as boxes of a picture; runs of like layers are one box."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from ovgraft.drafts.contract import Port
from ovgraft.inspection.as_text import around, number, size
from ovgraft.inspection.layout import Symbols
from ovgraft.inspection.sections import direction_text, formats_text, heads_text
from ovgraft.inspection.tree_layers import CheckpointLayer, LayerInfo, TableInfo

_ALIKE = 0.02  # layers whose weights differ less are drawn as one
_LONGEST_PERIOD = 8

Style = Literal["attention", "sliding", "recurrent", "table", "fc", "head", "other"]
TargetTable = Literal["", "embedding", "lm_head"]


@dataclass(frozen=True)
class Box:
    """Something that computes.

    Attributes:
        style: What kind of thing it is.
        title: What it is.
        lines: More about it.
        bytes: Weights in it; of all layers of a folded run together.
        layers: The layers it stands for.
        from_target: ``embedding`` or ``lm_head`` where its weights came from that table of the target.
    """

    style: Style
    title: str
    lines: tuple[str, ...] = ()
    bytes: int = 0
    layers: tuple[int, ...] = ()
    from_target: TargetTable = ""


@dataclass(frozen=True)
class LayerLook:
    """What tells a layer from others in a picture.

    Attributes:
        style: Its colour.
        text: How it mixes.
        more: Which rows of its block a row sees, of a draft, and the element types of its weights.
        takes_states: The states of a target enter it beside what the layer before yields.
        bytes: Its weights.
        main: Bytes in its main format: the first layer often holds a few shape constants more.
    """

    style: Style
    text: str
    more: str
    takes_states: bool
    bytes: int
    main: int


def look_of(layer: LayerInfo, symbols: Symbols) -> LayerLook:
    """The look of a layer of an IR."""
    details = layer.details
    if details is None:
        return LayerLook(layer_style(layer), _kind(layer.kind), "", False, 0, 0)
    parts = [_kind(layer.kind)]
    for found in details.attention:
        parts.append(heads_text(found, symbols))
        if found.window:
            parts.append(f"window {found.window}")
        if found.sinks:
            parts.append("sinks")
        if found.state_layer not in (None, layer.index):
            parts.append("KV of another layer")
    seen = dict.fromkeys(found.bidirectional for found in details.attention if found.bidirectional is not None)
    more = ", ".join([*(f"block {direction_text(each)}" for each in seen), formats_text(details.weights)])
    main = details.weights[0].bytes if details.weights else 0
    states = Port.HIDDEN_STATES in details.inputs
    return LayerLook(layer_style(layer), " ".join(dict.fromkeys(parts)), more, states, details.bytes, main)


def look_of_stored(layer: CheckpointLayer, symbols: Symbols) -> LayerLook:
    """The look of a layer of a checkpoint."""
    parts = [_kind(layer.kind), heads_text(layer, symbols)]
    if layer.window:
        parts.append(f"window {layer.window}")
    more = f"block {direction_text(layer.bidirectional)}, {formats_text(layer.weights)}"
    style: Style = "sliding" if layer.window else "attention"
    return LayerLook(style, " ".join(parts), more, True, layer.bytes, layer.weights[0].bytes)


def layer_style(layer: LayerInfo) -> Style:
    """The colour of a layer."""
    if layer.kind not in ("attention", "attention+convolution"):
        return "recurrent"
    windows = [found.window for found in layer.details.attention] if layer.details else []
    return "sliding" if windows and all(windows) else "attention"


def _kind(kind: str) -> str:
    return kind.replace("_", " ")


def layer_boxes(looks: Sequence[LayerLook], alone: Collection[int], symbols: Symbols) -> list[Box]:
    """Layers, runs of like ones folded.

    Args:
        looks: Of each layer.
        alone: Layers that are not folded with others: somebody reads their output.
        symbols: Characters for the texts.
    """

    def same(i: int, j: int) -> bool:
        one, two = looks[i], looks[j]
        words = (one.text, one.more, one.takes_states) == (two.text, two.more, two.takes_states)
        return words and not {i, j} & set(alone) and abs(one.main - two.main) <= _ALIKE * max(one.main, two.main)

    boxes = []
    at = 0
    while at < len(looks):
        period, times = _fold(at, len(looks), same)
        covered = range(at, at + period * times)
        boxes.append(_run(looks, covered, period, symbols))
        at = covered.stop
    return boxes


def _fold(at: int, stop: int, same: Callable[[int, int], bool]) -> tuple[int, int]:
    """The period and the number of rounds, from ``at``, that cover most; the shortest period of those."""
    best = 1, 1
    for period in range(1, min(_LONGEST_PERIOD, (stop - at) // 2) + 1):
        end = at + period
        while end < stop and same(end - period, end):
            end += 1
        times = (end - at) // period
        if times > 1 and period * times > best[0] * best[1]:
            best = period, times
    return best


def _run(looks: Sequence[LayerLook], covered: range, period: int, symbols: Symbols) -> Box:
    first, last = covered[0], covered[-1]
    each = f"{size(looks[first].bytes)}{' each' if len(covered) > 1 else ''}"
    title = f"layer {first}" if first == last else f"layers {first} {'and' if len(covered) == 2 else 'to'} {last}"
    kinds: list[tuple[int, str]] = []
    for i in covered[:period]:
        text = ", ".join(part for part in (looks[i].text, looks[i].more) if part)
        if kinds and kinds[-1][1] == text:
            kinds[-1] = kinds[-1][0] + 1, text
        else:
            kinds.append((1, text))
    if period > 1:
        lines = [f"{len(covered) // period} {symbols.times} these {period}:"]
        lines += [f"{count} {symbols.times} {text}" if count > 1 else text for count, text in kinds]
        lines.append(each)
    else:
        more = looks[first].more
        lines = [looks[first].text, f"{more}, {each}" if more else each]
    styles = {looks[i].style for i in covered[:period]}
    style: Style = styles.pop() if len(styles) == 1 else "attention" if "attention" in styles else "recurrent"
    return Box(style, title, tuple(lines), sum(looks[i].bytes for i in covered), tuple(covered))


def table_box(title: str, table: TableInfo, symbols: Symbols, from_target: TargetTable = "") -> Box:
    """The embedding or the output layer."""
    lines = [f"{number(table.vocab_size)} {symbols.times} {table.width}, {table.format}, {size(table.bytes)}"]
    if table.tied:
        lines.append("reads the embedding's table")
    lines += around(table)
    if from_target:
        lines.append("weights of the target")
    return Box("table", title, tuple(lines), 0 if table.tied else table.bytes, from_target=from_target)
