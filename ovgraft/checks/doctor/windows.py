"""What the draft's layers see: the window and the causality of each, against what it was trained with."""

from __future__ import annotations

from collections.abc import Sequence

from ovgraft import drafts, ir
from ovgraft.checks.doctor.configs import draft_config
from ovgraft.checks.doctor.facts import DraftFacts, PairFacts
from ovgraft.checks.doctor.result import Answer, not_applicable, passed, warned
from ovgraft.decoder import ATTENTION
from ovgraft.drafts import RowAttention
from ovgraft.errors import Reason

_SLIDING, _FULL = "sliding_attention", "full_attention"
_ZLAB = (["DFlashDraftModel"], ["DFlash2DraftModel"])


def attention(pair: PairFacts) -> Answer:
    """Each layer sees the context rows, and the rows of its block, that the config says."""
    draft = pair.draft
    if draft.family == "eagle3":
        return not_applicable("Eagle-3 drafts are causal, without windows")
    if draft.checkpoint is not None:
        backbone = draft.checkpoint.spec.backbone
        layers = [
            RowAttention(backbone.sliding_window or 0 if kind == _SLIDING else 0, not causal)
            for kind, causal in zip(backbone.layer_types, backbone.causal, strict=True)
        ]
        return passed(_said(layers), windows=[layer.window for layer in layers])
    assert draft.graph is not None
    graph = draft.graph
    nodes = sorted((*graph.find(ATTENTION), *graph.find(ir.PAGED_ATTENTION)))
    if not nodes:
        return not_applicable("the draft's attention is written out, which is not read")
    found = drafts.read_row_attention(graph, nodes)
    unknown = [
        Reason("unknown-mask", f"layer {layer}: {sees}", (graph.ref(node),))
        for layer, (node, sees) in enumerate(zip(nodes, found, strict=True))
        if isinstance(sees, str)
    ]
    known = [sees for sees in found if isinstance(sees, RowAttention)]
    numbers = {"windows": [sees.window for sees in known], "bidirectional": [sees.bidirectional for sees in known]}
    if unknown:
        text = f"what {len(unknown)} of {len(nodes)} layers see is not told: {unknown[0].message}"
        return warned(text, "--run on prompts longer than the window tells whether it matters", *unknown, **numbers)
    wrong = _mistakes(draft, known, nodes, graph)
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        advice = (
            "build it from its checkpoint with build-draft, which follows the config; less is accepted otherwise"
            if wrong[0].code == "causality"
            else "export it again: less is accepted once a text is longer than the window"
        )
        return warned(f"{wrong[0].message}{more}", advice, *wrong, **numbers)
    return passed(_said(known), **numbers)


def _mistakes(draft: DraftFacts, found: Sequence[RowAttention], nodes: Sequence[int], graph: ir.Graph) -> list[Reason]:
    """Layers that see something else than config.json says; none where it says nothing."""
    types = _configured_types(draft)
    if types is None:
        return []
    if len(types) != len(found):
        text = f"config.json speaks of {len(types)} layers, the graph has {len(found)} attention ops"
        return [Reason("layer-count", text)]
    window, causal = _configured_window(draft), _configured_causality(draft)
    wrong = []
    for layer, (kind, sees, node) in enumerate(zip(types, found, nodes, strict=True)):
        wanted = (window or 0) if kind == _SLIDING else 0
        if sees.window != wanted:
            has = f"a window of {sees.window}" if sees.window else "no window"
            text = f"layer {layer} has {has}; config.json says {f'a window of {wanted}' if wanted else 'none'}"
            wrong.append(Reason("window", text, (graph.ref(node),)))
        elif causal.get(kind, not sees.bidirectional) == sees.bidirectional:
            way = "in both directions" if sees.bidirectional else "causally"
            text = f"layer {layer} ({kind}) sees its block {way}; it was trained the other way"
            wrong.append(Reason("causality", text, (graph.ref(node),)))
    return wrong


def _configured_types(draft: DraftFacts) -> list[str] | None:
    """Attention of each layer; None where config.json does not say."""
    types = _value(draft, "layer_types")
    if not isinstance(types, list) or not all(isinstance(kind, str) for kind in types):
        return None
    off = [_value(draft, name) is False for name in ("use_sliding_window", "use_swa")]
    return [_FULL] * len(types) if any(off) else types


def _configured_window(draft: DraftFacts) -> int | None:
    windows = [_value(draft, name) for name in ("sliding_window", "swa_window_size")]
    return next((window for window in windows if type(window) is int and window > 0), None)


def _configured_causality(draft: DraftFacts) -> dict[str, bool]:
    """Kind of layer -> whether it is causal inside its block, as far as anything says.

    A key decides for all layers or for sliding ones; else full ones go in both directions, and z-lab's own code runs
    sliding ones causally.
    """
    for name in ("is_causal", "causal"):
        value = _value(draft, name)
        if isinstance(value, bool):
            return {_SLIDING: value, _FULL: value}
    non_causal = _value(draft, "sliding_window_non_causal")
    if isinstance(non_causal, bool):
        return {_SLIDING: not non_causal, _FULL: False}
    config = draft.package.config
    is_zlab = config.get("architectures") in _ZLAB and "speculators_model_type" not in config
    return {_FULL: False, **({_SLIDING: True} if is_zlab else {})}


def _value(draft: DraftFacts, name: str) -> object:
    nested = draft.package.config.get("transformer_layer_config")
    if isinstance(nested, dict) and nested.get(name) is not None:
        return nested[name]
    return draft_config(draft.package, name)[1]


def _said(layers: Sequence[RowAttention]) -> str:
    """What the layers see in words, equal ones together."""
    words = [
        f"{f'a window of {layer.window}' if layer.window else 'all of the context'} and their block "
        f"{'in both directions' if layer.bidirectional else 'causally'}"
        for layer in layers
    ]
    if len(set(words)) == 1:
        return f"all layers see {words[0]}"
    return "; ".join(f"{words.count(word)} see {word}" for word in dict.fromkeys(words))
