"""Tensor names: those of the file, those the formats know, and the canonical ones."""

from __future__ import annotations

from collections.abc import Mapping

from ovgraft.drafts.formats.base import Format
from ovgraft.drafts.tensors import FC
from ovgraft.drafts.weight_source import WeightSource
from ovgraft.errors import CheckpointError

_IN_EVERY_DRAFT = (FC, "hidden_norm.weight", "norm.weight")


def bare_names(stored: WeightSource) -> dict[str, str]:
    """Names without the prefix of a module that some trainers save around the draft (``model.``), -> names in the file.

    Args:
        stored: Tensors under the names of the file.

    Raises:
        CheckpointError: Two tensors have one name without it.
    """
    prefixes = [name.removesuffix(FC) for name in stored if name.endswith(f".{FC}")]
    prefix = next((each for each in prefixes if _is_around(each, stored)), "")
    return _unique(stored, {name: name.removeprefix(prefix) for name in stored})


def canonical_names(form: Format, stored: WeightSource, bare: Mapping[str, str]) -> dict[str, str]:
    """Canonical names -> names in the file.

    Args:
        form: The checkpoint's format.
        stored: Tensors under the names of the file.
        bare: What :func:`bare_names` found.

    Raises:
        CheckpointError: Two tensors have one canonical name.
    """
    return _unique(stored, {name: form.canonical(known) for known, name in bare.items()})


def _is_around(prefix: str, stored: WeightSource) -> bool:
    return all(prefix + name in stored and name not in stored for name in _IN_EVERY_DRAFT)


def _unique(stored: WeightSource, names: Mapping[str, str]) -> dict[str, str]:
    """The other way round."""
    turned: dict[str, str] = {}
    for name, new in names.items():
        if new in turned:
            raise CheckpointError(
                f"two tensors are the same one: {turned[new]} and {name}", key=name, file=stored.info(name).file
            )
        turned[new] = name
    return turned
