"""docs/markov-head.md: its tables are the contract, its commands and its program run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ovgraft import ir
from ovgraft.drafts import markov
from ovgraft.drafts.contract import MARKOV_PORTS
from ovgraft.drafts.spec import HeadType
from tests import models, support
from tests.drafts import checkpoints

PAGE = support.ROOT / "docs" / "markov-head.md"


def table(heading: str) -> list[list[str]]:
    """Cells of the first table below a heading, without its head."""
    below = PAGE.read_text("utf-8").split(f"## {heading}\n")[1]
    lines = [line for line in below.split("\n## ")[0].splitlines() if line.startswith("|")]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines[2:]]
    return [[cell.strip().replace("\\|", "|") for cell in row] for row in cells]


def ticked(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_ports_are_the_contracts() -> None:
    listed = {ticked(name)[0]: (kind, ticked(shape)[0]) for name, kind, shape, _ in table("Ports")}
    assert listed == {port: (kind.element_type, f"[{', '.join(kind.dims)}]") for port, kind in MARKOV_PORTS.items()}


def test_computations_are_the_contracts() -> None:
    rows = {(head, name): (ticked(inputs), ticked(outputs)) for head, name, inputs, outputs in table("Computations")}
    confidence = rows.pop(("all but dflash2", "confidence"))
    wanted = {}
    for head in HeadType:
        for computation in markov.computations_of(head):
            ports = markov.ports(head, computation)
            wanted[str(head), str(computation)] = (list(ports.inputs), list(ports.outputs))
    assert rows == wanted
    ports = markov.ports(HeadType.VANILLA, markov.Computation.CONFIDENCE)
    assert confidence == (list(ports.inputs), list(ports.outputs))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """target, draft and checkpoint as the page supposes them."""
    ids = checkpoints.LAYER_IDS
    models.write_package(models.tiny_decoder(checkpoints.TARGET_LAYERS, vocab=checkpoints.VOCAB), tmp_path / "target")
    backbone = models.tiny_dflash_draft(1, n=len(ids), hidden=checkpoints.HIDDEN, target_layer_ids=ids)
    models.write_package(backbone, tmp_path / "draft", config={})
    checkpoints.write_checkpoint(tmp_path / "checkpoint", *checkpoints.deepspec_vanilla())
    return tmp_path


def test_commands_and_program_run(folder: Path) -> None:
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert [kind for kind, _ in blocks] == ["sh", "python"]
    environment = {"PYTHONPATH": str(support.ROOT), "PATH": "/usr/bin:/bin"}
    for line in blocks[0][1].splitlines():
        command, *arguments = shlex.split(line)
        assert command == "ovgraft"
        subprocess.run([sys.executable, "-m", "ovgraft", *arguments], cwd=folder, env=environment, check=True)
    scorer = ir.read_model(folder / "scorer.xml")
    assert markov.present_computations(scorer) == (markov.Computation.SCORER,)
    assert markov.require_head(scorer).top_k == 4
    done = subprocess.run(
        [sys.executable, "-c", blocks[1][1]], cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    assert re.fullmatch(r"\[(\d+, ){6}\d+\]\n", done.stdout)
