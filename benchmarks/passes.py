"""What the pass manager adds to a pass, and how finding the layers grows with their number."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import openvino as ov

import ovgraft
from benchmarks import generate
from benchmarks.measure import Row, run, seconds
from ovgraft import decoder
from ovgraft.passbase import Context, Pass
from tests import models

PASSES, TURNS = 5, 7
DEPTHS = (30, 60, 120)


@dataclass(frozen=True, kw_only=True)
class Touch(Pass):
    """Say that something changed, and do nothing."""

    name: ClassVar[str] = "touch"

    def apply(self, graft: ovgraft.Graft, ctx: Context) -> None:
        """Note one edit, so that the manager validates and reports as after real work."""
        ctx.note("metadata", "target", "nothing")


def rows(folder: Path) -> list[Row]:
    """All lines of the table."""
    ops, found, reference = run("benchmarks.passes:time_manager", folder).value
    times = {depth: run("benchmarks.passes:time_layers", folder, depth).value for depth in DEPTHS}
    per_layer = {depth: 1000 * time / depth for depth, time in times.items()}
    return [
        Row(
            f"pass manager, per pass, {ops} ops",
            f"{1000 * found:.0f} ms",
            f"{1000 * reference:.0f} ms (clone + validate)",
            found / reference,
            1.5,
        ),
        *(
            Row(
                f"finding {depth} layers, per layer",
                f"{per_layer[depth]:.2f} ms",
                f"{per_layer[DEPTHS[0]]:.2f} ms ({DEPTHS[0]} layers)",
                per_layer[depth] / per_layer[DEPTHS[0]],
                1.3,
            )
            for depth in DEPTHS
        ),
    ]


def time_manager(folder: str) -> tuple[int, float, float]:
    """Ops, seconds the manager takes for one pass, seconds of clone and validate."""
    package = models.write_package(generate.ten_thousand_ops(), Path(folder) / "ops")
    graft = ovgraft.load(package)
    model = graft.target.model
    pipeline = ovgraft.Pipeline([Touch()] * PASSES)

    def bare() -> None:
        model.clone().validate_nodes_and_infer_types()

    found = reference = float("inf")
    for _ in range(TURNS):
        found = min(found, seconds(lambda: pipeline.run(graft)) / PASSES)
        reference = min(reference, seconds(bare))
    return len(model.get_ops()), found, reference


def time_layers(folder: str, layers: int) -> float:
    """Seconds of finding all layers of a decoder read from disk."""
    package = models.write_package(generate.deep(layers), Path(folder) / f"deep{layers}")
    model = ov.Core().read_model(package / "openvino_model.xml")
    assert len(decoder.read_decoder(model).layers) == layers
    return seconds(lambda: decoder.read_decoder(model), TURNS)
