"""What goes wrong only when the pair runs: metadata runtimes look for, their options, and state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import openvino as ov

from ovgraft import ir
from ovgraft.checks.doctor.configs import contradiction
from ovgraft.checks.doctor.facts import DraftFacts, PairFacts
from ovgraft.checks.doctor.result import Answer, not_applicable, passed, warned
from ovgraft.checks.hosts import is_per_row_draft
from ovgraft.drafts.contract import Key
from ovgraft.errors import Reason

_OPTIONS = "runtime_options"


def metadata(pair: PairFacts) -> Answer:
    """What an exporter of today writes and an older one left out, and what OpenVINO GenAI would take otherwise."""
    draft = pair.draft
    if draft.checkpoint is not None:
        return not_applicable("build-draft writes all of it")
    missing, misread = list(_left_out(draft)), list(_misread(draft))
    if not missing and not misread:
        return passed("everything a runtime asks for is there")
    said = []
    if missing:
        said.append(f"left out by the exporter: {'; '.join(reason.message for reason in missing)}")
    said += [f"{_GENAI} {reason.message}" for reason in misread]
    advice = ["set-rt-info writes what you know"] if missing else []
    advice += [_OTHER_HOSTS] if misread else []
    return warned("; ".join(said), "; ".join(advice), *missing, *misread)


_GENAI = "OpenVINO GenAI 2026.4.1"
_OTHER_HOSTS = "run the pair on a host that reads the metadata; attach-embedding puts a scale into the graph"


def _left_out(draft: DraftFacts) -> Iterator[Reason]:
    model = draft.package.model
    if draft.family == "eagle3":
        if ir.get_text(model, Key.EAGLE3_MODE) is None:
            yield Reason("no-mode", "eagle3_mode: runtimes take it for a plain model")
        return
    if ir.get_text(model, Key.DFLASH_MODE) is None and not (_is_per_row(model) or ir.get_text(model, Key.VERSION)):
        yield Reason("no-mode", f"dflash_mode: {_GENAI} takes it for a plain model")
    if draft.block_size is None:
        yield Reason("no-block-size", "block_size: other lengths than the trained one are accepted less")
    elif (other := contradiction(draft, "block_size", draft.block_size)) is not None:
        yield Reason("block-size", f"block_size is {draft.block_size} and {other.text}")
    if draft.vocab_size is None:
        yield Reason("no-vocab-size", "vocab_size: nothing holds the tokenizers against each other")
    scale = ir.get_text(model, Key.ACTIVATIONS_SCALE_FACTOR)
    if draft.family == "dflash2" and (_number(scale) or 0.0) < _DFLASH2_SCALE:
        said = "is missing" if scale is None else f"is {scale}"
        text = f"ACTIVATIONS_SCALE_FACTOR {said}: DFlash-2 drafts overflow in f16 below {_DFLASH2_SCALE:g}"
        yield Reason("activation-scale", text)


_DFLASH2_SCALE = 32.0


def _misread(draft: DraftFacts) -> Iterator[Reason]:
    """What the released runtime reads differently from what the draft means, without a word."""
    model, exported = draft.package.model, draft.exported
    assert exported is not None
    if ir.get_text(model, Key.DFLASH_MODE) is None or _is_per_row(model):
        return  # it does not take it for a draft, or refuses its ports
    if draft.offset == 0:
        yield Reason("rows", "takes each row for the token at its place; this draft's mean the one behind (offset 0)")
    if exported.input_embedding_scale != 1.0:
        factor = f"{exported.input_embedding_scale:g}"
        yield Reason("scale", f"embeds with the bare table, without input_embedding_scale {factor}")


def _is_per_row(model: ov.Model) -> bool:
    return ir.get_text(model, Key.INPUT_LAYOUT) is not None or is_per_row_draft(model)


def options(pair: PairFacts) -> Answer:
    """Options inside the IRs under which one of them computes differently from the other."""
    if pair.draft.checkpoint is not None:
        return not_applicable("a checkpoint has none")
    sides = [_runtime_options(model) for model in (pair.target.model, pair.draft.package.model)]
    evidence = []
    for key in sorted(sides[0].keys() | sides[1].keys()):
        values = [side.get(key) for side in sides]
        if key == Key.ACTIVATIONS_SCALE_FACTOR[-1] and (_number(values[1]) or 0.0) >= _needed_scale(pair.draft):
            continue  # each model has its own; what a draft needs is asked under metadata
        if values[0] != values[1] and (_number(values[0]) is None or _number(values[0]) != _number(values[1])):
            target, draft = ("not set" if value is None else value for value in values)
            evidence.append(Reason("option", f"{key}: target {target}, draft {draft}"))
    numbers = {"target": sides[0], "draft": sides[1]}
    if not evidence:
        return passed(f"{len(sides[0])} runtime options, the same in both" if sides[0] else "none in either", **numbers)
    text = "; ".join(reason.message for reason in evidence)
    advice = "harmless where meant; give both pipelines the same properties when you compare numbers"
    return warned(f"runtime options differ: {text}", advice, *evidence, **numbers)


def _needed_scale(draft: DraftFacts) -> float:
    return _DFLASH2_SCALE if draft.family == "dflash2" else float("inf")


def _runtime_options(model: ov.Model) -> dict[str, str]:
    return {"/".join(path[1:]): text for path, text in ir.flatten(model).items() if path[0] == _OPTIONS}


def _number(text: str | None) -> float | None:
    """The number a text stands for: exporters write 8.0, converters 8."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def states(pair: PairFacts) -> Answer:
    """Every variable is set before it is read, and written once: nothing is left over from another request."""
    evidence = []
    graphs = [("target", pair.structure.graph)]
    if pair.draft.graph is not None:
        graphs.append(("draft", pair.draft.graph))
    count = 0
    for role, graph in graphs:
        count += len(graph.model.get_variables())
        evidence += list(_state_problems(role, graph))
    if evidence:
        more = f" (and {len(evidence) - 1} more)" if len(evidence) > 1 else ""
        advice = "call reset_state() at the start of every request, and export again"
        return warned(f"{evidence[0].message}{more}", advice, *evidence, variables=count)
    if not count:
        return not_applicable("no states: the caches are inputs")
    return passed(f"{count} variables, each with an initial value and one writer", variables=count)


def _state_problems(role: str, graph: ir.Graph) -> Iterator[Reason]:
    writers, readers = Counter[str](), Counter[str]()
    for i in graph.find("Assign"):
        writers[graph.nodes[i].get_variable_id()] += 1
    for i in graph.find("ReadValue"):
        name = graph.nodes[i].get_variable_id()
        readers[name] += 1
        ref = (graph.ref(i),)
        if not graph.inputs[i]:
            yield Reason("no-initial-value", f"{role}: variable '{name}' has no initial value", ref)
        if not graph.consumers[i]:
            yield Reason("unread", f"{role}: nothing reads variable '{name}'", ref)
    for name in sorted(readers.keys() | writers.keys()):
        if not writers[name] or writers[name] > 1:
            yield Reason("writers", f"{role}: variable '{name}' is written {writers[name]} times")
        if not readers[name]:
            yield Reason("readers", f"{role}: variable '{name}' is written and never read")
