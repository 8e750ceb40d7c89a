"""A target and its draft run as one, whatever of the graft is done already and whichever of them is paged.

What a graft has not moved yet is done here on copies, without the passes: hidden states tapped from the target,
embedding rows looked up, the output layer applied. So a grafted pair meets a witness that shares none of its edits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft import decoder, drafts, ir
from ovgraft.checks.draft_side import DraftCall, DraftSide
from ovgraft.checks.exposed import Convention, read_exposed
from ovgraft.checks.hosts import open_host
from ovgraft.checks.ports import by_name, static_last
from ovgraft.checks.run import Feeds, Outputs, Runner
from ovgraft.drafts.contract import Key, Port
from ovgraft.errors import MismatchError

if TYPE_CHECKING:
    from ovgraft.graft import Graft, Package

Array = NDArray[Any]

EMBEDDING_OUTPUT = -1
"""The layer whose output is what the first one reads."""

_TAP = "ovgraft/check/state_{}"


@dataclass(frozen=True)
class Taps:
    """Which states of the target the draft reads.

    Attributes:
        layers: In the order they are joined; -1 is what enters layer 0.
        convention: Whether layer i means its output or its input.
        raw_last: Take the last layer's output as it is, not the normed value that enters the output layer.
    """

    layers: tuple[int, ...]
    convention: Convention = "output"
    raw_last: bool = False


def find_taps(grafts: Sequence[Graft]) -> Taps:
    """The layers a graft's record names, else the draft's metadata, else the Eagle-3 default.

    Raises:
        MismatchError: Nothing tells.
    """
    for graft in grafts:
        record = drafts.read_record(graft.target.model, Key.EXPOSED, graft.target.path)
        if record is not None:
            return Taps(tuple(record["layers"]), record.get("convention", "output"))
    draft = drafts.read_draft(grafts[0].package("draft"))
    if draft.target_layer_ids is not None:
        return Taps(draft.target_layer_ids)
    layers = drafts.eagle3_default_layers(len(decoder.read_decoder(grafts[0].target.model).layers))
    if layers is None:
        raise MismatchError("nothing tells which layers the draft reads", file=draft.file)
    return Taps(layers)


class TargetSide:
    """A target, compiled, that gives out the states its draft reads.

    Attributes:
        width: Of the states, when it is fixed.

    Args:
        target: It is not changed.
        taps: One or several sets of states. None takes what the target exposes.
        label: How errors call it.
        **compile: Arguments of :class:`~ovgraft.checks.run.Runner`.

    Raises:
        MismatchError: It does not compile.
    """

    def __init__(self, target: Package, taps: Sequence[Taps] | None, label: str, **compile: Any) -> None:
        model = target.model
        exposed = by_name(model.outputs).get(Port.LAST_HIDDEN_STATE)
        self._names: list[tuple[str, ...]] = [(Port.LAST_HIDDEN_STATE,)]
        self._fc: Runner | None = None
        self.width = None if exposed is None or taps is not None else static_last(exposed)
        if taps is not None:
            moved_fc = None if exposed is None else _behind_the_states(model)
            model, self._names = _tapped(model, taps)
            self._fc = None if moved_fc is None else Runner(moved_fc, f"{label}, FC", **compile)
        self._host = open_host(model, label, **compile)

    def reset(self) -> None:
        """Forget all sequences."""
        self._host.reset()

    def step(self, batch: Mapping[int, Feeds]) -> dict[int, tuple[Outputs, list[Array]]]:
        """One inference for each of several sequences.

        Returns:
            Sequence -> its outputs but the states, and each set of states f32 ``[1, rows, width]`` as the draft takes
            it.
        """
        return {sequence: self._split(outputs) for sequence, outputs in self._host.step(batch).items()}

    def _split(self, outputs: Outputs) -> tuple[Outputs, list[Array]]:
        states = [
            np.concatenate([outputs[name].astype(np.float32) for name in names], axis=-1) for names in self._names
        ]
        taken = {Port.LAST_HIDDEN_STATE, *(name for names in self._names for name in names)}
        left = {name: value for name, value in outputs.items() if name not in taken}
        if self._fc is not None:
            states = [next(iter(self._fc.run({"joined": value}).values())) for value in states]
        return left, states


class Pair:
    """One graft, compiled.

    Attributes:
        draft_outputs: What :meth:`draft` returns.

    Args:
        graft: Target and draft; neither is changed.
        taps: Used when the target exposes no states.
        wanted: Draft outputs the other side has; ``logits`` and ``draft_token_ids`` are worked out when missing.
        label: How errors call it.
        **compile: Arguments of :class:`~ovgraft.checks.run.Runner`.

    Raises:
        MismatchError: The target's states do not fit the draft's input, or a model does not compile.
    """

    def __init__(self, graft: Graft, taps: Taps, wanted: Sequence[str], label: str, **compile: Any) -> None:
        exposed = Port.LAST_HIDDEN_STATE in by_name(graft.target.model.outputs)
        self._target = TargetSide(graft.target, None if exposed else [taps], f"{label}, target", **compile)
        self._draft = DraftSide(graft, wanted, label, **compile)
        self.draft_outputs = self._draft.outputs
        gives, takes = self._target.width, self._draft.states_width
        if gives is not None and takes is not None and gives != takes:
            raise MismatchError(
                f"{label}: the target's states do not fit the draft",
                expected=f"last_hidden_state of width {takes}",
                found=gives,
            )

    def reset(self) -> None:
        """Forget the sequences of both."""
        self._target.reset()
        self._draft.reset()

    def target(self, batch: Mapping[int, Feeds]) -> dict[int, tuple[Outputs, Array]]:
        """One inference of the target for each of several sequences.

        Returns:
            Sequence -> its outputs but the states, and the states f32 ``[1, rows, width]`` for the draft.
        """
        return {sequence: (outputs, states[0]) for sequence, (outputs, states) in self._target.step(batch).items()}

    def draft(self, batch: Mapping[int, DraftCall]) -> dict[int, Outputs]:
        """One inference of the draft for each of several sequences; see :meth:`DraftSide.step`."""
        return self._draft.step(batch)


def _tapped(model: ov.Model, taps: Sequence[Taps]) -> tuple[ov.Model, list[tuple[str, ...]]]:
    """A copy with the wanted states as outputs, and the names that make up each set."""
    copy = model.clone()
    structure = decoder.read_decoder(copy)
    results: dict[tuple[int, int], ov.Node] = {}
    names = []
    for entry in taps:
        joined = []
        for layer in entry.layers:
            state = state_of(structure, layer, entry)
            key = structure.graph.index(state.get_node()), state.get_index()
            if key not in results:
                results[key] = ir.make_result(state, _TAP.format(len(results)))
            joined.append(results[key].get_friendly_name())
        names.append(tuple(joined))
    copy.add_results(list(results.values()))
    copy.validate_nodes_and_infer_types()
    return copy, names


def state_of(structure: decoder.Decoder, layer: int, taps: Taps) -> ov.Output:
    """The state that a set of taps means by a layer."""
    if layer == EMBEDDING_OUTPUT:
        return structure.layers[0].entry
    if taps.raw_last and layer == len(structure.layers) - 1:
        return structure.layers[layer].output
    return structure.hidden_state(layer, taps.convention)


def _behind_the_states(model: ov.Model) -> ov.Model | None:
    """``joined -> states``: the FC a graft has put behind the joined states; None without one."""
    copy = model.clone()
    result = drafts.find_result(copy, Port.LAST_HIDDEN_STATE)
    assert result is not None
    exposed = read_exposed(result)
    if exposed.weight is None:
        return None
    shape = exposed.joined.get_partial_shape()
    shape = [-1] * (len(shape) - 1) + [shape[-1].get_length()]
    joined = ir.make_parameter("joined", exposed.joined.get_element_type(), shape)
    for reader in list(exposed.joined.get_target_inputs()):
        reader.replace_source_output(joined.output(0))
    end = ir.opset.convert(result.input_value(0), "f32")
    return ov.Model([ir.make_result(end.output(0), "states")], [joined]).clone()
