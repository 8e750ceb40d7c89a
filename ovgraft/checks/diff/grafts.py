"""Models, packages and grafts compared: target with target, draft with draft, side models with their namesakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ovgraft.checks.diff.models import diff_models
from ovgraft.checks.diff.result import GraftDiff, ModelDiff
from ovgraft.checks.grafts import SIDE_MODELS

if TYPE_CHECKING:
    import openvino as ov

    from ovgraft.graft import Graft, Package


def diff_grafts(
    a: Graft, b: Graft, *, weights: bool = False, status: Callable[[str], None] = lambda text: None
) -> GraftDiff:
    """Compare every model both have.

    Args:
        a: What differences are told from.
        b: The other one.
        weights: Also compare the bytes of constants.
        status: Told what is being done.

    Raises:
        ModelFileError: A file is missing or damaged.
    """
    found: list[ModelDiff] = []
    only: tuple[list[str], list[str]] = ([], [])
    pairs = {role: (a.packages.get(role), b.packages.get(role)) for role in (*a.packages, *b.packages)}
    for role, sides in pairs.items():
        models = [{} if package is None else dict(_models(role, package)) for package in sides]
        for name in {**models[0], **models[1]}:
            left, right = models[0].get(name), models[1].get(name)
            if left is not None and right is not None:
                found.append(diff_models(left, right, name=name, weights=weights, status=status))
            else:
                only[0 if right is None else 1].append(name)
    return GraftDiff(tuple(found), tuple(only[0]), tuple(only[1]))


def _models(role: str, package: Package) -> Iterator[tuple[str, ov.Model]]:
    if not package.is_checkpoint or package.main_name in package.models:
        yield role, package.model
    else:
        yield f"{role} checkpoint", package.model  # which says that it is none
    for name in SIDE_MODELS if package.kind == "folder" else ():
        model = None if name == package.main_name else package.get(name)
        if model is not None:
            yield f"{role} {name}", model
