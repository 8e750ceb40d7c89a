from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import openvino as ov
import pytest
from openvino import opset16 as ops

from tests import models
from tests.cli.conftest import Run
from tests.drafts import checkpoints
from tests.support import ROOT

SECTIONS = ("ports", "layers", "attention and state", "tables", "weights", "annotation", "PagedAttention", "ops")


def test_a_target_shows_every_section(run: Run, target: Path) -> None:
    outcome = run("inspect", target)
    assert outcome.code == 0
    assert outcome.err == ""
    lines = outcome.out.splitlines()
    assert lines[0] == "target  decoder"
    assert [line for line in lines if line in SECTIONS] == list(SECTIONS)
    assert "4 layers · hidden 32 · vocabulary 64" in lines[1]
    assert any("absent" in line for line in lines)
    assert all(line == line.rstrip() for line in lines)


def test_the_xml_itself_and_its_folder_say_the_same(run: Run, target: Path) -> None:
    folder, xml = run("inspect", target, "--json").data, run("inspect", target / "openvino_model.xml", "--json").data
    assert folder["packages"][0]["models"] == xml["packages"][0]["models"]
    assert [file["name"] for file in xml["packages"][0]["files"]] == ["openvino_model.bin", "openvino_model.xml"]


def test_json_is_stable_and_complete(run: Run, target: Path) -> None:
    outcome = run("inspect", target, "--json")
    data = outcome.data
    assert outcome.err == ""
    assert list(data) == ["schema", "packages", "record"]
    assert data["schema"] == 1
    (package,) = data["packages"]
    assert set(package) == {"name", "role", "files", "models", "problems", "checkpoint"}
    (model,) = package["models"]
    assert set(model) == {
        *("name", "kind", "ops", "inputs", "outputs", "op_counts", "attention", "states", "weights", "rt_info"),
        *("why_not", "layers", "embedding", "lm_head", "last_hidden_state", "structure_error", "annotation"),
        *("paging", "draft", "graft", "parts", "nodes", "width", "fc"),
    }
    assert set(model["layers"][0]) == {
        *("index", "kind", "producer", "output_index", "attention", "states", "details"),
    }
    assert set(model["states"][0]) == {"id", "element_type", "shape", "layer", "readers"}
    assert model["paging"] == {"status": "ready", "reasons": [], "ops": {}, "tables": []}
    assert [layer["index"] for layer in model["layers"]] == [0, 1, 2, 3]
    assert model["embedding"]["vocab_size"] == 64
    assert run("inspect", target, "--json").out == outcome.out


def test_a_draft_shows_its_metadata_with_sources(run: Run, draft: Path) -> None:
    text = run("inspect", draft).out
    assert text.startswith("draft  dflash draft\n")
    rows = {
        line.split("  ")[1].strip(): line for line in text[text.index("\ndraft\n") :].splitlines() if line[:2] == "  "
    }
    assert "0, 2, 3" in rows["target layers"]
    assert rows["target layers"].endswith("rt_info dflash/target_layer_ids")
    assert "96 -> 32, f32" in rows["FC"]
    assert rows["block size"].endswith("config.json dflash_config.block_size")
    assert rows["mask token"].endswith("rt_info dflash/mask_token_id")


def test_a_grafted_folder_shows_both_and_the_record(run: Run, grafted: Path) -> None:
    outcome = run("inspect", grafted)
    assert outcome.code == 0
    assert "target  decoder" in outcome.out
    assert "draft  dflash draft" in outcome.out
    assert "moved into the target" in outcome.out
    assert "exposed states  layers 0, 2, 3, convention output" in outcome.out
    assert "graft.json" in outcome.out
    data = run("inspect", grafted, "--json").data
    assert [package["role"] for package in data["packages"]] == ["target", "draft"]
    assert data["record"]["pipeline"].endswith("attach-lm-head")


def test_everything_adds_states_files_and_metadata(run: Run, draft: Path) -> None:
    short, long = run("inspect", draft).out, run("inspect", draft, "--all").out
    assert set(short.splitlines()) - set(long.splitlines()) <= {
        line for line in short.splitlines() if "more types" in line
    }
    for heading in ("files", "rt_info"):
        assert f"\n{heading}\n" in long
        assert f"\n{heading}\n" not in short


def test_a_broken_annotation_is_told(run: Run, tmp_path: Path) -> None:
    model = models.tiny_decoder(layers=3, annotated=True)
    good = models.write_package(model, tmp_path / "good")
    assert "valid  3 layers, agrees with the structure" in run("inspect", good).out
    text = models.annotation(["nowhere"] * 3)
    model.set_rt_info(text, ["hidden_states_decoder_layers"])
    outcome = run("inspect", models.write_package(model, tmp_path / "bad"))
    assert outcome.code == 0
    assert "\n  invalid  " in outcome.out
    assert "nowhere" in outcome.out


def test_what_is_no_language_model_says_what_it_lacks(run: Run, tmp_path: Path) -> None:
    parameter = ops.parameter([-1, 4], name="x")
    result = ops.result(ops.relu(parameter))
    ov.save_model(ov.Model([result], [parameter], "m"), tmp_path / "plain.xml", compress_to_fp16=False)
    outcome = run("inspect", tmp_path / "plain.xml")
    assert outcome.code == 0
    assert "neither a language model nor a draft: no output logits" in outcome.out


NAMES = [
    "[bold]x[/bold]",
    "[/enc]",
    "quo\"te's",
    "line\nbreak",
    "\x1b[31mred\x1b[0m",
    "\u202ertl\u2066",
    "tab\there\a",
    "слой",
]


@pytest.mark.parametrize("name", NAMES)
def test_hostile_node_names_are_shown_and_do_nothing(run: Run, tmp_path: Path, name: str) -> None:
    model = models.tiny_decoder(layers=2)
    for node in model.get_ordered_ops():
        if node.get_type_name() in ("Add", "MatMul", "Gather"):
            node.set_friendly_name(f"{name}{node.get_friendly_name()}")
    folder = models.write_package(model, tmp_path / "p")
    for args in ((), ("--color", "always"), ("--all",), ("--layers",), ("--node", "*Add*")):
        outcome = run("inspect", folder, *args)
        assert outcome.code == 0
        rows = [line for line in outcome.out.splitlines() if "#" in line and "Add" in line]
        assert len(rows) >= 2
        for char in "\u202e\u2066\a\t":
            assert char not in outcome.out
        if not args:
            assert "\x1b" not in outcome.out
    data = run("inspect", folder, "--json")
    assert data.data["packages"][0]["models"][0]["layers"][0]["producer"]["name"].startswith(name)
    assert data.out.isascii()


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda folder: (folder / "openvino_model.bin").unlink(), "openvino_model.bin"),
        (lambda folder: (folder / "openvino_model.xml").write_text("<net name='x'>"), "openvino_model.xml"),
        (lambda folder: (folder / "openvino_model.bin").write_bytes(b"short"), "openvino_model.bin"),
        (lambda folder: shutil.rmtree(folder), "no such file or folder"),
        (lambda folder: [file.unlink() for file in folder.glob("openvino*")], "in this folder"),
    ],
)
def test_damaged_files_are_one_sentence_and_3(
    run: Run, target: Path, tmp_path: Path, break_it: Callable[[Path], object], said: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(target, folder)
    break_it(folder)
    for args in ((), ("--json",)):
        outcome = run("inspect", folder, *args)
        assert outcome.code == 3
        assert said in outcome.err
        assert len(outcome.err.splitlines()) <= 2
        assert "Exception from" not in outcome.err
        if args:
            assert outcome.data["error"]["type"] in ("ModelFileError", "CheckpointError")
        else:
            assert outcome.out == ""


def test_a_file_that_is_no_ir(run: Run, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"x")
    outcome = run("inspect", tmp_path / "model.onnx")
    assert outcome.code == 3
    assert "not an ONNX model" in outcome.err
    (tmp_path / "model.pt").write_bytes(b"x")
    outcome = run("inspect", tmp_path / "model.pt")
    assert outcome.code == 3
    assert ".xml" in outcome.err


def test_json_carries_what_was_asked_for(run: Run, target: Path) -> None:
    flags = ("--layers", "--weights", "--states", "--node", "*lm_head*MatMul", "--ops", "--rt-info")
    (model,) = run("inspect", target, *flags, "--json").data["packages"][0]["models"]
    details = model["layers"][1]["details"]
    assert set(details) == {"boundary", "attention", "weights", "bytes", "inputs"}
    assert set(details["attention"][0]) == {
        *("node", "heads", "kv_heads", "head_size", "value_head_size", "window", "sinks", "states", "state_layer"),
        "bidirectional",
    }
    assert set(model["parts"][0]) == {"part", "layer", "formats", "bytes", "constants"}
    assert [state["layer"] for state in model["states"]] == [0, 0, 1, 1, 2, 2, 3, 3]
    (node,) = model["nodes"]
    assert set(node) == {
        *("node", "opset", "attributes", "inputs", "outputs", "bytes", "bodies", "distance"),
    }
    assert node["node"]["type"] == "MatMul"


@pytest.mark.parametrize(
    ("flag", "titles"),
    [
        ("--layers", ["layers", "variables"]),
        ("--ops", ["ops"]),
        ("--weights", ["weights by format", "weights by part"]),
        ("--states", ["states"]),
        ("--rt-info", ["rt_info"]),
    ],
)
def test_a_section_comes_alone_and_in_full(run: Run, target: Path, flag: str, titles: list[str]) -> None:
    outcome = run("inspect", target, flag)
    assert outcome.code == 0
    assert outcome.err == ""
    lines = outcome.out.splitlines()
    assert lines[0] == "target  decoder"
    assert [line for line, above in zip(lines[3:], lines[2:], strict=False) if above == ""] == titles


def test_neighbours_and_what_is_not_there(run: Run, target: Path) -> None:
    outcome = run("inspect", target, "--around", "__module.lm_head/aten::linear/MatMul", "--hops", "2")
    assert outcome.code == 0
    assert "MatMul __module.lm_head/aten::linear/MatMul  #" in outcome.out
    assert "  here\n" in outcome.out
    outcome = run("inspect", target, "--around", "nothing")
    assert (outcome.code, outcome.out) == (2, "")
    assert "no node is called 'nothing'" in outcome.err
    assert "no name matches" in run("inspect", target, "--node", "nothing").out


def test_a_draft_and_its_target_at_once(run: Run, grafted: Path) -> None:
    outcome = run("inspect", grafted, "--layers", "--weights")
    assert outcome.code == 0
    assert "  outputs " in outcome.out  # the FC that was moved in
    draft = outcome.out[outcome.out.index("\ndraft  dflash draft") :]
    assert re.search(r"\n  0  attention  4/2 × 8 .* both ways  hidden_states  f32 ", draft)
    assert re.search(r"\n  1  attention  4/2 × 8 .* both ways  hidden_states ", draft)
    assert re.search(r"\n  layer 1 ", draft)


def test_a_damaged_record_is_3(run: Run, grafted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "g"
    shutil.copytree(grafted, folder)
    (folder / "graft.json").write_text("{")
    outcome = run("inspect", folder)
    assert outcome.code == 3
    assert "graft.json is not valid JSON" in outcome.err


def test_an_advertised_head_without_a_file_is_a_problem(run: Run, tmp_path: Path) -> None:
    model = models.tiny_dflash_draft()
    model.set_rt_info("vanilla", ["dflash", "markov_head_type"])
    model.set_rt_info("8", ["dflash", "markov_rank"])
    text = run("inspect", models.write_package(model, tmp_path / "d")).out
    assert "advertises a vanilla head of rank 8 and there is no openvino_markov_head_model" in text
    assert "head type" in text


def test_a_draft_named_by_its_xml_has_the_head_beside_it(run: Run, tmp_path: Path) -> None:
    checkpoint = checkpoints.write_checkpoint(tmp_path / "checkpoint", *checkpoints.specforge())
    assert run("build-draft", checkpoint, "-o", tmp_path / "d").code == 0
    assert (tmp_path / "d" / "openvino_markov_head_model.xml").exists()
    assert "problems" not in run("inspect", tmp_path / "d" / "openvino_model.xml").out


def test_a_checkpoint_shows_its_spec_with_sources(run: Run, shared: Path) -> None:
    folder = shared / "zoo" / "checkpoints" / "zlab_dflash2"
    outcome = run("inspect", folder)
    assert outcome.code == 0
    assert outcome.out.startswith("zlab_dflash2  draft checkpoint\n")
    assert "config.json: dflash_config." in outcome.out
    spec = run("inspect", folder, "--json").data["packages"][0]["checkpoint"]["spec"]
    assert spec["family"] == "dflash2"
    assert json.dumps(spec)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("qwen3-int4_sym_g32", "decoder"),
        ("gemma4", "decoder"),
        ("qwen3_next", "decoder"),
        ("mamba", "decoder"),
        ("qwen3_dflash_draft-int4", "dflash draft"),
        ("qwen3_12l_eagle3_draft", "eagle3 draft"),
    ],
)
def test_real_exports(run: Run, zoo: Callable[[str], Path], name: str, kind: str) -> None:
    outcome = run("inspect", zoo(name))
    assert outcome.code == 0
    assert outcome.err == ""
    assert kind in outcome.out.splitlines()[0]
    assert "problems" not in outcome.out
    assert "not found" not in outcome.out


def test_every_format_goes_to_stdout_and_into_a_file(run: Run, grafted: Path, tmp_path: Path) -> None:
    begins = {"text": "target  decoder", "json": "{", "dot": "digraph", "svg": "<svg", "html": "<!doctype html>"}
    for form, begin in begins.items():
        outcome = run("inspect", grafted, "--format", form)
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out.startswith(begin)
        file = tmp_path / f"out.{form}"
        written = run("inspect", grafted, "--format", form, "-o", file)
        assert (written.code, written.out) == (0, "")
        assert written.err == f"wrote {file}\n"
        assert file.read_text("utf-8") == outcome.out


def test_a_file_that_exists_is_replaced_only_when_told(run: Run, target: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("mine")
    outcome = run("inspect", target, "--format", "html", "-o", file)
    assert (outcome.code, file.read_text()) == (3, "mine")
    assert "--force" in outcome.err
    assert run("inspect", target, "--format", "html", "-o", file, "--force").code == 0
    assert "<html" in file.read_text("utf-8")
    assert run("inspect", target, "--format", "svg", "-o", tmp_path / "no" / "folder.svg").code == 3


def test_dot_draws_the_nodes_asked_for(run: Run, target: Path) -> None:
    around = run("inspect", target, "--format", "dot", "--around", "__module.lm_head/aten::linear/MatMul")
    assert around.out.startswith("digraph nodes {")
    assert "self.lm_head.weight" in around.out
    assert "layers.0" not in around.out
    crowded = run("inspect", target, "--format", "dot", "--node", "*")
    assert crowded.code == 2
    assert "--around" in crowded.err


def test_what_a_format_cannot_show_is_said(run: Run, target: Path, tmp_path: Path) -> None:
    assert run("inspect", target, "--format", "svg", "--node", "*").code == 2
    other = models.write_package(models.tiny_text_embeddings(), tmp_path / "e")
    outcome = run("inspect", other, "--format", "svg")
    assert outcome.code == 2
    assert "neither a decoder nor a draft" in outcome.err
    assert run("inspect", other, "--format", "dot").out.startswith("digraph nodes {")
    outcome = run("inspect", target, "--json", "--format", "svg")
    assert outcome.code == 2


def test_checkpoints_have_a_page_too(run: Run) -> None:
    sample = ROOT / "samples" / "checkpoint"
    outcome = run("inspect", sample, "--format", "html")
    assert outcome.code == 0
    assert "Draft checkpoint" in outcome.out
    assert run("inspect", sample, "--format", "dot").out.startswith("digraph graft {")
    assert run("inspect", sample, "--format", "svg").out.startswith("<svg")
    outcome = run("inspect", sample, "--layers", "--states")
    assert re.search(r"\n  1  attention  3/1 × 8 +both ways  bf16 ", outcome.out)
    assert "a checkpoint has no graph; build-draft makes one" in outcome.out


def test_an_op_this_openvino_does_not_know(run: Run, target: Path, tmp_path: Path) -> None:
    folder = tmp_path / "newer"
    shutil.copytree(target, folder)
    xml = folder / "openvino_model.xml"
    xml.write_text(xml.read_text("utf-8").replace('type="MatMul"', 'type="NewerMatMul"', 1), "utf-8")
    outcome = run("inspect", folder)
    assert (outcome.code, outcome.out) == (3, "")
    assert "openvino_model.xml" in outcome.err
    assert "Exception from" not in outcome.err


@pytest.mark.parametrize("form", ["text", "json", "dot", "html"])
def test_a_model_without_ops(run: Run, tmp_path: Path, form: str) -> None:
    ov.save_model(ov.Model([], [], "empty"), tmp_path / "empty.xml", compress_to_fp16=False)
    sections = ("--layers", "--ops", "--weights", "--states") if form != "dot" else ()
    outcome = run("inspect", tmp_path / "empty.xml", *sections, "--format", form)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out
