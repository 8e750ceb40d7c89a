"""Which ports belong to which computation of a head model, and what can be selected."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ovgraft.drafts.contract import MARKOV_PORTS, Port, PortType
from ovgraft.drafts.spec import Confidence, HeadType

TOP_K_CONSTANT = "markov_head_top_k"
"""Friendly name of the one Constant that every TopK of the scorer takes K from."""

INPUT_ORDER = (
    Port.DRAFT_LOGITS,
    Port.ANCHOR_TOKEN_IDS,
    Port.BLOCK_BEGINS,
    Port.PREV_TOKEN_IDS,
    Port.DRAFT_HIDDEN_STATES,
    Port.RNN_STATE,
)
"""Order of a head's inputs."""


class Computation(StrEnum):
    """What one head model can compute."""

    DENSE = "dense"
    SCORER = "scorer"
    CONFIDENCE = "confidence"


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports of one computation, in model order.

    Attributes:
        inputs: What it reads.
        outputs: What it gives.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def computations_of(head: HeadType, confidence: Confidence = Confidence.NONE) -> tuple[Computation, ...]:
    """The computations a head has, in the order of their outputs.

    The state of an rnn head depends on the whole path, which no ``[R, K, K]`` table holds; DFlash-2 is published as a
    selector among candidates only.
    """
    present = {
        Computation.DENSE: head in (HeadType.VANILLA, HeadType.GATED, HeadType.RNN),
        Computation.SCORER: head in (HeadType.VANILLA, HeadType.GATED, HeadType.DFLASH2),
        Computation.CONFIDENCE: confidence is not Confidence.NONE,
    }
    return tuple(computation for computation, there in present.items() if there)


def ports(head: HeadType, computation: Computation, confidence: Confidence = Confidence.MARKOV) -> Ports:
    """Inputs and outputs of a computation of a head.

    Args:
        head: Type of the head.
        computation: One of :func:`computations_of`.
        confidence: What the acceptance predictor reads.
    """
    if computation is Computation.CONFIDENCE:
        previous = (Port.PREV_TOKEN_IDS,) if confidence is Confidence.MARKOV else ()
        return Ports((*previous, Port.DRAFT_HIDDEN_STATES), (Port.CONFIDENCE,))
    hidden = () if head is HeadType.VANILLA else (Port.DRAFT_HIDDEN_STATES,)
    if computation is Computation.SCORER:
        shared = (Port.DRAFT_LOGITS, Port.ANCHOR_TOKEN_IDS, Port.BLOCK_BEGINS)
        return Ports((*shared, *hidden), (Port.CANDIDATE_IDS, Port.EDGE_SCORES))
    state = (Port.RNN_STATE,) if head is HeadType.RNN else ()
    next_state = (Port.NEXT_RNN_STATE,) if head is HeadType.RNN else ()
    return Ports((Port.PREV_TOKEN_IDS, *hidden, *state), (Port.MARKOV_BIAS, *next_state))


def port_type(port: Port, computation: Computation) -> PortType:
    """Type and dims of a port in one computation: the scorer has R rows of hidden states, the steps have M."""
    known = MARKOV_PORTS[port]
    rows = "R" if computation is Computation.SCORER else "M"
    return PortType(known.element_type, tuple(rows if dim == "R|M" else dim for dim in known.dims))


def ambiguous_ports(head: HeadType, present: tuple[Computation, ...]) -> dict[str, dict[str, str]]:
    """Inputs whose dims differ between the computations of a packed model: port -> computation -> dims."""
    ambiguous = {}
    for port in INPUT_ORDER:
        dims = {
            str(computation): f"[{', '.join(port_type(port, computation).dims)}]"
            for computation in present
            if port in ports(head, computation).inputs
        }
        if len(set(dims.values())) > 1:
            ambiguous[str(port)] = dims
    return ambiguous
