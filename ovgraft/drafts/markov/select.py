"""What a runtime does to a head model when it loads it: keep one computation, change K."""

from __future__ import annotations

import numpy as np
import openvino as ov

from ovgraft import ir
from ovgraft.drafts.contract import Key
from ovgraft.drafts.markov.computations import TOP_K_CONSTANT, Computation, ports
from ovgraft.drafts.markov.facts import present_computations, read_facts, write_facts
from ovgraft.errors import PreconditionError, StructureError
from ovgraft.ir import opset


def select_computation(model: ov.Model, keep: Computation) -> list[str]:
    """Keep the outputs of one computation and the inputs they read, in place.

    Args:
        model: A head model.
        keep: The computation.

    Returns:
        Names of the ports that went away, inputs first; empty when it was the only computation.

    Raises:
        PreconditionError: The model does not have it.
    """
    present = present_computations(model)
    if keep not in present:
        raise PreconditionError(f"the head has no {keep} computation", found=", ".join(present) or "none")
    if present == (keep,):
        return []
    facts = read_facts(model)
    wanted = set(ports(facts.type, keep).outputs)
    dropped = [result for result in model.get_results() if not wanted & result.output(0).names]
    gone = [result.get_friendly_name() for result in dropped]
    for result in dropped:
        model.remove_result(result)
    # Ops of the other computations still hang on the inputs, so consumers do not tell which inputs are dead.
    parameters = model.get_parameters()
    live = {id(node) for node in _reachable(model)}
    dead = [parameter for parameter in parameters if id(parameter) not in live]
    gone = [parameter.get_friendly_name() for parameter in dead] + gone
    for parameter in dead:
        model.remove_parameter(parameter)
    write_facts(model, facts, (keep,))
    model.validate_nodes_and_infer_types()
    return gone


def set_top_k(model: ov.Model, k: int) -> int:
    """Change how many candidates per row the scorer keeps, in place.

    Args:
        model: A head model with a scorer.
        k: 1 to min(V, Dv).

    Returns:
        K before.

    Raises:
        PreconditionError: No scorer, or K out of range.
        StructureError: The Constant that holds K is not where it should be.
    """
    facts = read_facts(model)
    if Computation.SCORER not in present_computations(model):
        raise PreconditionError(
            f"this {facts.type} head has no scorer, so there is no K to change",
            found=", ".join(present_computations(model)) or "no computation",
        )
    if not 1 <= k <= facts.max_top_k:
        pruned = "" if facts.draft_vocab_size is None else ", the draft vocabulary"
        raise PreconditionError("top-k out of range", expected=f"1 to {facts.max_top_k}{pruned}", found=k)
    nodes = model.get_ordered_ops()
    holders = [
        node for node in nodes if node.get_type_name() == "Constant" and node.get_friendly_name() == TOP_K_CONSTANT
    ]
    if len(holders) != 1 or holders[0].get_output_shape(0) != ov.Shape([]):
        raise StructureError(
            f"no telling which Constant is {TOP_K_CONSTANT}", expected="one scalar", found=len(holders)
        )
    before = int(holders[0].data)
    if before != k:
        new = opset.constant(np.array(k, np.int64))
        new.set_friendly_name(TOP_K_CONSTANT)
        for reader in holders[0].output(0).get_target_inputs():
            reader.replace_source_output(new.output(0))
        model.validate_nodes_and_infer_types()
    ir.set_text(model, Key.TOP_K, str(k))
    return before


def _reachable(model: ov.Model) -> list[ov.Node]:
    """All nodes some output depends on."""
    waiting: list[ov.Node] = list(model.get_results())
    seen: dict[int, ov.Node] = {}
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen[id(node)] = node
            waiting += [source.get_node() for source in node.input_values()]
    return list(seen.values())
