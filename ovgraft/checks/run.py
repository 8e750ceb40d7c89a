"""Compiles and runs models for checks, at settings under which equal graphs give equal numbers."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovgraft import ir
from ovgraft.checks.ports import by_name
from ovgraft.errors import MismatchError, SpecError

PARITY: Mapping[str, Any] = MappingProxyType(
    {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
)
"""An exported IR may ask for an f16 cache and the CPU computes in bf16 by default: both would hide a difference."""

Feeds = Mapping[str, NDArray[Any]]
Outputs = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Settings:
    """What is run, and how.

    Attributes:
        seed: Of the inputs.
        samples: Independent runs.
        steps: Decode steps of each, for models with states.
        device: OpenVINO device.
        config: Compile properties.
    """

    seed: int
    samples: int
    steps: int
    device: str
    config: Mapping[str, Any]

    @property
    def compile(self) -> dict[str, Any]:
        """Arguments of :class:`Runner`."""
        return {"device": self.device, "config": self.config}


class Runner:
    """One compiled model; each sequence has an infer request, and so states, of its own.

    Attributes:
        outputs: Output name -> port.

    Args:
        model: It is cloned before it is compiled.
        label: How errors call it, for example its path.
        device: OpenVINO device.
        config: Compile properties.

    Raises:
        SpecError: There is no such device.
        MismatchError: It does not compile.
    """

    def __init__(self, model: ov.Model, label: str, *, device: str = "CPU", config: Mapping[str, Any] = PARITY) -> None:
        self._label = label
        check_device(device)
        try:
            # the clone keeps runtime_options and friends out of the caller's model
            compiled = ir.core().compile_model(model.clone(), device, dict(config))
        except RuntimeError as error:
            raise MismatchError(f"{label} does not compile for {device}") from error
        self._compiled = compiled
        self._requests: dict[int, ov.InferRequest] = {}
        self._inputs = {name: port for port in compiled.inputs for name in port.names}
        self.outputs = by_name(compiled.outputs)

    def reset(self) -> None:
        """Forget the states of all sequences."""
        for request in self._requests.values():
            request.reset_state()

    def run(self, feeds: Feeds, sequence: int = 0) -> Outputs:
        """One inference; feeds of ports the model does not have are left out.

        Args:
            feeds: Port name -> value.
            sequence: Whose states are read and written.

        Returns:
            Output name -> a copy.

        Raises:
            MismatchError: OpenVINO fails.
        """
        request = self._requests.get(sequence)
        if request is None:
            request = self._requests[sequence] = self._compiled.create_infer_request()
        known = {name: value for name, value in feeds.items() if name in self._inputs}
        try:
            request.infer(known)
        except RuntimeError as error:
            shapes = ", ".join(f"{name}{list(value.shape)}" for name, value in known.items())
            raise MismatchError(f"{self._label} does not run on {shapes}") from error
        return {name: np.array(request.get_tensor(port).data) for name, port in self.outputs.items()}

    def step(self, batch: Mapping[int, Feeds]) -> dict[int, Outputs]:
        """:meth:`run` for several sequences, by number."""
        return {sequence: self.run(feeds, sequence) for sequence, feeds in batch.items()}


def check_device(device: str) -> None:
    """Refuse a device OpenVINO does not have.

    Raises:
        SpecError: There is no such device.
    """
    available = _devices()
    if device.partition(":")[0].partition(".")[0] not in {
        *(name.partition(".")[0] for name in available),
        "AUTO",
        "HETERO",
    }:
        raise SpecError(f"no device '{device}' here", hint=f"there is {', '.join(available)}")


@functools.cache
def _devices() -> tuple[str, ...]:
    """What OpenVINO finds; it takes tens of milliseconds to look."""
    return tuple(ir.core().available_devices)
