"""The tables and projections of a Markov head, in the precision of the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ovgraft.drafts.reference.heads import ReferenceHead
from ovgraft.drafts.reference.rows import target_ids
from ovgraft.drafts.spec import Confidence, HeadType
from ovgraft.errors import CheckpointError

Array = NDArray[Any]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_FLOATS = {np.dtype(np.float32), np.dtype(np.float16), BFLOAT16}


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear layer.

    Attributes:
        weight: ``[out, in]``.
        bias: ``[out]``; None without.
    """

    weight: Array
    bias: Array | None = None


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """A head as a checkpoint stores it.

    Attributes:
        type: ``vanilla``, ``gated``, ``rnn`` or ``dflash2``.
        vocab_size: V, target vocabulary.
        w1: ``[V, r]``, a row per previous target token (``markov_w1``, ``predecessor_codebook``).
        w2: ``[Dv, r]``, a row per next draft token (``markov_w2``, ``successor_codebook``).
        d2t: i64 ``[Dv]`` offsets of a pruned vocabulary (target id = i + d2t[i], any order); None when draft ids are
            target ids.
        projection: gated ``[r, H + r]`` over hidden state and embedding; rnn ``[3r, 2r + H]`` over state, embedding and
            hidden state; dflash2 ``[r, H]``; None for vanilla.
        confidence: ``[1, H]``, or ``[1, H + r]`` over hidden state and embedding; None without an acceptance predictor.
        hidden_size: H; needed by every head but a vanilla one without ``confidence``.

    Raises:
        CheckpointError: Shapes, types or ids that do not fit together.
    """

    type: HeadType
    vocab_size: int
    w1: Array
    w2: Array
    d2t: Array | None = None
    projection: Projection | None = None
    confidence: Projection | None = None
    hidden_size: int | None = None

    def __post_init__(self) -> None:
        if self.type is HeadType.NONE:
            raise CheckpointError("a draft without a head has no head weights")
        for name, array in self.tensors():
            if array.dtype not in _FLOATS:
                raise CheckpointError(
                    f"{name} is not stored as floating point; heads are never weight-compressed",
                    key=name,
                    expected="float32, float16 or bfloat16",
                    found=array.dtype,
                )
        self._check_tables()
        self._check_projection(self._projection_name, self.projection, self._projection_shape())
        if self.confidence is not None:
            if self.hidden_size is None:
                raise CheckpointError(
                    "a confidence head reads hidden states", key="hidden_size", found="no hidden size"
                )
            with_embedding = self.confidence.weight.shape != (1, self.hidden_size)
            columns = self.hidden_size + self.rank * with_embedding
            self._check_projection("confidence_proj", self.confidence, (1, columns))

    @property
    def rank(self) -> int:
        """The head rank r."""
        return int(self.w1.shape[1])

    @property
    def draft_vocab_size(self) -> int:
        """Dv; V when the vocabulary is not pruned."""
        return self.vocab_size if self.d2t is None else len(self.d2t)

    @property
    def max_top_k(self) -> int:
        """Most candidates a row has: tokens the draft can propose."""
        return min(self.vocab_size, self.draft_vocab_size)

    @property
    def confidence_input(self) -> Confidence:
        """What the acceptance predictor reads."""
        if self.confidence is None:
            return Confidence.NONE
        return Confidence.HIDDEN if self.confidence.weight.shape[1] == self.hidden_size else Confidence.MARKOV

    def tensors(self) -> Iterator[tuple[str, Array]]:
        """All floating-point tensors with the names their Constants get."""
        yield "markov_w1", self.w1
        yield "markov_w2", self.w2
        for prefix, projection in ((self._projection_name, self.projection), ("confidence_proj", self.confidence)):
            if projection is not None:
                yield f"{prefix}.weight", projection.weight
                if projection.bias is not None:
                    yield f"{prefix}.bias", projection.bias

    def next_token_table(self) -> Array:
        """``[V, r]``: rows of ``w2`` at their target ids, zero rows for tokens the draft cannot propose.

        A view of ``w2`` when the vocabulary is not pruned.
        """
        if self.d2t is None:
            return self.w2[: self.vocab_size]
        table: Array = np.zeros((self.vocab_size, self.rank), self.w2.dtype)
        table[target_ids(self.d2t)] = self.w2
        return table

    def reference(self) -> ReferenceHead:
        """The head in numpy at f64."""

        def wide(array: Array | None) -> Array | None:
            return None if array is None else array.astype(np.float64)

        confidence = self.confidence
        return ReferenceHead(
            type=self.type,
            w1=self.w1[: self.vocab_size].astype(np.float64),
            w2=self.next_token_table().astype(np.float64),
            projection=wide(None if self.projection is None else self.projection.weight),
            projection_bias=wide(None if self.projection is None else self.projection.bias),
            confidence=wide(None if confidence is None else confidence.weight[0]),
            confidence_bias=0.0 if confidence is None or confidence.bias is None else float(confidence.bias[0]),
        )

    @property
    def _projection_name(self) -> str:
        return {HeadType.GATED: "gate_proj", HeadType.RNN: "joint_proj"}.get(self.type, "hidden_projection")

    def _check_tables(self) -> None:
        for name, table in (("markov_w1", self.w1), ("markov_w2", self.w2)):
            if table.ndim != 2 or 0 in table.shape:
                raise CheckpointError(
                    f"{name} is no table", key=name, expected="[tokens, rank]", found=list(table.shape)
                )
        if self.w2.shape[1] != self.rank:
            raise CheckpointError(
                "the tables differ in rank", key="markov_w2", expected=self.rank, found=self.w2.shape[1]
            )
        # rows past the vocabulary are padding
        wanted = {"markov_w1": (self.w1, self.vocab_size), "markov_w2": (self.w2, self.vocab_size)}
        if self.d2t is not None:
            self._check_d2t(self.d2t)
            if len(self.w2) != len(self.d2t):
                raise CheckpointError(
                    "markov_w2 does not have a row per draft token",
                    key="markov_w2",
                    expected=f"{len(self.d2t)} rows, as d2t",
                    found=f"{len(self.w2)} rows",
                )
            del wanted["markov_w2"]
        for name, (table, rows) in wanted.items():
            if len(table) < rows:
                raise CheckpointError(
                    f"{name} does not have a row per target token",
                    key=name,
                    expected=f"{rows} rows",
                    found=f"{len(table)} rows" + ("" if name == "markov_w1" else " and no d2t"),
                )

    def _check_d2t(self, d2t: Array) -> None:
        if d2t.ndim != 1 or len(d2t) == 0 or d2t.dtype.kind not in "iu":
            raise CheckpointError(
                "d2t is no list of offsets", key="d2t", expected="integers [Dv]", found=f"{d2t.dtype} {list(d2t.shape)}"
            )
        ids = target_ids(d2t)
        outside = np.flatnonzero((ids < 0) | (ids >= self.vocab_size))
        if len(outside):
            raise CheckpointError(
                f"d2t sends draft token {outside[0]} outside the target vocabulary",
                key="d2t",
                expected=f"0 to {self.vocab_size - 1}",
                found=int(ids[outside[0]]),
            )
        tokens, counts = np.unique(ids, return_counts=True)
        if len(tokens) < len(ids):
            raise CheckpointError(
                "two draft tokens stand for one target token, so its next-token row is ambiguous",
                key="d2t",
                expected="different target ids",
                found=f"{counts.max()} times {tokens[np.argmax(counts)]}",
            )

    def _projection_shape(self) -> tuple[int, int] | None:
        hidden, rank = self.hidden_size, self.rank
        if self.type is HeadType.VANILLA:
            return None
        if hidden is None:
            raise CheckpointError(f"a {self.type} head reads hidden states", key="hidden_size", found="no hidden size")
        return {
            HeadType.GATED: (rank, hidden + rank),
            HeadType.RNN: (3 * rank, 2 * rank + hidden),
            HeadType.DFLASH2: (rank, hidden),
        }[self.type]

    def _check_projection(self, name: str, projection: Projection | None, shape: tuple[int, int] | None) -> None:
        if shape is None and projection is None:
            return
        if shape is None or projection is None or projection.weight.shape != shape:
            raise CheckpointError(
                f"{name} of a {self.type} head has the wrong shape",
                key=name,
                expected="none" if shape is None else list(shape),
                found="none" if projection is None else list(projection.weight.shape),
            )
        if projection.bias is not None and projection.bias.shape != shape[:1]:
            raise CheckpointError(
                f"{name}.bias of a {self.type} head has the wrong shape",
                key=f"{name}.bias",
                expected=list(shape[:1]),
                found=list(projection.bias.shape),
            )
