"""A target and its draft run as one, whatever of the graft is done already.

What a graft has not moved yet is done here on copies, without the passes: hidden states tapped from the target,
embedding rows looked up, the output layer applied. So a grafted pair meets a witness that shares none of its edits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft import decoder, drafts, ir
from ovgraft.checks.feeds import Call, FeedMaker
from ovgraft.checks.ports import by_name, static_last
from ovgraft.checks.run import Runner
from ovgraft.drafts.contract import FileName, Key, Port
from ovgraft.errors import MismatchError

if TYPE_CHECKING:
    from ovgraft.graft import Graft, Package

Array = NDArray[Any]
Convention = Literal["output", "input"]

_TAP = "ovgraft/check/state_{}"


@dataclass(frozen=True)
class Taps:
    """Which states of the target the draft reads."""

    layers: tuple[int, ...]
    convention: Convention = "output"


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
        self._label = label
        self._facts = drafts.read_draft(graft.package("draft"))
        target, draft = graft.target.model, self._facts.model
        exposed = by_name(target.outputs).get(Port.LAST_HIDDEN_STATE)
        self._taps = () if exposed is not None else tuple(_TAP.format(at) for at in range(len(taps.layers)))
        self._target = Runner(
            _tapped(target, taps, self._taps) if self._taps else target, f"{label}, target", **compile
        )
        self._draft = Runner(draft, f"{label}, draft", **compile)
        self._feeds = FeedMaker([draft])
        inputs, outputs = by_name(draft.inputs), by_name(draft.outputs)
        self._check_width(exposed)
        self._embedding = None
        if Port.INPUT_IDS not in inputs:
            self._embedding = Runner(_embedding(graft.target), f"{label}, embedding", **compile)
        self._lm_head = None
        if Port.LOGITS not in outputs and {Port.LOGITS, Port.DRAFT_TOKEN_IDS} & set(wanted):
            self._lm_head = Runner(_lm_head(graft.target), f"{label}, output layer", **compile)
        self._picks = Port.DRAFT_TOKEN_IDS in wanted and Port.DRAFT_TOKEN_IDS not in outputs
        self.draft_outputs = (
            *outputs,
            *([Port.LOGITS] if self._lm_head else []),
            *([Port.DRAFT_TOKEN_IDS] if self._picks else []),
        )

    def reset(self) -> None:
        """Forget the states of both."""
        self._target.reset()
        self._draft.reset()

    def target(self, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], Array]:
        """One inference of the target.

        Returns:
            Its outputs but the states, and the states f32 ``[B, rows, width]`` for the draft.
        """
        outputs = self._target.run(feeds)
        if not self._taps:
            return outputs, outputs.pop(Port.LAST_HIDDEN_STATE).astype(np.float32)
        return outputs, np.concatenate([outputs.pop(name).astype(np.float32) for name in self._taps], -1)

    def draft(self, call: Call, sample: int, hidden: Array, ids: Array) -> dict[str, Array]:
        """One inference of the draft.

        Args:
            call: Its lengths.
            sample: Which sample.
            hidden: What :meth:`target` returned.
            ids: i64 ``[B, rows]``.

        Returns:
            Output name -> array, for :attr:`draft_outputs`.
        """
        given: dict[str, Array] = {Port.HIDDEN_STATES: hidden}
        if self._embedding is None:
            given[Port.INPUT_IDS] = ids
        else:
            rows = self._embedding.run({"ids": ids})["rows"]
            given[Port.INPUTS_EMBEDS] = rows * np.float32(self._facts.input_embedding_scale)
        outputs = self._draft.run(self._feeds.feeds(call, sample, given))
        if self._lm_head is not None:
            logits = self._lm_head.run({"hidden": outputs[Port.LAST_HIDDEN_STATE]})["logits"]
            outputs[Port.LOGITS] = self._scaled(logits)
        if self._picks:
            picked = outputs[Port.LOGITS].argmax(-1)
            outputs[Port.DRAFT_TOKEN_IDS] = picked if self._facts.d2t is None else picked + self._facts.d2t[picked]
        return outputs

    def _scaled(self, logits: Array) -> Array:
        """``softcap(logits * output_multiplier)``, z-lab's order."""
        logits = logits * np.float32(self._facts.output_multiplier)
        cap = np.float32(self._facts.final_logit_softcapping)
        return np.tanh(logits / cap) * cap if cap > 0 else logits

    def _check_width(self, exposed: ov.Output | None) -> None:
        gives, takes = None if exposed is None else static_last(exposed), self._facts.hidden_width
        if gives is not None and takes is not None and gives != takes:
            raise MismatchError(
                f"{self._label}: the target's states do not fit the draft",
                expected=f"last_hidden_state of width {takes}",
                found=gives,
            )


def _tapped(model: ov.Model, taps: Taps, names: Sequence[str]) -> ov.Model:
    """A copy with the wanted states as outputs."""
    copy = model.clone()
    structure = decoder.read_decoder(copy)
    states = [structure.hidden_state(layer, taps.convention) for layer in taps.layers]
    copy.add_results([ir.make_result(state, name) for state, name in zip(states, names, strict=True)])
    copy.validate_nodes_and_infer_types()
    return copy


def _embedding(target: Package) -> ov.Model:
    """``ids -> rows``: the target's token table alone."""
    source = target.get(FileName.TEXT_EMBEDDINGS)
    embedding = decoder.read_embedding(target.model if source is None else source)
    (table,) = ir.clone_subgraph([embedding.table])
    ids = ir.make_parameter("ids", "i64", [-1, -1])
    rows = ir.opset.gather(table, ids, ir.opset.constant(np.int64(0)))
    return ov.Model([ir.make_result(ir.opset.convert(rows, "f32").output(0), "rows")], [ids])


def _lm_head(target: Package) -> ov.Model:
    """``hidden -> logits``: the target's output layer alone, without what the target does to its logits afterwards."""
    layer = decoder.read_lm_head(target.model)
    parts = [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
    weight, *bias = ir.clone_subgraph(parts)
    hidden = ir.make_parameter("hidden", "f32", [-1, -1, layer.width])
    same_type = ir.opset.convert(hidden, weight.get_element_type().to_string())
    logits = ir.opset.matmul(same_type, weight, False, layer.transpose_b)
    if bias:
        logits = ir.opset.add(logits, bias[0])
    return ov.Model([ir.make_result(ir.opset.convert(logits, "f32").output(0), "logits")], [hidden])
