"""Whether a draft and a target speak of the same tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovgraft.drafts.contract import Port
from ovgraft.drafts.draft_ir import DraftIr, find_result
from ovgraft.errors import PreconditionError

if TYPE_CHECKING:
    from ovgraft.graft import Package


def check_vocabulary(draft: DraftIr, target: Package) -> None:
    """Compare what both say about the target vocabulary; silence of either is no contradiction.

    The target's side is the width of its logits and what its config.json says; the two differ where the output layer
    is padded.

    Raises:
        PreconditionError: The draft was made for another vocabulary, or its d2t leads out of this one.
    """
    result = find_result(target.model, Port.LOGITS)
    last = None if result is None else result.get_output_partial_shape(0)[-1]
    if last is None or last.is_dynamic:
        return
    width = last.get_length()
    config = target.config
    said = [config.get("vocab_size"), (config.get("text_config") or {}).get("vocab_size")]
    sizes = {width, *(size for size in said if isinstance(size, int))}
    if draft.vocab_size is not None and draft.vocab_size not in sizes:
        raise PreconditionError(
            "the draft was made for another vocabulary",
            file=draft.file,
            expected=" or ".join(map(str, sorted(sizes))),
            found=draft.vocab_size,
        )
    if draft.d2t is not None and draft.d2t.size:
        ids = draft.d2t + range(len(draft.d2t))
        if ids.max() >= width:
            raise PreconditionError(
                "d2t leads out of the target's vocabulary",
                file=draft.file,
                expected=f"ids below {width}",
                found=f"{ids.max()} for draft token {ids.argmax()}",
            )
