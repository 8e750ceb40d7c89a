"""Inputs for a model, by the names and types of its ports: a prefill and then decode steps, from a seed."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft import decoder, drafts, ir
from ovgraft.checks.ports import by_name, fed_by_tables, is_paged, static_last
from ovgraft.drafts.contract import Port
from ovgraft.drafts.kinds import ModelKind, model_kind
from ovgraft.errors import MismatchError, Reason, SpecError, StructureError

Array = NDArray[Any]
Feeds = dict[str, Array]

PREFILL_ROWS = 9
"""Tokens of the first call."""

_LONGER = 13
"""By which the first call of each further sample is longer."""

BLOCK_ROWS = 4
"""Rows of a DFlash block; the exporter records none."""

CONTEXT_ROWS = (1, 3, 2)
"""Accepted tokens that DFlash steps bring in, in turn: different lengths, as in real drafting."""

_DATA = frozenset({Port.INPUT_IDS, Port.INPUTS_EMBEDS, Port.HIDDEN_STATES, Port.DRAFT_LOGITS})
_BATCH = 1

_RANKS = {
    Port.INPUT_IDS: 2,
    Port.TOKEN_TYPE_IDS: 2,
    Port.INPUTS_EMBEDS: 3,
    Port.HIDDEN_STATES: 3,
    "per_layer_inputs": 4,
}
"""Of inputs that paged models take without a batch axis."""

_MADE_BY_PAGED_HOSTS = frozenset({Port.ATTENTION_MASK, Port.POSITION_IDS, Port.BEAM_IDX})

# optimum-intel's mamba export: the convolution's width counted up at prefill, then the position; the mask covers new
# rows only
CACHE_POSITION = "cache_position"


@dataclass(frozen=True)
class Call:
    """One inference.

    Attributes:
        label: ``prefill``, ``step 1``, ...
        past: Rows the state holds before it.
        rows: New rows.
        context: DFlash only: rows of ``hidden_states`` before the block of ``rows``; they alone stay in the state.
    """

    label: str
    past: int
    rows: int
    context: int = 0


def calls_of(kind: ModelKind, stateful: bool, steps: int, sample: int = 0) -> tuple[Call, ...]:
    """A prefill and ``steps`` decode steps; a single call for a model without states.

    Args:
        kind: Of the model.
        stateful: Whether it remembers rows.
        steps: Decode steps.
        sample: Others have other lengths: sequences that share a batch should not run in step.
    """
    prefill = PREFILL_ROWS + _LONGER * sample
    calls = []
    past = 0
    for step in range(steps + 1 if stateful else 1):
        label = f"step {step}" if step else "prefill" if stateful else "call"
        if kind == "dflash draft":
            context = CONTEXT_ROWS[(step - 1 + sample) % len(CONTEXT_ROWS)] if step else prefill
            calls.append(Call(label, past, BLOCK_ROWS, context))
            past += context
        else:
            rows = 1 if step else prefill
            calls.append(Call(label, past, rows))
            past += rows
    return tuple(calls)


class FeedMaker:
    """Makes the inputs of one model, or of several that are to be compared: equal names get equal values.

    Attributes:
        kind: What the first model is.
        stateful: Whether one of them has states.
        ports: Input name -> a port of that name; of paged models those that carry values of rows.
        unshared: Inputs that only some of the models have.

    Args:
        models: Models whose ports are served.
        seed: Of the random numbers. Each port has a stream of its own, so that one more port moves no other's values.

    Raises:
        MismatchError: The models read different things, so that no inputs mean the same to both.
    """

    def __init__(self, models: Sequence[ov.Model], seed: int = 0) -> None:
        self.kind = model_kind(models[0])
        self.stateful = any(len(model.get_variables()) > 0 or is_paged(model) for model in models)
        self.ports, self._shapes, self.unshared = _merged(models)
        self._models = models
        self._seed = seed
        self._vocab_size = min((size for size in map(vocabulary, models) if size), default=2)

    def check_given(self, inputs: Mapping[str, Array]) -> None:
        """Refuse arrays that are not exactly the inputs.

        Raises:
            SpecError: A name nobody reads, or an input without a value.
        """
        known = {name: port.names for name, port in self.ports.items()}
        unknown = [name for name in inputs if not any(name in names for names in known.values())]
        missing = [name for name, names in known.items() if not names & inputs.keys()]
        listed = f"the inputs are {', '.join(known)}"
        if unknown:
            raise SpecError(f"no model reads the given input {', '.join(unknown)}", hint=listed)
        if missing:
            raise SpecError(f"no value is given for input {', '.join(missing)}", hint=listed)

    def feeds(self, call: Call, sample: int = 0, given: Mapping[str, Array] = MappingProxyType({})) -> Feeds:
        """The inputs of one call, in the element type of the port.

        Args:
            call: Its lengths.
            sample: Other numbers of the same lengths.
            given: Values that are taken as they are.
        """
        return {
            name: given[name] if name in given else self._typed(name, port, call, sample)
            for name, port in self.ports.items()
        }

    def _typed(self, name: str, port: ov.Output, call: Call, sample: int) -> Array:
        random = np.random.default_rng([self._seed, sample, call.past, zlib.crc32(name.encode())])
        value = self._value(name, self._shapes[name], call, random)
        if value is None:
            value = _anything(name, port, call.rows, random)
        return np.ascontiguousarray(value, dtype=port.get_element_type().to_dtype())

    def _value(self, name: str, shape: ov.PartialShape, call: Call, random: np.random.Generator) -> Array | None:
        total = call.past + call.context + call.rows
        is_mamba = CACHE_POSITION in self.ports
        match name:
            case Port.INPUT_IDS | "input":
                return random.integers(0, self._vocab_size, _fit(name, shape, (_BATCH, call.rows)))
            case Port.INPUTS_EMBEDS:
                width = None if shape.rank.is_static and shape[-1].is_static else _stream_width(self._models[0])
                return random.standard_normal(_fit(name, shape, (_BATCH, call.rows, width)))
            case Port.HIDDEN_STATES:
                width = hidden_states_width(self._models[0])
                return random.standard_normal(_fit(name, shape, (_BATCH, call.context or call.rows, width)))
            case Port.ATTENTION_MASK:
                return np.ones(_fit(name, shape, (_BATCH, call.rows if is_mamba else total)))
            case Port.POSITION_IDS:
                # multimodal rotary embeddings have 3 or 4 equal rows of positions in front
                wanted = (*(None for _ in range(len(shape) - 2)), _BATCH, total - call.past)
                sizes = _fit(name, shape, wanted)
                return np.broadcast_to(np.arange(call.past, call.past + sizes[-1]), sizes)
            case Port.BEAM_IDX:
                return np.arange(_BATCH)
            case Port.TOKEN_TYPE_IDS:
                return np.zeros(_fit(name, shape, (_BATCH, call.rows)))
            case "cache_position":
                return np.array([call.past]) if call.past else np.arange(_convolution_width(self._models[0]))
            case "per_layer_inputs":
                layers = len(decoder.read_decoder(self._models[0]).layers) if shape[2].is_dynamic else None
                return random.standard_normal(_fit(name, shape, (_BATCH, call.rows, layers, None)))
        return None


def vocabulary(model: ov.Model) -> int | None:
    """How many token ids the model surely knows; None when it neither reads nor writes tokens."""
    inputs, outputs = by_name(model.inputs), by_name(model.outputs)
    rows = [ports[name] for ports, name in ((outputs, Port.LOGITS), (inputs, Port.DRAFT_LOGITS)) if name in ports]
    sizes = [size for size in map(static_last, rows) if size is not None]
    if Port.INPUT_IDS in inputs or "input" in inputs:
        with contextlib.suppress(StructureError):
            sizes.append(decoder.read_embedding(model).vocab_size)
    return min(sizes, default=None)


def hidden_states_width(model: ov.Model) -> int | None:
    """Width of a draft's ``hidden_states``: its own, else that of the FC behind it; None when neither tells."""
    parameter = drafts.find_input(model, Port.HIDDEN_STATES)
    if parameter is None:
        return None
    width = static_last(parameter.output(0))
    if width is None:
        graph = ir.Graph(model)
        fc, _ = drafts.find_fc(graph, graph.index(parameter))
        width = None if fc is None else fc.in_width
    return width


def _stream_width(model: ov.Model) -> int | None:
    """Width of the rows a model computes with, told by its end: paging forgets the one of ``inputs_embeds``."""
    outputs = by_name(model.outputs)
    if Port.LAST_HIDDEN_STATE in outputs and Port.HIDDEN_STATES in by_name(model.inputs):
        return static_last(outputs[Port.LAST_HIDDEN_STATE])
    with contextlib.suppress(StructureError):
        return decoder.read_lm_head(model).width
    return None


def _row_ports(model: ov.Model) -> dict[str, ov.Output]:
    """Inputs that carry values of rows: all but what the host of a paged model makes."""
    ports = by_name(model.inputs)
    if not is_paged(model):
        return ports
    made = {Port.POSITION_IDS, *([Port.TOKEN_TYPE_IDS] if Port.HIDDEN_STATES in ports else [])}
    return {name: port for name, port in ports.items() if name not in made and not fed_by_tables(port)}


def _stateful_shape(name: str, port: ov.Output) -> ov.PartialShape:
    """The shape of an input with the batch axis that a paged model does without."""
    shape = port.get_partial_shape()
    if shape.rank.is_static and len(shape) == _RANKS.get(name, 0) - 1:
        return ov.PartialShape([ov.Dimension(), *shape])
    return shape


def _merged(
    models: Sequence[ov.Model],
) -> tuple[dict[str, ov.Output], dict[str, ov.PartialShape], tuple[str, ...]]:
    every = [_row_ports(model) for model in models]
    ports: dict[str, ov.Output] = {}
    shapes: dict[str, ov.PartialShape] = {}
    reasons = []
    for name in dict.fromkeys(name for names in every for name in names):
        found = [names[name] for names in every if name in names]
        seen = [
            _stateful_shape(name, names[name]) if is_paged(model) else names[name].get_partial_shape()
            for model, names in zip(models, every, strict=True)
            if name in names
        ]
        ports[name], shapes[name] = found[0], seen[0]
        if len(found) < len(models) and name in _DATA:
            reasons.append(Reason("input-missing", f"only one of them reads {name}"))
        if any(not shape.compatible(seen[0]) for shape in seen):
            reasons.append(Reason("input-shape", f"{name} is {' in one and '.join(map(str, seen))} in the other"))
    widths = {width for width in map(hidden_states_width, models) if width is not None}
    if len(widths) > 1:
        said = " and ".join(map(str, sorted(widths)))
        reasons.append(Reason("input-shape", f"{Port.HIDDEN_STATES} has width {said}"))
    if reasons:
        raise MismatchError("the models read different things", reasons=tuple(reasons))
    made = _MADE_BY_PAGED_HOSTS if any(map(is_paged, models)) else frozenset()
    unshared = [name for name in ports if name not in made and any(name not in names for names in every)]
    return ports, shapes, tuple(unshared)


def _fit(name: str, shape: ov.PartialShape, wanted: Sequence[int | None]) -> tuple[int, ...]:
    """``wanted``, where the port itself fixes no dimension."""
    if shape.rank.is_dynamic:
        return tuple(1 if size is None else size for size in wanted)
    if len(shape) != len(wanted):
        raise MismatchError(
            f"input {name} has a rank that no recipe knows",
            expected=f"{len(wanted)} dimensions",
            found=str(shape),
            hint="give the inputs with --inputs FILE.npz",
        )
    sizes = [dim.get_length() if dim.is_static else size for dim, size in zip(shape, wanted, strict=True)]
    if None in sizes:
        raise MismatchError(
            f"nothing tells how wide input {name} is", found=str(shape), hint="give the inputs with --inputs FILE.npz"
        )
    return tuple(size for size in sizes if size is not None)


def _anything(name: str, port: ov.Output, rows: int, random: np.random.Generator) -> Array:
    """A port no recipe knows: one batch, some rows, zeros for integers, since those may be indices."""
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        raise MismatchError(f"input {name} has no rank", hint="give the inputs with --inputs FILE.npz")
    sizes = [dim.get_length() if dim.is_static else rows if at else _BATCH for at, dim in enumerate(shape)]
    return random.standard_normal(sizes) if port.get_element_type().is_real() else np.zeros(sizes)


def _convolution_width(model: ov.Model) -> int:
    """Last dimension of the convolution states."""
    for variable in model.get_variables():
        last = variable.info.data_shape[-1]
        if "conv" in variable.info.variable_id and last.is_static:
            return int(last.get_length())
    return 4
