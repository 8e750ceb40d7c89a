"""Public names of a package, imported at first use (PEP 562): `import ovgraft` and the command line stay light."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def attach(package: str, modules: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Build ``__getattr__`` and ``__dir__`` for a package.

    Args:
        package: ``__name__`` of the package.
        modules: Submodule name -> public names it defines.

    Returns:
        The two functions, to be bound as ``__getattr__, __dir__``.
    """
    home = {name: module for module, names in modules.items() for name in names}

    def lookup(name: str) -> Any:
        if name in home:
            return getattr(importlib.import_module(f"{package}.{home[name]}"), name)
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def listing() -> list[str]:
        return sorted({*home, *modules})

    return lookup, listing
