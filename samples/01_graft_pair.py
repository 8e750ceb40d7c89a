"""Graft a DFlash draft onto its target with the Python API, step by step.

    python samples/01_graft_pair.py [OUT]

The pair in samples/pair is a tiny Qwen3 and a draft for its layers 1, 3 and 4, as optimum-intel exports them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ovgraft
from ovgraft.passes import AnnotateHiddenStates, AttachEmbedding, AttachLmHead, ExposeHiddenStates, MoveFc

PAIR = Path(__file__).parent / "pair"


def main(out: Path) -> None:
    """Load, run a pipeline, look at the report and at the live models, save."""
    graft = ovgraft.load(target=PAIR / "target", draft=PAIR / "draft")
    pipeline = ovgraft.Pipeline(
        [AnnotateHiddenStates(), ExposeHiddenStates(), MoveFc(), AttachEmbedding(), AttachLmHead()]
    )
    print("pipeline:", pipeline)
    report = pipeline.run(graft)
    for record in report.records:
        print(f"{record.spec}: {record.status}")
        for edit in record.edits:
            print(f"  {edit.model}: {edit.text}")

    for role in ("target", "draft"):
        model = graft.package(role).model
        print(f"{role} inputs: ", *(f"{port.any_name}{port.partial_shape}" for port in model.inputs))
        print(f"{role} outputs:", *(f"{port.any_name}{port.partial_shape}" for port in model.outputs))

    graft.save(out, force=True)
    print("saved", *sorted(path.name for path in out.iterdir()))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build/01_graft_pair"))
