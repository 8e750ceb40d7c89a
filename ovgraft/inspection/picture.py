"""The graft picture as data: two strips of boxes, what leads from one to the other, and nothing about drawing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ovgraft.drafts.contract import Key, RtPath
from ovgraft.drafts.spec import EMBEDDING_OUTPUT, HeadType
from ovgraft.inspection.as_text import layer_count, number, size
from ovgraft.inspection.boxes import Box, TargetTable, layer_boxes, look_of, look_of_stored, table_box
from ovgraft.inspection.layout import Symbols
from ovgraft.inspection.structure import DRAFTS
from ovgraft.inspection.tree import CheckpointInfo, Inspection, ModelInfo, PackageInfo


@dataclass(frozen=True)
class Strip:
    """One model, in the order data runs through it.

    Attributes:
        name: What to call it.
        about: Sizes in words.
        boxes: First to last.
        bytes: All its weights.
        side: Of a draft: the box the target's states come through, which is no step of the way through the others.
        entries: Of a draft: the boxes these states enter.
    """

    name: str
    about: str
    boxes: tuple[Box, ...]
    bytes: int
    side: int | None = None
    entries: tuple[int, ...] = ()


@dataclass(frozen=True)
class Picture:
    """A target, its draft, and what joins them.

    Attributes:
        target: None when only a draft is there.
        draft: None when only a target is there.
        taps: Boxes of the target whose outputs the draft reads, in order; -1 is what enters the first box.
        tap_text: What is read, in words.
        exposed: The target has the output that carries them; else the draft merely asks for it.
        fc: The projection of the joined states, where it works in the target; one in the draft is a box there.
        notes: What does not fit, or could not be drawn.
    """

    target: Strip | None
    draft: Strip | None
    taps: tuple[int, ...] = ()
    tap_text: str = ""
    exposed: bool = False
    fc: Box | None = None
    notes: tuple[str, ...] = ()


def picture(inspection: Inspection, symbols: Symbols) -> Picture | None:
    """What there is to draw: the decoder and the draft among the models; None without either.

    Args:
        inspection: Collected with layers and weights.
        symbols: Characters for the texts.
    """
    target = _first(inspection, ("decoder",))
    draft = _first(inspection, DRAFTS)
    stored = next((package for package in inspection.packages if package.checkpoint is not None), None)
    if target is None and draft is None and stored is None:
        return None
    exposed = _record(target[1], Key.EXPOSED) if target else None
    wanted = _wanted_layers(draft[1]) if draft else _stored_layers(stored)
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
    said = f"reads the {word} of target layers {_list(ids)}" if ids and not target else ""
    if draft:
        draft_strip = _draft_strip(*draft, said, symbols, alone=target is None)
    elif stored is not None and stored.checkpoint is not None:
        draft_strip = _stored_strip(stored, stored.checkpoint, said, symbols)
    if draft_strip is not None and not ids:
        notes.append("which layers the draft reads is not said")
    fc = _moved_fc(target[1], symbols) if target else None
    return Picture(target_strip, draft_strip, taps, text, exposed is not None, fc, tuple(notes))


def _first(inspection: Inspection, kinds: Sequence[str]) -> tuple[PackageInfo, ModelInfo] | None:
    for package in inspection.packages:
        for model in package.models:
            if model.kind in kinds:
                return package, model
    return None


def _target_strip(package: PackageInfo, model: ModelInfo, tapped: set[int], symbols: Symbols) -> Strip:
    boxes = []
    if model.embedding is not None:
        boxes.append(table_box("embedding", model.embedding, symbols))
    elif model.layers:
        boxes.append(Box("other", "inputs_embeds", ("token values come from another model",)))
    boxes += layer_boxes([look_of(layer, symbols) for layer in model.layers], tapped, symbols)
    if not model.layers:
        boxes.append(Box("other", "layers", ("not told by the structure",)))
    if model.lm_head is not None:
        boxes.append(table_box("final norm, lm_head", model.lm_head, symbols))
    return _strip(package, model, boxes, symbols)


def _draft_strip(package: PackageInfo, model: ModelInfo, reads: str, symbols: Symbols, *, alone: bool) -> Strip:
    applied = _record(model, Key.APPLIED) or {}
    facts = {fact.name: fact.value for fact in model.draft}
    said = [reads] if reads else []
    boxes = []
    if model.fc is not None:
        widths = f"{model.fc.in_width} {symbols.arrow} {model.fc.out_width}, {model.fc.format}"
        boxes.append(Box("fc", "FC", (widths, size(model.fc.bytes), *said), model.fc.bytes))
    elif alone:
        boxes.append(Box("other", "hidden_states", ("projected by the target",) if _is_moved(model) else tuple(said)))
    block = _block_words({name: facts.get(name) for name in ("block size", "mask token")}, symbols)
    if model.embedding is not None:
        box = table_box("embedding", model.embedding, symbols, "embedding" if "embedding" in applied else "")
        boxes.append(replace(box, lines=(*box.lines, *block)))
    else:
        boxes.append(Box("other", "inputs_embeds", ("rows of the target's table", *block)))
    side = 0 if len(boxes) > 1 else None
    looks = [look_of(layer, symbols) for layer in model.layers]
    layers = layer_boxes(looks, (), symbols)
    if not layers:
        layers = [Box("other", "layers", ("not told by the structure",))]
    entries = [len(boxes) + i for i, box in enumerate(layers) if not box.layers or looks[box.layers[0]].takes_states]
    boxes += layers
    if model.lm_head is not None:
        attached: TargetTable = "lm_head" if "lm_head" in applied else ""
        boxes.append(table_box("norm, lm_head", model.lm_head, symbols, attached))
    else:
        boxes.append(Box("other", "last_hidden_state", ("goes through the target's lm_head",)))
    if "head type" in facts:
        boxes.append(_head_box(package, facts, symbols))
    return replace(_strip(package, model, boxes, symbols), side=side, entries=tuple(entries))


def _is_moved(model: ModelInfo) -> bool:
    return _record(model, Key.MOVED_FC) is not None


def _block_words(facts: Mapping[str, Any], symbols: Symbols) -> list[str]:
    said = [f"{name} {value}" for name, value in facts.items() if value is not None]
    return [f" {symbols.dot} ".join(said)] if said else []


def _head_box(package: PackageInfo, facts: Mapping[str, str], symbols: Symbols) -> Box:
    """The Markov head, a model of its own beside the draft."""
    head = next((model for model in package.models if model.kind == "markov head"), None)
    weights = sum(entry.bytes for entry in head.weights) if head is not None else 0
    rank = [f"rank {facts['head rank']}"] if "head rank" in facts else []
    lines = (", ".join([facts["head type"], *rank]), size(weights) if head is not None else "not in this package")
    return Box("head", _head_title(facts["head type"]), lines, weights)


def _head_title(kind: str) -> str:
    return "candidate selector" if kind == HeadType.DFLASH2 else "Markov head"


def _stored_strip(package: PackageInfo, checkpoint: CheckpointInfo, reads: str, symbols: Symbols) -> Strip:
    """A checkpoint, drawn as the draft that build-draft makes of it."""
    spec, parts = checkpoint.spec, {part.part: part for part in checkpoint.parts}

    def stored(style: Any, title: str, part: str, *lines: str) -> Box:
        found = parts.get(part)
        return Box(style, title, (*lines, *([size(found.bytes)] if found else [])), found.bytes if found else 0)

    backbone, vocabulary, head = spec["backbone"], spec["vocabulary"], spec["head"]
    width = backbone["hidden_size"]
    widths = f"{len(spec['layer_ids']) * backbone['target_hidden_size']} {symbols.arrow} {width}"
    boxes = [stored("fc", "FC", "fc", widths, *([reads] if reads else []))]
    block = _block_words({"block size": spec["block_size"], "mask token": spec["mask_token_id"]}, symbols)
    if spec["own_embedding"]:
        rows = f"{number(vocabulary['size'])} {symbols.times} {width}"
        boxes.append(stored("table", "embedding", "embedding", rows, *block))
    else:
        boxes.append(Box("other", "inputs_embeds", ("rows of the target's table", *block)))
    layers = layer_boxes([look_of_stored(layer, symbols) for layer in checkpoint.layers], (), symbols)
    entries = tuple(range(len(boxes), len(boxes) + len(layers)))
    boxes += layers
    if spec["own_lm_head"]:
        rows = f"{number(vocabulary['draft_size'])} {symbols.times} {width}"
        boxes.append(stored("table", "norm, lm_head", "lm_head", rows))
    else:
        boxes.append(Box("other", "last_hidden_state", ("goes through the target's lm_head",)))
    if head["type"] != "none":
        part = "candidate selector" if "candidate selector" in parts else "markov head"
        boxes.append(stored("head", _head_title(head["type"]), part, f"{head['type']}, rank {head['rank']}"))
    total = sum(entry.bytes for entry in checkpoint.weights)
    about = f" {symbols.dot} ".join([layer_count(len(checkpoint.layers)), size(total)])
    return Strip(f"{_name(package)} (draft checkpoint)", about, tuple(boxes), total, 0, entries)


def _strip(package: PackageInfo, model: ModelInfo, boxes: Sequence[Box], symbols: Symbols) -> Strip:
    total = sum(entry.bytes for entry in model.weights)
    about = [layer_count(len(model.layers))] if model.layers else []
    about += [f"{number(model.ops)} ops", size(total)]
    return Strip(f"{_name(package)} ({model.title})", f" {symbols.dot} ".join(about), tuple(boxes), total)


def _name(package: PackageInfo) -> str:
    return package.name if package.role in ("", package.name) else f"{package.role} {package.name}"


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
    return Box("fc", "FC", lines, weights)


def _wanted_layers(draft: ModelInfo) -> tuple[int, ...]:
    said = next((fact.value for fact in draft.draft if fact.name == "target layers"), "")
    return tuple(int(word) for word in said.split(", ") if word.removeprefix("-").isdecimal())


def _stored_layers(package: PackageInfo | None) -> tuple[int, ...]:
    """What a checkpoint reads, as outputs of layers; the embedding's output is layer -1."""
    if package is None or package.checkpoint is None:
        return ()
    return tuple(package.checkpoint.spec["layer_ids"])


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
    return ", ".join("embedding" if number == EMBEDDING_OUTPUT else str(number) for number in numbers)
