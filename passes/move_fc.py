"""move-fc: the draft's projection of hidden states becomes the target's last step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ovgraft import drafts, ir
from ovgraft.drafts.contract import Key, Port
from ovgraft.errors import PostconditionError, PreconditionError, StructureError
from ovgraft.passbase import Context, Pass

if TYPE_CHECKING:
    import openvino as ov

    from ovgraft.graft import Graft


@dataclass(frozen=True, kw_only=True)
class MoveFc(Pass):
    """Move the draft's hidden-state FC into the target, behind the exposed states.

    The target's ``last_hidden_state`` then is f32 ``[B, S, H]`` instead of ``[B, S, n*Ht]``, and so is the draft's
    ``hidden_states``. Weights go as they are stored, with their decompression, transpose flags and bias. An Eagle-3
    draft needs this: its exported FC takes n*Ht columns only, while its drafted steps feed H.

    The moved weights carry a digest (node ``user_data`` and model rt_info ``ovgraft/moved_fc``), so that two drafts of
    one shape never share a compiled blob.
    """

    name: ClassVar[str] = "move-fc"
    needs_draft: ClassVar[bool] = True

    def apply(self, graft: Graft, ctx: Context) -> None:
        """Move it.

        Raises:
            PreconditionError: States are not exposed, widths, layers or vocabularies do not fit, or another FC is
                there.
            StructureError: The draft's ``hidden_states`` feeds something else than one FC.
        """
        target, draft = graft.target.model, drafts.read_draft(graft.package("draft"))
        if _is_moved(graft, draft):
            ctx.remark("unchanged: the FC has moved already")
            return
        fc = draft.fc
        if fc is None:
            reasons = "; ".join(map(str, draft.fc_reasons))
            raise StructureError(f"no FC to move: {reasons}", file=draft.file, reasons=draft.fc_reasons)
        result = _exposed(graft, draft)
        states = result.input_value(0)
        width = states.get_partial_shape()[-1]
        if width.is_dynamic or width.get_length() != fc.in_width:
            raise PreconditionError(
                "the target's exposed states do not fit the draft's FC",
                file=draft.file,
                node=ir.node_ref(fc.matmul, draft.model),
                expected=f"{fc.in_width} columns",
                found=width,
            )
        drafts.check_vocabulary(draft, graft.target)

        graph = ir.Graph(draft.model)
        drafts.redirect(graph, fc.output, draft.hidden_states.output(0))
        names = drafts.NameSpace(target, "draft")
        record: dict[str, Any] = {"in_width": fc.in_width, "out_width": fc.out_width}
        if states.get_element_type() != draft.hidden_states.get_output_element_type(0):
            element_type = draft.hidden_states.get_output_element_type(0)
            states = names.give(ir.opset.convert(states, element_type), "hidden_states_convert")
        value = _append(fc, states, names, record)
        target.remove_result(result)
        drafts.drop_name(result.input_value(0), Port.LAST_HIDDEN_STATE)
        drafts.add_output(target, value, Port.LAST_HIDDEN_STATE)
        shape = draft.hidden_states.get_output_partial_shape(0)
        shape[len(shape) - 1] = fc.out_width
        draft.hidden_states.set_partial_shape(shape)
        for model in (target, draft.model):
            drafts.write_record(model, Key.MOVED_FC, record)
            model.validate_nodes_and_infer_types()
        widths = f"{fc.in_width} -> {fc.out_width}"
        text = f"FC {widths} ({fc.weight.format}) behind the exposed states"
        ctx.note("add", "target", text, ir.node_ref(fc.matmul, target))
        ctx.note("remove", "draft", f"FC {widths}; hidden_states is {fc.out_width} wide")

    def ensures(self, graft: Graft) -> None:
        """Both ends have the projected width and the target holds the very weights on record.

        Raises:
            PostconditionError: They do not.
        """
        target, draft = graft.target.model, graft.package("draft").model
        records = [drafts.read_record(model, Key.MOVED_FC) for model in (target, draft)]
        record = records[0]
        if record is None or record != records[1]:
            raise PostconditionError("target and draft do not record the same FC", found=records)
        result = drafts.find_result(target, Port.LAST_HIDDEN_STATE)
        parameter = drafts.find_input(draft, Port.HIDDEN_STATES)
        if result is None or parameter is None:
            raise PostconditionError("last_hidden_state or hidden_states is gone")
        widths = [node.get_output_partial_shape(0)[-1] for node in (result, parameter)]
        if any(width != record["out_width"] for width in widths):
            raise PostconditionError("wrong width", expected=record["out_width"], found=f"{widths[0]} and {widths[1]}")
        expected = [record[key] for key in ("digest", "bias_digest") if key in record]
        found = [drafts.weight_digest(node) for node in _weights(result)]
        if found != expected:
            raise PostconditionError("the target holds other FC weights", expected=expected, found=found)


def _append(fc: drafts.HiddenStateFc, states: ov.Output, names: drafts.NameSpace, record: dict[str, Any]) -> ov.Output:
    """Put the FC's own nodes behind ``states``, with weights copied by reference; fills in the digests."""
    value, weights = states, {id(fc.matmul): (fc.weight, "digest")}
    if fc.bias is not None:
        add = next(node for node in fc.nodes if node.get_type_name() == "Add")
        weights[id(add)] = (fc.bias, "bias_digest")
    previous: ov.Node | None = None
    for node in fc.nodes:
        port = next((i for i, source in enumerate(node.input_values()) if source.get_node() is previous), 0)
        if id(node) in weights:
            weight, key = weights[id(node)]
            copy, record[key] = drafts.transplant(weight.output, names)
            node.input(1 - port).replace_source_output(copy)
        node.input(port).replace_source_output(value)
        value, previous = names.give(node), node
    return value


def _weights(result: ov.Node) -> list[ov.Node]:
    """The ends of the weight subgraphs of a moved FC, MatMul first, from the output it ends in."""
    node = result.input_value(0).get_node()
    found: list[ov.Node] = []
    while True:
        sources = [source.get_node() for source in node.input_values()]
        constant = [source for source in sources if ir.weight_root(source.output(0)) is not None]
        found = [*constant, *found]
        if node.get_type_name() == "MatMul" or len(constant) == len(sources):
            return found
        node = next(source for source in sources if all(source is not other for other in constant))


def _is_moved(graft: Graft, draft: drafts.DraftIr) -> bool:
    there = drafts.read_record(graft.target.model, Key.MOVED_FC, graft.target.path)
    if there is None and draft.moved_fc is None:
        return False
    if there == draft.moved_fc:
        return True
    raise PreconditionError(
        "target and draft are not two halves of one graft",
        file=graft.target.path,
        expected=f"the FC of this draft ({_digest(draft.moved_fc, 'still in the draft')})",
        found=_digest(there, "no FC in the target"),
        hint="start from the models as exported",
    )


def _digest(record: dict[str, Any] | None, otherwise: str) -> str:
    return otherwise if record is None else f"digest {str(record.get('digest'))[:12]}"


def _exposed(graft: Graft, draft: drafts.DraftIr) -> ov.Node:
    """The Result of the exposed states, which must be those the draft reads, in its order."""
    file = graft.target.path
    result = drafts.find_result(graft.target.model, Port.LAST_HIDDEN_STATE)
    record = drafts.read_record(graft.target.model, Key.EXPOSED, file)
    if result is None or record is None:
        hint = "run expose-hidden-states first"
        if result is not None:
            raise PreconditionError("nothing says which layers last_hidden_state holds", file=file, hint=hint)
        raise PreconditionError("the target exposes no hidden states", file=file, hint=hint)
    if draft.target_layer_ids is not None:
        # what enters layer i is the output of layer i - 1; hidden_layers_list leaves the convention to its reader
        shift = 1 if draft.family == "dflash" and record["convention"] == "input" else 0
        exposed = [layer - shift for layer in record["layers"]]
        if exposed != list(draft.target_layer_ids):
            raise PreconditionError(
                "the target exposes other layers than the draft reads",
                file=draft.file,
                expected=list(draft.target_layer_ids),
                found=f"{record['layers']} by convention {record['convention']}",
            )
    return result
