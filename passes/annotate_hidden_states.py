"""Write where each decoder layer's output is, as the exporter would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ovgraft import decoder, ir
from ovgraft.drafts.contract import Key
from ovgraft.errors import PostconditionError, PreconditionError, StructureError
from ovgraft.passbase import Context, Pass, option

if TYPE_CHECKING:
    from ovgraft.graft import Graft


@dataclass(frozen=True, kw_only=True)
class AnnotateHiddenStates(Pass):
    """Find every decoder layer's output by structure and record it as OpenVINO GenAI reads it.

    Writes rt_info ``hidden_states_decoder_layers`` in the exporter's form: entry i is the output of layer i, the last
    one the post-norm value that enters lm_head. Nodes keep their names; where the name of a layer's output repeats in
    the model, the pass refuses, because the runtime looks it up by name.
    """

    name: ClassVar[str] = "annotate-hidden-states"
    metadata_only: ClassVar[bool] = True

    replace: bool = option(False, "rewrite an existing annotation, whatever it says")

    def apply(self, graft: Graft, ctx: Context) -> None:
        """Annotate the target; a valid annotation stays.

        Raises:
            StructureError: The layers can't be told from the graph, or config.json counts others.
            PreconditionError: The existing annotation is malformed, doesn't resolve, or disagrees with the structure.
        """
        model = graft.target.model
        structure = decoder.read_decoder(model)
        count = len(structure.layers)
        configured = decoder.configured_layer_count(graft.target.config)
        if configured not in (None, count):
            raise StructureError(
                "the graph and config.json count different numbers of layers",
                file=graft.target.path,
                expected=f"{configured} layers, as config.json says",
                found=f"{count} in the graph",
            )
        numbers = decoder.numbers_in_names(structure)
        if None not in numbers and numbers != tuple(range(count)):
            ctx.remark(f"names number the layers otherwise than the graph orders them: {', '.join(map(str, numbers))}")
        key = list(Key.HIDDEN_STATES_DECODER_LAYERS)
        present = model.has_rt_info(key)
        if present and not self.replace:
            decoder.check_annotation(model, structure)
            ctx.remark(f"unchanged: the annotation of {count} layers is valid")
            return
        text = decoder.annotation_text(structure)
        if present and ir.get_text(model, Key.HIDDEN_STATES_DECODER_LAYERS) == text:
            ctx.remark(f"unchanged: the annotation of {count} layers is valid")
            return
        if present:
            ir.delete(model, Key.HIDDEN_STATES_DECODER_LAYERS)
        ir.set_text(model, Key.HIDDEN_STATES_DECODER_LAYERS, text)
        word = "replaced" if present else "written"
        ctx.note("metadata", "target", f"{'/'.join(key)} {word}: {count} layers")

    def ensures(self, graft: Graft) -> None:
        """Every layer's producer is found by name, as the runtime looks for it.

        Raises:
            PostconditionError: It is not.
        """
        try:
            decoder.resolve_annotation(graft.target.model)
        except PreconditionError as error:
            raise PostconditionError("the annotation does not resolve", reasons=error.reasons) from error
