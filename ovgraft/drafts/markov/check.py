"""Does a head model keep the contract, and does it belong to the backbone beside it? Findings are data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import openvino as ov

from ovgraft import ir
from ovgraft.drafts.contract import FileName, Port
from ovgraft.drafts.markov.computations import Computation, computations_of, port_type, ports
from ovgraft.drafts.markov.facts import HeadFacts, present_computations, read_advertised, read_facts
from ovgraft.drafts.spec import Confidence, HeadType
from ovgraft.errors import PreconditionError, Reason

if TYPE_CHECKING:
    from ovgraft.graft import Package

_STORED = {"f32", "f16", "bf16", "f64", "i64", "i32", "boolean"}
"""Types of Constants a head may hold: floating-point weights, ids and shapes. All others are compressed weights."""


def require_head(model: ov.Model) -> HeadFacts:
    """The metadata of a head model that keeps the contract.

    Raises:
        PreconditionError: It does not; ``reasons`` says how.
    """
    reasons = head_reasons(model)
    if reasons:
        raise PreconditionError(f"not a usable Markov head: {'; '.join(map(str, reasons))}", reasons=reasons)
    return read_facts(model)


def head_reasons(model: ov.Model) -> tuple[Reason, ...]:
    """What is wrong with a head model by itself; empty when nothing is."""
    try:
        facts = read_facts(model)
    except PreconditionError as error:
        return (Reason("head-metadata", str(error)),)
    return (*_computation_reasons(model, facts), *_port_reasons(model, facts), *_constant_reasons(model, facts))


def backbone_reasons(backbone: ov.Model, head: ov.Model | None, target_vocab_size: int | None) -> tuple[Reason, ...]:
    """What does not fit between a backbone, its head and the target.

    Args:
        backbone: The draft IR that advertises the head.
        head: The head model; None when the package has no such file.
        target_vocab_size: Width of the target's logits; None when it is not at hand.
    """
    try:
        said_type, said_rank = read_advertised(backbone)
    except PreconditionError as error:
        return (Reason("backbone-metadata", str(error)),)
    if head is None:
        if said_rank:
            text = (
                f"the backbone advertises a {said_type} head of rank {said_rank} and there is no {FileName.MARKOV_HEAD}"
            )
            return (Reason("head-missing", text),)
        return ()
    try:
        facts = read_facts(head)
    except PreconditionError as error:
        return (Reason("head-metadata", str(error)),)
    return tuple(_fit_reasons(backbone, said_type, said_rank, facts, target_vocab_size))


def package_reasons(package: Package, target_vocab_size: int | None = None) -> tuple[Reason, ...]:
    """All findings about the head of a draft package, from its files."""
    head = package.get(FileName.MARKOV_HEAD)
    own = () if head is None else head_reasons(head)
    return (*own, *backbone_reasons(package.model, head, target_vocab_size))


def _fit_reasons(
    backbone: ov.Model, said_type: HeadType, said_rank: int, facts: HeadFacts, target_vocab_size: int | None
) -> Iterator[Reason]:
    if said_rank == 0:
        yield Reason("head-unannounced", f"there is a {facts.type} head and the backbone's markov_rank is 0 or missing")
    else:
        if said_type is not facts.type:
            yield Reason("head-type", f"the backbone advertises a {said_type} head, the head is {facts.type}")
        if said_rank != facts.rank:
            yield Reason("head-rank", f"the backbone advertises rank {said_rank}, the head has rank {facts.rank}")
    if target_vocab_size is not None and facts.vocab_size != target_vocab_size:
        yield Reason("vocabulary", f"the head is over {facts.vocab_size} tokens, the target over {target_vocab_size}")
    hidden = _last_dim(backbone, Port.LAST_HIDDEN_STATE)
    if None not in (hidden, facts.hidden_size) and hidden != facts.hidden_size:
        yield Reason("hidden-size", f"the head reads {facts.hidden_size} hidden columns, the backbone gives {hidden}")
    logits = _last_dim(backbone, Port.LOGITS)
    if facts.hidden_size is not None and hidden is None and logits is not None:
        yield Reason(
            "hidden-rows",
            "the head reads the draft's hidden rows, and the draft gives logits without last_hidden_state: "
            "attach-lm-head keeps it with keep-hidden=true",
        )
    draft_vocab_size = facts.draft_vocab_size or facts.vocab_size
    if logits is not None and logits != draft_vocab_size:
        yield Reason("draft-vocabulary", f"the head knows {draft_vocab_size} draft tokens, the backbone {logits}")


def _computation_reasons(model: ov.Model, facts: HeadFacts) -> Iterator[Reason]:
    present = present_computations(model)
    possible = (*computations_of(facts.type), Computation.CONFIDENCE)
    if facts.type is HeadType.NONE:
        yield Reason("head-type", "a head of type none computes nothing")
        return
    if not present:
        yield Reason("no-computation", "no output of any computation")
    for computation in present:
        if computation not in possible:
            yield Reason("no-such-computation", f"a {facts.type} head has no {computation} computation")
    if facts.rank == 0:
        yield Reason("head-rank", "markov_rank is 0")
    if facts.top_k and Computation.SCORER not in present:
        yield Reason("top-k", f"top_k is {facts.top_k} and there is no scorer")
    if Computation.SCORER in present and not 1 <= facts.top_k <= facts.max_top_k:
        pruned = "" if facts.draft_vocab_size is None else ", the draft vocabulary"
        yield Reason("top-k", f"top_k is {facts.top_k}, expected 1 to {facts.max_top_k}{pruned}")


def _port_reasons(model: ov.Model, facts: HeadFacts) -> Iterator[Reason]:
    """Ports of each present computation: there, with their types, ranks and widths."""
    inputs = {name: port for port in model.inputs for name in port.names}
    outputs = {name: port for port in model.outputs for name in port.names}
    known: set[str] = set()
    for computation in present_computations(model):
        confidence = Confidence.MARKOV if Port.PREV_TOKEN_IDS in inputs else Confidence.HIDDEN
        wanted = ports(facts.type, computation, confidence)
        known |= {*wanted.inputs, *wanted.outputs}
        for there, names in ((inputs, wanted.inputs), (outputs, wanted.outputs)):
            for name in names:
                if name not in there:
                    yield Reason("missing-port", f"port {name} of the {computation} computation is missing")
                elif wrong := _wrong(there[name], name, computation, facts):
                    yield Reason("port", f"port {name} is {wrong[1]}, expected {wrong[0]}")
    for port in (*model.inputs, *model.outputs):
        if not known & port.names:
            yield Reason("unknown-port", f"port {', '.join(sorted(port.names)) or '(unnamed)'} is not in the contract")


def _wrong(port: ov.Output, name: Port, computation: Computation, facts: HeadFacts) -> tuple[str, str] | None:
    """Expected and found type and shape; None when they agree."""
    kind = port_type(name, computation)
    sizes = {"V": facts.vocab_size, "r": facts.rank, "H": facts.hidden_size, "K": facts.top_k}
    shape = port.get_partial_shape()
    found_type = port.get_element_type().get_type_name()
    fits = found_type == kind.element_type and shape.rank.is_static and len(shape) == len(kind.dims)
    if fits:
        # R, M and B may be anything; sizes the metadata names must be exactly that
        fits = all(
            (dim not in sizes or (there.is_static and there.get_length() == sizes[dim]))
            for there, dim in zip(shape, kind.dims, strict=True)
        )
    if fits:
        return None
    dims = ", ".join(f"{dim}={sizes[dim]}" if dim in sizes else dim for dim in kind.dims)
    return f"{kind.element_type} [{dims}]", f"{found_type} {shape}"


def _constant_reasons(model: ov.Model, facts: HeadFacts) -> Iterator[Reason]:
    nodes = model.get_ordered_ops()
    for node in nodes:
        if node.get_type_name() == "Constant":
            kind = node.get_output_element_type(0).get_type_name()
            if kind not in _STORED:
                text = f"weights are compressed to {kind}; heads keep floating point"
                yield Reason("compressed", text, (ir.node_ref(node, model),))
        elif node.get_type_name() == "Gather":
            # the tables: V rows of r columns looked up by token id
            shape = node.get_input_partial_shape(0)
            if len(shape) == 2 and shape[0] == facts.vocab_size and shape[1] != facts.rank:
                text = f"a token table has {shape[1]} columns, markov_rank is {facts.rank}"
                yield Reason("head-rank", text, (ir.node_ref(node, model),))


def _last_dim(model: ov.Model, name: Port) -> int | None:
    for port in model.outputs:
        if name in port.names:
            shape = port.get_partial_shape()
            if shape.rank.is_static and len(shape) and shape[-1].is_static:
                return int(shape[-1].get_length())
    return None
