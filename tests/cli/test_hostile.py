"""Every command on inputs that nobody meant well: an answer, or a refusal of a sentence and a hint."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import openvino as ov
import pytest
from click.testing import CliRunner

from ovgraft.cli.main import cli
from tests.cli import hostile
from tests.cli.conftest import Outcome, Run
from tests.support import ROOT

_UNPRINTABLE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


@pytest.fixture(autouse=True)
def impatient() -> Iterator[None]:
    """A pipe that is waited for fails the test and does not hang it."""

    def too_long(number: int, frame: FrameType | None) -> None:
        raise AssertionError("a command waits for something that never comes")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile.target(tmp_path_factory.mktemp("hostile") / "good")


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile.draft(tmp_path_factory.mktemp("hostile") / "draft")


def reading(bad: Path, draft: Path, out: Path) -> list[list[object]]:
    """Commands that show whether an input can be read."""
    return [
        ["inspect", bad, "--all", "--json"],
        ["inspect", bad, "--format", "html"],
        ["doctor", "--target", bad, "--draft", draft],
        ["apply", bad, "-p", "annotate-hidden-states", "-o", out if os.path.isdir(bad) else _single(out)],
    ]


def _single(out: Path) -> Path:
    """Where an .xml goes when it came alone."""
    return out.with_suffix(".xml")


def commands(bad: Path, good: Path, draft: Path, out: Path) -> list[list[object]]:
    """Every command, with the input in every place where it can stand."""
    return [
        *reading(bad, draft, out),
        ["inspect", bad, "--format", "text"],
        ["inspect", bad, "--format", "svg"],
        ["inspect", bad, "--format", "dot"],
        ["inspect", bad, "--layers", "--ops", "--weights", "--states", "--rt-info", "--node", "*MatMul*"],
        ["doctor", "--target", good, "--draft", bad],
        ["diff", bad, good],
        ["diff", good, bad, "--weights"],
        ["passes", "--explain", "dflash", bad],
        ["passes", "--explain", "dflash", good, "--draft", bad],
        ["verify", bad, "--steps", "1"],
        ["verify", good, bad, "--steps", "1"],
        ["apply", "--target", good, "--draft", bad, "--preset", "dflash", "-o", out],
        ["build-draft", bad, "-o", out],
    ]


def check(outcome: Outcome, *args: object) -> None:
    """What holds of every outcome."""
    said = f"{' '.join(map(str, args))[:300]}\n{outcome.err[:2000]}"
    assert outcome.code in (0, 1, 2, 3, 4), said
    assert "bug in" not in outcome.err + outcome.out, said
    assert "Exception from" not in outcome.err + outcome.out, said
    for text in (outcome.out, outcome.err):
        assert not _UNPRINTABLE.search(text), said
    errors = outcome.err.removeprefix("nothing was written\n").splitlines()
    if outcome.code in (2, 3, 4):
        assert errors[0].startswith("error: "), said
        assert len(errors) <= 11, said
        assert all(len(line) < 1100 for line in errors), said


def try_all(run: Run, bad: Path, good: Path, draft: Path, out: Path) -> dict[str, Outcome]:
    """Run every command.

    Returns:
        The outcomes by what was asked.
    """
    return run_each(run, commands(bad, good, draft, out), bad, out)


def run_each(run: Run, every: list[list[object]], bad: Path, out: Path) -> dict[str, Outcome]:
    """Run some commands; those that fail write nothing."""
    found = {}
    for args in every:
        outcome = run(*args)
        check(outcome, *args)
        assert outcome.code == 0 or not (out.exists() or _single(out).exists()), args
        shutil.rmtree(out, ignore_errors=True)
        for file in (_single(out), out.with_suffix(".bin")):
            file.unlink(missing_ok=True)
        found[" ".join("BAD" if word == bad else str(word) for word in args)] = outcome
    return found


@pytest.mark.parametrize("name", hostile.DAMAGED)
def test_damaged_irs(run: Run, good: Path, draft: Path, tmp_path: Path, name: str) -> None:
    damage, said = hostile.DAMAGED[name]
    bad = tmp_path / "bad"
    shutil.copytree(good, bad)
    damage(bad)
    for what, outcome in try_all(run, bad / hostile.XML, good, draft, tmp_path / "out").items():
        if not what.startswith("build-draft"):
            assert outcome.code == 3, what
            assert said in outcome.err or name == "a folder", what
            assert len(outcome.err.removeprefix("nothing was written\n").splitlines()) <= 2, what
    assert run("inspect", bad).code == 3


@pytest.mark.parametrize("name", hostile.STILL_GOOD)
def test_irs_with_something_odd_beside_the_graph(run: Run, good: Path, draft: Path, tmp_path: Path, name: str) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(good, bad)
    hostile.STILL_GOOD[name](bad)
    every = reading(bad, draft, tmp_path / "out")
    for what, outcome in run_each(run, every, bad, tmp_path / "out").items():
        if what.startswith("inspect"):
            assert outcome.code == 0, what


@pytest.mark.parametrize("name", hostile.GRAPHS)
def test_odd_graphs(run: Run, good: Path, draft: Path, tmp_path: Path, name: str) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    ov.save_model(hostile.GRAPHS[name](), bad / hostile.XML, compress_to_fp16=False)
    for what, outcome in try_all(run, bad, good, draft, tmp_path / "out").items():
        if what.startswith("inspect"):
            assert outcome.code == 0 or (what.endswith("svg") and name != "no rank"), what


def test_names(run: Run, good: Path, draft: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    ov.save_model(hostile.named(), bad / hostile.XML, compress_to_fp16=False)
    for what, outcome in try_all(run, bad, good, draft, tmp_path / "out").items():
        if what.startswith("inspect"):
            assert outcome.code == 0, what


@pytest.mark.parametrize("name", hostile.CHECKPOINTS)
def test_checkpoints(run: Run, good: Path, draft: Path, tmp_path: Path, name: str) -> None:
    damage, said = hostile.CHECKPOINTS[name]
    bad = hostile.checkpoint(tmp_path / "bad")
    damage(bad)
    outcomes = try_all(run, bad, good, draft, tmp_path / "out")
    for what in ("inspect BAD --format text", f"build-draft BAD -o {tmp_path / 'out'}"):
        assert outcomes[what].code == 3, what
        assert said in outcomes[what].err, what


def test_names_of_files(run: Run, good: Path, draft: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"a\nb\x1b[31m[bold]<b>'\"  \xff\xfe") + "\u202e"
    bad = tmp_path / name
    shutil.copytree(good, bad)
    (bad / f"{name}.txt").touch()
    for what, outcome in try_all(run, bad, good, draft, tmp_path / "out").items():
        if what.startswith("inspect"):
            assert outcome.code == 0, what
    outcome = run("inspect", bad, "--format", "html", "-o", tmp_path / f"{name}.html")
    assert outcome.code == 0
    assert (tmp_path / f"{name}.html").read_text("utf-8")


_FILES = {"noise.onnx": b"garbage", "empty.onnx": b"", "file": b"x"}


@pytest.mark.parametrize(
    "name", [*_FILES, "missing", "missing/below", "file/below", "pipe", "pipe.onnx", "loop", "folder", "x" * 300]
)
def test_paths(run: Run, good: Path, draft: Path, tmp_path: Path, name: str) -> None:
    for file, content in _FILES.items():
        (tmp_path / file).write_bytes(content)
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    for pipe in ("pipe", "pipe.onnx"):
        os.mkfifo(tmp_path / pipe)
    for what, outcome in try_all(run, tmp_path / name, good, draft, tmp_path / "out").items():
        assert outcome.code == 3, what
    for args in (["verify", good, "--inputs"], ["doctor", "--target", good, "--draft", draft, "--run", "--prompts"]):
        outcome = run(*args, tmp_path / name)
        check(outcome, *args)
        assert outcome.code == 3, args


@pytest.mark.parametrize("name", ["/dev/null", "/dev/zero", "/proc"])
def test_devices(run: Run, good: Path, draft: Path, tmp_path: Path, name: str) -> None:
    for what, outcome in try_all(run, Path(name), good, draft, tmp_path / "out").items():
        assert outcome.code == 3, what
        assert f"{name}.xml" not in outcome.err, what
    outcome = run("apply", good, "-c", name, "--dry-run")
    check(outcome, name)
    assert outcome.code == 3


@contextmanager
def nobody() -> Iterator[None]:
    """Without the rights of root, who may read everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A folder that everybody may enter; those of pytest are private."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        hostile.target(folder / "good")
        hostile.draft(folder / "draft")
        for args in commands(folder / "good", folder / "good", folder / "draft", folder / "out"):
            CliRunner().invoke(cli, list(map(str, args)))  # imports all modules: nobody may not read where they lie
            shutil.rmtree(folder / "out", ignore_errors=True)
        yield folder


@pytest.mark.parametrize("locked", ["", hostile.XML, hostile.BIN])
def test_what_may_not_be_read(run: Run, home: Path, locked: str) -> None:
    bad = home / f"bad{locked}"
    shutil.copytree(home / "good", bad)
    (bad / locked).chmod(0)
    with nobody():
        outcomes = try_all(run, bad, home / "good", home / "draft", home / "out")
    for what, outcome in outcomes.items():
        if not what.startswith("build-draft"):
            assert outcome.code == 3, what
            assert "ermission denied" in outcome.err, what


def test_where_nothing_may_be_written(run: Run, home: Path) -> None:
    with nobody():
        for args in (
            ["apply", home / "good", "-p", "annotate-hidden-states", "-o", home / "out"],
            ["inspect", home / "good", "--format", "html", "-o", home / "out"],
            ["build-draft", ROOT / "samples" / "dspark", "-o", home / "out"],
            ["apply", home / "good", "-p", "annotate-hidden-states", "--dry-run", "--report", home / "out"],
        ):
            outcome = run(*args)
            check(outcome, *args)
            assert (outcome.code, (home / "out").exists()) == (3, False), args
