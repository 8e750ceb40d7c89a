"""The public names: listed, reachable, documented, the same for type checkers as at run time."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import ovgraft
from tests.support import ROOT

PACKAGES = ("ovgraft", *sorted(f"ovgraft.{path.name}" for path in (ROOT / "ovgraft").iterdir() if path.is_dir()))
PACKAGES = tuple(name for name in PACKAGES if not name.endswith("__"))

NAMES = {
    *("Context", "Edit", "Graft", "NodeRef", "OvgraftError", "Package", "Pass", "Pipeline", "Report", "load", "option"),
    "__version__",
}
"""What ``import ovgraft`` promises. Removing a name breaks programs: change this list knowingly."""


def _package(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_top_level_names_are_the_promised_ones() -> None:
    assert set(ovgraft.__all__) == NAMES


@pytest.mark.parametrize("package", PACKAGES)
def test_all_is_unique_and_reachable(package: str) -> None:
    module = _package(package)
    names = getattr(module, "__all__", [])
    assert len(names) == len(set(names))
    for name in names:
        assert getattr(module, name) is not None
    assert set(names) <= {*dir(module), "__version__"}


@pytest.mark.parametrize("package", PACKAGES)
def test_names_for_type_checkers_are_the_names_at_run_time(package: str) -> None:
    module = _package(package)
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    seen = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    if seen:
        assert seen | {"__version__"} == {*module.__all__, "__version__"}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_documented(package: str) -> None:
    module = _package(package)
    for name in getattr(module, "__all__", []):
        thing = getattr(module, name)
        if inspect.isfunction(thing) or inspect.isclass(thing):
            assert (inspect.getdoc(thing) or "").strip(), f"{package}.{name}"


@pytest.mark.parametrize("package", PACKAGES)
def test_unknown_name_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = _package(package).no_such_name


def test_passes_package_exports_the_class_of_every_registered_pass() -> None:
    from ovgraft.pipeline import registry

    passes = _package("ovgraft.passes")
    for name in registry.BUILT_IN:
        cls = registry.get_pass(name)
        assert cls.name == name
        assert getattr(passes, cls.__name__) is cls
        assert cls.__name__ in passes.__all__
        assert re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower() == name


def test_version_is_the_one_of_the_distribution() -> None:
    assert f'version = "{ovgraft.__version__}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
