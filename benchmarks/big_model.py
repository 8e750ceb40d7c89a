"""inspect, annotate-hidden-states and move-fc on 36 layers with 4 GiB of weights.

Every job runs in a process of its own; the sides of a ratio take turns there, and each counts with its fastest turn.
Memory is measured in further processes that do nothing else.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import blake3
import numpy as np
import openvino as ov

import ovgraft
from benchmarks import generate
from benchmarks.measure import MIB, Row, run, seconds
from ovgraft import inspection
from ovgraft.cli.console import Console

TURNS = 5
COPY_TURNS = 3
ANNOTATE = "annotate-hidden-states"
MOVE_FC = f"{ANNOTATE},expose-hidden-states,move-fc"


def rows(folder: Path) -> list[Row]:
    """All lines of the table.

    Args:
        folder: Takes 13 GiB for a while, on a disk that counts; the model (4.3 GiB) is kept for the next run.
    """
    target, draft = generate.big_pair(folder / "big")
    xml = target / "openvino_model.xml"
    original = xml.read_bytes()
    try:
        return [*_inspect(target), *_annotate(target, folder / "out"), *_move_fc(target, draft, folder / "out")]
    finally:
        xml.write_bytes(original)
        shutil.rmtree(folder / "out", ignore_errors=True)


def _ratio(what: str, found: float, reference: float, against: str, budget: float) -> Row:
    return Row(what, f"{found:.2f} s", f"{reference:.2f} s ({against})", found / reference, budget)


def _memory(what: str, job: str, *arguments: object, budget: float) -> Row:
    peak = run(job, *arguments).peak_mib * MIB / 1e6
    return Row(f"{what}: peak private memory", f"{peak:.0f} MB", f"{budget:.0f} MB", peak / budget, 1.0)


def _inspect(target: Path) -> list[Row]:
    found, reference = run("benchmarks.big_model:time_inspect", target).value
    return [
        _ratio("inspect", found, reference, "read_model", 2.5),
        _memory("inspect", "benchmarks.big_model:inspect", target, budget=400),
    ]


def _annotate(target: Path, out: Path) -> list[Row]:
    found, reference = run("benchmarks.big_model:time_annotate_in_place", target).value
    touched = run("benchmarks.big_model:pages_read_by_annotate", target).value
    copied, cp, synced = run("benchmarks.big_model:time_annotate_elsewhere", target, out).value
    return [
        _ratio(f"{ANNOTATE} --in-place", found, reference, "read_model", 4.0),
        Row(f"{ANNOTATE} --in-place: part of the .bin paged in", f"{touched:.2f} %", "1 %", touched, 1.0),
        _ratio(f"{ANNOTATE} to another folder", copied, cp, "cp", 1.2),
        _ratio(f"{ANNOTATE} to another folder", copied, synced, "cp + fsync", 1.2),
    ]


def _move_fc(target: Path, draft: Path, out: Path) -> list[Row]:
    found, reference = run("benchmarks.big_model:time_move_fc", target, draft, out).value
    return [
        _ratio("move-fc", found, reference, "save_model + fsync + blake3, both models", 1.2),
        _memory("move-fc", "benchmarks.big_model:move_fc", target, draft, out, budget=300),
    ]


def inspect(target: str) -> None:
    """What ``ovgraft inspect`` does."""
    inspection.render_text(inspection.inspect(Path(target)), Console().symbols)


def time_inspect(target: str) -> list[float]:
    """Seconds of inspect and of ``read_model``."""
    return _turns(TURNS, lambda: inspect(target), lambda: _read(target))


def annotate_in_place(target: str) -> None:
    """What ``ovgraft apply --in-place`` does."""
    graft = ovgraft.load(target)
    ovgraft.Pipeline(ANNOTATE).run(graft)
    graft.save(in_place=True)


def time_annotate_in_place(target: str) -> list[float]:
    """Seconds of annotating in place and of ``read_model``; the .bin must stay the file it was."""
    xml, bin_ = (Path(target) / f"openvino_model.{suffix}" for suffix in ("xml", "bin"))
    original, before = xml.read_bytes(), os.stat(bin_)
    best = _turns(
        TURNS, lambda: annotate_in_place(target), lambda: _read(target), before_each=lambda: xml.write_bytes(original)
    )
    annotate_in_place(target)
    assert b"hidden_states_decoder_layers" in xml.read_bytes()
    after = os.stat(bin_)
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size)
    xml.write_bytes(original)
    return best


def pages_read_by_annotate(target: str) -> float:
    """Per cent of the .bin that annotating in place brings into the page cache."""
    xml, bin_ = (Path(target) / f"openvino_model.{suffix}" for suffix in ("xml", "bin"))
    original = xml.read_bytes()
    with bin_.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert _resident(bin_) < 0.01, "the kernel kept the .bin cached"
    annotate_in_place(target)
    xml.write_bytes(original)
    return 100 * _resident(bin_)


def time_annotate_elsewhere(target: str, out: str) -> list[float]:
    """Seconds of what ``ovgraft apply -o`` does, of ``cp -r``, and of ``cp -r`` that waits for the disk, as we do."""

    def annotate() -> None:
        graft = ovgraft.load(target)
        with graft.writing(out, kept=True) as finish:
            ovgraft.Pipeline(ANNOTATE).run(graft)
            finish({})

    def copy() -> None:
        subprocess.run(["cp", "-r", target, out], check=True)

    def copy_and_sync() -> None:
        copy()
        _sync(Path(out) / "openvino_model.bin")

    return _turns(COPY_TURNS, annotate, copy, copy_and_sync, before_each=lambda: _clear(out))


def move_fc(target: str, draft: str, out: str) -> None:
    """What ``ovgraft apply -p annotate-hidden-states,expose-hidden-states,move-fc`` does."""
    _clear(out)
    graft = ovgraft.load(target=target, draft=draft)
    ovgraft.Pipeline(MOVE_FC).run(graft)
    graft.save(out)


def time_move_fc(target: str, draft: str, out: str) -> list[float]:
    """Seconds of moving the FC, and of what no safe save can do without: write, fsync, one pass of the digest."""

    def write() -> None:
        for folder in (target, draft):
            model = _read(folder)
            file = Path(out) / Path(folder).name / "openvino_model.xml"
            file.parent.mkdir(parents=True)
            ov.save_model(model, file, compress_to_fp16=False)
            for suffix in (".xml", ".bin"):
                _sync(file.with_suffix(suffix))
            blake3.blake3().update_mmap(file.with_suffix(".bin")).hexdigest()

    return _turns(COPY_TURNS, lambda: move_fc(target, draft, out), write, before_each=lambda: _clear(out))


def _read(folder: str) -> ov.Model:
    return ov.Core().read_model(Path(folder) / "openvino_model.xml")


def _turns(count: int, *works: Callable[[], object], before_each: Callable[[], object] = int) -> list[float]:
    """Seconds of each work's fastest turn."""
    best = [float("inf")] * len(works)
    for _ in range(count):
        for side, work in enumerate(works):
            before_each()
            best[side] = min(best[side], seconds(work))
    return best


def _sync(file: Path) -> None:
    with file.open("rb") as written:
        os.fsync(written.fileno())


def _clear(out: str) -> None:
    """Remove earlier output and let the disk come to rest."""
    shutil.rmtree(out, ignore_errors=True)
    os.sync()


def _resident(file: Path) -> float:
    """Share of a file that lies in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE) as view:
        pages = -(-len(view) // mmap.PAGESIZE)
        states = (ctypes.c_ubyte * pages)()
        address = _address(view)
        if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(view)), states):
            raise OSError(ctypes.get_errno(), "mincore")
    return sum(state & 1 for state in states) / pages


def _address(view: mmap.mmap) -> int:
    """Where a read-only map begins."""
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])
