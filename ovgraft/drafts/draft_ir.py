"""What an exported draft IR says about itself: ports, FC, and the metadata of its family."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft import ir
from ovgraft.drafts.contract import Key, Port, RtPath
from ovgraft.drafts.fc import HiddenStateFc, find_fc
from ovgraft.drafts.records import read_record
from ovgraft.errors import PreconditionError, Reason

if TYPE_CHECKING:
    from ovgraft.graft import Package

Family = Literal["dflash", "eagle3"]

EAGLE3_LEAST_LAYERS = 10
"""Below that OpenVINO GenAI has no default for the layers an Eagle-3 draft reads."""


@dataclass(frozen=True)
class DraftIr:
    """Facts of a draft.

    Attributes:
        file: The package, for messages.
        model: The backbone IR.
        family: Told by rt_info, else by the ports.
        hidden_states: The Parameter that takes the target's states.
        hidden_width: Its last dimension as the draft computes with it: n * Ht, or H once the FC has moved; None when
            neither shape nor FC tells.
        fc: The projection behind ``hidden_states``; None when it has moved or there is none.
        fc_reasons: Why there is no FC that could be moved; empty when ``fc`` is there or has moved.
        target_layer_ids: Target layers whose outputs the draft reads, in order; None when an Eagle-3 draft is silent.
        mask_token_id: The token of undecided block rows; None for Eagle-3.
        block_size: Rows of a block as trained; None when nothing tells.
        num_target_layers: Decoder layers of the target the draft was made for, by config.json.
        vocab_size: Target vocabulary the draft was made for.
        draft_vocab_size: Width of the draft's own logits; None without them.
        d2t: i64 ``[Dv]``, target id - draft id; None for a full vocabulary.
        input_embedding_scale: Factor on embedding rows.
        output_multiplier: Factor on logits, before the soft cap.
        final_logit_softcapping: ``cap * tanh(logits / cap)``; 0 is none.
        exposed: ovgraft's record of ``last_hidden_state``.
        moved_fc: ovgraft's record of the FC that has moved into a target.
        applied: ovgraft's record of what attaching put into the graph.
    """

    file: Path
    model: ov.Model
    family: Family
    hidden_states: ov.Node
    hidden_width: int | None
    fc: HiddenStateFc | None
    fc_reasons: tuple[Reason, ...]
    target_layer_ids: tuple[int, ...] | None
    mask_token_id: int | None
    block_size: int | None
    num_target_layers: int | None
    vocab_size: int | None
    draft_vocab_size: int | None
    d2t: NDArray[np.int64] | None
    input_embedding_scale: float
    output_multiplier: float
    final_logit_softcapping: float
    exposed: dict[str, Any] | None
    moved_fc: dict[str, Any] | None
    applied: dict[str, Any] | None


def read_draft(package: Package) -> DraftIr:
    """Read the facts of a draft package.

    Values come from rt_info; the block size, the target's depth and vocabulary, and the three embedding and logit
    factors fall back to config.json, where they may stand at the top or inside ``dflash_config``.

    Raises:
        PreconditionError: It is no draft, or a value is missing, malformed or contradicted.
    """
    model, file = package.model, package.path
    parameter = find_input(model, Port.HIDDEN_STATES)
    if parameter is None:
        ports = ", ".join(sorted(name for port in model.inputs for name in port.names))
        raise PreconditionError("not a draft: no input hidden_states", file=file, found=f"inputs {ports}")
    family = _family(model, file)
    facts = _Metadata(model, package.config, file)
    moved_fc = read_record(model, Key.MOVED_FC, file)
    graph = ir.Graph(model)
    fc, reasons = (None, ()) if moved_fc is not None else find_fc(graph, graph.index(parameter))
    last = parameter.get_output_partial_shape(0)[-1]
    width = last.get_length() if last.is_static else fc.in_width if fc is not None else None
    draft_vocab_size, d2t = _draft_vocabulary(model, file)
    if family == "dflash":
        layer_ids = facts.integers(Key.TARGET_LAYER_IDS, required=True)
        mask_token_id = facts.integer(Key.MASK_TOKEN_ID, required=True)
    else:
        layer_ids = facts.integers(Key.HIDDEN_LAYERS_LIST, required=False)
        mask_token_id = None
    return DraftIr(
        file=file,
        model=model,
        family=family,
        hidden_states=parameter,
        hidden_width=width,
        fc=fc,
        fc_reasons=reasons,
        target_layer_ids=layer_ids,
        mask_token_id=mask_token_id,
        block_size=facts.integer(Key.BLOCK_SIZE),
        num_target_layers=facts.integer(("dflash", "num_target_layers")),
        vocab_size=facts.integer(Key.VOCAB_SIZE),
        draft_vocab_size=draft_vocab_size,
        d2t=d2t,
        input_embedding_scale=facts.number(Key.INPUT_EMBEDDING_SCALE, 1.0),
        output_multiplier=facts.number(Key.OUTPUT_MULTIPLIER, 1.0),
        final_logit_softcapping=facts.number(Key.FINAL_LOGIT_SOFTCAPPING, 0.0, least=0.0),
        exposed=read_record(model, Key.EXPOSED, file),
        moved_fc=moved_fc,
        applied=read_record(model, Key.APPLIED, file),
    )


def eagle3_default_layers(count: int) -> tuple[int, ...] | None:
    """EAGLE's own choice and GenAI's for a draft that names no layers: an early, a middle and a late one.

    Args:
        count: N, layers of the target.

    Returns:
        2, N/2, N-3; None below :data:`EAGLE3_LEAST_LAYERS`.
    """
    return (2, count // 2, count - 3) if count >= EAGLE3_LEAST_LAYERS else None


def find_input(model: ov.Model, name: str) -> ov.Node | None:
    """The Parameter with a tensor name."""
    return next((parameter for parameter in model.get_parameters() if name in parameter.output(0).names), None)


def find_result(model: ov.Model, name: str) -> ov.Node | None:
    """The Result with a tensor name."""
    return next((result for result in model.get_results() if name in result.output(0).names), None)


def _family(model: ov.Model, file: Path) -> Family:
    flags = {"dflash": Key.DFLASH_MODE, "eagle3": Key.EAGLE3_MODE}
    said = [family for family, key in flags.items() if _truth(ir.get_text(model, key), key, file)]
    if len(said) > 1:
        raise PreconditionError("rt_info names two draft families", file=file, found=" and ".join(said))
    if said:
        return cast(Family, said[0])
    if ir.get_text(model, Key.TARGET_LAYER_IDS) is not None:
        return "dflash"  # dflash_mode promises a form that OpenVINO GenAI takes; other forms go without
    # An IR without the flag: the two exports share no set of ports.
    inputs = {name for port in model.inputs for name in port.names}
    outputs = {name for port in model.outputs for name in port.names}
    if Port.INPUTS_EMBEDS in inputs and Port.LAST_HIDDEN_STATE in outputs and Port.LOGITS not in outputs:
        return "dflash"
    if Port.INPUT_IDS in inputs and {Port.LOGITS, Port.D2T} <= outputs:
        return "eagle3"
    raise PreconditionError(
        "cannot tell the draft's family",
        file=file,
        expected="rt_info dflash_mode or eagle3_mode, or the ports of one of them",
        found=f"inputs {', '.join(sorted(inputs))}; outputs {', '.join(sorted(outputs))}",
    )


def _truth(text: str | None, key: RtPath, file: Path) -> bool:
    match None if text is None else text.lower():
        case None | "false" | "no" | "0":
            return False
        case "true" | "yes" | "1":
            return True
    raise PreconditionError(f"rt_info {'/'.join(key)} is malformed", file=file, expected="True or False", found=text)


def _draft_vocabulary(model: ov.Model, file: Path) -> tuple[int | None, NDArray[np.int64] | None]:
    """Width of the draft's own logits, and the offsets that map them to target ids."""
    logits, mapping = find_result(model, Port.LOGITS), find_result(model, Port.D2T)
    last = logits.get_output_partial_shape(0)[-1] if logits is not None else None
    width = last.get_length() if last is not None and last.is_static else None
    if mapping is None:
        return width, None
    constant = mapping.input_value(0).get_node()
    if constant.get_type_name() != "Constant" or not constant.get_output_element_type(0).is_integral_number():
        raise PreconditionError("output d2t is no table", file=file, node=ir.node_ref(constant, model))
    offsets = constant.data.astype(np.int64)
    if offsets.shape != (width,):
        raise PreconditionError("d2t does not fit the logits", file=file, expected=f"[{width}]", found=offsets.shape)
    ids = offsets + np.arange(len(offsets))
    if ids.size and ids.min() < 0:
        raise PreconditionError("d2t maps a draft token below 0", file=file, found=int(ids.min()))
    return width, offsets


class _Metadata:
    """Reads values out of rt_info, then config.json, and names key and text when one is wrong."""

    def __init__(self, model: ov.Model, config: Mapping[str, Any], file: Path) -> None:
        self._model = model
        self._config = config
        self._file = file

    def integers(self, key: RtPath, *, required: bool) -> tuple[int, ...] | None:
        """A list as optimum-intel (``1,3,4``), OpenVINO (``1 3 4``) or JSON (``[1, 3, 4]``) write it."""
        text = ir.get_text(self._model, key)
        if text is None:
            if required:
                raise self._error(key, "is missing", "layer ids such as 1,3,4", None)
            return None
        inner = text.strip().removeprefix("[").removesuffix("]")
        words = [word for word in re.split(r"[,\s]+", inner) if word]
        if not words or any(re.fullmatch(r"[+-]?\d+", word) is None for word in words):
            raise self._error(key, "is malformed", "layer ids such as 1,3,4", text)
        return tuple(map(int, words))

    def integer(self, key: RtPath, *, required: bool = False) -> int | None:
        """A whole number, 0 or more."""
        value = self._value(key)
        if value is None:
            if required:
                raise self._error(key, "is missing", "a token id", None)
            return None
        if isinstance(value, bool) or re.fullmatch(r"\d+", str(value)) is None:
            raise self._error(key, "is malformed", "a whole number, 0 or more", value)
        return int(value)

    def number(self, key: RtPath, default: float, least: float | None = None) -> float:
        """A finite number."""
        value = self._value(key)
        if value is None:
            return default
        try:
            number = float("nan") if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if not np.isfinite(number) or (least is not None and number < least):
            expected = "a finite number" if least is None else f"a finite number, {least:g} or more"
            raise self._error(key, "is malformed", expected, value)
        return number

    def _value(self, key: RtPath) -> Any:
        text = ir.get_text(self._model, key)
        if text is not None:
            return text
        name = key[-1]
        places: list[Any] = [self._config, self._config.get("dflash_config")]
        values = [place[name] for place in places if isinstance(place, dict) and place.get(name) is not None]
        if len(values) == 2 and values[0] != values[1]:
            raise PreconditionError(
                f"config.json contradicts itself: {name} is {values[0]}, dflash_config.{name} is {values[1]}",
                file=self._file,
            )
        return values[0] if values else None

    def _error(self, key: RtPath, problem: str, expected: str, found: Any) -> PreconditionError:
        where = f"draft metadata {'/'.join(key)}"
        shown = None if found is None else repr(found)
        return PreconditionError(f"{where} {problem}", file=self._file, expected=expected, found=shown)
