"""The graft picture as data: two strips of boxes, what leads from one to the other, and nothing about drawing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ovgraft.drafts.contract import Key, RtPath
from ovgraft.inspection.as_text import number, size
from ovgraft.inspection.layout import Symbols
from ovgraft.inspection.sections import formats_text, heads_text
from ovgraft.inspection.tree import Inspection, LayerInfo, ModelInfo, PackageInfo, TableInfo

_ALIKE = 0.02  # layers whose weights differ less are drawn as one
_LONGEST_PERIOD = 8
_DRAFTS = ("dflash draft", "eagle3 draft")


@dataclass(frozen=True)
class Box:
    """Something that computes.

    Attributes:
        style: ``attention``, ``sliding``, ``recurrent``, ``table``, ``fc`` or ``other``.
        title: What it is.
        lines: More about it.
        bytes: Weights in it; of all layers of a folded run together.
        layers: The layers it stands for.
        from_target: Its weights came from the target, or for an FC: it works there.
    """

    style: str
    title: str
    lines: tuple[str, ...] = ()
    bytes: int = 0
    layers: tuple[int, ...] = ()
    from_target: bool = False


@dataclass(frozen=True)
class Strip:
    """One model, in the order data runs through it.

    Attributes:
        name: What to call it.
        about: Sizes in words.
        boxes: First to last.
        bytes: All its weights.
    """

    name: str
    about: str
    boxes: tuple[Box, ...]
    bytes: int


@dataclass(frozen=True)
class Picture:
    """A target, its draft, and what joins them.

    Attributes:
        target: None when only a draft is there.
        draft: None when only a target is there.
        taps: Boxes of the target whose outputs the draft reads, in order; -1 is what enters the first box.
        tap_text: What is read, in words.
        exposed: The target has the output that carries them; else the draft merely asks for it.
        fc: The projection of the joined states, where it works in the target; one in the draft is its first box.
        entry: The box of the draft that takes the states.
        notes: What does not fit, or could not be drawn.
    """

    target: Strip | None
    draft: Strip | None
    taps: tuple[int, ...] = ()
    tap_text: str = ""
    exposed: bool = False
    fc: Box | None = None
    entry: int = 0
    notes: tuple[str, ...] = field(default=())


def picture(inspection: Inspection, symbols: Symbols) -> Picture | None:
    """What there is to draw: the decoder and the draft among the models; None without either.

    Args:
        inspection: Collected with layers and weights.
        symbols: Characters for the texts.
    """
    target = _first(inspection, ("decoder",))
    draft = _first(inspection, _DRAFTS)
    if target is None and draft is None:
        return None
    exposed = _record(target[1], Key.EXPOSED) if target else None
    wanted = _wanted_layers(draft[1]) if draft else ()
    ids = _numbers(exposed.get("layers")) if exposed else wanted
    convention = str(exposed.get("convention", "output")) if exposed else "output"
    notes = []
    if exposed and wanted and tuple(wanted) != tuple(ids):
        notes.append(f"the target exposes layers {_list(ids)}, the draft reads {_list(wanted)}")
    target_strip = draft_strip = None
    taps: tuple[int, ...] = ()
    if target:
        after = [i - 1 if convention == "input" else i for i in ids]
        target_strip = _target_strip(*target, set(after), symbols)
        known = [i for i in after if -1 <= i < len(target[1].layers)]
        taps = tuple(_box_of(target_strip.boxes, i) for i in known)
        if len(known) < len(after):
            notes.append(f"layers {_list(ids)} are not all among the {len(target[1].layers)} layers of the target")
    word = "inputs" if convention == "input" else "outputs"
    text = f"{word} of {_list(ids)}" if ids else ""
    entry = 0
    if draft:
        said = f"reads the {word} of target layers {_list(ids)}" if ids and not target else ""
        draft_strip = _draft_strip(*draft, said, symbols)
        entry = next(i for i, box in enumerate(draft_strip.boxes) if box.style in ("fc", "attention"))
        if not ids:
            notes.append("which layers the draft reads is not said")
    fc = _moved_fc(target[1], symbols) if target else None
    return Picture(target_strip, draft_strip, taps, text, exposed is not None, fc, entry, tuple(notes))


def _first(inspection: Inspection, kinds: Sequence[str]) -> tuple[PackageInfo, ModelInfo] | None:
    for package in inspection.packages:
        for model in package.models:
            if model.kind in kinds:
                return package, model
    return None


def _target_strip(package: PackageInfo, model: ModelInfo, tapped: set[int], symbols: Symbols) -> Strip:
    boxes = []
    if model.embedding is not None:
        boxes.append(_table_box("embedding", model.embedding, symbols))
    elif model.layers:
        boxes.append(Box("other", "inputs_embeds", ("token values come from another model",)))
    boxes += _layer_boxes(model.layers, tapped, symbols)
    if not model.layers:
        boxes.append(Box("other", "layers", ("not told by the structure",)))
    if model.lm_head is not None:
        boxes.append(_table_box("final norm, lm_head", model.lm_head, symbols))
    return _strip(package, model, boxes, symbols)


def _draft_strip(package: PackageInfo, model: ModelInfo, reads: str, symbols: Symbols) -> Strip:
    applied = _record(model, Key.APPLIED) or {}
    boxes = []
    fc = next((fact.value for fact in model.draft if fact.name == "FC" and "->" in fact.value), "")
    if fc:
        boxes.append(Box("fc", "FC", (fc.replace("->", symbols.arrow), *([reads] if reads else []))))
    if model.embedding is not None:
        boxes.append(_table_box("embedding", model.embedding, symbols, from_target="embedding" in applied))
    else:
        boxes.append(Box("other", "inputs_embeds", ("rows of the target's table",)))
    mixers = sum(model.attention.values())
    facts = {fact.name: fact.value for fact in model.draft}
    lines = [f"{mixers} {symbols.times} {'attention' if mixers else 'layer'}"]
    lines += [f"{name} {facts[name]}" for name in ("block size", "mask token", "head type") if name in facts]
    tables = sum(table.bytes for table in (model.embedding, model.lm_head) if table and not table.tied)
    weights = sum(entry.bytes for entry in model.weights) - tables
    lines.append(f"{formats_text(model.weights)}, {size(max(weights, 0))}")
    boxes.append(Box("attention", "draft layers", tuple(lines), max(weights, 0)))
    if model.lm_head is not None:
        boxes.append(_table_box("norm, lm_head", model.lm_head, symbols, from_target="lm_head" in applied))
    else:
        boxes.append(Box("other", "last_hidden_state", ("goes through the target's lm_head",)))
    return _strip(package, model, boxes, symbols)


def _strip(package: PackageInfo, model: ModelInfo, boxes: Sequence[Box], symbols: Symbols) -> Strip:
    total = sum(entry.bytes for entry in model.weights)
    about = [f"{len(model.layers)} layers"] if model.layers else []
    about += [f"{number(model.ops)} ops", size(total)]
    name = package.name if package.role in ("", package.name) else f"{package.role} {package.name}"
    return Strip(f"{name} ({model.kind})", f" {symbols.dot} ".join(about), tuple(boxes), total)


def _table_box(title: str, table: TableInfo, symbols: Symbols, *, from_target: bool = False) -> Box:
    lines = [f"{number(table.vocab_size)} {symbols.times} {table.width}, {table.format}, {size(table.bytes)}"]
    if table.tied:
        lines.append("reads the embedding's table")
    if table.scale is not None:
        lines.append(f"scaled by {table.scale:g}")
    if table.extras:
        lines.append(f"then {', '.join(table.extras)}")
    if from_target:
        lines.append("weights of the target")
    return Box("table", title, tuple(lines), 0 if table.tied else table.bytes, from_target=from_target)


def _layer_boxes(layers: Sequence[LayerInfo], tapped: set[int], symbols: Symbols) -> list[Box]:
    """Layers, runs of like ones folded; one whose output is read stands alone."""
    words = [_words(layer, symbols) for layer in layers]
    sizes = [layer.details.bytes if layer.details else 0 for layer in layers]
    # the first layer often holds a few shape constants more
    main = [layer.details.weights[0].bytes if layer.details and layer.details.weights else 0 for layer in layers]

    def same(i: int, j: int) -> bool:
        alike = words[i] == words[j] and not tapped & {i, j}
        return alike and abs(main[i] - main[j]) <= _ALIKE * max(main[i], main[j])

    boxes = []
    at = 0
    while at < len(layers):
        period, times = _fold(at, len(layers), same)
        covered = range(at, at + period * times)
        boxes.append(_run(layers, words, sizes, covered, period, symbols))
        at = covered.stop
    return boxes


def _fold(at: int, stop: int, same: Any) -> tuple[int, int]:
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


def _run(
    layers: Sequence[LayerInfo],
    words: Sequence[tuple[str, str]],
    sizes: Sequence[int],
    covered: range,
    period: int,
    symbols: Symbols,
) -> Box:
    first, last = covered[0], covered[-1]
    times = len(covered) // period
    each = f"{size(sizes[first])}{' each' if len(covered) > 1 else ''}"
    title = f"layer {first}" if first == last else f"layers {first} to {last}"
    kinds: list[list[Any]] = []
    for i in covered[:period]:
        if kinds and kinds[-1][1] == words[i]:
            kinds[-1][0] += 1
        else:
            kinds.append([1, words[i]])
    if period > 1:
        lines = [f"{times} {symbols.times} these {period}:"]
        lines += [
            f"{count} {symbols.times} {text}, {formats}" if count > 1 else f"{text}, {formats}"
            for count, (text, formats) in kinds
        ]
        lines.append(each)
    else:
        text, formats = words[first]
        lines = [text, f"{formats}, {each}" if formats else each]
    styles = {_style(layers[i]) for i in covered[:period]}
    style = styles.pop() if len(styles) == 1 else "attention" if "attention" in styles else "recurrent"
    return Box(style, title, tuple(lines), sum(sizes[i] for i in covered), tuple(covered))


def _style(layer: LayerInfo) -> str:
    if layer.kind != "attention":
        return "recurrent"
    windows = [found.window for found in layer.details.attention] if layer.details else []
    return "sliding" if windows and all(windows) else "attention"


def _words(layer: LayerInfo, symbols: Symbols) -> tuple[str, str]:
    """How it mixes, and its formats."""
    if layer.details is None:
        return layer.kind, ""
    parts = [layer.kind.replace("_", " ")]
    for found in layer.details.attention:
        parts.append(heads_text(found, symbols))
        if found.window:
            parts.append(f"window {found.window}")
        if found.sinks:
            parts.append("sinks")
        if found.state_layer not in (None, layer.index):
            parts.append("KV of another layer")
    return " ".join(dict.fromkeys(parts)), formats_text(layer.details.weights)


def _box_of(boxes: Sequence[Box], layer: int) -> int:
    """The box whose output is the output of a layer; the one before the first layer for -1."""
    first = next((i for i, box in enumerate(boxes) if box.layers), 0)
    return next((i for i, box in enumerate(boxes) if layer in box.layers), first - 1)


def _moved_fc(target: ModelInfo, symbols: Symbols) -> Box | None:
    """The FC that was moved into the target."""
    moved = _record(target, Key.MOVED_FC)
    if not moved:
        return None
    weights = sum(part.bytes for part in target.parts if part.part == "outputs")
    widths = f"{moved.get('in_width', '?')} {symbols.arrow} {moved.get('out_width', '?')}"
    lines = (widths, *([size(weights)] if weights else []), "moved into the target")
    return Box("fc", "FC", lines, weights, from_target=True)


def _wanted_layers(draft: ModelInfo) -> tuple[int, ...]:
    said = next((fact.value for fact in draft.draft if fact.name == "target layers"), "")
    return tuple(int(word) for word in said.split(", ") if word.isdecimal())


def _record(model: ModelInfo, key: RtPath) -> dict[str, Any] | None:
    """A JSON record of ours in the metadata; anybody may have written there, so anything else is none."""
    try:
        record = json.loads(model.rt_info.get("/".join(key), ""))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _numbers(value: Any) -> tuple[int, ...]:
    return tuple(entry for entry in value if isinstance(entry, int)) if isinstance(value, list) else ()


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
