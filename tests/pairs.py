"""Targets with their drafts: opening, grafting, and running them as a host does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft.graft import Graft, Package
from ovgraft.passbase import Context, Pass
from tests import support


def open_pair(target: Path, draft: Path | None = None) -> Graft:
    """A fresh graft of folders."""
    return Graft(Package(target), None if draft is None else Package(draft))


def run_passes(graft: Graft, *passes: Pass) -> list[Context]:
    """What the pipeline does for each pass, without clones."""
    contexts = []
    for each in passes:
        context = Context()
        each.requires(graft)
        each.apply(graft, context)
        for package in (graft.target, graft.draft):
            for model in package.models.values() if package is not None else ():
                model.validate_nodes_and_infer_types()
        each.ensures(graft)
        contexts.append(context)
    return contexts


def changed(context: Context) -> bool:
    """Whether a pass changed something."""
    return bool(context.edits)


def tap(model: ov.Model, names: Sequence[str]) -> ov.Model:
    """Add output ``state_i`` for the i-th named node; nothing of ovgraft takes part."""
    for i, name in enumerate(names):
        model.add_outputs((name, 0))[0].get_tensor().set_names({f"state_{i}"})
    return model


def producers(model: ov.Model, layers: Sequence[int]) -> list[str]:
    """Names of the layers' outputs as the exporter wrote them down."""
    text = str(model.get_rt_info(["hidden_states_decoder_layers"]).value)
    return [json.loads(text)["layers"][str(layer)]["producer"] for layer in layers]


def target_states(
    target: ov.Model, layers: Sequence[int], tokens: NDArray[np.int64], split: Sequence[int] = ()
) -> NDArray[np.float32]:
    """Hidden states f32 ``[B, S, n*Ht]`` of an untouched annotated target, joined outside the graph."""
    tapped = tap(target.clone(), producers(target, layers))
    outputs = support.run_decoder(tapped, tokens, split=split)
    return np.concatenate([outputs[f"state_{i}"] for i in range(len(layers))], axis=-1)


def compiled(model: ov.Model | ov.CompiledModel) -> ov.CompiledModel:
    """Compiled with the parity settings, unless it is already."""
    return model if isinstance(model, ov.CompiledModel) else support.compile_parity(model)


def run_draft(
    draft: ov.Model | ov.CompiledModel, calls: Sequence[tuple[NDArray[np.float32], NDArray[Any]]]
) -> list[dict[str, NDArray[Any]]]:
    """Run a stateful DFlash draft call by call, from empty states.

    Args:
        draft: The draft.
        calls: Per call: ``hidden_states`` of the rows since the last one, and the block (embeddings or ids).
    """
    request = compiled(draft).create_infer_request()
    past, results = 0, []
    for context, block in calls:
        results.append(call(request, support.draft_feeds(context, block, past)))
        past += context.shape[1]
    return results


def run_eagle3(
    draft: ov.Model | ov.CompiledModel, calls: Sequence[tuple[NDArray[np.int64], NDArray[np.float32]]]
) -> list[dict[str, NDArray[Any]]]:
    """Run a stateful Eagle-3 draft; per call: tokens i64 ``[B, S]`` and ``hidden_states``."""
    request = compiled(draft).create_infer_request()
    past, results = 0, []
    for tokens, states in calls:
        ports = [port for port in request.get_compiled_model().inputs if "hidden_states" not in port.names]
        feeds = support.decoder_feeds(ports, tokens, past)
        results.append(call(request, {**feeds, "hidden_states": states}))
        past += tokens.shape[1]
    return results


def call(request: ov.InferRequest, feeds: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """One inference, outputs copied."""
    request.infer(feeds)
    ports = request.get_compiled_model().outputs
    return {port.any_name: np.array(request.get_tensor(port).data) for port in ports}


def tokens(count: int, seed: int = 0, vocabulary: int = 2048) -> NDArray[np.int64]:
    """Token ids i64 ``[1, count]``."""
    return np.random.default_rng(seed).integers(5, vocabulary, (1, count))


def rows(count: int, width: int, seed: int = 0) -> NDArray[np.float32]:
    """Gaussian rows f32 ``[1, count, width]``."""
    return np.random.default_rng(seed).standard_normal((1, count, width)).astype(np.float32)


def node(model: ov.Model, name: str) -> ov.Node:
    """The one node of a friendly name."""
    (found,) = [each for each in model.get_ordered_ops() if each.get_friendly_name() == name]
    return found


def weights(model: ov.Model) -> dict[str, bytes]:
    """Bytes of every constant of two or more dimensions, by friendly name without graft prefixes."""
    found = {}
    for each in model.get_ordered_ops():
        if each.get_type_name() == "Constant" and len(each.get_output_shape(0)) > 1:
            name = each.get_friendly_name()
            while name.startswith(("draft/", "target/")):
                name = name.partition("/")[2]
            found[name] = each.data.tobytes()
    return found
