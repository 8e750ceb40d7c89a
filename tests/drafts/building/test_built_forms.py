"""Every format, both forms: the graph against the formulas at f64, and the paged form against the stateful one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from ovgraft.drafts.building.draft import Form, build_draft
from ovgraft.drafts.reference.backbone import ReferenceCache
from tests import support
from tests.drafts.building import running
from tests.drafts.building.running import Numpy, PerRow, Sdpa, Step
from tests.drafts.checkpoints import BUILDERS

TOLERANCE = 3e-5
CALLS = [(13, 8), (1, 1), (5, 2), (40, 16), (1, 7)]
"""Context rows and block rows of each call: first without past, then with."""

PACKED = [((40, 8), (3, 2)), ((1, 1), (5, 16)), ((6, 7), (20, 7)), ((1, 16), (1, 1))]


@pytest.mark.parametrize("name", BUILDERS)
def test_sdpa_form_is_the_formulas(tmp_path: Path, name: str) -> None:
    checkpoint = running.tiny(tmp_path, name)
    built, formulas = Sdpa(build_draft(checkpoint)), Numpy(checkpoint)
    for step in running.random_steps(checkpoint, CALLS):
        expected = formulas.step(step)[checkpoint.spec.candidate_position_offset :]
        found = built.step(step)[running.output_name(checkpoint)]
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", BUILDERS)
def test_per_row_form_packs_what_sdpa_does_alone(tmp_path: Path, name: str) -> None:
    """Block lengths 1, 2, 7, 16, context deltas of one row and many, two requests, block rows rolled back."""
    checkpoint = running.tiny(tmp_path, name)
    offset, output = checkpoint.spec.candidate_position_offset, running.output_name(checkpoint)
    stateful = support.compile_parity(build_draft(checkpoint))
    alone = {request: Sdpa(stateful) for request in "ab"}
    formulas = {request: Numpy(checkpoint) for request in "ab"}
    packed = PerRow(checkpoint, running.paged(checkpoint))
    for turn, sizes in enumerate(PACKED):
        a, b = running.random_steps(checkpoint, sizes, seed=turn)
        steps = {"a": a, "b": b} if turn % 2 else {"b": b, "a": a}
        found = packed.step(steps)
        for request, step in steps.items():
            rows = found[request][output]
            assert len(rows) == len(step.block)
            np.testing.assert_allclose(rows, formulas[request].step(step), rtol=0, atol=TOLERANCE)
            np.testing.assert_allclose(rows[offset:], alone[request].step(step)[output], rtol=0, atol=TOLERANCE)
        assert {request: packed.runner.length(request) for request in "ab"} == {
            request: alone[request].past for request in "ab"
        }


@pytest.mark.parametrize("name", ["zlab_dflash", "zlab_dflash2", "deepspec_gemma4"])
def test_rolled_back_is_as_if_the_block_had_never_been(tmp_path: Path, name: str) -> None:
    checkpoint = running.tiny(tmp_path, name)
    model, output = running.paged(checkpoint), running.output_name(checkpoint)
    first, second, third = running.random_steps(checkpoint, [(6, 16), (2, 7), (30, 8)])
    packed = PerRow(checkpoint, model)
    for step in (first, second):
        packed.step({"a": step})
    found = packed.step({"a": third})["a"][output]
    states = np.concatenate([step.hidden_states for step in (first, second, third)])
    fresh = PerRow(checkpoint, model).step({"a": Step(states, third.block)})["a"][output]
    np.testing.assert_allclose(found, fresh, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["zlab_dflash", "zlab_dflash2"])
def test_a_request_without_block_rows_only_commits_context(tmp_path: Path, name: str) -> None:
    checkpoint = running.tiny(tmp_path, name)
    empty, full, more, later = running.random_steps(checkpoint, [(9, 0), (4, 8), (5, 0), (2, 8)])
    packed, formulas = PerRow(checkpoint, running.paged(checkpoint)), {request: Numpy(checkpoint) for request in "ab"}
    for steps in ({"a": empty, "b": full}, {"a": more}, {"a": later}):  # the second call has no block row at all
        found = packed.step(steps)
        for request, step in steps.items():
            expected = formulas[request].step(step)
            np.testing.assert_allclose(found[request]["last_hidden_state"], expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", BUILDERS)
def test_the_reference_packs_what_it_does_alone(tmp_path: Path, name: str) -> None:
    """The two forms of the reference are two programs."""
    checkpoint = running.tiny(tmp_path, name)
    backbone = running.reference(checkpoint)
    caches = {request: ReferenceCache() for request in "ab"}
    formulas = {request: Numpy(checkpoint) for request in "ab"}
    for turn, sizes in enumerate([((7, 8), (3, 2)), ((1, 1), (5, 7))]):
        steps = dict(zip("ab", running.random_steps(checkpoint, sizes, seed=turn), strict=True))
        width = checkpoint.spec.backbone.hidden_size
        parts = [
            (np.full((step.context, width), 1e3), running.embedded(checkpoint, step.block)) for step in steps.values()
        ]
        states = [
            (step.hidden_states, np.full((len(step.block), step.hidden_states.shape[1]), 1e3))
            for step in steps.values()
        ]
        types = np.concatenate([np.repeat([0, 1], [step.context, len(step.block)]) for step in steps.values()])
        begins = np.cumsum([0] + [step.context + len(step.block) for step in steps.values()])
        rows = backbone.step_packed(
            list(caches.values()),
            np.vstack([row for part in parts for row in part]),
            np.vstack([row for part in states for row in part]),
            types,
            begins,
        )
        for request, begin, end in zip("ab", begins[:-1], begins[1:], strict=True):
            block = rows[begin:end][types[begin:end] == 1]
            np.testing.assert_allclose(block, formulas[request].rows(steps[request]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["sdpa", "per-row"])
@pytest.mark.parametrize("name", ["zlab_dflash2", "speculators_dspark", "deepspec_gemma4"])
def test_built_twice_is_byte_equal(tmp_path: Path, name: str, form: Form) -> None:
    files = []
    for run in ("one", "two"):
        checkpoint = running.tiny(tmp_path / run, name)
        out = tmp_path / f"{run}.xml"
        ov.save_model(build_draft(checkpoint, form), out, compress_to_fp16=False)
        files.append(out.read_bytes() + out.with_suffix(".bin").read_bytes())
    assert files[0] == files[1]
    assert os.fsencode(tmp_path) not in files[0]
