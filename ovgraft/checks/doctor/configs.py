"""What the config.json and tokenizer beside a model say, against its metadata: one of two is what people trained by."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ovgraft.checks.doctor.facts import DraftFacts
from ovgraft.graft import Package

_OUTPUTS = ("target_layer_ids",)
_INPUTS = ("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")


@dataclass(frozen=True)
class Contradiction:
    """A value that metadata and config.json give differently.

    Attributes:
        key: Of config.json.
        metadata: What runtimes read.
        config: What config.json says, in the same terms.
    """

    key: str
    metadata: object
    config: object

    @property
    def text(self) -> str:
        """One clause."""
        return f"config.json says {self.key} {_shown(self.config)}"


def json_object(file: Path) -> dict[str, Any]:
    """A JSON object; {} where there is none that can be read."""
    try:
        data = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def draft_config(package: Package, name: str) -> tuple[str, Any]:
    """A value of config.json and the key it stands under: in ``dflash_config``, else at the top; None without."""
    for section in ("dflash_config", "eagle_config"):
        nested = package.config.get(section)
        if isinstance(nested, Mapping) and nested.get(name) is not None:
            return f"{section}.{name}", nested[name]
    return name, package.config.get(name)


def configured_layers(package: Package) -> tuple[str, tuple[int, ...]] | None:
    """The layers config.json names, as outputs of layers; None when it names none.

    speculators counts by what enters a layer, all others by what leaves it.
    """
    for names, shift in ((_OUTPUTS, 0), (_INPUTS, 1)):
        for name in names:
            key, value = draft_config(package, name)
            if isinstance(value, list) and value and all(type(layer) is int for layer in value):
                return key, tuple(layer - shift for layer in value)
    return None


def contradicted_layers(draft: DraftFacts) -> Contradiction | None:
    """Layer ids of an IR and of the config beside it; an Eagle-3 list leaves open how it counts."""
    if draft.checkpoint is not None or draft.layer_ids is None:
        return None
    found = configured_layers(draft.package)
    if found is None:
        return None
    key, layers = found
    same = {layers, tuple(layer + 1 for layer in layers)} if draft.family == "eagle3" else {layers}
    return None if draft.layer_ids in same else Contradiction(key, draft.layer_ids, layers)


def contradiction(draft: DraftFacts, name: str, metadata: object) -> Contradiction | None:
    """A whole number that config.json gives otherwise; silence of either is none."""
    if draft.checkpoint is not None or metadata is None:
        return None
    key, value = draft_config(draft.package, name)
    if type(value) is not int or str(value) == str(metadata):
        return None
    return Contradiction(key, metadata, value)


@dataclass(frozen=True)
class OtherTokens:
    """Tokens that two tokenizers give different ids.

    Attributes:
        count: How many.
        first: The one with the lowest id, for people.
        only_added: All of them were added to the vocabulary, as a mask token is; texts without them read the same.
    """

    count: int
    first: str
    only_added: bool


def other_tokens(draft: Package, target: Package) -> OtherTokens | None:
    """Tokens that the tokenizers beside two models give different ids.

    Returns:
        None when one side has no readable tokenizer, or they agree. A token of one side only is no disagreement: drafts
        add a mask token of their own.
    """
    (ours, added), (theirs, _) = (_tokens(package.folder / "tokenizer.json") for package in (draft, target))
    if not ours or not theirs:
        return None
    differing = [(token, number) for token, number in ours.items() if theirs.get(token, number) != number]
    if not differing:
        return None
    token, number = min(differing, key=lambda entry: entry[1])
    first = f"{token!r} is {number} for the draft and {theirs[token]} for the target"
    return OtherTokens(len(differing), first, only_added=all(token in added for token, _ in differing))


def _tokens(file: Path) -> tuple[dict[str, int], set[str]]:
    """Token -> id of a tokenizer.json, and which of them were added to its vocabulary."""
    data = json_object(file)
    model = data.get("model")
    stored = model.get("vocab") if isinstance(model, Mapping) else None
    tokens: dict[str, int] = {}
    added_tokens: set[str] = set()
    if isinstance(stored, Mapping):
        tokens = {token: number for token, number in stored.items() if type(number) is int}
    elif isinstance(stored, list):  # unigram: [token, score] in the order of ids
        entries = [entry[0] if isinstance(entry, list) and entry else None for entry in stored]
        tokens = {token: at for at, token in enumerate(entries) if isinstance(token, str)}
    added = data.get("added_tokens")
    for entry in added if isinstance(added, list) else ():
        if isinstance(entry, Mapping) and isinstance(entry.get("content"), str) and type(entry.get("id")) is int:
            tokens[entry["content"]] = entry["id"]
            added_tokens.add(entry["content"])
    return tokens, added_tokens


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
