"""Markov head, candidate selector and confidence head of a draft: told by tensors, checked against the config."""

from __future__ import annotations

from ovgraft.drafts.reading.config import Config, boolean, choice, integer
from ovgraft.drafts.spec import Confidence, Family, HeadType, MarkovHead, Vocabulary
from ovgraft.drafts.tensors import CONFIDENCE_WEIGHT, MARKOV_W1
from ovgraft.drafts.weight_source import WeightSource

_DEFAULT_TOP_K = 64  # the public exporter's; never more than the draft vocabulary
_RANK = integer(0)


def read_head(config: Config, family: Family, weights: WeightSource, vocabulary: Vocabulary) -> MarkovHead:
    """The head.

    Args:
        config: The config; sources are recorded on it.
        family: The draft's family.
        weights: Tensors under canonical names.
        vocabulary: V and Dv.

    Raises:
        CheckpointError: Config and tensors speak of different heads.
    """
    if family is Family.DFLASH2:
        return _read_selector(config, weights, vocabulary)
    stored = _stored_type(weights)
    said_rank = config.find("markov_rank")
    if stored is HeadType.NONE:
        # A DSpark file that lost its head must not pass for one that never had any.
        if family is Family.DSPARK:
            rank = config.read("head.rank", _RANK, "markov_rank")
        else:
            rank = config.read_or("head.rank", _RANK, 0, "markov_rank", note="no head tensors")
        if rank == 0:
            config.record("head.type", weights.path.name, "", "no head tensors")
            config.record("head.top_k", "", "", "no head")
            return MarkovHead()
        # The tensors are missing; the check of tensors names them.
        kind = HeadType(config.read("head.type", _head_type, "markov_head_type"))
        return _markov(config, kind, rank, vocabulary)
    if said_rank is None:
        shape = weights.info(MARKOV_W1).shape if MARKOV_W1 in weights else ()
        if len(shape) != 2:
            config.missing("markov_rank")
        config.record("head.rank", weights.path.name, MARKOV_W1, "its shape")
        rank = shape[1]
    else:
        rank = config.read("head.rank", integer(1), "markov_rank")
    said_type = config.find("markov_head_type")
    if said_type is not None:
        said = HeadType(config.read("head.type", _head_type, "markov_head_type"))
        if said is not stored:
            config.refuse(
                said_type[0],
                f"{said_type[0]} and the tensors contradict each other",
                expected=f"{stored}, by its tensors",
            )
    config.record("head.type", weights.path.name, "markov_head.*", "by its tensors")
    return _markov(config, stored, rank, vocabulary)


def read_confidence(config: Config, weights: WeightSource, head: MarkovHead, hidden_size: int) -> Confidence:
    """The acceptance predictor.

    Args:
        config: The config; sources are recorded on it.
        weights: Tensors under canonical names.
        head: The Markov head whose embedding it may read.
        hidden_size: H.

    Raises:
        CheckpointError: Config and tensors contradict each other.
    """
    keys = ("enable_confidence_head", "use_confidence_head")
    stored = any(name.startswith("confidence_head.") for name in weights)
    enabled = config.read_or("confidence", boolean, stored, *keys, note="by its tensors")
    if stored and not enabled:
        config.refuse(config.key_of(*keys), "a confidence head is stored and switched off", expected=True)
    if not enabled:
        return Confidence.NONE
    # The width of the stored row is a fact where no key says what it reads.
    by_width = CONFIDENCE_WEIGHT in weights and weights.info(CONFIDENCE_WEIGHT).shape[-1:] != (hidden_size,)
    with_markov = config.read_or("confidence", boolean, by_width, "confidence_head_with_markov", note="by its width")
    if with_markov and head.type is HeadType.NONE:
        config.refuse(
            config.key_of("confidence_head_with_markov"),
            "a confidence head reads a Markov head that is not there",
            expected=False,
        )
    return Confidence.MARKOV if with_markov else Confidence.HIDDEN


def _stored_type(weights: WeightSource) -> HeadType:
    names = [name for name in weights if name.startswith("markov_head.")]
    if any(name.startswith("markov_head.joint_proj.") for name in names):
        return HeadType.RNN
    if any(name.startswith("markov_head.gate_proj.") for name in names):
        return HeadType.GATED
    return HeadType.VANILLA if names else HeadType.NONE


_head_type = choice(HeadType.VANILLA, HeadType.GATED, HeadType.RNN)


def _markov(config: Config, kind: HeadType, rank: int, vocabulary: Vocabulary) -> MarkovHead:
    if kind is HeadType.RNN:
        config.record("head.top_k", "", "", "an rnn head has no scorer")
        return MarkovHead(kind, rank)
    top_k = min(_DEFAULT_TOP_K, vocabulary.draft_size)
    config.record("head.top_k", "", "", f"min({_DEFAULT_TOP_K}, draft vocabulary)")
    return MarkovHead(kind, rank, top_k)


def _read_selector(config: Config, weights: WeightSource, vocabulary: Vocabulary) -> MarkovHead:
    rank = config.read("head.rank", integer(1), "selector_rank")
    top_k = config.read("head.top_k", integer(1, vocabulary.draft_size), "selector_top_k")
    config.record("head.type", weights.path.name, "candidate_selector.*", "DFlash-2")
    return MarkovHead(HeadType.DFLASH2, rank, top_k)
