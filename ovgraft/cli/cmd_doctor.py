"""``ovgraft doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ovgraft.cli.console import Console
from ovgraft.cli.options import PATH, global_options, json_option

if TYPE_CHECKING:
    from ovgraft.graft import Graft


_EXAMPLE = """\b
Example:
  ovgraft doctor --target qwen3 --draft qwen3_dflash
  ovgraft doctor grafted --run
  ovgraft doctor --target qwen3 --draft checkpoint --run --prompt-ids 5,17,900 --json
"""


@click.command("doctor", epilog=_EXAMPLE)
@click.argument("path", type=PATH, required=False)
@click.option("--target", type=PATH, help="The model that is drafted for: an .xml or a folder.")
@click.option("--draft", type=PATH, help="The draft: an .xml, a folder, or a checkpoint.")
@click.option("--run", "runs", is_flag=True, help="Also run the pair: one block, both forms, what is accepted.")
@click.option(
    "--prompt-ids", multiple=True, metavar="IDS", help="Token ids of a prompt, as in 5,17,900; repeatable; with --run."
)
@click.option("--prompts", type=PATH, metavar="FILE.npz", help="Arrays of token ids, one prompt each.")
@click.option("--new-tokens", type=click.IntRange(1), default=32, show_default=True, help="Per prompt; with --run.")
@click.option("--candidates", type=click.IntRange(1), help="Tokens proposed at a time; default: the draft's block.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of random prompts.")
@click.option("--device", default="CPU", show_default=True, help="OpenVINO device; with --run.")
@json_option
@global_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    path: Path | None,
    target: Path | None,
    draft: Path | None,
    runs: bool,
    prompt_ids: tuple[str, ...],
    prompts: Path | None,
    new_tokens: int,
    candidates: int | None,
    seed: int,
    device: str,
    as_json: bool,
) -> None:
    """Check that a draft fits a target, and that nothing is about to go silently wrong.

    PATH is a folder with target/ and draft/; or name them with --target and --draft. Without --run nothing is compiled
    and no weight is read but a few rows. Each check passes, warns, or fails; one that fails stops those that build on
    it.

    Exits with 1 when a check fails.
    """
    console: Console = ctx.obj
    if not runs and (prompt_ids or prompts is not None):
        raise click.UsageError("prompts are for --run")
    with console.status() as status:
        status("starting")
        from ovgraft.checks import doctor
        from ovgraft.cli.doctor_table import diagnosis_lines

        options = None
        if runs:
            texts = (*map(_ids, prompt_ids), *_arrays(prompts))
            options = doctor.RunOptions(
                prompts=texts, new_tokens=new_tokens, candidates=candidates, seed=seed, device=device
            )
        found = doctor.diagnose(_opened(path, target, draft), run=options, status=status)
    if as_json:
        console.document(found.to_dict())
    else:
        console.data(*diagnosis_lines(found, console.symbols))
    ctx.exit(0 if found.good else 1)


def _opened(path: Path | None, target: Path | None, draft: Path | None) -> Graft:
    from ovgraft.cli.opening import open_graft

    if (path is None) == (target is None):
        raise click.UsageError("name a folder with target/ and draft/, or --target and --draft")
    named = path if path is not None else target
    assert named is not None
    graft = open_graft(named, draft)
    if graft.draft is None:
        raise click.UsageError("there is no draft: name one with --draft")
    return graft


def _ids(text: str) -> tuple[int, ...]:
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() for word in words):
        raise click.UsageError(f"--prompt-ids expects token ids, as in 5,17,900, got '{text}'")
    return tuple(map(int, words))


def _arrays(file: Path | None) -> tuple[tuple[int, ...], ...]:
    if file is None:
        return ()
    import numpy as np

    from ovgraft.cli.cmd_verify import read_inputs

    found = []
    for name, values in read_inputs(file).items():
        rows = np.atleast_2d(values)
        if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.integer):
            raise click.UsageError(f"array '{name}' of {file.name} holds no token ids: {values.dtype} {values.shape}")
        found += [tuple(map(int, row)) for row in rows]
    return tuple(found)
