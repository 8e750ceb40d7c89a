"""Keeps a draft's config.json true when a pass puts into the graph what the file tells a host to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from ovgraft.drafts.contract import FileName, Key
from ovgraft.drafts.records import read_record, write_record

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
    before = config_digest(package)
    package.config_file.change(config)
    _tell_head(package, before)
    return f"config.json: {', '.join(changes)}"


def config_digest(package: Package) -> str:
    """blake3 of config.json in hex, as it is or is to be written."""
    file = package.config_file
    return blake3(file.path.read_bytes() if file.text is None else file.text).hexdigest()


def _tell_head(package: Package, before: str) -> None:
    """A head that was packed from this very folder knows its config.json by its digest."""
    head = package.get(FileName.MARKOV_HEAD)
    if head is None:
        return
    record = read_record(head, Key.MARKOV_HEAD_SOURCE) or {}
    if record.get("checkpoint") == "." and record.get("config_blake3") == before:
        write_record(head, Key.MARKOV_HEAD_SOURCE, {**record, "config_blake3": config_digest(package)})


def tied_tables(applied: Mapping[str, Any]) -> dict[str, bool]:
    """Whether embedding and output layer are one table, where both are the target's; nothing where they are not."""
    digests = [applied[part]["digest"] for part in ("embedding", "lm_head") if part in applied]
    return {"tie_word_embeddings": digests[0] == digests[1]} if len(digests) == 2 else {}


def _says_other(said: Any, value: Any) -> bool:
    """Whether a key says something else; one that is absent, null, or 0 for none does not."""
    return said is not None and said != value and not (value is None and said == 0)
