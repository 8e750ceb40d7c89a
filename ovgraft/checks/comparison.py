"""Two models on the same inputs: how far apart each output is, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft.checks.feeds import Call, FeedMaker, calls_of
from ovgraft.checks.hosts import is_per_row_draft, open_host, runnable
from ovgraft.checks.ports import by_name, is_paged
from ovgraft.checks.run import PARITY
from ovgraft.checks.tolerances import Tolerances
from ovgraft.drafts.kinds import model_kind
from ovgraft.errors import MismatchError
from ovgraft.ir import progress

Array = NDArray[Any]

STEPS = 4
"""Decode steps after the prefill."""

PAGED_TOLERANCES = Tolerances(atol=1e-4, rtol=1e-4, by_row=True)
"""Where a model is paged: other kernels sum in another order."""


@dataclass(frozen=True)
class Place:
    """Where the largest difference is: sample, call and index into the output."""

    sample: int
    call: str
    index: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.call} [{','.join(map(str, self.index))}]"


@dataclass(frozen=True)
class OutputDifference:
    """One output over all samples and calls.

    Attributes:
        output: Its name.
        elements: Numbers compared.
        max_abs: Largest ``|a - b|``.
        max_rel: Largest ``|a - b| / |a|``, where a is not 0.
        mean_abs: Mean of ``|a - b|``.
        where: Place of ``max_abs``; None when nothing differs.
        atol: Absolute limit.
        rtol: Relative limit.
        by_row: Relative to the largest number of the row, not to each number.
        problem: Why it is not the same: ``differs``, ``empty``, ``not finite in <call>`` or ``shapes differ in <call>:
            ...``; ``""`` when it is.
    """

    output: str
    elements: int
    max_abs: float
    max_rel: float
    mean_abs: float
    where: Place | None
    atol: float
    rtol: float
    by_row: bool = False
    problem: str = ""

    @property
    def same(self) -> bool:
        """Within the limits everywhere."""
        return not self.problem

    def sentence(self) -> str:
        """For people, for example ``logits differs: 0.25 at step 1 [0,0,17], limit 1e-05``."""
        if self.problem != "differs":
            return f"{self.output}: {self.problem}"
        return f"{self.output} differs: {self.max_abs:.3g} at {self.where}, limit {self.limit}"

    @property
    def limit(self) -> str:
        """How far apart two numbers may be, for people."""
        size = "max|row|" if self.by_row else "|a|"
        return f"{self.atol:g} + {self.rtol:g} {size}" if self.atol or self.rtol else "exact"


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare` found.

    Attributes:
        subject: What was run: ``target``, ``draft``, ``target and draft``.
        outputs: Outputs both have.
        only_a: Outputs only the first has; they were not compared.
        only_b: Outputs only the second has.
        inputs_unshared: Inputs that only one of them has.
        samples: Independent runs from empty states.
        calls: Inferences in each, by label.
        seed: Of the inputs.
        device: OpenVINO device.
    """

    subject: str
    outputs: tuple[OutputDifference, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    inputs_unshared: tuple[str, ...] = ()
    samples: int = 1
    calls: tuple[str, ...] = ()
    seed: int = 0
    device: str = "CPU"

    @property
    def same(self) -> bool:
        """Every common output is within its limits."""
        return all(output.same for output in self.outputs)

    def to_dict(self) -> dict[str, object]:
        """The JSON form; numbers that JSON does not have become text."""
        content = asdict(self)
        for entry, output in zip(content["outputs"], self.outputs, strict=True):
            entry["same"] = output.same
            for key in ("max_abs", "max_rel", "mean_abs"):
                entry[key] = entry[key] if np.isfinite(entry[key]) else str(entry[key])
        return {"same": self.same, **content}


def compare(
    a: ov.Model,
    b: ov.Model,
    *,
    subject: str = "model",
    tolerances: Tolerances | None = None,
    seed: int = 0,
    samples: int = 1,
    steps: int = STEPS,
    inputs: Mapping[str, Array] | None = None,
    device: str = "CPU",
    config: Mapping[str, Any] = PARITY,
) -> Comparison:
    """Run both on the same inputs: a prefill, then decode steps, each sample from empty states.

    Args:
        a: The model that is right by definition.
        b: The other one.
        subject: What to call them in the result.
        tolerances: Limits; default 1e-5 absolute plus 1e-5 relative, 1e-4 where one of them is paged.
        seed: Of the inputs.
        samples: Independent runs.
        steps: Decode steps of each, for models with states.
        inputs: Values by input name instead, for one inference.
        device: OpenVINO device.
        config: Compile properties of both.

    Raises:
        SpecError: ``inputs`` are not the models' inputs, or there is no such device.
        MismatchError: They read different things, or have no output in common, or one does not compile or run.
    """
    if model_kind(a) == model_kind(b) == "markov head" and inputs is None:
        from ovgraft.checks.heads import compare_heads

        same_for_both: dict[str, Any] = {"seed": seed, "samples": samples, "device": device, "config": config}
        return compare_heads(a, b, subject=subject, tolerances=tolerances, **same_for_both)
    a, b = runnable(a), runnable(b)
    maker = FeedMaker([a, b], seed)
    if inputs is not None:
        maker.check_given(inputs)
    outputs = by_name(a.outputs), by_name(b.outputs)
    names = shared_outputs(*outputs)
    if not names:
        raise MismatchError("no output in common", expected=", ".join(outputs[0]), found=", ".join(outputs[1]))
    calls = calls_of(maker.kind, maker.stateful, steps) if inputs is None else (Call("call", 0, 0),)
    samples = samples if inputs is None else 1
    total = samples * len(calls)
    progress.advance(0, total, "compiling")
    hosts = [open_host(model, label, device=device, config=config) for model, label in ((a, "A"), (b, "B"))]
    tally = Tally(names, limits(tolerances, a, b))
    for sample in range(samples):
        for host in hosts:
            host.reset()
        for at, call in enumerate(calls):
            progress.advance(sample * len(calls) + at, total, call.label)
            feeds = maker.feeds(call, sample) if inputs is None else inputs
            found_a, found_b = (host.run(feeds) for host in hosts)
            tally.add(found_a, {name: found_b[other] for name, other in names.items()}, sample, call.label)
    return Comparison(
        subject,
        tally.differences(),
        tuple(name for name in outputs[0] if name not in names),
        tuple(name for name in outputs[1] if name not in names.values()),
        maker.unshared,
        samples,
        tuple(call.label for call in calls),
        seed,
        device,
    )


def limits(given: Tolerances | None, *models: ov.Model) -> Tolerances:
    """Limits where none are given: wider when one of the models is paged, or run in its paged form."""
    paged = any(is_paged(model) or is_per_row_draft(model) for model in models)
    return (given or Tolerances()).or_else(PAGED_TOLERANCES if paged else Tolerances())


def shared_outputs(a: Mapping[str, ov.Output], b: Mapping[str, ov.Output]) -> dict[str, str]:
    """Name of an output in ``a`` -> its name in ``b``; they are one when they share any tensor name."""
    pairs = {}
    for name, port in a.items():
        match = name if name in b else next((other for other, found in b.items() if port.names & found.names), None)
        if match is not None:
            pairs[name] = match
    return pairs


class Tally:
    """Adds up the differences of some outputs over many inferences."""

    def __init__(self, names: Sequence[str] | Mapping[str, str], tolerances: Tolerances) -> None:
        self._entries = {name: _Entry(name, *tolerances.of(name), tolerances.by_row) for name in names}

    def add(self, a: Mapping[str, Array], b: Mapping[str, Array], sample: int, call: str) -> None:
        """One inference of both."""
        for name, entry in self._entries.items():
            entry.add(a[name], b[name], sample, call)

    def differences(self) -> tuple[OutputDifference, ...]:
        """The result by output."""
        return tuple(entry.result() for entry in self._entries.values())


class _Entry:
    def __init__(self, name: str, atol: float, rtol: float, by_row: bool) -> None:
        self.name, self.atol, self.rtol, self.by_row = name, atol, rtol, by_row
        self.elements, self.sum = 0, 0.0
        self.max_abs, self.max_rel = 0.0, 0.0
        self.where: Place | None = None
        self.problem = ""

    def add(self, a: Array, b: Array, sample: int, call: str) -> None:
        if a.shape != b.shape:
            self._fail(f"shapes differ in {call}: {list(a.shape)} and {list(b.shape)}")
            return
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        if not (np.isfinite(wide_a).all() and np.isfinite(wide_b).all()):
            self._fail(f"not finite in {call}")
            return
        if a.size == 0:
            return
        distance = np.abs(wide_a - wide_b)
        size = np.abs(wide_a)
        if not np.issubdtype(a.dtype, np.floating):
            self.atol = self.rtol = 0.0  # ids are right or wrong; f64 holds every one of them
        row = size.max(axis=-1, keepdims=True) if self.by_row and size.ndim else size
        if (distance > self.atol + self.rtol * row).any():
            self._fail("differs")
        largest = float(distance.max())
        if largest > self.max_abs:
            self.max_abs = largest
            index = np.unravel_index(int(distance.argmax()), distance.shape)
            self.where = Place(sample, call, tuple(map(int, index)))
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.where(size > 0, distance / size, 0.0)
        self.max_rel = max(self.max_rel, float(relative.max()))
        self.elements += a.size
        self.sum += float(distance.sum())

    def _fail(self, problem: str) -> None:
        self.problem = self.problem or problem

    def result(self) -> OutputDifference:
        problem = self.problem or ("" if self.elements else "empty")
        mean = self.sum / self.elements if self.elements else 0.0
        limits = self.atol, self.rtol, self.by_row
        return OutputDifference(
            self.name, self.elements, self.max_abs, self.max_rel, mean, self.where, *limits, problem
        )
