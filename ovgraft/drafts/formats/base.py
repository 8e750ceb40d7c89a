"""What one checkpoint format says differently from the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ovgraft.drafts.spec import Family
from ovgraft.drafts.weight_source import WeightSource


@dataclass(frozen=True, slots=True)
class LayerIds:
    """How a format names captured target layers.

    Attributes:
        key: Config key of the list.
        meaning: What id i selects, for people.
        first_output: The id of layer 0's output.
        embedding_output: The id of the embedding output; None when the format has none.
        increasing: Ids must rise.
    """

    key: str = "target_layer_ids"
    meaning: str = "output of layer i"
    first_output: int = 0
    embedding_output: int | None = None
    increasing: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What detection looks at: the parsed config and the tensor names.

    Attributes:
        config: Content of config.json.
        file: config.json, for messages.
        weights: Tensors under the names of the file.
    """

    config: Mapping[str, Any]
    file: Path
    weights: WeightSource

    def value(self, name: str) -> Any:
        """A value at the top or in ``dflash_config``; None without."""
        nested = self.config.get("dflash_config")
        inner = nested.get(name) if isinstance(nested, dict) else None
        return self.config.get(name) if inner is None else inner

    @property
    def architecture(self) -> str:
        """The first architecture name; empty without."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""

    def has_tensor(self, *starts: str) -> bool:
        """Does any tensor name begin with one of these?"""
        return any(name.startswith(starts) for name in self.weights)

    @property
    def own_tables(self) -> bool:
        """Does the file carry an embedding or an output layer?"""
        return "embed_tokens.weight" in self.weights or "lm_head.weight" in self.weights

    @property
    def pruned(self) -> bool:
        """Does the file map a draft vocabulary?"""
        size, draft_size = self.value("vocab_size"), self.value("draft_vocab_size")
        return "d2t" in self.weights or (type(size) is int and type(draft_size) is int and draft_size < size)


@dataclass(frozen=True, slots=True)
class Format:
    """A checkpoint format.

    Attributes:
        name: Stable name, as in reports.
        title: For people.
        matches: Decides by tensors and keys; formats are asked in the order of ``formats.FORMATS``.
        family: The family of a file that matched.
        layer_ids: How target layers are named.
        candidate_position_offset: The offset the format always means; None when this file must say it itself.
        sliding_causal: Without a key, does a row of a sliding layer see only rows up to itself inside its block?
        sections: Nested config objects that hold facts.
        known_keys: Section (``""`` is the top) -> keys whose meaning is known; others are refused.
        renames: File name of a tensor -> canonical name, where they differ.
        renames_always: The format's files use the left side of ``renames``; else only some do.
        frozen_copies: Where the file carries an embedding and an output layer, it carries both, as copies of the
            target's.
        class_defaults: Missing transformer values have the defaults of transformers' config class.
    """

    name: str
    title: str
    matches: Callable[[Found], bool]
    family: Callable[[Found], Family]
    layer_ids: LayerIds
    candidate_position_offset: Callable[[Found, Family], int | None]
    sliding_causal: Callable[[Family], bool]
    sections: tuple[str, ...] = ("dflash_config",)
    known_keys: Mapping[str, frozenset[str]] = field(default_factory=dict)
    renames: Mapping[str, str] = field(default_factory=dict)
    renames_always: bool = False
    frozen_copies: bool = False
    class_defaults: bool = False

    def canonical(self, name: str) -> str:
        """The canonical name of a tensor."""
        return self.renames.get(name, name)

    def file_name(self, canonical: str) -> str:
        """The name a tensor has in this format's files."""
        old_names = {new: old for old, new in self.renames.items()} if self.renames_always else {}
        return old_names.get(canonical, canonical)
