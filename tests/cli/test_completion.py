from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.shell_completion import CompletionItem, ShellComplete

from ovgraft.cli.completion import Bash
from ovgraft.cli.main import cli
from ovgraft.pipeline import list_presets, pass_names
from tests.support import ROOT


def items(*words: str) -> list[CompletionItem]:
    """What is offered for the last word."""
    return ShellComplete(cli, {}, "ovgraft", "_OVGRAFT_COMPLETE").get_completions(list(words[:-1]), words[-1])


def offered(*words: str) -> list[str]:
    return [item.value for item in items(*words)]


def test_commands_with_their_lines() -> None:
    assert offered("") == ["apply", "build-draft", "diff", "doctor", "inspect", "passes", "verify"]
    assert offered("in") == ["inspect"]
    assert items("in")[0].help == "Show what a model, a package or a draft is made of."


def test_options_and_their_choices() -> None:
    assert "--no-color" in offered("--")
    assert offered("inspect", "--lay") == ["--layers"]
    assert offered("inspect", "--format", "") == ["text", "json", "dot", "svg", "html"]
    assert offered("apply", "--verify", "e") == ["end", "each"]


def test_names_of_passes_and_presets() -> None:
    presets = [preset.name for preset in list_presets()]
    assert offered("apply", "--preset", "") == presets
    assert offered("apply", "--skip", "") == list(pass_names())
    assert offered("passes", "") == [*presets, *pass_names()]
    assert items("apply", "--skip", "move")[0].help == (
        "Move the draft's hidden-state FC into the target, behind the exposed states."
    )


def test_paths_are_left_to_the_shell() -> None:
    for words in (("inspect", "mod"), ("apply", "-c", "mod"), ("verify", "a", "mod"), ("doctor", "--target", "mod")):
        assert [item.type for item in items(*words)] == ["file"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", list(pass_names())),
        ("mov", ["move-fc"]),
        ("move-fc,attach", ["move-fc,attach-embedding", "move-fc,attach-lm-head"]),
        ("expose-hidden-states{layers=1,3},mov", ["expose-hidden-states{layers=1,3},move-fc"]),
        ("expose-hidden-states{", ["expose-hidden-states{layers=", "expose-hidden-states{layer-convention="]),
        ("expose-hidden-states{layers=1,3 ", ["expose-hidden-states{layers=1,3 layer-convention="]),
        ("expose-hidden-states{layer-convention=i", ["expose-hidden-states{layer-convention=input"]),
        ("move-fc, paged-attention{mo", ["move-fc, paged-attention{model="]),
        ("paged-attention{qq-bias=", ["paged-attention{qq-bias=true", "paged-attention{qq-bias=false"]),
        ("set-rt-info{key=", []),
        ("move-fc{", []),
        ("no-such-pass{", []),
        ("paged-attention{no-such=", []),
        ('set-rt-info{key="a b', []),
        ("move-fc}", []),
    ],
)
def test_pipeline_text(text: str, expected: list[str]) -> None:
    assert offered("apply", "-p", text) == expected


def test_bash_puts_no_space_behind_what_goes_on() -> None:
    assert "compopt -o nospace" in Bash.source_template


def complete(words: str) -> tuple[list[str], set[str]]:
    """Run the script as bash does.

    Returns:
        Its lines, and the packages it imported.
    """
    program = (
        "import atexit, json, sys\n"
        "names = lambda: json.dumps(sorted({name.partition('.')[0] for name in sys.modules}))\n"
        "atexit.register(lambda: print(names(), file=sys.stderr))\n"
        "from ovgraft.cli.main import main\n"
        "main()\n"
    )
    given = {"_OVGRAFT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env={**os.environ, **given}, capture_output=True, text=True, cwd=ROOT, check=False)
    return done.stdout.split(), set(json.loads(done.stderr))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("ovgraft pas", ["plain,passes"]),
        ("ovgraft apply --preset eag", ["plain,eagle3"]),
        ("ovgraft apply -p paged-attention{mod", ["plain,paged-attention{model="]),
    ],
)
def test_an_answer_imports_nothing_heavy(words: str, expected: list[str]) -> None:
    lines, imported = complete(words)
    assert lines == expected
    assert not imported & {"openvino", "onnx", "networkx", "numpy", "ml_dtypes", "safetensors", "rich"}
