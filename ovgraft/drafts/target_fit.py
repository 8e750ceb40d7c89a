"""Does a draft's spec fit a target? Numbers only; nothing is compared that needs the graphs."""

from __future__ import annotations

from ovgraft.drafts.spec import DraftSpec
from ovgraft.errors import Reason


def target_mismatches(spec: DraftSpec, *, num_layers: int, hidden_size: int, vocab_size: int) -> tuple[Reason, ...]:
    """What keeps a draft from being grafted on a target.

    Args:
        spec: The draft.
        num_layers: Decoder layers of the target.
        hidden_size: Ht, width of its residual stream.
        vocab_size: V, rows of its embedding.

    Returns:
        Empty when it fits.
    """
    reasons = []
    beyond = [
        (source, layer)
        for source, layer in zip(spec.source_layer_ids, spec.layer_ids, strict=True)
        if layer >= num_layers
    ]
    if beyond:
        ids = ", ".join(f"{source} = output of layer {layer}" for source, layer in beyond)
        reasons.append(
            Reason(
                "layer-out-of-range",
                f"the target has layers 0 to {num_layers - 1}, the draft reads {ids} "
                f"(its file counts by {spec.layer_id_convention})",
            )
        )
    if spec.num_target_layers not in (None, num_layers):
        reasons.append(
            Reason(
                "layer-count",
                f"the draft was trained for {spec.num_target_layers} target layers, the target has {num_layers}",
            )
        )
    if spec.backbone.target_hidden_size != hidden_size:
        reasons.append(
            Reason(
                "hidden-size",
                f"the draft takes hidden states of width {spec.backbone.target_hidden_size}, the target has "
                f"{hidden_size}",
            )
        )
    if spec.shares_embedding and spec.backbone.hidden_size != hidden_size:
        reasons.append(
            Reason(
                "embedding-width",
                f"the draft uses the target's embedding of width {hidden_size} and computes with "
                f"{spec.backbone.hidden_size}",
            )
        )
    if spec.vocabulary.size != vocab_size:
        reasons.append(
            Reason(
                "vocabulary", f"the draft was trained for {spec.vocabulary.size} tokens, the target has {vocab_size}"
            )
        )
    return tuple(reasons)


def last_layer_warning(spec: DraftSpec, num_layers: int | None) -> tuple[Reason, ...]:
    """A warning when a draft reads the last layer of a target, whose id means two things.

    Args:
        spec: The draft.
        num_layers: Decoder layers of the target; None when nobody says.
    """
    if num_layers is None or num_layers - 1 not in spec.layer_ids:
        return ()
    return (
        Reason(
            "last-layer-ambiguous",
            f"the draft reads the last target layer ({num_layers - 1}); trainers differ in whether that is before or "
            "after the final norm, exporters take the value after it",
        ),
    )
