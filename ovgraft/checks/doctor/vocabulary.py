"""Do both speak of the same tokens? Vocabulary, mask token, and the map of a pruned vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np

from ovgraft import drafts
from ovgraft.checks.doctor.configs import contradiction, other_tokens
from ovgraft.checks.doctor.facts import PairFacts, TargetFacts, own_embedding
from ovgraft.checks.doctor.result import Answer, failed, from_error, not_applicable, passed, warned
from ovgraft.drafts.constant_rows import UnreadableWeightError, weight_rows
from ovgraft.drafts.contract import Port
from ovgraft.drafts.tensors import EMBEDDING
from ovgraft.errors import CheckpointError, Reason
from ovgraft.ir.weights import weight_root

_SAMPLED_ROWS = 64
_NEAR_ZERO = 1e-3  # of the norm of a typical row


def vocabulary(pair: PairFacts) -> Answer:
    """Sizes of the token tables, and what the configs say."""
    target, draft = pair.target, pair.draft
    sizes = target_sizes(target)
    head, rows = pair.structure.lm_head.vocab_size, pair.embedding.vocab_size
    numbers: dict[str, object] = {"target_logits": head, "target_embedding": rows, "draft": draft.vocab_size}
    if draft.vocab_size is not None and draft.vocab_size not in sizes:
        said = " or ".join(map(str, sorted(sizes)))
        text = f"the draft was made for {draft.vocab_size} tokens, the target has {said}"
        return failed(text, "take the draft that was trained for this target and its tokenizer", **numbers)
    if (own := own_embedding(draft)) is not None and own.vocab_size < min(sizes):
        reason = Reason("embedding-rows", f"{own.vocab_size} rows", ())
        text = f"the draft's own embedding has {own.vocab_size} rows, the target knows {min(sizes)} tokens"
        return failed(text, "take the draft that was trained for this target", reason, **numbers)
    if draft.vocab_size is None:
        advice = "compare the tokenizers: write vocab_size into the draft's config.json once you know"
        text = f"the target has {head} tokens; the draft does not say how many it was made for"
        return passed(text, **numbers) if draft.own_lm_head else warned(text, advice, **numbers)
    if (other := other_tokens(draft.package, target.package)) is not None:
        count = f"{other.count} token{'s' if other.count > 1 else ''}"
        text = f"the two tokenizers give {count} other ids: {other.first}"
        numbers["other_ids"] = other.count
        if other.only_added:
            return warned(text, "check that prompts and mask token mean the same rows on both sides", **numbers)
        return failed(text, "take the draft that was trained for this tokenizer", **numbers)
    return passed(f"{draft.vocab_size} tokens on both sides", **numbers)


def target_sizes(target: TargetFacts) -> set[int]:
    """What the target says of its vocabulary: logits, embedding and config may differ by padding."""
    assert target.structure is not None
    assert target.embedding is not None
    config: dict[str, Any] = target.package.config
    said = [config.get("vocab_size"), (config.get("text_config") or {}).get("vocab_size")]
    sizes = {target.structure.lm_head.vocab_size, target.embedding.vocab_size}
    return sizes | {size for size in said if isinstance(size, int) and not isinstance(size, bool)}


def mask_token(pair: PairFacts) -> Answer:
    """The token of undecided rows has a row, and the row is not empty."""
    draft = pair.draft
    if draft.family == "eagle3":
        return not_applicable("Eagle-3 drafts fill no block")
    mask, vocab_size = draft.mask_token_id, pair.embedding.vocab_size
    if mask is None:
        advice = (
            "export the draft again, or write the id with set-rt-info{model=draft key=dflash/mask_token_id value=ID}"
        )
        return failed("the draft does not say which token fills undecided rows; it is never guessed", advice)
    numbers: dict[str, object] = {"mask_token_id": mask, "vocab_size": vocab_size}
    if not 0 <= mask < vocab_size:
        text = f"mask token {mask} has no row in the target's embedding of {vocab_size} rows"
        return failed(text, "take the mask token of the config the draft was trained with", **numbers)
    if (other := contradiction(draft, "mask_token_id", mask)) is not None:
        text = f"the metadata says mask token {mask}, {other.text}"
        return warned(text, "export the draft again; --run measures which of the two it is", **numbers)
    try:
        if _has_own_mask_row(pair):
            return passed(f"token {mask}, with an embedding of its own", **numbers)
    except CheckpointError as error:
        return from_error(error, "export the side file again, or take it out of the folder")
    try:
        norm, typical = _row_norms(pair, mask)
    except UnreadableWeightError as error:
        return passed(f"token {mask} has a row; its values are stored in a form that is not read ({error})", **numbers)
    numbers |= {"norm": norm, "typical_norm": typical}
    if norm <= typical * _NEAR_ZERO:
        text = f"the embedding of mask token {mask} is near zero (norm {norm:.3g}, others {typical:.3g})"
        advice = "it was never trained there: look for a mask_embedding file beside the draft's checkpoint"
        return warned(text, advice, **numbers)
    return passed(f"token {mask}, norm {norm:.3g} (others {typical:.3g})", **numbers)


def _has_own_mask_row(pair: PairFacts) -> bool:
    """Whether a vector of the draft's stands for the mask token: in a side file, or in the graph already.

    Raises:
        CheckpointError: The side file does not fit, or holds a pickle.
    """
    draft = pair.draft
    if draft.checkpoint is not None:
        return draft.checkpoint.spec.own_mask_embedding
    own = own_embedding(draft)
    if own is None:
        return drafts.read_mask_embedding(draft.package.folder, pair.embedding.width) is not None
    assert draft.graph is not None
    graph = draft.graph
    waiting = [graph.index(own.gather)]
    while waiting:
        for _, reader, _ in graph.consumers[waiting.pop()]:
            if graph.types[reader] == "Select":
                return True
            if graph.types[reader] == "Convert":
                waiting.append(reader)
    return False


def _row_norms(pair: PairFacts, mask: int) -> tuple[float, float]:
    """Norm of the mask's row and the middle one of some others, in the table the draft embeds with."""
    checkpoint = pair.draft.checkpoint
    if checkpoint is not None and EMBEDDING in checkpoint.weights:
        table = checkpoint.weights.tensor(EMBEDDING)
        rows = len(table)

        def read(row: int) -> Any:
            return table[row].astype(np.float32)
    else:
        source = own_embedding(pair.draft) or pair.embedding
        weight = weight_root(source.table)
        if weight is None:
            raise UnreadableWeightError("no constant")
        reader = weight_rows(weight, axis=0)
        rows = source.vocab_size

        def read(row: int) -> Any:
            return reader.read(row, row + 1)

    step = max(1, rows // _SAMPLED_ROWS)
    norms = sorted(float(np.linalg.norm(read(row))) for row in range(0, rows, step))
    return float(np.linalg.norm(read(mask))), norms[len(norms) // 2]


def token_map(pair: PairFacts) -> Answer:
    """``d2t`` of a pruned vocabulary: as long as the logits, into the target's tokens, no two to one."""
    draft, vocab_size = pair.draft, pair.structure.lm_head.vocab_size
    width, offsets = draft.draft_vocab_size, draft.offsets
    numbers: dict[str, object] = {"draft_vocab_size": width, "vocab_size": vocab_size}
    if offsets is None:
        return _without_map(pair, width, vocab_size, numbers)
    if width is not None and offsets.shape != (width,):
        text = f"d2t has shape {list(offsets.shape)}, the draft's logits are {width} wide"
        return failed(text, "export the draft again: d2t and lm_head belong to different vocabularies", **numbers)
    ids = offsets.reshape(-1) + np.arange(offsets.size)
    outside = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if len(outside):
        first = int(outside[0])
        text = f"d2t leads out of the target's {vocab_size} tokens: draft token {first} becomes {int(ids[first])}"
        advice = "d2t holds target id - draft id; this one belongs to another target or holds the ids themselves"
        return failed(text, advice, outside=len(outside), **numbers)
    duplicates = ids.size - len(np.unique(ids))
    rising = bool(np.all(np.diff(ids) > 0))
    numbers |= {"duplicates": duplicates, "rising": rising}
    if duplicates:
        text = f"d2t gives {duplicates} draft tokens the target token of another"
        return warned(text, "greedy drafting is unaffected; do not sample with it", **numbers)
    order = "" if rising else ", not in rising order"
    return passed(f"{ids.size} draft tokens among {vocab_size}{order}", **numbers)


def _without_map(pair: PairFacts, width: int | None, vocab_size: int, numbers: dict[str, object]) -> Answer:
    draft = pair.draft
    if draft.checkpoint is None and drafts.find_result(draft.package.model, Port.D2T) is not None:
        return failed("output d2t is no table", "export the draft again: d2t must be a constant", **numbers)
    if not draft.own_lm_head or width is None or width == vocab_size:
        return not_applicable("the draft's vocabulary is the target's")
    if width < vocab_size:
        text = f"the draft's logits are {width} wide, the target's {vocab_size}, and there is no d2t"
        return failed(text, "a pruned draft needs its d2t: export it again with the checkpoint's d2t", **numbers)
    if draft.checkpoint is None and drafts.find_result(draft.package.model, Port.LOGITS) is not None:
        text = f"the draft's logits have {width - vocab_size} rows beyond the target's {vocab_size} tokens"
        return warned(text, "they are padding: mask them, or the draft proposes tokens that do not exist", **numbers)
    return passed(f"{width - vocab_size} padding rows are cut off", **numbers)
