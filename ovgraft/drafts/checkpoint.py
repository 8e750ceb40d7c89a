"""Reads a draft checkpoint: config.json and weights in any published format, into one spec and canonical tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovgraft.drafts.contract import CHECKPOINT_WEIGHTS
from ovgraft.drafts.formats import Format, Found, detect
from ovgraft.drafts.reading.backbone import read_backbone, read_size
from ovgraft.drafts.reading.config import Config, integer, integers, number
from ovgraft.drafts.reading.head import read_confidence, read_head
from ovgraft.drafts.reading.names import bare_names, canonical_names
from ovgraft.drafts.reading.row_offset import read_offset
from ovgraft.drafts.reading.strict_json import parse_object
from ovgraft.drafts.reading.vocabulary import check_token_map
from ovgraft.drafts.reference.rows import target_ids
from ovgraft.drafts.spec import EMBEDDING_OUTPUT, Backbone, DraftSpec, Family, Vocabulary
from ovgraft.drafts.target_fit import last_layer_warning
from ovgraft.drafts.tensors import (
    D2T,
    EMBEDDING,
    LM_HEAD,
    MARKOV_W2,
    MASK_EMBEDDING,
    SUCCESSOR_CODEBOOK,
    T2D,
    check_tensors,
)
from ovgraft.drafts.weight_source import StoredTensor, WeightSource, open_mask_embedding, open_weights
from ovgraft.errors import CheckpointError, Reason

CONFIG_FILE = "config.json"

_SIZE = integer(1)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A draft checkpoint in normal form.

    Attributes:
        path: Its folder.
        spec: What the draft is.
        weights: Its tensors under canonical names (``drafts.tensors``), in the file's own types: padding rows are cut
            off, ``d2t`` and ``t2d`` are there for pruned vocabularies only.
    """

    path: Path
    spec: DraftSpec
    weights: WeightSource

    def target_ids(self) -> NDArray[np.int64] | None:
        """i64 ``[Dv]``, the target id of every draft id; None for a full vocabulary."""
        if not self.spec.vocabulary.pruned:
            return None
        ids: NDArray[np.int64] = target_ids(self.weights.tensor(D2T))
        return ids

    def digest(self) -> str:
        """blake3 hex of all tensors under canonical names; the same for every file layout of the same draft."""
        return self.weights.digest()


def is_checkpoint(folder: Path) -> bool:
    """Does a folder look like a checkpoint, and not like an exported package?"""
    if not (folder / CONFIG_FILE).is_file() or any(folder.glob("openvino*.xml")):
        return False
    return any(any(folder.glob(pattern)) for pattern in CHECKPOINT_WEIGHTS)


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a draft checkpoint; of its tensors, only the vocabulary maps and a few embedding rows are looked at.

    Args:
        path: Folder with config.json and weights (see ``weight_source.open_weights``).

    Returns:
        Spec and tensors; ``spec.warnings`` holds what a user should know.

    Raises:
        CheckpointError: Anything missing, unknown, contradicted, out of range, or of the wrong shape. Nothing is
            guessed: a value comes from a key, a tensor, or a stated convention of the format.
    """
    folder = Path(path)
    file = folder / CONFIG_FILE
    if not folder.is_dir():
        raise CheckpointError("no such checkpoint folder", file=folder)
    if not file.is_file():
        raise CheckpointError("a checkpoint needs a config", file=folder, expected=CONFIG_FILE, found="no such file")
    try:
        text = file.read_bytes()
    except OSError as error:
        raise CheckpointError("the config cannot be read", file=file, found=error.strerror) from error
    data = parse_object(text, file)
    stored = open_weights(folder)
    bare = bare_names(stored)
    found = Found(data, file, stored.renamed(bare))
    form = detect(found)
    config = Config(file, data, form.sections)
    for section, known in form.known_keys.items():
        config.allow_only(section, known)
    names = canonical_names(form, stored, bare)
    if form.frozen_copies and data.get("tie_word_embeddings") is True and EMBEDDING in names:
        names.setdefault(LM_HEAD, names[EMBEDDING])
    weights = _with_mask_embedding(stored.renamed(names), folder)
    names[MASK_EMBEDDING] = MASK_EMBEDDING
    spec = _read_spec(config, form, found, weights)
    check_tensors(spec, weights, names, form.file_name)
    vocabulary, warnings = check_token_map(spec.vocabulary, weights)
    weights = _normal_vocabulary(spec.vocabulary, weights)
    warnings += (
        *last_layer_warning(spec, spec.num_target_layers),
        *_rope_warnings(spec.backbone),
        *_mask_row_warnings(spec, weights),
    )
    return Checkpoint(folder, replace(spec, vocabulary=vocabulary, warnings=warnings), weights)


def _with_mask_embedding(weights: WeightSource, folder: Path) -> WeightSource:
    vector = open_mask_embedding(folder)
    if vector is None:
        return weights
    if vector.shape[:-1] not in ((), (1,)):
        raise CheckpointError(
            "a mask embedding is one vector", key=vector.name, file=vector.file, found=list(vector.shape)
        )
    width = vector.shape[-1:]
    flat = StoredTensor(MASK_EMBEDDING, vector.dtype, width, vector.file, lambda: vector.read().reshape(width))
    return WeightSource(weights.path, [*(weights.info(name) for name in weights), flat])


def _normal_vocabulary(vocabulary: Vocabulary, weights: WeightSource) -> WeightSource:
    """Without padding rows, and without maps that map nothing."""
    if vocabulary.pruned:
        return weights
    tokens = vocabulary.size

    def cut(tensor: StoredTensor) -> StoredTensor:
        return replace(tensor, shape=(tokens, *tensor.shape[1:]), read=lambda: tensor.read()[:tokens])

    by_draft_id = (LM_HEAD, MARKOV_W2, SUCCESSOR_CODEBOOK)
    left = (weights.info(name) for name in weights if name not in (D2T, T2D))
    return WeightSource(weights.path, [cut(tensor) if tensor.name in by_draft_id else tensor for tensor in left])


def _read_spec(config: Config, form: Format, found: Found, weights: WeightSource) -> DraftSpec:
    family = form.family(found)
    config.record("format", "", "", form.title)
    config.record("family", "", "", form.title)
    config.record("version", "", "", f"{family} backbone")
    vocabulary = _read_vocabulary(config, form)
    backbone = read_backbone(config, form, family, weights)
    layers = config.read_or("num_target_layers", _SIZE, None, note="no key says")
    source_ids, layer_ids = _read_layer_ids(config, form, layers)
    offset = read_offset(config, form, found, family)
    head = read_head(config, family, weights, vocabulary)
    if backbone.convolution is None:
        config.record("backbone.convolution", "", "", "DFlash-2 only")
    cap = config.read_or("final_logit_softcapping", _cap, None, note="no key says")
    tables = ((EMBEDDING, "own_embedding"), (LM_HEAD, "own_lm_head"), (MASK_EMBEDDING, "own_mask_embedding"))
    for name, field in tables:
        held = weights.info(name).file.name if name in weights else weights.path.name
        config.record(field, held, name, "" if name in weights else "not stored")
    # A vocabulary of another size needs an output layer of its own, and copies come in pairs: the check of tensors
    # names the one that is missing.
    own_lm_head = LM_HEAD in weights or vocabulary.lm_head_rows != vocabulary.size
    own_embedding = EMBEDDING in weights
    if form.frozen_copies:
        own_embedding = own_lm_head = own_embedding or own_lm_head
    frozen = form.frozen_copies and own_embedding
    config.record("frozen_copies", "", "", form.title if frozen else "no tables, or trained ones")
    return DraftSpec(
        format=form.name,
        family=family,
        version=2 if family is Family.DFLASH2 else 1,
        layer_ids=layer_ids,
        source_layer_ids=source_ids,
        layer_id_convention=form.layer_ids.meaning,
        num_target_layers=layers,
        mask_token_id=config.read("mask_token_id", integer(0, vocabulary.size - 1)),
        block_size=config.read("block_size", integer(1 + offset)),
        candidate_position_offset=offset,
        head=head,
        confidence=read_confidence(config, weights, head, backbone.hidden_size),
        vocabulary=vocabulary,
        output_multiplier=config.read_or("output_multiplier", number(positive=True), 1.0, note="no key says"),
        final_logit_softcapping=cap or None,
        input_embedding_scale=_embedding_scale(config, backbone.architecture, backbone.hidden_size),
        activation_scale=_activation_scale(config, family),
        own_embedding=own_embedding,
        own_lm_head=own_lm_head,
        frozen_copies=frozen,
        own_mask_embedding=MASK_EMBEDDING in weights,
        backbone=backbone,
        sources=config.sources,
    )


def _read_vocabulary(config: Config, form: Format) -> Vocabulary:
    size = read_size(config, form, "vocabulary.size", key="vocab_size")
    rows = config.read_or("vocabulary.lm_head_rows", _SIZE, size, "draft_vocab_size", note="vocab_size")
    config.sources["vocabulary.draft_size"] = config.sources["vocabulary.lm_head_rows"]
    config.record("vocabulary.d2t_sorted", "", D2T, "by its values")
    config.record("vocabulary.duplicate_tokens", "", D2T, "by its values")
    # More rows than tokens are padding: the ids stay the target's, the rows beyond V stand for nothing.
    return Vocabulary(size, draft_size=min(rows, size), lm_head_rows=rows)


def _read_layer_ids(config: Config, form: Format, layers: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids as the file has them, and as output-of-layer."""
    rule = form.layer_ids
    if config.find(rule.key) is None:
        config.missing(rule.key, hint="the layers a draft was trained on cannot be told from its weights")
    note = "" if rule.first_output == 0 else f"{rule.meaning}: output of layer i - {rule.first_output}"
    source = config.read("layer_ids", integers, rule.key, note=note)
    config.sources["source_layer_ids"] = config.sources["layer_ids"]
    config.record("layer_id_convention", "", "", form.title)
    key = config.key_of(rule.key)
    low = rule.first_output if rule.embedding_output is None else rule.embedding_output
    last = None if layers is None else layers - 1 + rule.first_output
    bounds = f"[{low}, {last}]" if last is not None else f"at least {low}"
    for value in source:
        if value < low or (last is not None and value > last):
            target = f" of {layers} target layers" if layers is not None else ""
            config.refuse(key, f"layer id {value} is out of range", expected=f"{bounds}: {rule.meaning}{target}")
    if len(set(source)) != len(source):
        config.refuse(key, "a layer id repeats", expected="different ids")
    if rule.increasing and list(source) != sorted(source):
        config.refuse(key, "layer ids must rise", expected=sorted(source))
    ids = tuple(EMBEDDING_OUTPUT if i == rule.embedding_output else i - rule.first_output for i in source)
    return source, ids


def _cap(value: Any) -> float:
    result = number()(value)
    if result < 0:
        raise ValueError("a positive number, or 0 for none")
    return result


def _embedding_scale(config: Config, architecture: str, hidden_size: int) -> float:
    scaled = architecture == "gemma4"
    default = float(hidden_size**0.5) if scaled else 1.0
    note = "sqrt(hidden_size), as Gemma-4 embeds" if scaled else "no key says"
    return config.read_or("input_embedding_scale", number(positive=True), default, note=note)


def _activation_scale(config: Config, family: Family) -> float | None:
    recommended = 32.0 if family is Family.DFLASH2 else None
    note = "recommended for DFlash-2 at f16" if recommended else "no recommendation"
    config.record("activation_scale", "", "", note)
    return recommended


def _rope_warnings(backbone: Backbone) -> tuple[Reason, ...]:
    values, longest = dict(backbone.rope.parameters), backbone.max_position_embeddings
    original = values.get("original_max_position_embeddings")
    if backbone.rope.type != "yarn" or original is None or longest in (None, original * values["factor"]):
        return ()
    return (
        Reason(
            "yarn-factor-ambiguous",
            f"yarn stretches by {values['factor']:g}, as its factor says; a trainer with transformers 4 took "
            f"max_position_embeddings / original_max_position_embeddings = {longest} / {original}",
        ),
    )


def _mask_row_warnings(spec: DraftSpec, weights: WeightSource) -> tuple[Reason, ...]:
    """A mask row that was never trained is a zero row; some drafts keep the real one in a side file."""
    if not spec.own_embedding or spec.own_mask_embedding:
        return ()
    table = weights.tensor(EMBEDDING)
    step = max(1, len(table) // 64)
    norms = np.sort(np.linalg.norm(table[::step].astype(np.float32), axis=1))
    typical = float(norms[len(norms) // 2])
    norm = float(np.linalg.norm(table[spec.mask_token_id].astype(np.float32)))
    if norm > typical / 1000:
        return ()
    return (
        Reason(
            "mask-row-near-zero",
            f"the embedding of mask token {spec.mask_token_id} is near zero (norm {norm:.3g}, others {typical:.3g}); "
            f"a {MASK_EMBEDDING}.safetensors beside the checkpoint may be missing",
        ),
    )
