from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import openvino as ov
import pytest

import ovgraft
from tests import models
from tests.cli.conftest import Run

ANNOTATE = "annotate-hidden-states"


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, with its bytes."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_annotating_writes_a_whole_package(run: Run, target: Path, tmp_path: Path) -> None:
    before = tree(target)
    outcome = run("apply", target, "--preset", "genai", "-o", tmp_path / "out")
    assert outcome.code == 0
    assert "annotate-hidden-states" in outcome.out
    assert "yes" in outcome.out
    assert outcome.err == f"wrote {tmp_path / 'out'} (weights as they were)\n"
    assert tree(target) == before
    assert set(tree(tmp_path / "out")) == set(before)
    assert (tmp_path / "out" / "openvino_model.bin").read_bytes() == before["openvino_model.bin"]
    model = ovgraft.load(tmp_path / "out").target.model
    assert model.has_rt_info(["hidden_states_decoder_layers"])


def test_one_xml_goes_to_one_xml(run: Run, target: Path, tmp_path: Path) -> None:
    outcome = run("apply", target / "openvino_model.xml", "-p", ANNOTATE, "-o", tmp_path / "out.xml")
    assert outcome.code == 0
    assert set(tree(tmp_path)) == {"out.xml", "out.bin"}


def test_a_pair_gets_two_folders_and_a_record(run: Run, target: Path, draft: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = tmp_path / "report.json"
    args = ["--target", target, "--draft", draft, "--preset", "dflash", "--verify", "-o", out, "--report", report]
    outcome = run("apply", *args)
    assert outcome.code == 0, outcome.err
    assert "target and draft" in outcome.out
    assert "same within limits" in outcome.out
    record = json.loads((out / "graft.json").read_text())
    assert set(record) == {"schema", "pipeline", "versions", "digests", "files", "report"}
    assert record["files"] == sorted(set(tree(out)) - {"graft.json"})
    assert set(record["digests"]) == {"target/openvino_model", "draft/openvino_model"}
    text = (out / "graft.json").read_text()
    assert str(tmp_path) not in text
    assert str(target.parent) not in text
    assert "seconds" not in text
    long = json.loads(report.read_text())
    assert long["paths"]["target"] == str(target)
    assert long["written"] is True
    assert long["verification"]["same"] is True
    assert long["passes"][1]["seconds"] > 0
    assert "time" in long


def test_the_same_input_gives_the_same_bytes(run: Run, target: Path, draft: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        outcome = run(
            "apply", "--target", target, "--draft", draft, "--preset", "dflash", "-o", tmp_path / name / "out"
        )
        assert outcome.code == 3  # the folder to lie in is not there
        (tmp_path / name).mkdir()
        outcome = run(
            "apply", "--target", target, "--draft", draft, "--preset", "dflash", "-o", tmp_path / name / "out"
        )
        assert outcome.code == 0
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_json_is_one_document_and_the_rest_goes_to_stderr(run: Run, target: Path, tmp_path: Path) -> None:
    outcome = run("apply", target, "-p", ANNOTATE, "-o", tmp_path / "out", "--json")
    data = outcome.data
    assert data["schema"] == 1
    assert data["written"] is True
    assert data["paths"]["output"] == str(tmp_path / "out")
    assert data["passes"][0]["status"] == "changed"
    assert outcome.err.startswith("wrote ")


def test_a_dry_run_does_all_but_write(run: Run, target: Path, tmp_path: Path) -> None:
    before = tree(target)
    for where in (["-o", tmp_path / "out"], [], ["--in-place"]):
        outcome = run("apply", target, "-p", f"{ANNOTATE},expose-hidden-states{{layers=1,2}}", "--dry-run", *where)
        assert outcome.code == 0
        assert "last_hidden_state" in outcome.out
        assert outcome.err == "not written: this was a dry run\n"
    assert tree(target) == before
    assert list(tmp_path.iterdir()) == []


def test_in_place_touches_no_weight_for_metadata(run: Run, target: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(target, copy)
    weights = (copy / "openvino_model.bin").stat()
    outcome = run("apply", copy, "-p", ANNOTATE, "--in-place")
    assert outcome.code == 0
    assert "weights as they were" in outcome.err
    after = (copy / "openvino_model.bin").stat()
    assert (after.st_ino, after.st_mtime_ns) == (weights.st_ino, weights.st_mtime_ns)
    assert run("apply", copy, "-p", ANNOTATE, "--in-place").err == "nothing to write: nothing changed\n"


def test_a_graft_folder_is_an_input_too(run: Run, grafted: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(grafted, copy)
    outcome = run("apply", copy, "--preset", "dflash", "--in-place")
    assert outcome.code == 0
    assert outcome.err == "nothing to write: nothing changed\n"
    outcome = run("apply", copy, "-p", "set-rt-info{key=note value=x}", "--in-place")
    assert outcome.code == 0
    assert json.loads((copy / "graft.json").read_text())["pipeline"].startswith("set-rt-info{")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["-p", ANNOTATE, "-o", "x"], "name a model"),
        (["m", "--target", "t", "-p", ANNOTATE, "-o", "x"], "name the model once"),
        (["m", "--draft", "d", "-p", ANNOTATE, "-o", "x"], "--draft goes with --target"),
        (["m", "-o", "x"], "name the passes"),
        (["m", "-p", ANNOTATE], "name where to write"),
        (["m", "-p", ANNOTATE, "-o", "x", "--in-place"], "leave -o out"),
        (["m", "-p", ANNOTATE, "--in-place", "--weights", "link"], "--weights link"),
        (["m", "-p", "anotate-hidden-states", "-o", "x"], "did you mean 'annotate-hidden-states'?"),
        (["m", "-p", "expose-hidden-states{layers=1,x}", "-o", "x"], "'layers'"),
        (["m", "-p", "expose-hidden-states{layer=1}", "-o", "x"], "no option 'layer'"),
        (["m", "-p", "move-fc{", "-o", "x"], "^"),
        (["m", "-p", "", "-o", "x"], "no pass"),
        (["m", "--preset", "dflush", "-o", "x"], "did you mean 'dflash'?"),
        (["m", "-p", ANNOTATE, "--skip", "move-fc", "-o", "x"], "no such pass"),
        (["m", "-p", ANNOTATE, "--skip", ANNOTATE, "-o", "x"], "leaves no pass"),
        (["m", "-p", ANNOTATE, "-o", "x", "--verify=sometimes"], "sometimes"),
    ],
)
def test_usage_errors_come_before_any_work(run: Run, args: list[str], said: str) -> None:
    outcome = run("apply", *args)
    assert outcome.code == 2, outcome.err
    assert outcome.out == ""
    assert said in outcome.err


def test_the_caret_points_at_the_word(run: Run) -> None:
    lines = run("apply", "m", "-p", f"{ANNOTATE},mov-fc", "-o", "x").err.splitlines()
    assert lines[1].strip() == f"{ANNOTATE},mov-fc"
    assert lines[1][lines[2].index("^") :] == "mov-fc"
    assert lines[2].strip() == "^~~~~~"


def test_a_pipeline_file_and_options_that_win_over_it(run: Run, target: Path, draft: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(
        'schema = 1\nverify = "end"\non-error = "skip"\n'
        '[[pass]]\nuse = "annotate-hidden-states"\n[[pass]]\nuse = "move-fc"\n'
    )
    args = ["apply", "--target", target, "--draft", draft, "-c", file, "-o"]
    outcome = run(*args, tmp_path / "a")
    assert outcome.code == 0
    assert "failed, skipped" in outcome.out
    assert "same within limits" in outcome.out
    outcome = run(*args, tmp_path / "b", "--on-error", "stop", "--verify", "none")
    assert outcome.code == 4
    assert not (tmp_path / "b").exists()
    outcome = run(*args, tmp_path / "c", "--skip", "move-fc", "--verify", "none", "-p", "expose-hidden-states")
    assert outcome.code == 0
    assert [line.split()[0] for line in outcome.out.splitlines()[1:3]] == [ANNOTATE, "expose-hidden-states"]


def test_a_bad_pipeline_file(run: Run, target: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    assert run("apply", target, "-c", file, "-o", tmp_path / "x").code == 3
    file.write_text("schema = \n")
    outcome = run("apply", target, "-c", file, "-o", tmp_path / "x")
    assert outcome.code == 2
    assert "line 1" in outcome.err


def test_places_that_are_refused(run: Run, target: Path, draft: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "file").write_text("x")
    base = ["apply", target, "-p", ANNOTATE, "-o"]
    for out, said in (
        (taken, "exists"),
        (target, "is the input"),
        (tmp_path / "no" / "where", "no such folder"),
        (tmp_path / "x.xml", "an .xml"),
    ):
        outcome = run(*base, out)
        assert outcome.code == 3, out
        assert said in outcome.err
        assert len(outcome.err.splitlines()) <= 2
    assert tree(taken) == {"file": b"x"}
    assert run(*base, taken, "--force").code == 0
    assert run(*base, tmp_path / "a", "--report", tmp_path / "no" / "r.json").code == 3
    assert not (tmp_path / "a").exists()
    pair = ["apply", "--target", target, "--draft", draft, "-p", ANNOTATE, "-o"]
    assert run(*pair, draft, "--force").code == 3


def test_a_report_replaces_no_file_of_input_or_output(run: Run, target: Path, tmp_path: Path) -> None:
    before = tree(target)
    xml = target / "openvino_model.xml"
    for source, report, said in (
        (target, target / "config.json", "lies within the input"),
        (target, target / "new.json", "lies within the input"),
        (target, xml.with_suffix(".bin"), "lies within the input"),
        (xml, xml, "would replace a file of the input"),
        (xml, xml.with_suffix(".bin"), "would replace a file of the input"),
    ):
        outcome = run("apply", source, "-p", ANNOTATE, "--dry-run", "--report", report)
        assert outcome.code == 3
        assert said in outcome.err
    config = tmp_path / "passes.toml"
    config.write_text(text := f'schema = 1\n[[pass]]\nuse = "{ANNOTATE}"\n')
    outcome = run("apply", target, "-c", config, "--dry-run", "--report", config)
    assert outcome.code == 3
    assert "would replace a file of the input" in outcome.err
    assert config.read_text() == text
    config.unlink()
    out = tmp_path / "out"
    out.mkdir()
    for source, output, report, said in (
        (target, out, out / "report.json", "lies within the output"),
        (xml, tmp_path / "out.xml", tmp_path / "out.xml", "lies within the output"),
        (xml, tmp_path / "out.xml", tmp_path / "out.bin", "as a file of the output may be"),
        (target, tmp_path / "new", tmp_path / "graft.json", "as a file of the output may be"),
    ):
        outcome = run("apply", source, "-p", ANNOTATE, "-o", output, "--report", report)
        assert outcome.code == 3
        assert said in outcome.err
    assert tree(target) == before
    assert [path.name for path in tmp_path.rglob("*")] == ["out"]


def test_a_report_that_cannot_be_written_is_told_before_any_work(run: Run, target: Path, tmp_path: Path) -> None:
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    (tmp_path / "folder.json").mkdir()
    out = tmp_path / "out"
    for report, said in (
        (tmp_path / "folder.json", "is a directory"),
        (loop, "too many levels of symbolic links"),
        (Path("/proc/report.json"), "no such file or directory"),
        (tmp_path / ("long" * 80), "file name too long"),
    ):
        outcome = run("apply", target, "-p", ANNOTATE, "-o", out, "--report", report)
        assert outcome.code == 3, report
        assert f"the report cannot be written: {said}" in outcome.err
        assert len(outcome.err.splitlines()) == 1
        assert not out.exists()


def test_a_report_that_fails_in_the_end_says_that_the_models_are_there(run: Run, target: Path, tmp_path: Path) -> None:
    outcome = run("apply", target, "-p", ANNOTATE, "-o", tmp_path / "out", "--report", "/dev/full")
    assert outcome.code == 3
    assert "the models were written, but the report cannot be written: no space left on device" in outcome.err
    assert (tmp_path / "out" / "openvino_model.xml").is_file()


def test_a_report_is_as_it_was_when_nothing_was_written(run: Run, target: Path, tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("an earlier one")
    (tmp_path / "taken.xml").write_text("x")
    for report in (old, new):  # the output is refused when the report is open already
        args = ["-p", ANNOTATE, "-o", tmp_path / "taken.xml", "--force", "--report", report]
        assert run("apply", target, *args).code == 3
    assert old.read_text() == "an earlier one"
    assert not new.exists()


def test_a_report_goes_through_links_and_into_pipes(run: Run, target: Path, tmp_path: Path) -> None:
    file, link = tmp_path / "report.json", tmp_path / "link.json"
    file.write_text("x" * 100_000)
    link.symlink_to(file)
    assert run("apply", target, "-p", ANNOTATE, "--dry-run", "--report", link).code == 0
    assert link.is_symlink()
    assert json.loads(file.read_text())["written"] is False
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    assert run("apply", target, "-p", ANNOTATE, "-o", tmp_path / "out", "--report", pipe).code == 0
    assert json.loads(reader.communicate(timeout=30)[0])["written"] is True
    assert pipe.is_fifo()


def test_missing_and_damaged_inputs_are_3(run: Run, target: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("apply", tmp_path / "none", "-p", ANNOTATE, "-o", out).code == 3
    assert run("apply", "--target", target, "--draft", tmp_path / "none", "-p", ANNOTATE, "-o", out).code == 3
    broken = tmp_path / "broken"
    shutil.copytree(target, broken)
    (broken / "openvino_model.bin").write_bytes(b"x")
    outcome = run("apply", broken, "-p", ANNOTATE, "-o", out)
    assert outcome.code == 3
    assert "openvino_model.bin" in outcome.err
    assert not out.exists()


def test_a_failing_pass_is_4_and_writes_nothing(run: Run, target: Path, tmp_path: Path) -> None:
    passes = f"{ANNOTATE},expose-hidden-states{{layers=1,9}}"
    for extra in ((), ("--json",)):
        outcome = run("apply", target, "-p", passes, "-o", tmp_path / "out", *extra)
        assert outcome.code == 4
        assert "no layer 9: the target has layers 0 to 3" in outcome.err
        assert f"ran before it: {ANNOTATE}" in outcome.err
        assert not (tmp_path / "out").exists()
    data = outcome.data
    assert data["written"] is False
    assert [record["status"] for record in data["passes"]] == ["changed", "failed"]
    assert data["passes"][1]["error"]["reasons"][0]["code"] == "out-of-range"


def test_skip_on_error_goes_on_and_says_so(run: Run, target: Path, tmp_path: Path) -> None:
    passes = f"expose-hidden-states{{layers=9}},{ANNOTATE}"
    outcome = run("apply", target, "-p", passes, "--on-error", "skip", "-o", tmp_path / "out")
    assert outcome.code == 0
    assert "failed, skipped" in outcome.out
    assert "no layer 9" in outcome.out


def test_a_pass_that_changes_numbers_is_caught_by_verify(
    run: Run, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ovgraft.passes.annotate_hidden_states import AnnotateHiddenStates

    honest = AnnotateHiddenStates.apply

    def swap_layers(self: AnnotateHiddenStates, graft: ovgraft.Graft, ctx: ovgraft.Context) -> None:
        honest(self, graft, ctx)
        norm = next(n for n in graft.target.model.get_ordered_ops() if n.get_type_name() == "Swish")
        for reader in norm.output(0).get_target_inputs():
            reader.replace_source_output(norm.input_value(0))

    monkeypatch.setattr(AnnotateHiddenStates, "apply", swap_layers)
    for when in ("--verify", "--verify=each"):
        outcome = run("apply", target, "-p", ANNOTATE, when, "-o", tmp_path / "out")
        assert outcome.code == 1
        assert "logits differs" in outcome.err
        assert not (tmp_path / "out").exists()
    assert run("apply", target, "-p", ANNOTATE, "-o", tmp_path / "out").code == 0


def test_dumps_and_a_reproducer(run: Run, target: Path, draft: Path, tmp_path: Path) -> None:
    dumps, repro = tmp_path / "dumps", tmp_path / "repro"
    outcome = run(
        *("apply", "--target", target, "--draft", draft, "-p", f"{ANNOTATE},move-fc", "-o", tmp_path / "out"),
        *("--dump-dir", dumps, "--reproducer", repro),
    )
    assert outcome.code == 4
    assert (dumps / "01-annotate-hidden-states" / "target" / "openvino_model.xml").is_file()
    command = (repro / "02-move-fc" / "command.txt").read_text()
    assert command.startswith("ovgraft apply --target ")
    words = command.split()
    again = [repro / "02-move-fc" / word if word.startswith("graft") else word for word in words[1:]]
    assert run(*again).code == 4


def test_a_hostile_name_in_a_refusal(run: Run, tmp_path: Path) -> None:
    model = models.tiny_decoder(layers=2)
    matmul = [node for node in model.get_ordered_ops() if node.get_type_name() == "MatMul"][-1]
    matmul.set_friendly_name("[/b]\x1b[2J\nlm_head")
    model.set_rt_info(models.annotation(["[/b]\x1b[2J\nnowhere"] * 2), ["hidden_states_decoder_layers"])
    folder = models.write_package(model, tmp_path / "p")
    outcome = run("apply", folder, "-p", ANNOTATE, "--dry-run")
    assert outcome.code == 4
    assert "\x1b" not in outcome.err
    assert "nowhere" in outcome.err
    assert "[/b]" in outcome.err


def test_real_export(run: Run, zoo: Callable[[str], Path], tmp_path: Path) -> None:
    pair = ["--target", zoo("qwen3_12l"), "--draft", zoo("qwen3_12l_eagle3_draft")]
    outcome = run("apply", *pair, "--preset", "eagle3", "--strict", "--verify", "-o", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    assert "same within limits" in outcome.out
    names = {
        name for port in ov.Core().read_model(tmp_path / "out/draft/openvino_model.xml").outputs for name in port.names
    }
    assert {"logits", "d2t", "last_hidden_state"} <= names
