"""What is easy to break without a test noticing: the package list, the passes link, the arrows between rooms."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest

from tests.support import ROOT

HEAVY = {"networkx", "numpy", "onnx", "openvino", "openvino_genai", "safetensors"}
MODULES = tuple(sorted(path for folder in ("ovgraft", "passes") for path in (ROOT / folder).rglob("*.py")))
CODE = tuple(
    sorted(
        path
        for folder in ("ovgraft", "passes", "tests", "samples", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    )
)

LEVELS = {
    **dict.fromkeys(("errors", "noderef", "paths", "_lazy"), 0),
    "ir": 1,
    **dict.fromkeys(("graft", "package", "passbase", "saving", "destination", "side_files"), 2),
    **dict.fromkeys(("decoder", "drafts"), 3),
    "passes": 4,
    **dict.fromkeys(("checks", "inspection", "pipeline"), 5),
    **dict.fromkeys(("cli", "__main__"), 6),
}
"""Room -> height. Imports go down or sideways, and never in a circle."""

CONTRACT = "ovgraft.drafts.contract"
"""The table of names stands on nothing, so every room may read it."""


def _configuration() -> dict[str, object]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def _room(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return "passes" if parts[0] == "passes" else parts[1]


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Modules of ovgraft a file imports, as far as the room, and whether only for types."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            whole = node.module == "ovgraft" or node.module in {f"ovgraft.{room}" for room in LEVELS}
            names = [f"{node.module}.{alias.name}" for alias in node.names] if whole else [node.module or ""]
        else:
            continue
        for name in names:
            if name.startswith("ovgraft."):
                yield name, id(node) in for_types


def test_package_list_is_the_folders_on_disk() -> None:
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "ovgraft").rglob("__init__.py")}
    on_disk = {".".join(folder.parts) for folder in folders} | {"ovgraft.passes"}
    nested = {path.parent.relative_to(ROOT) for path in (ROOT / "passes").rglob("__init__.py")}
    on_disk |= {".".join(("ovgraft", *folder.parts)) for folder in nested}
    tool = _configuration()["tool"]
    assert isinstance(tool, dict)
    listed = tool["setuptools"]["packages"]
    assert sorted(listed) == sorted(on_disk)
    assert len(set(listed)) == len(listed)


def test_every_folder_with_modules_is_a_package() -> None:
    bare = {path.parent for path in MODULES if not (path.parent / "__init__.py").exists()}
    assert not bare


def test_link_and_folder_are_the_same() -> None:
    link = ROOT / "ovgraft" / "passes"
    assert link.is_symlink()
    assert link.readlink().as_posix() == "../passes"
    assert link.samefile(ROOT / "passes")


def test_passes_import_as_ovgraft_passes_only() -> None:
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & {"passes"}, f"{path}:{getattr(node, 'lineno', 0)}"


def test_no_star_and_no_relative_imports() -> None:
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}:{node.lineno}"
                assert "*" not in {alias.name for alias in node.names}, f"{path}:{node.lineno}"


def test_every_room_has_a_height() -> None:
    assert {_room(path) for path in MODULES} - {"__init__"} <= set(LEVELS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows_point_down(path: Path) -> None:
    room = _room(path)
    if room == "__init__":
        return
    for module, _ in _imports(path):
        other = module.split(".")[1]
        if module.startswith(CONTRACT) or other not in LEVELS:
            continue
        assert LEVELS[other] <= LEVELS[room], f"{room} imports {module}"


def test_rooms_do_not_import_in_a_circle() -> None:
    arrows = networkx.DiGraph()
    for path in MODULES:
        room = _room(path)
        for module, for_types in _imports(path):
            other = module.split(".")[1]
            if for_types or room == "__init__" or other not in LEVELS or other == room or module.startswith(CONTRACT):
                continue
            arrows.add_edge(room, other, where=f"{path.relative_to(ROOT)}: {module}")
    circles = [
        [arrows.edges[circle[i - 1], circle[i]]["where"] for i in range(len(circle))]
        for circle in networkx.simple_cycles(arrows)
    ]
    assert not circles


def test_contract_stands_on_nothing() -> None:
    assert not list(_imports(ROOT / "ovgraft" / "drafts" / "contract.py"))


@pytest.mark.parametrize("arguments", [["--help"], ["passes"], ["apply", "--help"], ["--version"]], ids=" ".join)
def test_command_line_imports_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys\n"
        "sys.argv[0] = 'ovgraft'\n"
        "from ovgraft.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "print('loaded:', *sorted(name for name in sys.modules if '.' not in name), file=sys.stderr)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert run.returncode == 0, run.stderr
    loaded = set(run.stderr.rpartition("loaded:")[2].split())
    assert "click" in loaded
    assert not loaded & HEAVY


def test_passes_import_nothing_heavy() -> None:
    """Reading pipeline text imports the passes it names."""
    program = (
        "import sys\n"
        "from ovgraft import passes\n"
        "for name in passes.__all__:\n    getattr(passes, name)\n"
        "print(*sorted(name for name in sys.modules if '.' not in name))\n"
    )
    loaded = set(_run(sys.executable, "-c", program, cwd=ROOT).split())
    assert "ovgraft" in loaded
    assert not loaded & HEAVY


def _run(*command: str | Path, cwd: Path) -> str:
    run = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=cwd, check=False)
    assert run.returncode == 0, f"{command}\n{run.stdout}\n{run.stderr}"
    return run.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An sdist of this tree, and the wheel built from the unpacked sdist."""
    folder = tmp_path_factory.mktemp("build")
    tree = folder / "tree"
    tree.mkdir()
    for name in ("ovgraft", "passes"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    build = "import sys, setuptools.build_meta as backend; print(getattr(backend, sys.argv[1])(sys.argv[2]))"
    _run(sys.executable, "-c", build, "build_sdist", folder, cwd=tree)
    (source,) = folder.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(folder / "unpacked")
    (unpacked,) = (folder / "unpacked").iterdir()
    _run(sys.executable, "-c", build, "build_wheel", folder, cwd=unpacked)
    (wheel,) = folder.glob("*.whl")
    return source, wheel


@pytest.mark.slow
def test_sdist_and_wheel_hold_every_module_once(distributions: tuple[Path, Path]) -> None:
    source, wheel = distributions
    with tarfile.open(source) as archive:
        in_source = {name.partition("/")[2] for name in archive.getnames()}
    modules = {str(path.relative_to(ROOT)) for path in MODULES}
    assert modules | {"LICENSE", "pyproject.toml", "ovgraft/py.typed"} <= in_source
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = [name for name in archive.namelist() if ".dist-info/" not in name]
    expected = {f"ovgraft/{name}" if name.startswith("passes/") else name for name in modules}
    report = {str(path.relative_to(ROOT)) for path in (ROOT / "ovgraft" / "inspection" / "report").iterdir()}
    assert sorted(in_wheel) == sorted(expected | report | {"ovgraft/py.typed"})


@pytest.mark.slow
def test_installed_wheel_works_outside_the_checkout(distributions: tuple[Path, Path], tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    _run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", distributions[1], cwd=tmp_path)
    site = Path(_run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")

    where = _run(python, "-c", "import ovgraft, ovgraft.passes as p; print(ovgraft.__file__, p.__file__)", cwd=tmp_path)
    assert [Path(name).is_relative_to(site) for name in where.split()] == [True, True]
    missing = _run(python, "-c", "import importlib.util as u; print(u.find_spec('passes'))", cwd=tmp_path)
    assert missing.strip() == "None"
    command = environment / "bin" / "ovgraft"
    assert "apply" in _run(command, "--help", cwd=tmp_path)
    assert "annotate-hidden-states" in _run(command, "passes", cwd=tmp_path)
    assert "annotate-hidden-states" in _run(python, "-m", "ovgraft", "passes", cwd=tmp_path)
    _run(python, "-c", "from ovgraft.passes import AnnotateHiddenStates, MoveFc", cwd=tmp_path)
