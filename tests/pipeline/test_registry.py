"""Names of passes: the built-in table, third parties, presets, and what importing them costs."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ovgraft.errors import SpecError, UnknownPassError
from ovgraft.pipeline import get_pass, list_passes, list_presets, pass_names, preset, registry, spec
from ovgraft.pipeline.entry_points import read_entry_points
from tests.support import ROOT

THIRD_PARTY = """
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
from ovgraft import Pass, option

@dataclass(frozen=True, kw_only=True)
class Polish(Pass):
    '''Polish the model.'''
    name: ClassVar[str] = "{name}"
    rounds: int = option(1, "how often")
    def apply(self, graft, ctx): pass
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path to install distributions into."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(site: Path, distribution: str, points: dict[str, str], **modules: str) -> None:
    """Lay out a distribution with entry points, as an installer does."""
    info = site / f"{distribution}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    lines = [f"[{registry.ENTRY_POINT_GROUP}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for name, code in modules.items():
        (site / f"{name}.py").write_text(code)
    importlib.invalidate_caches()


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_table_agrees_with_the_classes(name: str) -> None:
    cls = get_pass(name)
    assert cls.name == name
    assert cls.summary() == registry.BUILT_IN[name][1]
    assert cls.__module__ == f"ovgraft.passes.{name.replace('-', '_')}"


def test_unknown_name_has_the_closest_one() -> None:
    with pytest.raises(UnknownPassError, match="unknown pass 'move-fx'") as caught:
        get_pass("move-fx")
    assert caught.value.hint == f"did you mean 'move-fc'? `ovgraft passes` lists all {len(pass_names())}"
    with pytest.raises(UnknownPassError) as caught:
        get_pass("zzz")
    assert caught.value.hint == f"`ovgraft passes` lists all {len(pass_names())}"


def test_third_party_pass(site: Path) -> None:
    install(site, "shine", {"polish": "shine_a:Polish"}, shine_a=THIRD_PARTY.format(name="polish"))
    assert pass_names()[-1] == "polish"
    assert get_pass("polish").name == "polish"
    listed = list_passes()[-1]
    assert (listed.name, listed.distribution, listed.summary, listed.problem) == (
        *("polish", "shine", "Polish the model."),
        None,
    )


def test_entry_points_are_those_of_the_standard_library(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_entry_points("no.such.group") == set()
    install(site, "shine", {"polish": "shine_g:Polish"})
    assert read_entry_points(registry.ENTRY_POINT_GROUP) == {("polish", "shine_g:Polish", "shine")}
    scripts = {
        (p.name, p.value, p.dist.name) for p in importlib.metadata.entry_points(group="console_scripts") if p.dist
    }
    assert read_entry_points("console_scripts") == scripts
    with zipfile.ZipFile(site / "packed.zip", "w") as archive:
        archive.writestr("gloss-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: gloss\nVersion: 1.0\n")
        archive.writestr("gloss-1.0.dist-info/entry_points.txt", "[zipped]\nglossy = a:B\n")
    assert read_entry_points("zipped") == set()
    monkeypatch.syspath_prepend(site / "packed.zip")
    assert read_entry_points("zipped") == {("glossy", "a:B", "gloss")}


def test_clash_of_two_distributions_names_both(site: Path) -> None:
    install(site, "shine", {"polish": "shine_b:Polish"}, shine_b=THIRD_PARTY.format(name="polish"))
    install(site, "gloss", {"polish": "gloss_b:Polish", "move-fc": "gloss_b:Polish"})
    with pytest.raises(SpecError, match=r"'polish' is registered by 'gloss' \(.*\) and 'shine' \(.*\)"):
        get_pass("polish")
    with pytest.raises(SpecError, match=r"'move-fc' is registered by 'ovgraft' \(.*\) and 'gloss' \(.*\)"):
        get_pass("move-fc")
    problems = {listed.name: listed.problem for listed in list_passes()}
    assert "registered by" in (problems["polish"] or "")
    assert "registered by" in (problems["move-fc"] or "")
    assert problems["set-rt-info"] is None
    assert get_pass("set-rt-info").name == "set-rt-info"


@pytest.mark.parametrize(
    ("value", "code", "message"),
    [
        ("not_there:Polish", "", "cannot be loaded: ModuleNotFoundError"),
        ("broken_c:Polish", "raise RuntimeError('no licence')", "cannot be loaded: RuntimeError: no licence"),
        ("broken_d:Missing", "Polish = 3", "cannot be loaded: AttributeError"),
        ("broken_e:Polish", "Polish = 3", "is not a subclass of ovgraft.Pass"),
        ("broken_f:Polish", THIRD_PARTY.format(name="other"), "calls itself 'other'"),
        ("no colon!", "", "cannot be loaded"),
    ],
)
def test_broken_third_party_pass_breaks_itself_only(site: Path, value: str, code: str, message: str) -> None:
    install(site, "shine", {"polish": value}, **{value.split(":")[0].replace(" ", "_"): code} if code else {})
    with pytest.raises(SpecError, match=message) as caught:
        get_pass("polish")
    assert "distribution 'shine'" in str(caught.value)
    problems = {listed.name: listed.problem for listed in list_passes()}
    assert message.split(":")[0] in (problems.pop("polish") or "")
    assert set(problems.values()) == {None}


def test_presets_are_pipelines_of_built_in_passes() -> None:
    presets = list_presets()
    assert {"genai", "dflash", "eagle3"} <= {entry.name for entry in presets}
    for entry in presets:
        assert all(item.name in registry.BUILT_IN for item in spec.read_items(entry.text))
        assert entry.summary.endswith(".")
    assert preset("genai").text == "annotate-hidden-states"
    with pytest.raises(SpecError, match="unknown preset 'dflsh'") as caught:
        preset("dflsh")
    assert (caught.value.hint or "").startswith("did you mean 'dflash'?")


def loaded_after(code: str) -> set[str]:
    """Modules of a fresh interpreter after running code."""
    script = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_listing_and_reading_pipelines_imports_nothing_heavy() -> None:
    code = "from ovgraft.pipeline import *; list_passes(); preset('dflash'); Pipeline('set-rt-info{key=a value=1}')"
    loaded = loaded_after(code)
    assert "ovgraft.passes.set_rt_info" in loaded
    assert loaded.isdisjoint({"openvino", "onnx", "networkx", "numpy", "importlib.metadata"})


def test_importing_one_pass_imports_no_other() -> None:
    loaded = loaded_after("from ovgraft.passes import DropDeadInputs")
    passes = {name for name in loaded if name.startswith("ovgraft.passes.") and not name.split(".")[2].startswith("_")}
    assert passes == {"ovgraft.passes.drop_dead_inputs"}
