"""Other ways to read a pair: each is one mistake that lets a draft run and have nothing accepted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovgraft import decoder, drafts, ir, passes
from ovgraft.checks.doctor.configs import json_object
from ovgraft.checks.doctor.facts import PairFacts
from ovgraft.checks.doctor.offset import cut_rows
from ovgraft.checks.draft_side import AS_SAID, Reading
from ovgraft.checks.exposed import recorded_convention
from ovgraft.checks.grafts import graft_of
from ovgraft.checks.pair import EMBEDDING_OUTPUT, Taps
from ovgraft.checks.speculate import rows_cut
from ovgraft.drafts.contract import Key, Port
from ovgraft.errors import OvgraftError
from ovgraft.graft import Graft, Package
from ovgraft.passbase import Context

_MOST_TOKENS = 8
"""Mask tokens that are tried."""

_SPECIAL = ("mask_token_id", "pad_token_id", "eos_token_id", "bos_token_id", "unk_token_id")
_SHIFTS = {1: "one further up", -1: "one further down", 2: "two further up", -2: "two further down"}
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


@dataclass(frozen=True)
class Other:
    """One other way to read a pair.

    Attributes:
        code: What would be wrong if this one is right.
        what: In words: ``with ...: N tokens per step``.
        taps: Other states; None keeps those.
        reading: Other values around the draft.
        graft: Another draft; None keeps this one.
    """

    code: str
    what: str
    taps: Taps | None = None
    reading: Reading = field(default=AS_SAID)
    graft: Graft | None = None


def other_layers(layers: tuple[int, ...], count: int, family: str) -> Iterator[Other]:
    """The same number of states by other conventions, in other orders, and where layers are guessed from the depth.

    Args:
        layers: Output-of-layer ids.
        count: Layers of the target.
        family: Of the draft.
    """
    seen = {layers}
    for code, what, ids in _layer_lists(layers, count, family):
        if ids not in seen and all(EMBEDDING_OUTPUT <= layer < count for layer in ids):
            seen.add(ids)
            yield Other(code, f"layers {', '.join(map(str, ids))}, {what}", Taps(ids))
    if count - 1 in layers:
        yield Other("wrong-layer", "the last layer before its norm", Taps(layers, raw_last=True))


def _layer_lists(layers: tuple[int, ...], count: int, family: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    if len(layers) > 1:
        yield "wrong-order", "in reverse order", layers[::-1]
        yield "wrong-order", "in rising order", tuple(sorted(layers))
    for shift, words in _SHIFTS.items():
        yield "wrong-layer", words, tuple(layer + shift for layer in layers)
    default = drafts.eagle3_default_layers(count)
    if family == "eagle3" and default is not None and len(layers) == len(default):
        yield "wrong-layer", "the default of Eagle-3", default
        yield "wrong-layer", "the default of Eagle-3 by inputs", tuple(layer - 1 for layer in default)
    elif family != "eagle3" and len(layers) > 1:
        step = (count - 4) / (len(layers) - 1)
        yield "wrong-layer", "spaced as z-lab's trainer does", tuple(round(1 + i * step) for i in range(len(layers)))


def other_values(graft: Graft, pair: PairFacts) -> Iterator[Other]:
    """Another scale, mask token, token map, row offset, embedding or output layer."""
    draft = drafts.read_draft(graft.package("draft"))
    if pair.draft.family != "eagle3" and (other := _other_offset(graft)) is not None:
        offset = rows_cut(draft)
        yield Other("wrong-offset", f"candidate offset {1 - offset} instead of {offset}", graft=other)
    if drafts.find_input(draft.model, Port.INPUTS_EMBEDS) is not None:
        factors = (pair.embedding.scale, 1.0, float(pair.embedding.width) ** 0.5)
        for factor in dict.fromkeys(factor for factor in factors if factor not in (None, draft.input_embedding_scale)):
            yield Other("wrong-scale", f"embedding rows times {factor:g}", reading=Reading(embedding_scale=factor))
    if draft.mask_token_id is not None:
        for token, name in _mask_tokens(graft, pair, draft.mask_token_id):
            yield Other("wrong-mask-token", f"mask token {token} ({name})", reading=Reading(mask_token_id=token))
    if draft.d2t is not None:
        yield from _other_maps(draft.d2t, pair.structure.lm_head.vocab_size)
    if (table := _with_target_table(graft, pair, draft)) is not None:
        yield Other("wrong-embedding", "the target's embedding", graft=table)
    if (head := _with_target_head(graft, pair, draft)) is not None:
        yield Other("wrong-lm-head", "the target's output layer", graft=head)


def _other_maps(offsets: NDArray[np.int64], vocab_size: int) -> Iterator[Other]:
    """A d2t read as ids, left out, or one row off."""
    own = np.arange(len(offsets))
    ids = offsets + own
    readings = {
        "d2t read as target ids": offsets,
        "d2t left out": own,
        "d2t one row up": np.roll(ids, -1),
        "d2t one row down": np.roll(ids, 1),
    }
    for what, found in readings.items():
        if not np.array_equal(found, ids) and found.min() >= 0 and found.max() < vocab_size:
            yield Other("wrong-d2t", what, reading=Reading(offsets=found - own))


def _mask_tokens(graft: Graft, pair: PairFacts, said: int) -> Iterator[tuple[int, str]]:
    """Tokens that configs and tokenizers beside the two models call special."""
    found: dict[int, str] = {}
    for package in (graft.package("draft"), graft.target):
        for name, token in _special_tokens(package):
            found.setdefault(token, name)
    found.pop(said, None)
    inside = [(token, name) for token, name in found.items() if 0 <= token < pair.embedding.vocab_size]
    yield from sorted(inside, key=lambda entry: "mask" not in entry[1].lower())[:_MOST_TOKENS]


def _special_tokens(package: Package) -> Iterator[tuple[str, int]]:
    configs: list[Any] = [json_object(package.folder / name) for name in ("config.json", "generation_config.json")]
    configs += [config.get("dflash_config") for config in configs]
    for config in configs:
        for name in _SPECIAL:
            values = config.get(name) if isinstance(config, Mapping) else None
            for value in values if isinstance(values, list) else [values]:
                if isinstance(value, int) and not isinstance(value, bool):
                    yield name, value
    for name in _TOKENIZER_FILES:
        yield from _added_tokens(json_object(package.folder / name))


def _added_tokens(data: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Tokens with ``mask`` in their text, in each of the files a tokenizer may write."""
    entries: list[tuple[object, object]] = []
    added = data.get("added_tokens")
    if isinstance(added, list):
        entries += [(token.get("content"), token.get("id")) for token in added if isinstance(token, Mapping)]
    decoded = data.get("added_tokens_decoder")
    if isinstance(decoded, Mapping):
        entries += [(token.get("content"), number) for number, token in decoded.items() if isinstance(token, Mapping)]
    entries += list(data.items())
    for text, number in entries:
        if isinstance(text, str) and text.startswith(("<", "[")) and "mask" in text.lower() and str(number).isdecimal():
            yield text, int(str(number))


def _copied(graft: Graft) -> tuple[Graft, drafts.DraftIr]:
    other = graft_of(graft.snapshot(), graft)
    return other, drafts.read_draft(other.package("draft"))


def _other_offset(graft: Graft) -> Graft | None:
    """The same draft, its rows read with the other offset; None where the graph keeps the row that takes."""
    other, draft = _copied(graft)
    offset = rows_cut(draft)
    if offset == 1 and ir.get_text(draft.model, Key.INPUT_LAYOUT) is None:
        graph = ir.Graph(draft.model)
        cut = cut_rows(graph)
        if cut is None:
            return None
        kept, names = graph.output(*graph.inputs[cut[0]][0]), graph.output(cut[0]).get_names()
        drafts.redirect(graph, graph.output(cut[0]), kept)
        graph.output(cut[0]).set_names(set())
        kept.add_names(names)
        draft.model.validate_nodes_and_infer_types()
    ir.set_text(draft.model, Key.CANDIDATE_POSITION_OFFSET, str(1 - offset))
    return other


def _with_target_table(graft: Graft, pair: PairFacts, draft: drafts.DraftIr) -> Graft | None:
    """A draft with an embedding of its own, reading the target's: exporters leave that of Eagle-3 drafts random."""
    if drafts.find_input(draft.model, Port.INPUT_IDS) is None or "embedding" in (draft.applied or {}):
        return None
    other, copy = _copied(graft)
    try:
        if pair.draft.family == "eagle3":
            passes.AttachEmbedding().apply(other, Context())
        else:
            own = decoder.read_embedding(copy.model)
            if own.width != pair.embedding.width:
                return None
            rows = ir.make_parameter(Port.INPUTS_EMBEDS, own.output.get_element_type(), own.output.get_partial_shape())
            copy.model.add_parameters([rows])
            drafts.redirect(ir.Graph(copy.model), own.output, rows.output(0))
            copy.model.remove_parameter(drafts.find_input(copy.model, Port.INPUT_IDS))
        copy.model.validate_nodes_and_infer_types()
    except (OvgraftError, RuntimeError):
        return None  # its own table is tied to more than the rows
    return other


def _with_target_head(graft: Graft, pair: PairFacts, draft: drafts.DraftIr) -> Graft | None:
    """A draft with a whole output layer of its own, whose rows go through the target's."""
    logits = drafts.find_result(draft.model, Port.LOGITS)
    head = pair.structure.lm_head
    if logits is None or "lm_head" in (draft.applied or {}) or draft.draft_vocab_size != head.vocab_size:
        return None
    if pair.draft.family == "eagle3":
        return None
    other, copy = _copied(graft)
    try:
        own = decoder.read_lm_head(copy.model)
    except OvgraftError:
        return None
    if own.width != head.width:
        return None
    copy.model.remove_result(drafts.find_result(copy.model, Port.LOGITS))
    if drafts.find_result(copy.model, Port.LAST_HIDDEN_STATE) is None:
        drafts.add_output(copy.model, own.hidden, Port.LAST_HIDDEN_STATE)
    copy.model.validate_nodes_and_infer_types()
    return other


def all_readings(graft: Graft, pair: PairFacts) -> Sequence[Other]:
    """Everything that is tried on a pair."""
    layers = pair.layers() or ()
    if recorded_convention(graft.target.model) == "input" and pair.draft.family == "eagle3":
        layers = tuple(layer - 1 for layer in layers)  # what enters a layer is what leaves the one before
    return [*other_layers(layers, len(pair.structure.layers), pair.draft.family), *other_values(graft, pair)]
