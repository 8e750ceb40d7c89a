"""inspect, its report, diff and doctor on graphs of 15,000 ops, where every op costs and no weight does."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import openvino as ov

import ovgraft
from benchmarks import generate
from benchmarks.measure import Row, run, seconds
from ovgraft import inspection
from ovgraft.checks import diff, doctor
from ovgraft.cli.console import Console
from ovgraft.cli.rendering import full_request
from ovgraft.inspection.as_html import render_html
from tests import models

TURNS = 5
GRAFT = "annotate-hidden-states,expose-hidden-states,move-fc"


def rows(folder: Path) -> list[Row]:
    """All lines of the table.

    Args:
        folder: Takes 60 MB.
    """
    pair = folder / "many-ops"
    if not pair.exists():
        write_pair(pair)
    target, draft, other = (pair / name for name in ("target", "draft", "renamed"))
    layers, ops, summary, read = run("benchmarks.inspection:time_summary", target).value
    page_time, page_bytes = run("benchmarks.inspection:time_report", target).value
    what = f"{layers} layers, {ops:,} ops"
    return [
        Row(f"inspect, {what}", f"{summary:.2f} s", f"{read:.2f} s (read_model)", summary / read, 2.5),
        _budget("inspect --format html", page_time, 3.0, "s"),
        _budget("inspect --format html: size of the page", page_bytes / 1e6, 3.0, "MB"),
        _budget(
            "diff with a grafted and renamed one", run("benchmarks.inspection:time_diff", target, other).value, 5.0, "s"
        ),
        _budget("doctor with a draft", run("benchmarks.inspection:time_doctor", target, draft).value, 3.0, "s"),
    ]


def _budget(what: str, found: float, budget: float, unit: str) -> Row:
    return Row(what, f"{found:.2f} {unit}", f"{budget:g} {unit}", found / budget, 1.0)


def write_pair(folder: Path) -> None:
    """A deep target with int8 weights, a draft for it, and the target grafted, all of its nodes renamed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = generate.fifteen_thousand_ops()
    layers = len(model.get_sinks()) // 2
    models.write_package(model, folder / "target", config={"model_type": "qwen3", "num_hidden_layers": layers})
    ids = (1, layers // 2, layers - 3)
    draft = models.tiny_dflash_draft(n=len(ids), target_layer_ids=ids)
    models.write_package(draft, folder / "draft", config={"model_type": "qwen3", "dflash_config": {"block_size": 8}})
    graft = ovgraft.load(target=folder / "target", draft=folder / "draft")
    ovgraft.Pipeline(GRAFT).run(graft)
    for number, node in enumerate(graft.target.model.get_ordered_ops()):
        node.set_friendly_name(f"node{number}")
    models.write_package(graft.target.model, folder / "renamed")


def time_summary(target: str) -> tuple[int, int, float, float]:
    """Layers and ops, and seconds of the summary and of ``read_model``, turn by turn."""
    model = inspection.inspect(Path(target)).packages[0].models[0]

    def show() -> str:
        blocks = inspection.render_text(inspection.inspect(Path(target)), Console().symbols)
        return "".join(map(str, blocks))

    def read() -> ov.Model:
        return ov.Core().read_model(Path(target) / "openvino_model.xml")

    found, reference = _turns(show, read)
    return len(model.layers), model.ops, found, reference


def time_report(target: str) -> tuple[float, int]:
    """Seconds of reading and drawing, and bytes of the page."""

    def page() -> str:
        found = inspection.inspect(Path(target), full_request("html", inspection.Request()))
        return render_html(found, "target")

    return _turns(page)[0], len(page().encode())


def time_diff(a: str, b: str) -> float:
    """Seconds of reading and comparing two models."""
    found = diff.diff_grafts(ovgraft.load(a), ovgraft.load(b))
    assert not found.equal
    return _turns(lambda: diff.diff_grafts(ovgraft.load(a), ovgraft.load(b)))[0]


def time_doctor(target: str, draft: str) -> float:
    """Seconds of all checks that run nothing."""
    assert doctor.diagnose(ovgraft.load(target=target, draft=draft)).good
    return _turns(lambda: doctor.diagnose(ovgraft.load(target=target, draft=draft)))[0]


def _turns(*works: Callable[[], object]) -> list[float]:
    """Seconds of each work's fastest turn; the works take turns."""
    best = [float("inf")] * len(works)
    for _ in range(TURNS):
        for side, work in enumerate(works):
            best[side] = min(best[side], seconds(work))
    return best
