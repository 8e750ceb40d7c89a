"""Which states of the target the draft reads: ids, widths, and where the records on disk lead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import openvino as ov

from ovgraft import decoder, drafts, ir
from ovgraft.checks.doctor.configs import configured_layers, contradicted_layers
from ovgraft.checks.doctor.facts import DraftFacts, PairFacts
from ovgraft.checks.doctor.result import Answer, failed, from_error, not_applicable, passed, warned
from ovgraft.checks.exposed import Convention, Exposed, read_exposed, recorded_convention, same_output
from ovgraft.decoder.annotation import parse_annotation
from ovgraft.drafts.contract import WEIGHT_DIGEST_KEY, Key, Port
from ovgraft.errors import PreconditionError, Reason
from ovgraft.noderef import NodeRef

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
        source, meaning = draft.source_ids
        convention = f"; its file counts by {meaning}{f': {_listed(source)}' if source != ids else ''}"
    listed = ", ".join(map(str, ids))
    low = -1 if draft.checkpoint is not None else 0  # -1: the embedding's output, DeepSpec DSpark only
    if draft.layer_count not in (None, count):
        text = f"the draft was trained for {draft.layer_count} target layers, the target has {count}"
        return failed(text, "take the draft of this target: ids of another depth name other layers", **numbers)
    outside = [layer for layer in ids if not low <= layer < count]
    if outside:
        text = f"no layer {', '.join(map(str, outside))}: the target has layers 0 to {count - 1}{convention}"
        return failed(text, _outside(outside, count), **numbers)
    repeated = [layer for layer, times in Counter(ids).items() if times > 1]
    if repeated:
        return failed(f"layer {', '.join(map(str, repeated))} is named more than once", _NEVER_GUESS, **numbers)
    if min(ids) < 0:
        text = f"layers {listed} of {count}; -1 is the embedding's output, as DeepSpec counts{convention}"
        return warned(text, "expose-hidden-states gives outputs of layers only: join that state yourself", **numbers)
    if draft.layer_ids is None:
        return _defaulted(draft, listed, numbers)
    if (other := contradicted_layers(draft)) is not None:
        text = f"the metadata says layers {listed}, {other.text}"
        return warned(text, "export the draft again; --run measures which of the two it is", **numbers)
    if count - 1 in ids:
        text = f"layers {listed} of {count}; the last one is ambiguous{convention}"
        advice = "trainers differ in whether it is before or after the final norm; ovgraft takes what enters lm_head"
        return warned(text, advice, **numbers)
    return passed(f"layers {listed} of {count}{convention}", **numbers)


def _defaulted(draft: DraftFacts, listed: str, numbers: dict[str, object]) -> Answer:
    """Eagle-3 without a list: runtimes take EAGLE's own choice, whatever the draft was trained with."""
    text = f"layers {listed}: the default for Eagle-3, the draft names none"
    configured = configured_layers(draft.package)
    if configured is None:
        return warned(text, "check them against the draft's training config", **numbers)
    key, ids = configured
    text = f"{text}, and config.json says {key} {_listed(ids)}, counted as outputs of layers"
    advice = f"write them: set-rt-info{{model=draft key=hidden_layers_list value={_listed(ids).replace(' ', '')}}}"
    return warned(text, advice, **numbers, configured=list(ids))


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
        text = "the target has no hidden_states_decoder_layers: older exporters and GGUF readers leave it out"
        advice = (
            "run annotate-hidden-states, which finds these; without it OpenVINO GenAI searches by pattern and finds "
            "none, or the post-attention residual on gated layers"
        )
        return warned(text, advice, *right, layers=ids)
    try:
        decoder.check_annotation(model, structure)
    except PreconditionError as error:
        return _wrong_locators(pair, error, ids)
    return passed(f"{len(structure.layers)} locators lead to layer boundaries", *right, layers=ids)


def _producers(structure: decoder.Decoder, ids: list[int]) -> tuple[Reason, ...]:
    found = []
    for layer in ids:
        output = structure.hidden_state(layer)
        place = str(decoder.describe_output(structure, output))
        found.append(Reason("producer", f"layer {layer}: {place}", (_ref(structure, output),)))
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
        record = drafts.read_record(target.model, Key.EXPOSED, target.package.path)
    except PreconditionError as error:
        return from_error(error)
    if result is None:
        if record is not None or records[0] is not None:
            return failed("the target's record speaks of exposed states and there is no output", _AGAIN)
        if len(records) > 1 and records[1] is not None:
            return failed("the draft's FC has moved, and not into this target", _AGAIN)
        return not_applicable("not grafted: the target exposes no states")
    moved = records[0]
    if len(set(map(str, records))) > 1 or (moved is not None and pair.draft.checkpoint is not None):
        return failed("target and draft are not two halves of one graft: they record different FCs", _AGAIN)
    exposed = read_exposed(result)
    digest = None if exposed.weight is None else ir.get_user_data(exposed.weight, WEIGHT_DIGEST_KEY)
    if moved is not None and (exposed.weight is None or digest != moved.get("digest")):
        return failed("the FC in the target is not the one on record", _AGAIN)
    places = ", ".join(str(decoder.describe_output(structure, output)) for output in exposed.states)
    evidence = tuple(
        Reason("exposed", str(decoder.describe_output(structure, output)), (_ref(structure, output),))
        for output in exposed.states
    )
    numbers = {"recorded": record}
    if record is not None and not _joins(exposed, _recorded_states(structure, record)):
        text = f"last_hidden_state joins {places}; its record says layers {_listed(record.get('layers'))}"
        return failed(text, _AGAIN, *evidence, **numbers)
    ids, convention = pair.layers() or (), recorded_convention(target.model)
    if not any(_joins(exposed, wanted) for wanted in _read_states(pair, ids, convention)):
        text = f"last_hidden_state joins {places}; the draft reads layers {_listed(ids)}"
        advice = "start from the target as exported: another draft's states are exposed"
        return failed(text, advice, *evidence, **numbers)
    text = f"last_hidden_state holds layers {_listed(ids)}{' by their inputs' if convention == 'input' else ''}"
    if moved is None and exposed.weight is not None:
        advice = "graft it here: without a digest, two drafts of one shape may share a compiled model of the cache"
        return warned(f"{text} behind an FC that nothing records", advice, *evidence, **numbers)
    where = " through the moved FC" if moved is not None else ""
    return passed(f"{text}{where}", *evidence, **numbers)


_AGAIN = "start again from the models as exported"


def _recorded_states(structure: decoder.Decoder, record: dict[str, Any]) -> list[ov.Output]:
    """The states a record speaks of; none where it speaks of layers that are not there."""
    layers, convention = record.get("layers"), record.get("convention", "output")
    count = len(structure.layers)
    if not isinstance(layers, list) or not all(isinstance(i, int) and 0 <= i < count for i in layers):
        return []
    return [structure.hidden_state(layer, convention) for layer in layers]


def _read_states(pair: PairFacts, ids: Sequence[int], convention: Convention) -> Iterator[list[ov.Output]]:
    """The states a draft reads, in each of the ways that mean the same."""
    structure = pair.structure
    count = len(structure.layers)
    if pair.draft.family == "eagle3":  # its list leaves open how it counts
        yield [structure.hidden_state(layer, convention) for layer in ids]
        return
    if all(layer >= 0 for layer in ids):
        yield [structure.hidden_state(layer) for layer in ids]
    if convention == "input" and all(layer + 1 < count for layer in ids):
        yield [structure.hidden_state(layer + 1, "input") for layer in ids]


def _joins(exposed: Exposed, wanted: Sequence[ov.Output]) -> bool:
    return len(exposed.states) == len(wanted) and all(map(same_output, exposed.states, wanted))


def _ref(structure: decoder.Decoder, output: ov.Output) -> NodeRef:
    return structure.graph.ref(structure.graph.index(output.get_node()))


def _listed(layers: object) -> str:
    return ", ".join(map(str, layers)) if isinstance(layers, (list, tuple)) else str(layers)
