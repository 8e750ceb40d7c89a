"""What ``inspect --format`` writes: one text in a format of its own, to stdout or into a file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ovgraft.cli.output_file import output_file
from ovgraft.errors import SpecError

if TYPE_CHECKING:
    from ovgraft.inspection import Inspection, Request
    from ovgraft.inspection.picture import Picture

Drawing = Literal["dot", "svg", "html"]

MOST_NODES = 400
"""A graph with more cannot be looked at as a whole."""


def check_format(drawing: Drawing, request: Request) -> None:
    """Refuse before the work what a format cannot show.

    Raises:
        SpecError: Nodes as SVG.
    """
    if drawing == "svg" and (request.node or request.around is not None):
        raise SpecError("--format svg draws layers and graft, no nodes", hint="--format dot and html draw nodes")


def full_request(drawing: Drawing, request: Request) -> Request:
    """What a format needs on top of what was asked for."""
    return dataclasses.replace(
        request, layers=True, weights=True, states=request.states or drawing == "html", graph=drawing == "html"
    )


def drawn(drawing: Drawing, path: Path, found: Inspection, request: Request) -> str:
    """The inspection in a format.

    Raises:
        SpecError: There is nothing of the kind to draw, or too much of it.
    """
    if drawing == "html":
        from ovgraft.inspection.as_html import render_html

        return render_html(found, path.resolve().name)
    if drawing == "svg":
        from ovgraft.inspection.as_svg import picture_svg

        picture = _picture(found)
        if picture is None:
            raise SpecError(
                "there is neither a decoder nor a draft to draw", hint="--format dot or html show its nodes"
            )
        return picture_svg(picture)
    from ovgraft.inspection.as_dot import nodes_dot, picture_dot

    if request.node or request.around is not None:
        _check_count(sum(len(model.nodes) for package in found.packages for model in package.models))
        return nodes_dot(found)
    picture = _picture(found)
    if picture is not None:
        return picture_dot(picture)
    from ovgraft import inspection

    _check_count(sum(model.ops for package in found.packages for model in package.models))
    return nodes_dot(inspection.inspect(path, dataclasses.replace(request, node=("*",))))


def write(file: Path, text: str, *, force: bool) -> None:
    """Write a new file, or replace one when told to; whole or not at all.

    Raises:
        ModelFileError: It exists, or cannot be written.
    """
    with output_file(file, "the output", replace=force) as out:
        out.write(text.encode())


def _picture(found: Inspection) -> Picture | None:
    from ovgraft.inspection.layout import UNICODE
    from ovgraft.inspection.picture import picture

    return picture(found, UNICODE)


def _check_count(count: int) -> None:
    if count > MOST_NODES:
        raise SpecError(
            f"{count} nodes are too many for one drawing, {MOST_NODES} are the most",
            hint="--around NODE --hops N draws a part; --format html lets people search all",
        )
