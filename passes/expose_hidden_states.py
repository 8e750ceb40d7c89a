"""expose-hidden-states: the target gives out the hidden states a draft reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ovgraft import decoder, drafts, ir
from ovgraft.drafts.contract import Key, Port
from ovgraft.errors import PostconditionError, PreconditionError, Reason
from ovgraft.passbase import Context, Pass, option

if TYPE_CHECKING:
    import openvino as ov

    from ovgraft.graft import Graft


@dataclass(frozen=True, kw_only=True)
class ExposeHiddenStates(Pass):
    """Add the output last_hidden_state: the states of the layers the draft reads, side by side.

    The output is f32 ``[B, S, n*Ht]``, the states in the given order. Layer i means the output of decoder layer i; the
    last one means the value that enters lm_head, after the final norm, as the exporter annotates it. With
    ``layer-convention=input`` layer i means the value that enters it (EAGLE's own training code; GenAI 2026.4.1 taps
    outputs).

    Without ``layers`` the draft's metadata decides: ``dflash/target_layer_ids``, or for Eagle-3 ``hidden_layers_list``
    and then 2, N/2, N-3 of N >= 10 layers. Nothing is ever guessed for DFlash.
    """

    name: ClassVar[str] = "expose-hidden-states"

    layers: tuple[int, ...] | None = option(
        None, "layer ids in the order the draft reads them; the draft's metadata when not given", example="1,3,4"
    )
    layer_convention: Literal["output", "input"] = option("output", "whether layer i means its output or its input")

    def apply(self, graft: Graft, ctx: Context) -> None:
        """Add the output.

        Raises:
            PreconditionError: No layer ids, ids the target does not have, or an output of that name is there already.
            StructureError: The layers cannot be told.
        """
        package = graft.target
        model = package.model
        said = drafts.read_record(model, Key.EXPOSED, package.path)
        if said is not None and self.layers is None and graft.draft is None:
            if said.get("convention") != self.layer_convention:
                expected = f"{said.get('layers')} by convention {self.layer_convention}"
                raise _other_states(graft, expected, f"convention {said.get('convention')}")
            ctx.remark(f"unchanged: layers {said['layers']} are exposed already")
            return
        structure = decoder.read_decoder(model)
        if model.has_rt_info(list(Key.HIDDEN_STATES_DECODER_LAYERS)):
            decoder.check_annotation(model, structure)
        layers, origin = self._layers(graft, len(structure.layers))
        _check_ids(layers, len(structure.layers), graft)
        states = [structure.hidden_state(layer, self.layer_convention) for layer in layers]
        listed = ", ".join(map(str, layers))
        ctx.remark(f"layers {listed} ({origin}), layer convention {self.layer_convention}")
        last = len(structure.layers) - 1
        if last in layers and self.layer_convention == "output":
            ctx.remark(f"layer {last} is the last: its value after the final norm, as the exporter annotates it")
        record = {"layers": list(layers), "convention": self.layer_convention}
        if self._is_exposed(graft, record, states):
            if said is not None:
                ctx.remark("unchanged: these layers are exposed already")
                return
            ctx.note("metadata", "target", f"output last_hidden_state was there; recorded as layers {listed}")
        else:
            names = drafts.NameSpace(model, "target")
            joined = drafts.side_by_side(states, names)
            drafts.add_output(model, joined, Port.LAST_HIDDEN_STATE)
            model.validate_nodes_and_infer_types()
            width = joined.get_partial_shape()[-1]
            text = f"output last_hidden_state: layers {listed}, {width} wide"
            ctx.note("add", "target", text, ir.node_ref(joined.get_node(), model))
        drafts.write_record(model, Key.EXPOSED, record)

    def ensures(self, graft: Graft) -> None:
        """The output, its record and ``logits`` are there.

        Raises:
            PostconditionError: One is missing.
        """
        model = graft.target.model
        ports = (Port.LOGITS, Port.LAST_HIDDEN_STATE)
        missing = [f"output {name}" for name in ports if drafts.find_result(model, name) is None]
        if drafts.read_record(model, Key.EXPOSED) is None:
            missing.append(f"rt_info {'/'.join(Key.EXPOSED)}")
        if missing:
            raise PostconditionError("the hidden states are not exposed", found=f"no {', no '.join(missing)}")

    def _layers(self, graft: Graft, count: int) -> tuple[tuple[int, ...], str]:
        """Layer ids and where they come from."""
        if self.layers is not None:
            if graft.draft is not None:
                said = drafts.read_draft(graft.draft).target_layer_ids
                if said is not None and said != self.layers:
                    return self.layers, f"option; the draft's metadata says {', '.join(map(str, said))}"
            return self.layers, "option"
        if graft.draft is None:
            raise PreconditionError("no layer ids", hint="say layers=1,3,4, or name the draft whose metadata has them")
        draft = drafts.read_draft(graft.draft)
        if draft.family == "dflash":
            if self.layer_convention == "input":
                raise PreconditionError(
                    "dflash/target_layer_ids name outputs of layers",
                    file=draft.file,
                    expected="layer-convention=output",
                    found="layer-convention=input",
                )
            if draft.num_target_layers not in (None, count):
                raise PreconditionError(
                    "the draft was made for a target of another depth",
                    file=draft.file,
                    expected=f"a target of {draft.num_target_layers} layers",
                    found=f"{count} layers",
                    hint="take the draft of this target; expose-hidden-states{layers=...} names layers by hand",
                )
            assert draft.target_layer_ids is not None  # read_draft insists on it for DFlash
            return draft.target_layer_ids, "draft metadata dflash/target_layer_ids"
        if draft.target_layer_ids is not None:
            return draft.target_layer_ids, "draft metadata hidden_layers_list"
        default = drafts.eagle3_default_layers(count)
        if default is None:
            raise PreconditionError(
                "the Eagle-3 draft names no layers and the target is too shallow for the usual choice",
                file=draft.file,
                expected=f"{drafts.EAGLE3_LEAST_LAYERS} layers or more",
                found=count,
                hint="say layers=1,2,3",
            )
        return default, "Eagle-3 default 2, N/2, N-3"

    def _is_exposed(self, graft: Graft, record: dict[str, Any], states: list[ov.Output]) -> bool:
        """Whether the output is there and is the one wanted."""
        package = graft.target
        there = drafts.find_result(package.model, Port.LAST_HIDDEN_STATE)
        said = drafts.read_record(package.model, Key.EXPOSED, package.path)
        if there is None and said is None:
            return False
        if said == record and there is not None:
            return True
        wanted = f"{record['layers']} by convention {record['convention']}"
        if there is None:
            raise _other_states(graft, wanted, "a record of it but no output last_hidden_state")
        if said is not None:
            raise _other_states(graft, wanted, f"{said.get('layers')} by convention {said.get('convention')}")
        source = there.input_value(0)
        joined = _joined(source) if len(states) > 1 else [source]
        if len(joined) == len(states) and all(map(_same, joined, states)):
            return True
        node = ir.node_ref(source.get_node(), package.model)
        raise _other_states(graft, wanted, f"an output last_hidden_state of something else, {node}")


def _other_states(graft: Graft, expected: str, found: str) -> PreconditionError:
    text = "the target exposes hidden states already"
    return PreconditionError(text, file=graft.target.path, expected=expected, found=found)


def _joined(output: ov.Output) -> list[ov.Output]:
    """What a Concat over the last axis joins; nothing when it is none."""
    node, last = output.get_node(), len(output.get_partial_shape()) - 1
    if node.get_type_name() != "Concat" or node.get_attributes()["axis"] not in (-1, last):
        return []
    return list(node.input_values())


def _same(a: ov.Output, b: ov.Output) -> bool:
    return a.get_node() is b.get_node() and a.get_index() == b.get_index()


def _check_ids(layers: tuple[int, ...], count: int, graft: Graft) -> None:
    reasons = []
    if not layers:
        reasons.append(Reason("no-layers", "the list of layer ids is empty"))
    outside = [layer for layer in layers if not 0 <= layer < count]
    if outside:
        listed = ", ".join(map(str, outside))
        reasons.append(Reason("out-of-range", f"no layer {listed}: the target has layers 0 to {count - 1}"))
    repeated = [layer for layer, times in Counter(layers).items() if times > 1]
    if repeated:
        reasons.append(Reason("repeated", f"layer {', '.join(map(str, repeated))} is named more than once"))
    if reasons:
        text = "; ".join(reason.message for reason in reasons)
        raise PreconditionError(f"wrong layer ids: {text}", file=graft.target.path, reasons=tuple(reasons))
