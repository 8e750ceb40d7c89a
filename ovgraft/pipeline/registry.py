"""Which pass a name means: the built-in table, and the entry points other distributions register.

The table is plain data, so that listing the passes imports none of them.
"""

from __future__ import annotations

import difflib
import functools
import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ovgraft.errors import SpecError, UnknownPassError
from ovgraft.passbase import Pass
from ovgraft.pipeline.entry_points import read_entry_points

ENTRY_POINT_GROUP = "ovgraft.passes"
"""Third parties register ``pass-name = "module:Class"`` here."""

OWN_DISTRIBUTION = "ovgraft"

BUILT_IN: dict[str, tuple[str, str]] = {
    "build-draft": (
        "ovgraft.passes.build_draft:BuildDraft",
        "Build the IR of a draft that is a checkpoint, with weights that stay in its files.",
    ),
    "annotate-hidden-states": (
        "ovgraft.passes.annotate_hidden_states:AnnotateHiddenStates",
        "Find every decoder layer's output by structure and record it as OpenVINO GenAI reads it.",
    ),
    "expose-hidden-states": (
        "ovgraft.passes.expose_hidden_states:ExposeHiddenStates",
        "Add the output last_hidden_state: the states of the layers the draft reads, side by side.",
    ),
    "move-fc": (
        "ovgraft.passes.move_fc:MoveFc",
        "Move the draft's hidden-state FC into the target, behind the exposed states.",
    ),
    "expose-draft-hidden": (
        "ovgraft.passes.expose_draft_hidden:ExposeDraftHidden",
        "Add the pre-norm residual of an Eagle-3 draft as its output last_hidden_state.",
    ),
    "attach-embedding": (
        "ovgraft.passes.attach_embedding:AttachEmbedding",
        "Give the draft the target's token embedding: inputs_embeds becomes input_ids.",
    ),
    "attach-lm-head": (
        "ovgraft.passes.attach_lm_head:AttachLmHead",
        "Give the draft the target's output layer: last_hidden_state becomes logits.",
    ),
    "pack-markov-head": (
        "ovgraft.passes.pack_markov_head:PackMarkovHead",
        "Build openvino_markov_head_model from a checkpoint and announce it on the draft.",
    ),
    "select-markov-computation": (
        "ovgraft.passes.select_markov_computation:SelectMarkovComputation",
        "Keep one computation of the Markov head: its outputs, and the inputs they read.",
    ),
    "set-markov-top-k": (
        "ovgraft.passes.set_markov_top_k:SetMarkovTopK",
        "Change K of the Markov head's scorer.",
    ),
    "compress-weights": (
        "ovgraft.passes.compress_weights:CompressWeights",
        "Compress the weight matrices of a draft or a target with NNCF (extra ovgraft[compress]).",
    ),
    "fold-draft-argmax": (
        "ovgraft.passes.fold_draft_argmax:FoldDraftArgmax",
        "Add the output draft_token_ids: the best token of each row of the draft's logits.",
    ),
    "fuse-attention": (
        "ovgraft.passes.fuse_attention:FuseAttention",
        "Fuse MatMul, scale, mask, Softmax, MatMul back into ScaledDotProductAttention.",
    ),
    "per-row-draft": (
        "ovgraft.passes.per_row_draft:PerRowDraft",
        "Rewrite the exported SDPA draft row by row, told apart by token_type_ids; paged-attention then converts it.",
    ),
    "paged-attention": (
        "ovgraft.passes.paged_attention:PagedAttention",
        "Turn the stateful model into its PagedAttention form, checked attention by attention.",
    ),
    "gather-sampled-rows": (
        "ovgraft.passes.gather_sampled_rows:GatherSampledRows",
        "Add the input sampled_tokens_indices in front of the output layer, as runtimes do at load.",
    ),
    "drop-dead-inputs": (
        "ovgraft.passes.drop_dead_inputs:DropDeadInputs",
        "Remove inputs that reach no output and no state.",
    ),
    "rename-tensors": (
        "ovgraft.passes.rename_tensors:RenameTensors",
        "Rename input, output and intermediate tensors.",
    ),
    "set-rt-info": (
        "ovgraft.passes.set_rt_info:SetRtInfo",
        "Write or delete one entry of a model's rt_info.",
    ),
}
"""Pass name -> where its class is, and the first line of its docstring (a test keeps the two equal)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered name.

    Attributes:
        name: What pipeline texts say.
        location: ``module:Class``.
        distribution: Who registers it, for example ``ovgraft``.
        summary: One line; None for a third-party pass that was not imported yet.
    """

    name: str
    location: str
    distribution: str
    summary: str | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """A line of ``ovgraft passes``; ``problem`` says why the pass can't be used, None when it can."""

    name: str
    distribution: str
    summary: str
    problem: str | None = None


def entries() -> tuple[Entry, ...]:
    """All registered names, built-in ones first; a name several distributions registered comes several times."""
    built_in = (Entry(name, where, OWN_DISTRIBUTION, text) for name, (where, text) in BUILT_IN.items())
    return (*built_in, *_third_party())


def pass_names() -> tuple[str, ...]:
    """Every name once, in the order of :func:`entries`."""
    return tuple(dict.fromkeys(entry.name for entry in entries()))


def get_pass(name: str) -> type[Pass]:
    """The class behind a name; imports the module it is in.

    Raises:
        UnknownPassError: Nobody registered the name; the hint has the closest one.
        SpecError: Several distributions registered it, or its class cannot be loaded.
    """
    found = [entry for entry in entries() if entry.name == name]
    if not found:
        names = pass_names()
        more = f"`ovgraft passes` lists all {len(names)}"
        raise UnknownPassError(f"unknown pass '{name}'", hint=did_you_mean(name, names, more))
    return _load(found)


def list_passes() -> tuple[Listed, ...]:
    """What ``ovgraft passes`` shows; a broken third-party pass is listed with its problem."""
    by_name: dict[str, list[Entry]] = {}
    for entry in entries():
        by_name.setdefault(entry.name, []).append(entry)
    return tuple(_listed(found) for found in by_name.values())


def did_you_mean(word: str, known: Iterable[str], more: str | None = None) -> str | None:
    """A hint with the closest known word, followed by ``more``."""
    close = difflib.get_close_matches(word, list(known), n=1)
    parts = [f"did you mean '{close[0]}'?"] if close else []
    if more is not None:
        parts.append(more)
    return " ".join(parts) or None


def _third_party() -> tuple[Entry, ...]:
    found = {Entry(*point) for point in read_entry_points(ENTRY_POINT_GROUP)}
    return tuple(sorted(found, key=lambda entry: (entry.name, entry.distribution, entry.location)))


def _load(found: Sequence[Entry]) -> type[Pass]:
    entry = found[0]
    if len(found) > 1:
        owners = " and ".join(f"'{other.distribution}' ({other.location})" for other in found)
        raise SpecError(f"pass '{entry.name}' is registered by {owners}", hint="uninstall one of them")
    origin = f"pass '{entry.name}' of distribution '{entry.distribution}' ({entry.location})"
    try:
        module, _, attribute = entry.location.partition("[")[0].partition(":")
        loaded = functools.reduce(getattr, attribute.strip().split("."), importlib.import_module(module.strip()))
    except Exception as error:  # a third-party module may fail in any way
        raise SpecError(f"{origin} cannot be loaded: {type(error).__name__}: {error}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, Pass)):
        raise SpecError(f"{origin} is not a subclass of ovgraft.Pass")
    if getattr(loaded, "name", None) != entry.name:
        raise SpecError(f"{origin} calls itself '{getattr(loaded, 'name', None)}'")
    return loaded


def _listed(found: Sequence[Entry]) -> Listed:
    entry = found[0]
    problem = None
    summary = entry.summary
    if summary is None or len(found) > 1:
        try:
            summary = _load(found).summary()
        except SpecError as error:
            problem = error.message
    owners = ", ".join(dict.fromkeys(other.distribution for other in found))
    return Listed(entry.name, owners, summary or "", problem)
