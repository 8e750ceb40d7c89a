"""Which states of the target the draft reads: ids, widths, and where the records on disk lead."""

from __future__ import annotations

from collections import Counter

import openvino as ov

from ovgraft import decoder, drafts, ir
from ovgraft.checks.doctor.facts import PairFacts
from ovgraft.checks.doctor.result import Answer, failed, from_error, not_applicable, passed, warned
from ovgraft.decoder.annotation import parse_annotation
from ovgraft.drafts.contract import WEIGHT_DIGEST_KEY, Key, Port
from ovgraft.errors import PreconditionError, Reason

_NEVER_GUESS = "take the ids from the config the draft was trained with: they cannot be told from its weights"


def layer_ids(pair: PairFacts) -> Answer:
    """Every id names one layer of the target."""
    count, draft = len(pair.structure.layers), pair.draft
    ids = pair.layers()
    numbers: dict[str, object] = {"target_layers": count, "layer_ids": None if ids is None else list(ids)}
    if ids is None:
        if draft.family == "eagle3":
            text = f"the Eagle-3 draft names no layers, and a target of {count} layers has no default"
            advice = (
                f"say which: expose-hidden-states{{layers=...}}; the default needs {drafts.EAGLE3_LEAST_LAYERS} layers"
            )
            return failed(text, advice, **numbers)
        return failed("the draft does not say which target layers it reads; ids are never guessed", _NEVER_GUESS)
    convention = ""
    if draft.source_ids is not None:
        numbers["source_ids"] = list(draft.source_ids[0])
        convention = f"; its file counts by {draft.source_ids[1]}: {', '.join(map(str, draft.source_ids[0]))}"
    listed = ", ".join(map(str, ids))
    low = -1 if draft.checkpoint is not None else 0  # -1: the embedding's output, DeepSpec DSpark only
    outside = [layer for layer in ids if not low <= layer < count]
    if outside:
        text = f"no layer {', '.join(map(str, outside))}: the target has layers 0 to {count - 1}{convention}"
        return failed(text, _outside(outside, count), **numbers)
    repeated = [layer for layer, times in Counter(ids).items() if times > 1]
    if repeated:
        return failed(f"layer {', '.join(map(str, repeated))} is named more than once", _NEVER_GUESS, **numbers)
    if draft.layer_count not in (None, count):
        text = f"the draft was trained for {draft.layer_count} target layers, the target has {count}"
        return failed(text, "take the draft of this target: ids of another depth name other layers", **numbers)
    if min(ids) < 0:
        text = f"layers {listed} of {count}; -1 is the embedding's output, as DeepSpec counts{convention}"
        return warned(text, "expose-hidden-states gives outputs of layers only: join that state yourself", **numbers)
    if draft.layer_ids is None:
        text = f"layers {listed}: the default for Eagle-3, the draft names none"
        return warned(text, "check them against the draft's training config", **numbers)
    if count - 1 in ids:
        text = f"layers {listed} of {count}; the last one is ambiguous{convention}"
        advice = "trainers differ in whether it is before or after the final norm; ovgraft takes what enters lm_head"
        return warned(text, advice, **numbers)
    return passed(f"layers {listed} of {count}{convention}", **numbers)


def _outside(outside: list[int], count: int) -> str:
    if outside == [count]:
        return f"id {count} is the last layer counted by inputs: the ids were shifted by one, or shifted twice"
    if min(outside) < 0:
        return "a negative id counts from the end in some trainers; write the layer itself"
    return "take the draft of this target"


def fc_width(pair: PairFacts) -> Answer:
    """The FC takes n states of the target's width: decided by its weight, not by what is fed to it."""
    ids, width = pair.layers(), pair.structure.lm_head.width
    draft = pair.draft
    assert ids is not None  # layer_ids fails without
    numbers = {"layers": len(ids), "target_width": width, "expected": len(ids) * width, "found": draft.states_width}
    nodes = _fc_nodes(pair)
    if draft.fc is None and draft.fc_reasons:
        return failed(
            f"no FC behind hidden_states: {draft.fc_reasons[0].message}",
            "the draft is laid out in a way no exporter is known to write",
            *draft.fc_reasons,
            **numbers,
        )
    if draft.states_width is None:
        return failed("nothing tells how wide the states are that the draft reads", "export the draft again", **numbers)
    if draft.states_width != len(ids) * width:
        expected = len(ids) * width
        text = f"the draft reads {draft.states_width} numbers per row, {len(ids)} layers of {width} are {expected}"
        fits = draft.states_width % width == 0
        advice = (
            f"its FC is made for {draft.states_width // width} layers: the list of layer ids is not the one it was "
            "trained with"
            if fits
            else "it was trained on a target of another width"
        )
        return failed(text, advice, *nodes, **numbers)
    return passed(f"{len(ids)} x {width} = {draft.states_width}", *nodes, **numbers)


def _fc_nodes(pair: PairFacts) -> tuple[Reason, ...]:
    draft = pair.draft
    if draft.fc is None or draft.graph is None:
        return ()
    ref = draft.graph.ref(draft.graph.index(draft.fc.matmul))
    return (Reason("fc", f"{draft.fc.in_width} -> {draft.fc.out_width}, {draft.fc.weight.format}", (ref,)),)


def locators(pair: PairFacts) -> Answer:
    """The record runtimes find layers by leads to layer boundaries, for every layer the draft reads."""
    model, structure = pair.target.model, pair.structure
    ids = [layer for layer in pair.layers() or () if layer >= 0]
    right = _producers(structure, ids)
    if not model.has_rt_info(list(Key.HIDDEN_STATES_DECODER_LAYERS)):
        text = "the target has no hidden_states_decoder_layers: an older exporter left it out"
        advice = (
            "run annotate-hidden-states; without it OpenVINO GenAI searches by pattern and takes the post-attention "
            "residual on gated layers"
        )
        return warned(text, advice, *right, layers=ids)
    try:
        decoder.check_annotation(model, structure)
    except PreconditionError as error:
        return _wrong_locators(pair, error, ids)
    return passed(f"{len(structure.layers)} locators lead to layer boundaries", *right, layers=ids)


def _producers(structure: decoder.Decoder, ids: list[int]) -> tuple[Reason, ...]:
    graph = structure.graph
    found = []
    for layer in ids:
        output = structure.hidden_state(layer)
        place = str(decoder.describe_output(structure, output))
        found.append(Reason("producer", f"layer {layer}: {place}", (graph.ref(graph.index(output.get_node())),)))
    return tuple(found)


def _wrong_locators(pair: PairFacts, error: PreconditionError, ids: list[int]) -> Answer:
    advice = "annotate-hidden-states{replace=true} rewrites the record by structure"
    shift = _common_shift(pair)
    if shift:
        text = (
            f"every locator is {abs(shift)} layer{'s' if abs(shift) > 1 else ''} too {'late' if shift > 0 else 'early'}"
        )
        return failed(f"{text}: {error.reasons[0].message}", advice, *error.reasons, shift=shift, layers=ids)
    # what the draft does not read cannot mislead it
    read = [reason for reason in error.reasons if reason.message.startswith(tuple(f"layer {i}:" for i in ids))]
    if error.reasons and not read and all(reason.code == "wrong-producer" for reason in error.reasons):
        text = f"locators of layers the draft does not read are wrong: {error.reasons[0].message}"
        return warned(text, advice, *error.reasons, layers=ids)
    answer = from_error(error, advice)
    return failed(answer.text, advice, *(read or answer.evidence), layers=ids)


def _common_shift(pair: PairFacts) -> int:
    """By how many layers the whole record is off; 0 when it is wrong in another way."""
    structure = pair.structure
    text = ir.get_text(pair.target.model, Key.HIDDEN_STATES_DECODER_LAYERS)
    try:
        outputs = decoder.resolve_annotation(pair.target.model)
        layers = list(parse_annotation(text or ""))
    except PreconditionError:
        return 0
    shifts = Counter[int]()
    for layer, output in zip(layers, outputs, strict=True):
        place = decoder.describe_output(structure, output)
        if place.role == "source":
            shifts[-1 - layer] += 1
        elif place.role in ("output", "hidden") and place.layer is not None:
            shifts[place.layer - layer] += 1
        else:
            return 0
    (shift, times), *_ = shifts.most_common(1)
    # the last locators have nowhere to go to
    return shift if times >= len(layers) - abs(shift) and times > 1 else 0


def exposed_states(pair: PairFacts) -> Answer:
    """An output ``last_hidden_state`` that is there already holds what the draft reads, in its order."""
    target, structure = pair.target, pair.structure
    result = drafts.find_result(target.model, Port.LAST_HIDDEN_STATE)
    exported = pair.draft.exported
    models = [target.model] if exported is None else [target.model, exported.model]
    try:
        records = [drafts.read_record(model, Key.MOVED_FC) for model in models]
        exposed = drafts.read_record(target.model, Key.EXPOSED, target.package.path)
    except PreconditionError as error:
        return from_error(error)
    if result is None:
        if exposed is not None or records[0] is not None:
            return failed("the target's record speaks of exposed states and there is no output", _AGAIN)
        if len(records) > 1 and records[1] is not None:
            return failed("the draft's FC has moved, and not into this target", _AGAIN)
        return not_applicable("not grafted: the target exposes no states")
    moved = records[0]
    if len(set(map(str, records))) > 1 or (moved is not None and pair.draft.checkpoint is not None):
        return failed("target and draft are not two halves of one graft: they record different FCs", _AGAIN)
    joined, weight = _joined(structure.graph, result)
    if moved is not None and (weight is None or ir.get_user_data(weight, WEIGHT_DIGEST_KEY) != moved.get("digest")):
        return failed("the FC in the target is not the one on record", _AGAIN)
    places = [decoder.describe_output(structure, output) for output in joined]
    ids = [layer for layer in pair.layers() or () if layer >= 0]
    evidence = tuple(
        Reason("exposed", str(place), (structure.graph.ref(structure.graph.index(output.get_node())),))
        for place, output in zip(places, joined, strict=True)
    )
    wanted = [structure.hidden_state(layer) for layer in ids]
    if len(joined) != len(wanted) or not all(map(_same, joined, wanted)):
        text = (
            f"last_hidden_state joins {', '.join(map(str, places))}; the draft reads layers {', '.join(map(str, ids))}"
        )
        return failed(text, "start from the target as exported: another draft's states are exposed", *evidence)
    where = " through the moved FC" if moved is not None else ""
    return passed(f"last_hidden_state holds layers {', '.join(map(str, ids))}{where}", *evidence)


_AGAIN = "start again from the models as exported"


def _joined(graph: ir.Graph, result: ov.Node) -> tuple[list[ov.Output], ov.Node | None]:
    """The states an output is made of, and the weight of the FC between, where there is one."""
    output = result.input_value(0)
    weight: ov.Node | None = None
    while True:
        node = output.get_node()
        kind = node.get_type_name()
        if kind == "Concat":
            return list(node.input_values()), weight
        if kind not in ("MatMul", "Convert", "Add"):
            return [output], weight
        varying = [source for source in node.input_values() if ir.weight_root(source) is None]
        if len(varying) != 1:
            return [output], weight
        if kind == "MatMul":
            weight = next(s.get_node() for s in node.input_values() if s.get_node() is not varying[0].get_node())
        output = varying[0]


def _same(a: ov.Output, b: ov.Output) -> bool:
    return a.get_node() is b.get_node() and a.get_index() == b.get_index()
