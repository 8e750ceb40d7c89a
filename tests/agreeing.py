"""Pairs that agree for a reason: the draft's numbers must come from the right layers, or little is accepted.

The target copies: after token t it emits t for ever. Its layers are random, its output layer is fitted to find t in the
last one. A draft's FC is fitted to the states of the layers it captures: other layers or another order mean less to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from numpy.typing import NDArray

from tests import models, support
from tests.blocks import Given

HIDDEN, HEADS, REPEATED = 32, 4, 12
VOCABULARY, USED, DRAFT_VOCABULARY = 1024, 64, 256
"""GenAI takes a Gather for the embedding by its name, or by 1,000 rows or more; prompts draw from the first 64."""


@dataclass(frozen=True)
class Target:
    """A copying target and what a draft is fitted to.

    Attributes:
        model: The decoder.
        table: Weight of its output layer, f32 ``[V, H]``.
        tokens: i64 ``[B, S]`` prompts that end in repetition.
        states: Per layer f32 ``[B*S, H]``; the last one is the value that enters the output layer.
    """

    model: ov.Model
    table: NDArray[np.float32]
    tokens: NDArray[np.int64]
    states: tuple[NDArray[np.float32], ...]

    def prompts(self) -> list[list[int]]:
        """One prompt per last token that the target repeats, among the tokens the Eagle-3 vocabulary holds."""
        logits = (self.states[-1] @ self.table.T).reshape(*self.tokens.shape, -1)
        copied = (logits.argmax(-1) == self.tokens)[:, -REPEATED:].all(1)
        known = self.tokens[:, -1] % (VOCABULARY // DRAFT_VOCABULARY) == 0
        rows = self.tokens[copied & known][:, : 1 - REPEATED // 2].tolist()
        return list({row[-1]: row for row in rows}.values())


def copying_target(layers: int, *, annotated: bool = True, seed: int = 0) -> Target:
    """A decoder that repeats the last token of its prompt."""
    target = _target(layers, annotated, seed)
    return replace(target, model=target.model.clone())


@cache
def _target(layers: int, annotated: bool, seed: int) -> Target:
    random = np.random.default_rng(seed)
    tokens = np.repeat(random.integers(4, USED, (128, 5)), [1, 1, 1, 2, REPEATED], axis=1)
    shape = (layers, HIDDEN, VOCABULARY, HEADS, HEADS)
    states = _states(models.tiny_decoder(*shape, seed=seed), layers, tokens)
    table = _fit(states[-1], 12 * (np.eye(VOCABULARY, dtype=np.float32)[tokens.reshape(-1)] - 0.5))
    model = models.tiny_decoder(*shape, annotated=annotated, seed=seed, given={"self.lm_head.weight": table})
    return Target(model, table, tokens, states)


def dflash_draft(target: Target, layer_ids: tuple[int, ...], *, mask_token_id: int = 3) -> ov.Model:
    """A DFlash draft whose block rows read the mean of the context, which is what the target will say."""
    one = np.eye(HIDDEN, dtype=np.float32)
    scope = "self.layers.0"
    given = {
        **_fc(target, layer_ids, "self.fc.weight"),
        "self.hidden_norm.weight": np.ones(HIDDEN, np.float32),
        "self.norm.weight": np.ones(HIDDEN, np.float32),
        f"{scope}.self_attn.q_proj.weight": 0 * one,
        f"{scope}.self_attn.v_proj.weight": one,
        f"{scope}.self_attn.o_proj.weight": 100 * one,
        f"{scope}.mlp.down_proj.weight": np.zeros((HIDDEN, 2 * HIDDEN), np.float32),
    }
    return models.tiny_dflash_draft(
        1,
        HIDDEN,
        len(layer_ids),
        heads=HEADS,
        kv_heads=HEADS,
        target_layer_ids=layer_ids,
        mask_token_id=mask_token_id,
        given=given,
    )


def eagle3_draft(target: Target, layer_ids: tuple[int, ...]) -> ov.Model:
    """An Eagle-3 draft that reads the next token from the FC of the states; d2t points at every fourth token."""
    given = {
        **_fc(target, layer_ids, "self.model.fc.weight"),
        "self.model.norm.weight": np.ones(HIDDEN, np.float32),
        "self.model.midlayer.self_attn.o_proj.weight": np.zeros((HIDDEN, HIDDEN), np.float32),
        "self.model.midlayer.mlp.down_proj.weight": np.zeros((HIDDEN, 2 * HIDDEN), np.float32),
        "self.model.lm_head.weight": target.table[:: VOCABULARY // DRAFT_VOCABULARY],
    }
    return models.tiny_eagle3_draft(
        HIDDEN,
        len(layer_ids),
        vocab=VOCABULARY,
        draft_vocab=DRAFT_VOCABULARY,
        heads=HEADS,
        kv_heads=HEADS,
        given=given,
    )


def _fc(target: Target, layer_ids: tuple[int, ...], name: str) -> Given:
    joined = np.concatenate([target.states[layer] for layer in layer_ids], axis=1)
    return {name: _fit(joined, target.states[-1])}


def _fit(rows: NDArray[np.float32], wanted: NDArray[np.float32]) -> NDArray[np.float32]:
    """Weight ``[outputs, inputs]`` of the least-squares map, lightly regularized."""
    square = rows.T @ rows + 1e-3 * len(rows) * np.eye(rows.shape[1])
    weight: NDArray[np.float32] = np.linalg.solve(square, rows.T @ wanted).T.astype(np.float32)
    return weight


def _states(model: ov.Model, layers: int, tokens: NDArray[np.int64]) -> tuple[NDArray[np.float32], ...]:
    by_name = {node.get_friendly_name(): node for node in model.get_ops()}
    names = [f"__module.model.layers.{layer}/aten::add/Add_1" for layer in range(layers - 1)]
    names.append("__module.model.norm/aten::mul/Multiply_1")
    for layer, name in enumerate(names):
        by_name[name].output(0).get_tensor().add_names({f"state.{layer}"})
        model.add_results([ops.result(by_name[name])])
    outputs = support.run_decoder(model, tokens)
    return tuple(outputs[f"state.{layer}"].reshape(-1, HIDDEN) for layer in range(layers))
