"""Markov heads on made-up rows of three requests: alone, against another head, against the formulas in numpy.

They run in the host that also validates their inputs, one computation at a time, as runtimes run them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft import drafts
from ovgraft.checks.alone import OutputRange, RunReport, seen
from ovgraft.checks.comparison import Comparison, Tally
from ovgraft.checks.ports import by_name
from ovgraft.checks.run import PARITY, check_device
from ovgraft.checks.tolerances import Tolerances
from ovgraft.drafts import markov
from ovgraft.drafts.contract import Port
from ovgraft.drafts.markov import Computation, HeadFacts
from ovgraft.drafts.reference import ReferenceHead, lattice
from ovgraft.drafts.spec import HeadType
from ovgraft.errors import MismatchError

Array = NDArray[Any]
Outputs = dict[str, Array]

BLOCK_LENGTHS = (2, 1, 3)
"""Rows of each request."""


@dataclass(frozen=True)
class HeadRows:
    """Packed rows, and the same number of dense steps; see :data:`ovgraft.drafts.contract.MARKOV_PORTS`."""

    draft_logits: Array
    anchor_token_ids: Array
    block_begins: Array
    draft_hidden_states: Array
    prev_token_ids: Array
    rnn_state: Array


def make_rows(facts: HeadFacts, seed: int, sample: int) -> HeadRows:
    """Rows for a head; with a pruned vocabulary all but ``draft_vocab_size`` tokens are at -inf."""
    random = np.random.default_rng([seed, sample])
    rows = sum(BLOCK_LENGTHS)
    logits = random.standard_normal((rows, facts.vocab_size)).astype(np.float32)
    if facts.draft_vocab_size is not None:
        order = random.permutation(facts.vocab_size)
        logits[:, order[facts.draft_vocab_size :]] = -np.inf
    return HeadRows(
        logits,
        random.integers(0, facts.vocab_size, len(BLOCK_LENGTHS)),
        np.cumsum((0, *BLOCK_LENGTHS)),
        random.standard_normal((rows, facts.hidden_size or 1)).astype(np.float32),
        random.integers(0, facts.vocab_size, rows),
        random.standard_normal((rows, facts.rank)).astype(np.float32),
    )


class HeadUnderCheck:
    """A head model and the outputs of all its computations.

    Args:
        model: The head; left as it is.
        label: How errors call it.
        device: OpenVINO device.
        config: Compile properties.

    Raises:
        MismatchError: It breaks the contract.
    """

    def __init__(self, model: ov.Model, label: str, *, device: str = "CPU", config: Mapping[str, Any] = PARITY) -> None:
        check_device(device)
        reasons = markov.head_reasons(model)
        if reasons:
            raise MismatchError(f"{label} is no usable Markov head", reasons=reasons)
        self._label = label
        self._runner = markov.HeadRunner(model, device=device, config=config)
        self.facts = self._runner.facts
        self.computations = self._runner.computations
        self._confidence_reads_tokens = False
        if Computation.CONFIDENCE in self.computations:
            selected = model.clone()
            markov.select_computation(selected, Computation.CONFIDENCE)
            self._confidence_reads_tokens = Port.PREV_TOKEN_IDS in by_name(selected.inputs)

    def run(self, rows: HeadRows) -> Outputs:
        """All outputs by name.

        Raises:
            MismatchError: OpenVINO fails.
        """
        hidden = None if self.facts.type is HeadType.VANILLA else rows.draft_hidden_states
        is_rnn = self.facts.type is HeadType.RNN
        found: Outputs = {}
        try:
            if Computation.DENSE in self.computations:
                bias, state = self._runner.dense(rows.prev_token_ids, hidden, rows.rnn_state if is_rnn else None)
                found[Port.MARKOV_BIAS] = bias
                if state is not None:
                    found[Port.NEXT_RNN_STATE] = state
            if Computation.SCORER in self.computations:
                scored = self._runner.score(rows.draft_logits, rows.anchor_token_ids, rows.block_begins, hidden)
                found[Port.CANDIDATE_IDS], found[Port.EDGE_SCORES] = scored
            if Computation.CONFIDENCE in self.computations:
                previous = rows.prev_token_ids if self._confidence_reads_tokens else None
                found[Port.CONFIDENCE] = self._runner.confidence(rows.draft_hidden_states, previous)
        except RuntimeError as error:
            raise MismatchError(f"{self._label} does not compile or run") from error
        return found


def run_head(
    model: ov.Model, *, subject: str, seed: int, samples: int, device: str, config: Mapping[str, Any] = PARITY
) -> RunReport:
    """Run all computations of a head; see :func:`ovgraft.checks.alone.run_alone`."""
    head = HeadUnderCheck(model, subject, device=device, config=config)
    found: dict[str, OutputRange] = {}
    for sample in range(samples):
        for name, value in head.run(make_rows(head.facts, seed, sample)).items():
            found[name] = seen(found.get(name), name, value, "call")
    return RunReport(subject, tuple(found.values()), samples, ("call",), seed, device)


def compare_heads(
    a: ov.Model,
    b: ov.Model,
    *,
    subject: str,
    tolerances: Tolerances | None,
    seed: int,
    samples: int,
    device: str,
    config: Mapping[str, Any] = PARITY,
) -> Comparison:
    """Two heads on the same rows; see :func:`ovgraft.checks.comparison.compare`."""
    heads = [HeadUnderCheck(model, label, device=device, config=config) for model, label in ((a, "A"), (b, "B"))]
    sides = [
        (head.facts.vocab_size, head.facts.hidden_size, head.facts.rank, head.facts.draft_vocab_size) for head in heads
    ]
    if sides[0] != sides[1]:
        expected, found = (
            f"{head.facts.type} of rank {head.facts.rank} over {head.facts.vocab_size}" for head in heads
        )
        raise MismatchError("the heads read different things", expected=expected, found=found)
    return _tallied(
        [head.run for head in heads], heads[0].facts, subject, tolerances, seed=seed, samples=samples, device=device
    )


def compare_with_formulas(
    model: ov.Model,
    reference: ReferenceHead,
    *,
    subject: str,
    tolerances: Tolerances | None = None,
    seed: int = 0,
    samples: int = 1,
    device: str = "CPU",
) -> Comparison:
    """A head against the numpy formulas over its checkpoint's tables.

    Args:
        model: The head.
        reference: See :func:`checkpoint_head`.
        subject: What to call it.
        tolerances: Limits.
        seed: Of the inputs.
        samples: Sets of rows.
        device: OpenVINO device.

    Raises:
        MismatchError: The head breaks the contract or does not run.
    """
    head = HeadUnderCheck(model, subject, device=device)

    def formulas(rows: HeadRows) -> Outputs:
        return from_formulas(reference, head.facts, head.computations, rows)

    return _tallied([formulas, head.run], head.facts, subject, tolerances, seed=seed, samples=samples, device=device)


def from_formulas(
    head: ReferenceHead, facts: HeadFacts, computations: Sequence[Computation], rows: HeadRows
) -> Outputs:
    """What :meth:`HeadUnderCheck.run` should give, in numpy at f64."""
    hidden = None if head.type is HeadType.VANILLA else rows.draft_hidden_states.astype(np.float64)
    found: Outputs = {}
    if Computation.DENSE in computations:
        found[Port.MARKOV_BIAS], state = head.step(rows.prev_token_ids, hidden, rows.rnn_state.astype(np.float64))
        if head.type is HeadType.RNN:
            found[Port.NEXT_RNN_STATE] = state
    if Computation.SCORER in computations:
        found[Port.CANDIDATE_IDS], found[Port.EDGE_SCORES] = lattice(
            head, rows.draft_logits, rows.anchor_token_ids, rows.block_begins, facts.top_k, hidden
        )
    if Computation.CONFIDENCE in computations:
        states = rows.draft_hidden_states.astype(np.float64)
        found[Port.CONFIDENCE] = head.accept_probability(rows.prev_token_ids, states)
    return found


def checkpoint_head(folder: Path, model: ov.Model) -> ReferenceHead | None:
    """The head of the checkpoint that lies in a package folder, in numpy.

    Args:
        folder: The package.
        model: The head that was built from it.

    Returns:
        None when there is no checkpoint, or when the head keeps its tables in f16 and the checkpoint does not: they are
        rounded then, and the formulas give other numbers.

    Raises:
        CheckpointError: There is a checkpoint and it is not understood.
    """
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        return None
    weights = markov.read_head_weights(drafts.read_checkpoint(folder))
    stored = {
        node.get_output_element_type(0).get_type_name()
        for node in model.get_ops()
        if node.get_type_name() == "Constant"
    }
    return None if "f16" in stored and weights.w1.dtype != np.float16 else weights.reference()


def _tallied(
    sides: Sequence[Callable[[HeadRows], Outputs]],
    facts: HeadFacts,
    subject: str,
    tolerances: Tolerances | None,
    *,
    seed: int,
    samples: int,
    device: str,
) -> Comparison:
    tally: Tally | None = None
    left: dict[str, None] = {}
    right: dict[str, None] = {}
    for sample in range(samples):
        rows = make_rows(facts, seed, sample)
        first, second = (side(rows) for side in sides)
        left, right = dict.fromkeys(map(str, first)), dict.fromkeys(map(str, second))
        tally = tally or Tally([name for name in left if name in right], tolerances or Tolerances())
        tally.add(first, second, sample, "call")
    differences = () if tally is None else tally.differences()
    if not differences:
        raise MismatchError("no computation in common", expected=", ".join(left), found=", ".join(right))
    only_a, only_b = (tuple(name for name in one if name not in other) for one, other in ((left, right), (right, left)))
    return Comparison(subject, differences, only_a, only_b, (), samples, ("call",), seed, device)
