"""A draft with what it borrows from its target: token rows in, logits and tokens out."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft import decoder, drafts, ir
from ovgraft.checks.feeds import Call, FeedMaker
from ovgraft.checks.hosts import open_host, runnable
from ovgraft.checks.ports import by_name, static_last
from ovgraft.checks.run import Feeds, Outputs, Runner
from ovgraft.drafts.contract import Port
from ovgraft.passes.attach_embedding import target_embedding

if TYPE_CHECKING:
    from ovgraft.graft import Graft, Package

Array = NDArray[Any]


@dataclass(frozen=True)
class DraftCall:
    """New rows of one sequence for a draft.

    Attributes:
        call: Their numbers.
        hidden: States f32 ``[1, rows, width]``: the target's, or the draft's own ones.
        ids: Tokens i64 ``[1, rows]``; of a block the anchor and mask tokens.
        own: The states are the draft's own, which no FC projects (Eagle-3).
    """

    call: Call
    hidden: Array
    ids: Array
    own: bool = False


@dataclass(frozen=True)
class Reading:
    """How the values around a draft are read; None is what its metadata says.

    Attributes:
        embedding_scale: Factor on rows of the target's embedding.
        offsets: i64 ``[Dv]``, target id - draft id of every draft token.
        mask_token_id: Token of undecided block rows.
    """

    embedding_scale: float | None = None
    offsets: Array | None = None
    mask_token_id: int | None = None


AS_SAID = Reading()


class TargetTables:
    """The tables a draft borrows, each compiled when it is first asked for.

    Args:
        target: Whose they are.
        label: How errors call them.
        **compile: Arguments of :class:`~ovgraft.checks.run.Runner`.
    """

    def __init__(self, target: Package, label: str, **compile: Any) -> None:
        self._target, self._label, self._compile = target, label, compile

    @functools.cached_property
    def embedding(self) -> Runner:
        """``ids`` i64 ``[B, rows]`` -> ``rows`` f32 ``[B, rows, Ht]``."""
        return Runner(_embedding(self._target), f"{self._label}, embedding", **self._compile)

    @functools.cached_property
    def lm_head(self) -> Runner:
        """``hidden`` f32 ``[B, rows, Ht]`` -> ``logits`` f32 ``[B, rows, V]``."""
        return Runner(_lm_head(self._target), f"{self._label}, output layer", **self._compile)


class DraftSide:
    """A draft, compiled.

    Attributes:
        outputs: Names that :meth:`step` returns.
        states_width: Width of the states it reads.
        facts: What its IR says.
        tables: The target's, which it borrows.

    Args:
        graft: Target and draft; neither is changed.
        wanted: Outputs to give; ``logits`` and ``draft_token_ids`` are worked out when missing.
        label: How errors call it.
        chained: Also read states of its own, and give them (Eagle-3).
        tables: The target's, when they are compiled already.
        **compile: Arguments of :class:`~ovgraft.checks.run.Runner`.

    Raises:
        MismatchError: A model does not compile.
        CheckpointError: The mask embedding beside it does not fit.
        StructureError: ``chained``, and the draft's own states cannot be told.
    """

    def __init__(
        self,
        graft: Graft,
        wanted: Sequence[str],
        label: str,
        *,
        chained: bool = False,
        tables: TargetTables | None = None,
        **compile: Any,
    ) -> None:
        package = graft.package("draft")
        self.facts = drafts.read_draft(package)
        self.states_width = self.facts.hidden_width
        model, self._fc = runnable(self.facts.model), None
        if chained:
            fc, model = _cut_behind_fc(model)
            self._fc = None if fc is None else Runner(fc, f"{label}, FC", **compile)
        self._host = open_host(model, f"{label}, draft", **compile)
        self._feeds = FeedMaker([model])
        inputs, outputs = by_name(model.inputs), by_name(model.outputs)
        self.tables = tables or TargetTables(graft.target, label, **compile)
        self._embedding, self._mask_row = None, None
        if Port.INPUT_IDS not in inputs:
            self._embedding = self.tables.embedding
            width = static_last(self._embedding.outputs["rows"])
            if self.facts.mask_token_id is not None and width is not None:
                self._mask_row = drafts.read_mask_embedding(package.folder, width)
        missing = set(wanted) - outputs.keys()
        self._lm_head = None
        if missing & _TOKENS and Port.LOGITS not in outputs and Port.LAST_HIDDEN_STATE in outputs:
            self._lm_head = self.tables.lm_head
        gives_logits = self._lm_head is not None or Port.LOGITS in outputs
        self._picks = Port.DRAFT_TOKEN_IDS in missing and gives_logits
        self.outputs = (
            *outputs,
            *([Port.LOGITS] if self._lm_head else []),
            *([Port.DRAFT_TOKEN_IDS] if self._picks else []),
        )

    def reset(self) -> None:
        """Forget all sequences."""
        self._host.reset()

    def step(self, batch: Mapping[int, DraftCall], reading: Reading = AS_SAID) -> dict[int, Outputs]:
        """One inference for each of several sequences.

        Args:
            batch: New rows by sequence.
            reading: How to read what is not in the graph.

        Returns:
            Sequence -> output name -> array, for :attr:`outputs`.
        """
        feeds = {sequence: self._feeds_of(sequence, rows, reading) for sequence, rows in batch.items()}
        return {sequence: self._completed(outputs, reading) for sequence, outputs in self._host.step(feeds).items()}

    def _feeds_of(self, sequence: int, rows: DraftCall, reading: Reading) -> Feeds:
        hidden = rows.hidden
        if self._fc is not None and not rows.own:
            (hidden,) = self._fc.run({Port.HIDDEN_STATES: hidden}).values()
        given: dict[str, Array] = {Port.HIDDEN_STATES: hidden}
        if self._embedding is None:
            given[Port.INPUT_IDS] = rows.ids
        else:
            given[Port.INPUTS_EMBEDS] = self._embedded(rows.ids, reading)
        return self._feeds.feeds(rows.call, sequence, given)

    def _embedded(self, ids: Array, reading: Reading) -> Array:
        """Rows of the target's table, with the draft's own vector for its mask token, times its scale."""
        assert self._embedding is not None
        rows = self._embedding.run({"ids": ids})["rows"]
        if self._mask_row is not None:
            rows[ids == self.facts.mask_token_id] = self._mask_row
        said = self.facts.input_embedding_scale
        scaled: Array = rows * np.float32(said if reading.embedding_scale is None else reading.embedding_scale)
        return scaled

    def _completed(self, outputs: Outputs, reading: Reading) -> Outputs:
        if self._lm_head is not None:
            logits = self._lm_head.run({"hidden": outputs[Port.LAST_HIDDEN_STATE]})["logits"]
            outputs[Port.LOGITS] = self._scaled(logits)
        if self._picks:
            picked = outputs[Port.LOGITS].argmax(-1)
            offsets = self.facts.d2t if reading.offsets is None else reading.offsets
            outputs[Port.DRAFT_TOKEN_IDS] = picked if offsets is None else picked + offsets[picked]
        return outputs

    def _scaled(self, logits: Array) -> Array:
        """``softcap(logits * output_multiplier)``, z-lab's order."""
        logits = logits * np.float32(self.facts.output_multiplier)
        cap = np.float32(self.facts.final_logit_softcapping)
        return np.tanh(logits / cap) * cap if cap > 0 else logits


_TOKENS = frozenset({Port.LOGITS, Port.DRAFT_TOKEN_IDS})


def _cut_behind_fc(draft: ov.Model) -> tuple[ov.Model | None, ov.Model]:
    """An Eagle-3 draft as its chain of steps runs it.

    Returns:
        ``hidden_states -> projected``, None where the FC has moved, and the rest: it takes projected states or its own
        ones, and gives its own ones as ``last_hidden_state``.

    Raises:
        StructureError: The residual that the next step reads cannot be told.
    """
    copy, other = draft.clone(), draft.clone()
    graph = ir.Graph(copy)
    parameter = drafts.find_input(copy, Port.HIDDEN_STATES)
    assert parameter is not None  # it is a draft
    fc, _ = drafts.find_fc(graph, graph.index(parameter))
    if drafts.find_result(copy, Port.LAST_HIDDEN_STATE) is None:
        residual = drafts.last_residual(graph, decoder.read_lm_head(copy).hidden)
        drafts.add_output(copy, residual.output(0), Port.LAST_HIDDEN_STATE)
    if fc is None:
        return None, copy
    drafts.redirect(graph, fc.output, parameter.output(0))
    shape = parameter.get_output_partial_shape(0)
    shape[len(shape) - 1] = fc.out_width
    parameter.set_partial_shape(shape)
    copy.validate_nodes_and_infer_types()
    return _fc_alone(other), copy


def _fc_alone(draft: ov.Model) -> ov.Model:
    graph = ir.Graph(draft)
    parameter = drafts.find_input(draft, Port.HIDDEN_STATES)
    assert parameter is not None
    fc, _ = drafts.find_fc(graph, graph.index(parameter))
    assert fc is not None  # its twin has one
    return ov.Model([ir.make_result(fc.output, "projected")], [parameter]).clone()


def _embedding(target: Package) -> ov.Model:
    """``ids -> rows``: the target's token table alone."""
    (table,) = ir.clone_subgraph([target_embedding(target).table])
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
