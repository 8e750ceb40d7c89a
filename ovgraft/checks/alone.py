"""One model by itself: does it run, and are all its numbers finite?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft.checks.comparison import STEPS
from ovgraft.checks.feeds import Call, FeedMaker, calls_of
from ovgraft.checks.hosts import open_host, runnable
from ovgraft.checks.run import PARITY
from ovgraft.drafts.kinds import model_kind
from ovgraft.ir import progress

Array = NDArray[Any]


@dataclass(frozen=True)
class OutputRange:
    """One output over all samples and calls.

    Attributes:
        output: Its name.
        shape: In the first call.
        largest: Largest ``|x|`` among the finite numbers.
        problem: ``not finite in <call>``, or ``""``.
    """

    output: str
    shape: tuple[int, ...]
    largest: float
    problem: str = ""


@dataclass(frozen=True)
class RunReport:
    """What :func:`run_alone` found.

    Attributes:
        subject: What was run.
        outputs: All outputs.
        samples: Independent runs from empty states.
        calls: Inferences in each, by label.
        seed: Of the inputs.
        device: OpenVINO device.
    """

    subject: str
    outputs: tuple[OutputRange, ...]
    samples: int
    calls: tuple[str, ...]
    seed: int
    device: str

    @property
    def good(self) -> bool:
        """All numbers are finite."""
        return not any(output.problem for output in self.outputs)

    def to_dict(self) -> dict[str, object]:
        """The JSON form."""
        return {"good": self.good, **asdict(self)}


def run_alone(
    model: ov.Model,
    *,
    subject: str = "model",
    seed: int = 0,
    samples: int = 1,
    steps: int = STEPS,
    inputs: Mapping[str, Array] | None = None,
    device: str = "CPU",
    config: Mapping[str, Any] = PARITY,
) -> RunReport:
    """Run a prefill and decode steps on made-up inputs.

    Args:
        model: The model; a per-row draft is run in its paged form.
        subject: What to call it in the result and in errors.
        seed: Of the inputs.
        samples: Independent runs.
        steps: Decode steps of each, for models with states.
        inputs: Values by input name instead, for one inference.
        device: OpenVINO device.
        config: Compile properties.

    Raises:
        SpecError: ``inputs`` are not the model's inputs, or there is no such device.
        MismatchError: Nothing tells what an input should hold, or it does not compile or run.
    """
    if model_kind(model) == "markov head" and inputs is None:
        from ovgraft.checks.heads import run_head

        return run_head(model, subject=subject, seed=seed, samples=samples, device=device, config=config)
    model = runnable(model)
    maker = FeedMaker([model], seed)
    if inputs is not None:
        maker.check_given(inputs)
    calls = calls_of(maker.kind, maker.stateful, steps) if inputs is None else (Call("call", 0, 0),)
    samples = samples if inputs is None else 1
    total = samples * len(calls)
    progress.advance(0, total, "compiling")
    host = open_host(model, subject, device=device, config=config)
    found: dict[str, OutputRange] = {}
    for sample in range(samples):
        host.reset()
        for at, call in enumerate(calls):
            progress.advance(sample * len(calls) + at, total, call.label)
            feeds = maker.feeds(call, sample) if inputs is None else inputs
            for name, value in host.run(feeds).items():
                found[name] = seen(found.get(name), name, value, call.label)
    labels = tuple(call.label for call in calls)
    return RunReport(subject, tuple(found.values()), samples, labels, seed, device)


def seen(before: OutputRange | None, name: str, value: Array, call: str) -> OutputRange:
    """What is known of an output after one more call."""
    wide = np.abs(value.astype(np.float64))
    finite = np.isfinite(wide)
    largest = float(wide.max(where=finite, initial=0.0))
    problem = "" if finite.all() else f"not finite in {call}"
    if before is None:
        return OutputRange(name, value.shape, largest, problem)
    return OutputRange(name, before.shape, max(before.largest, largest), before.problem or problem)
