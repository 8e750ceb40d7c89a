"""The head of a draft checkpoint."""

from __future__ import annotations

from blake3 import blake3

from ovgraft.drafts.checkpoint import CONFIG_FILE, Checkpoint
from ovgraft.drafts.markov.head_weights import HeadWeights, Projection
from ovgraft.drafts.spec import Confidence, HeadType
from ovgraft.drafts.tensors import (
    CONFIDENCE_BIAS,
    CONFIDENCE_WEIGHT,
    D2T,
    GATE_BIAS,
    GATE_WEIGHT,
    HIDDEN_PROJECTION,
    JOINT_BIAS,
    JOINT_WEIGHT,
    MARKOV_W1,
    MARKOV_W2,
    PREDECESSOR_CODEBOOK,
    SUCCESSOR_CODEBOOK,
)
from ovgraft.errors import CheckpointError

_TABLES = {HeadType.DFLASH2: (PREDECESSOR_CODEBOOK, SUCCESSOR_CODEBOOK)}
_PROJECTIONS: dict[HeadType, tuple[str, str | None]] = {
    HeadType.GATED: (GATE_WEIGHT, GATE_BIAS),
    HeadType.RNN: (JOINT_WEIGHT, JOINT_BIAS),
    HeadType.DFLASH2: (HIDDEN_PROJECTION, None),
}


def read_head_weights(checkpoint: Checkpoint) -> HeadWeights:
    """The head's tensors, in the checkpoint's own precision and, where its files allow, not copied.

    Raises:
        CheckpointError: The draft has no head, or its tensors cannot make one.
    """
    spec, weights = checkpoint.spec, checkpoint.weights
    if spec.head.type is HeadType.NONE:
        raise CheckpointError(
            "the draft has no Markov head", file=checkpoint.path, hint="fold-draft-argmax is for drafts without one"
        )

    def projection(weight: str, bias: str | None) -> Projection:
        return Projection(weights.tensor(weight), None if bias is None else weights.tensor(bias))

    w1, w2 = _TABLES.get(spec.head.type, (MARKOV_W1, MARKOV_W2))
    names = _PROJECTIONS.get(spec.head.type)
    return HeadWeights(
        type=spec.head.type,
        vocab_size=spec.vocabulary.size,
        w1=weights.tensor(w1),
        w2=weights.tensor(w2),
        d2t=weights.tensor(D2T) if spec.vocabulary.pruned else None,
        projection=None if names is None else projection(*names),
        confidence=(None if spec.confidence is Confidence.NONE else projection(CONFIDENCE_WEIGHT, CONFIDENCE_BIAS)),
        hidden_size=spec.backbone.hidden_size,
    )


def config_digest(checkpoint: Checkpoint) -> str:
    """blake3 hex of config.json. The weights have theirs where the head is saved, ``ovgraft/bin_blake3``."""
    return blake3((checkpoint.path / CONFIG_FILE).read_bytes()).hexdigest()
