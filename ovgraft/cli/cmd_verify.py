"""``ovgraft verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ovgraft.cli.console import Console
from ovgraft.cli.options import PATH, global_options, json_option

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ovgraft.checks import Tolerances


_EXAMPLE = """\b
Example:
  ovgraft verify grafted
  ovgraft verify qwen3 grafted --draft qwen3_dflash --atol 1e-4 --atol logits:1e-3
"""


@click.command("verify", epilog=_EXAMPLE)
@click.argument("a", type=PATH)
@click.argument("b", type=PATH, required=False)
@click.option("--draft", type=PATH, help="The draft of A, when A is a target alone.")
@click.option("--atol", multiple=True, metavar="[OUT:]X", help="Absolute limit, of one output or all; default 1e-5.")
@click.option("--rtol", multiple=True, metavar="[OUT:]X", help="Relative limit, of one output or all; default 1e-5.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the made-up inputs.")
@click.option("--samples", type=click.IntRange(1), default=1, show_default=True, help="Runs from empty states.")
@click.option("--steps", type=click.IntRange(0), default=4, show_default=True, help="Decode steps after the prefill.")
@click.option("--inputs", type=PATH, metavar="FILE.npz", help="Arrays by input name, one inference.")
@click.option("--device", default="CPU", show_default=True, help="OpenVINO device.")
@json_option
@global_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    a: Path,
    b: Path | None,
    draft: Path | None,
    atol: tuple[str, ...],
    rtol: tuple[str, ...],
    inputs: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Check that a model runs, or that two give the same numbers.

    A and B are an .xml, a package folder, or a folder with target/ and draft/. With A alone: the digest of the weights
    is checked, every model is run over a prefill and decode steps, and a Markov head is held against the formulas of
    the checkpoint beside it. With both, the outputs they have in common are compared; where one pair is grafted and
    the other is not, target and draft are run as one. All runs compute in f32.

    Exits with 1 when the answer is no.
    """
    console: Console = ctx.obj
    with console.status() as status:
        status("starting")
        from ovgraft.cli.verifying import verify_one, verify_two

        limits = tolerances(atol, rtol)
        arrays = None if inputs is None else read_inputs(inputs)
        if b is None:
            good, data, blocks = verify_one(a, draft, arrays, status, **options)
        else:
            good, data, blocks = verify_two(a, b, draft, arrays, limits, status, **options)
    if as_json:
        console.document(data)
    else:
        console.data(*blocks)
    ctx.exit(0 if good else 1)


def tolerances(atol: tuple[str, ...], rtol: tuple[str, ...]) -> Tolerances:
    """Limits out of ``X`` and ``OUT:X``; the last one of a kind counts.

    Raises:
        UsageError: Not a number, or below 0.
    """
    from ovgraft.checks import Tolerances

    given: dict[str, Any] = {"atol_of": {}, "rtol_of": {}}
    for kind, texts in (("atol", atol), ("rtol", rtol)):
        for text in texts:
            output, _, number = text.rpartition(":")
            try:
                limit = float(number)
            except ValueError:
                limit = -1.0
            if not 0 <= limit < float("inf"):
                raise click.UsageError(f"--{kind} expects a number, 0 or more, as in 1e-4 or logits:1e-3, got '{text}'")
            if output:
                given[f"{kind}_of"][output] = limit
            else:
                given[kind] = limit
    return Tolerances(**given)


def read_inputs(file: Path) -> dict[str, NDArray[Any]]:
    """Arrays of an .npz.

    Raises:
        ModelFileError: It is not there or not one.
    """
    import zipfile

    import numpy as np

    from ovgraft.errors import ModelFileError

    if not file.is_file():
        raise ModelFileError(f"{'not a regular' if file.exists() else 'no such'} file: {file}", file=file)
    try:
        with np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise ModelFileError(f"{file} is not an .npz archive of plain arrays", file=file) from error
