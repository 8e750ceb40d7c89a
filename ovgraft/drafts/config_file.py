"""Keeps a draft's config.json true when a pass puts into the graph what the file tells a host to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ovgraft.graft import Package

_SECTIONS = ("dflash_config", "transformer_layer_config")
"""Where drafts keep keys beside the top of the file."""

EMBEDDING_IN_GRAPH = {"input_embedding_scale": 1.0}
LOGITS_IN_GRAPH = {"output_multiplier": 1.0, "final_logit_softcapping": None}
"""What is left to a host of factors that are in the graph; a cap of 0 would be divided by."""


def correct_config(package: Package, facts: Mapping[str, Any]) -> str | None:
    """Make config.json say what is true now.

    Only keys that the file has, at the top or in a section, and that say something else. The file beside a single .xml
    is not its own and stays.

    Args:
        package: The draft.
        facts: Key -> value.

    Returns:
        What changed, for the report; None when nothing did.
    """
    if package.kind == "xml":
        return None
    config, changes = dict(package.config), []
    for section in ("", *_SECTIONS):
        place = config if section == "" else config.get(section)
        if not isinstance(place, dict):
            continue
        wrong = {key: value for key, value in facts.items() if _says_other(place.get(key), value)}
        if not wrong:
            continue
        for key, value in wrong.items():
            name = f"{section}.{key}" if section else key
            changes.append(f"{name} {place[key]} is {'null' if value is None else value} now")
        corrected = {**place, **wrong}
        config = corrected if section == "" else {**config, section: corrected}
    if not changes:
        return None
    package.config_file.change(config)
    return f"config.json: {', '.join(changes)}"


def tied_tables(applied: Mapping[str, Any]) -> dict[str, bool]:
    """Whether embedding and output layer are one table, where both are the target's; nothing where they are not."""
    digests = [applied[part]["digest"] for part in ("embedding", "lm_head") if part in applied]
    return {"tie_word_embeddings": digests[0] == digests[1]} if len(digests) == 2 else {}


def _says_other(said: Any, value: Any) -> bool:
    """Whether a key says something else; one that is absent, null, or 0 for none does not."""
    return said is not None and said != value and not (value is None and said == 0)
