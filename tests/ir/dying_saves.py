"""Saves that die at every step, one forked child each; run as a program, so that the forking process has no threads.

``python dying_saves.py SCENARIO INPUT STATES`` makes ``STATES/0``, ``STATES/1`` and so on, each a copy of INPUT in
which the save died just before that step, the last one being the whole save; ``STATES/steps.json`` names the steps.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import openvino as ov
from openvino import opset16 as ops

import ovgraft
from ovgraft import ir, saving
from ovgraft.ir import copying, save, staging

DIED = 9
IMPORTED = (subprocess, saving, copying, save, staging)
"""OpenVINO's telemetry imports in a thread; what it is at when the process forks stays locked in the child."""


def negate_weights(model: ov.Model) -> None:
    """Change weights but neither names nor sizes: the mix-up that only the order of the swap prevents."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Constant" and node.get_element_type() == ov.Type.f32 and node.data.size > 64:
            changed = ops.constant(-np.array(node.data))
            changed.set_friendly_name(node.get_friendly_name())
            node.output(0).replace(changed.output(0))


def annotate(model: ov.Model) -> None:
    ir.set_text(model, ("note",), "changed")


def fresh_folder(root: Path, on_step: Callable[[str], None]) -> None:
    graft = ovgraft.load(root / "target")
    annotate(graft.target.model)
    graft.save(root / "out", on_step=on_step)


def fresh_xml(root: Path, on_step: Callable[[str], None]) -> None:
    graft = ovgraft.load(root / "target" / "openvino_model.xml")
    negate_weights(graft.target.model)
    graft.save(root / "out.xml", on_step=on_step)


def force_xml(root: Path, on_step: Callable[[str], None]) -> None:
    graft = ovgraft.load(root / "target" / "openvino_model.xml")
    negate_weights(graft.target.model)
    graft.save(root / "before.xml", force=True, on_step=on_step)


def force(root: Path, on_step: Callable[[str], None]) -> None:
    graft = ovgraft.load(root / "target")
    negate_weights(graft.target.model)
    graft.save(root / "before", force=True, on_step=on_step)


def in_place_metadata(root: Path, on_step: Callable[[str], None]) -> None:
    graft = ovgraft.load(root / "target")
    annotate(graft.target.model)
    graft.save(in_place=True, on_step=on_step)


def in_place_full(root: Path, on_step: Callable[[str], None]) -> None:
    graft = ovgraft.load(root / "target")
    negate_weights(graft.target.model)
    graft.save(in_place=True, on_step=on_step)


def in_place_pair(root: Path, on_step: Callable[[str], None]) -> None:
    graft = ovgraft.load(target=root / "target", draft=root / "draft")
    annotate(graft.target.model)
    negate_weights(graft.draft.model)  # type: ignore[union-attr]
    graft.save(in_place=True, extra_files={"graft.json": b"{}"}, on_step=on_step)


def fresh_pair(root: Path, on_step: Callable[[str], None]) -> None:
    graft = ovgraft.load(target=root / "target", draft=root / "draft")
    negate_weights(graft.target.model)
    annotate(graft.draft.model)  # type: ignore[union-attr]
    graft.save(root / "out", extra_files={"graft.json": b"{}"}, on_step=on_step)


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        *(fresh_folder, fresh_xml, force_xml, force, in_place_metadata, in_place_full, in_place_pair, fresh_pair),
    )
}


def _run(scenario: Callable[[Path, Callable[[str], None]], None], root: Path, last: int, steps: Path) -> NoReturn:
    names: list[str] = []

    def on_step(name: str) -> None:
        if len(names) == last:
            os._exit(DIED)
        names.append(name)

    try:
        scenario(root, on_step)
        steps.write_text(json.dumps(names))
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def main(scenario: str, source: Path, states: Path) -> None:
    """Die at step 0, 1, 2 until a save comes through."""
    for last in range(1000):
        root = states / str(last)
        shutil.copytree(source, root)
        child = os.fork()
        if child == 0:
            _run(SCENARIOS[scenario], root, last, states / "steps.json")
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != DIED:
            sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
