"""Running built drafts: the SDPA form request by request, the per-row form paged, the numpy reference beside both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft.checks.paged_runner import PagedRunner, Rows
from ovgraft.drafts.building.draft import SlidingInBlock, build_draft
from ovgraft.drafts.checkpoint import Checkpoint, read_checkpoint
from ovgraft.drafts.reference.backbone import ReferenceBackbone, ReferenceCache
from ovgraft.drafts.spec import Backbone
from ovgraft.graft import Graft
from ovgraft.passbase import Context
from ovgraft.passes.paged_attention import PagedAttention
from tests import support
from tests.drafts import checkpoints

Array = NDArray[Any]
Edit = Callable[[checkpoints.Config, checkpoints.Tensors], None]


def tiny(folder: Path, name: str, edit: Edit | None = None) -> Checkpoint:
    """A checkpoint of :mod:`tests.drafts.checkpoints`, whose tables are its own.

    Args:
        folder: Takes the files.
        name: Builder.
        edit: Changes config and tensors in place before they are written.
    """
    config, tensors = checkpoints.BUILDERS[name]()
    for key, value in tensors.items():
        if value.ndim == 2 and value.shape[1] > 1:  # so that no layer drowns the one before
            tensors[key] = (value.astype(np.float32) / np.sqrt(value.shape[1])).astype(checkpoints.BF16)
    if edit is not None:
        edit(config, tensors)
    return own(read_checkpoint(checkpoints.write_checkpoint(folder / name, config, tensors)))


def own(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with frozen copies taken for tables of its own."""
    return replace(checkpoint, spec=replace(checkpoint.spec, frozen_copies=False))


def with_backbone(checkpoint: Checkpoint, **changes: Any) -> Checkpoint:
    """The same tensors under another reading of their config."""
    backbone: Backbone = replace(checkpoint.spec.backbone, **changes)
    return replace(checkpoint, spec=replace(checkpoint.spec, backbone=backbone))


def tensors_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Every tensor by canonical name."""
    return {name: checkpoint.weights.tensor(name) for name in checkpoint.weights}


def reference(checkpoint: Checkpoint, sliding_in_block: SlidingInBlock = "auto") -> ReferenceBackbone:
    """The backbone in numpy."""
    return ReferenceBackbone(checkpoint.spec.backbone, tensors_of(checkpoint), sliding_in_block)


@dataclass(frozen=True)
class Step:
    """One call of one request.

    Attributes:
        hidden_states: f32 ``[context, n * Ht]``.
        block: ``[rows, H]`` embeddings, or ``[rows]`` ids of a draft with a table of its own.
    """

    hidden_states: Array
    block: Array

    @property
    def context(self) -> int:
        """Context rows."""
        return len(self.hidden_states)


def random_steps(checkpoint: Checkpoint, sizes: Sequence[tuple[int, int]], seed: int = 0) -> list[Step]:
    """Steps of ``(context rows, block rows)``."""
    spec, random = checkpoint.spec, np.random.default_rng(seed)
    width = len(spec.layer_ids) * spec.backbone.target_hidden_size
    steps = []
    for context, rows in sizes:
        states = random.standard_normal((context, width)).astype(np.float32)
        if spec.own_embedding:
            block: Array = random.integers(0, spec.vocabulary.size, rows)
        else:
            block = random.standard_normal((rows, spec.backbone.hidden_size)).astype(np.float32)
        steps.append(Step(states, block))
    return steps


def output_name(checkpoint: Checkpoint) -> str:
    """What the draft proposes with."""
    return "logits" if checkpoint.spec.own_lm_head else "last_hidden_state"


class Sdpa:
    """The SDPA form of one request."""

    def __init__(self, model: ov.Model | ov.CompiledModel) -> None:
        compiled = model if isinstance(model, ov.CompiledModel) else support.compile_parity(model)
        self._request = compiled.create_infer_request()
        self.past = 0
        """Context rows so far."""

    def step(self, step: Step) -> dict[str, Array]:
        """Output name -> rows without the batch axis."""
        self._request.infer(support.draft_feeds(step.hidden_states[None], step.block[None], self.past))
        self.past += step.context
        ports = self._request.get_compiled_model().outputs
        values = {port.any_name: np.array(self._request.get_tensor(port).data) for port in ports}
        return {name: value if name == "d2t" else value[0] for name, value in values.items()}


@dataclass
class Numpy:
    """The reference of one request, with the draft's own tables around it."""

    checkpoint: Checkpoint
    sliding_in_block: SlidingInBlock = "auto"
    cache: ReferenceCache = field(default_factory=ReferenceCache)

    def step(self, step: Step) -> Array:
        """All rows of the block, or their logits when the draft has an output layer."""
        return head_of(self.checkpoint, self.rows(step))

    def rows(self, step: Step) -> Array:
        """All rows of the block after the last norm."""
        block = embedded(self.checkpoint, step.block)
        return reference(self.checkpoint, self.sliding_in_block).step(self.cache, step.hidden_states, block)


def embedded(checkpoint: Checkpoint, block: Array) -> Array:
    """Block rows as the first layer takes them."""
    spec = checkpoint.spec
    if not spec.own_embedding:
        return block
    rows = checkpoint.weights.tensor("embed_tokens.weight").astype(np.float64)[block]
    if spec.own_mask_embedding:
        rows[block == spec.mask_token_id] = checkpoint.weights.tensor("mask_embedding").astype(np.float64)
    return cast(Array, rows * spec.input_embedding_scale)


def head_of(checkpoint: Checkpoint, rows: Array) -> Array:
    """What comes out of rows after the last norm."""
    spec = checkpoint.spec
    if not spec.own_lm_head:
        return rows
    logits = rows @ checkpoint.weights.tensor("lm_head.weight").astype(np.float64).T * spec.output_multiplier
    cap = spec.final_logit_softcapping
    return logits if cap is None else np.tanh(logits / cap) * cap


class _OneModel:
    """What passes see of a graft, around one model."""

    def __init__(self, model: ov.Model) -> None:
        self.model = model

    def package(self, role: str) -> _OneModel:
        return self


def paged(checkpoint: Checkpoint, sliding_in_block: SlidingInBlock = "auto") -> ov.Model:
    """The per-row form after the pass ``paged-attention``."""
    graft = _OneModel(build_draft(checkpoint, "per-row", sliding_in_block=sliding_in_block))
    conversion = PagedAttention(model="draft")
    conversion.apply(cast(Graft, graft), Context())
    conversion.ensures(cast(Graft, graft))
    return graft.model


class PerRow:
    """The paged per-row form: requests packed into one inference, block rows rolled back."""

    def __init__(self, checkpoint: Checkpoint, model: ov.Model) -> None:
        self.checkpoint = checkpoint
        self._tokens = "input_ids" if checkpoint.spec.own_embedding else "inputs_embeds"
        self.runner = PagedRunner(model, {**support.PARITY, **support.THREADS}, blocks=2)

    def step(self, steps: Mapping[str, Step], seed: int = 0) -> dict[str, dict[str, Array]]:
        """One inference over the steps of several requests.

        Args:
            steps: Request -> its step.
            seed: Of what context rows hold as tokens and block rows as states, which nothing may depend on.

        Returns:
            Request -> output name -> block rows.
        """
        random = np.random.default_rng(seed)
        outputs = self.runner.step(
            [Rows(name, self._inputs(step, random), step.context) for name, step in steps.items()]
        )
        return {
            name: {port: rows[step.context :] for port, rows in found.items()}
            for (name, step), found in zip(steps.items(), outputs, strict=True)
        }

    def _inputs(self, step: Step, random: np.random.Generator) -> dict[str, Array]:
        rows = len(step.block)
        if step.block.ndim == 1:
            filler: Array = random.integers(0, self.checkpoint.spec.vocabulary.size, step.context)
        else:
            filler = random.standard_normal((step.context, step.block.shape[1])).astype(np.float32)
        states = random.standard_normal((rows, step.hidden_states.shape[1])).astype(np.float32)
        return {
            self._tokens: np.concatenate([filler, step.block]),
            "hidden_states": np.concatenate([step.hidden_states, states]),
            "token_type_ids": np.repeat([0, 1], [step.context, rows]),
        }
