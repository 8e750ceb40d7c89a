"""Drafts and checkpoints as strips of layers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as Xml

import openvino as ov
import pytest

import ovgraft
from ovgraft import inspection
from ovgraft.inspection.as_dot import picture_dot
from ovgraft.inspection.as_html import render_html
from ovgraft.inspection.as_svg import picture_svg
from ovgraft.inspection.layout import UNICODE
from ovgraft.inspection.picture import Picture, Strip, picture
from ovgraft.pipeline import Pipeline, preset
from tests import models
from tests.drafts import checkpoints
from tests.inspection.test_pictures import FULL, HOSTILE
from tests.support import DFLASH_DRAFTS, ROOT


def drawn(path: Path) -> Picture:
    found = picture(inspection.inspect(path, FULL), UNICODE)
    assert found is not None
    for stacked in (False, True):
        Xml.fromstring(picture_svg(found, stacked=stacked))
    return found


def draft_of(found: Picture) -> Strip:
    assert found.draft is not None
    return found.draft


def rows(strip: Strip) -> list[tuple[str, str]]:
    return [(box.style, box.title) for box in strip.boxes]


def grafted(folder: Path, text: str, target: ov.Model, draft: Path | ov.Model) -> Path:
    source = draft if isinstance(draft, Path) else models.write_package(draft, folder / "from" / "draft")
    graft = ovgraft.load(target=models.write_package(target, folder / "from" / "target"), draft=source)
    Pipeline(text).run(graft)
    graft.save(folder / "grafted")
    return folder / "grafted"


@pytest.mark.parametrize("name", DFLASH_DRAFTS)
def test_like_layers_of_a_draft_are_folded(zoo: Callable[[str], Path], name: str) -> None:
    strip = draft_of(drawn(zoo(name)))
    layers = [box for box in strip.boxes if box.layers]
    if "sliding" in name:
        assert [(box.style, box.title) for box in layers] == [("sliding", "layer 0"), ("attention", "layer 1")]
        assert layers[0].lines[0] == "attention 4/2 × 16 window 16"
        assert strip.entries == (2, 3)
    elif "int4" in name:  # so small that the norm which only layer 0 holds is more than a hundredth of it
        assert [box.lines[1].split(",")[1] for box in layers] == [" i4+f16+f32", " i4+f16"]
    else:
        (run,) = layers
        assert (run.title, run.layers, strip.entries) == ("layers 0 and 1", (0, 1), (2,))
        assert run.lines[0] == "attention 4/2 × 16"
        assert run.lines[1].startswith("block both ways, ")
    assert strip.side == 0
    assert strip.boxes[0].style == "fc"
    assert strip.boxes[0].lines[-1].startswith("reads the outputs of target layers ")
    assert strip.boxes[1].lines == ("rows of the target's table", "block size 8 · mask token 3")


def test_the_fc_enters_every_layer_that_takes_states(zoo: Callable[[str], Path]) -> None:
    dot = picture_dot(drawn(zoo("qwen3_dflash_draft_sliding")))
    edges = re.findall(r"(d\d) -> (d\d);", dot)
    assert edges == [("d0", "d2"), ("d0", "d3"), ("d1", "d2"), ("d2", "d3"), ("d3", "d4")]


def test_an_eagle3_draft(zoo: Callable[[str], Path]) -> None:
    strip = draft_of(drawn(zoo("qwen3_12l_eagle3_draft")))
    assert rows(strip) == [
        ("fc", "FC"),
        ("table", "embedding"),
        ("attention", "layer 0"),
        ("table", "norm, lm_head"),
    ]
    assert (strip.side, strip.entries) == (0, (2,))


def test_a_grafted_draft_beside_its_target_and_alone(tmp_path: Path) -> None:
    draft = models.tiny_dflash_draft(layers=2, target_layer_ids=(0, 2, 3))
    folder = grafted(tmp_path, preset("dflash").text, models.tiny_decoder(layers=4), draft)
    found = drawn(folder)
    strip = draft_of(found)
    assert rows(strip) == [("table", "embedding"), ("attention", "layers 0 and 1"), ("table", "norm, lm_head")]
    assert [box.from_target for box in strip.boxes] == ["embedding", "", "lm_head"]
    assert (strip.side, strip.entries, found.fc is not None) == (None, (1,), True)
    assert picture_dot(found).count('label="weights"') == 2
    assert "fc -> d1 [" in picture_dot(found)
    alone = draft_of(drawn(folder / "draft"))
    assert rows(alone)[0] == ("other", "hidden_states")
    assert (alone.boxes[0].lines, alone.side, alone.entries) == (("projected by the target",), 0, (2,))


def test_a_markov_head_is_drawn_with_its_draft(tmp_path: Path) -> None:
    target = models.tiny_decoder(layers=6, hidden=64, vocab=2048, heads=4, kv_heads=2)
    strip = draft_of(drawn(grafted(tmp_path, preset("dspark").text, target, ROOT / "samples" / "dspark")))
    assert rows(strip)[-1] == ("head", "Markov head")
    assert strip.boxes[-1].lines[0] == "vanilla, rank 8"
    assert strip.boxes[-1].bytes >= 2 * 2048 * 8 * 2


def test_a_head_that_is_advertised_and_not_there(tmp_path: Path) -> None:
    model = models.tiny_dflash_draft()
    model.set_rt_info("vanilla", ["dflash", "markov_head_type"])
    strip = draft_of(drawn(models.write_package(model, tmp_path / "d")))
    assert strip.boxes[-1].lines == ("vanilla", "not in this package")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("zlab_dflash", ["FC", "inputs_embeds", "layers 0 and 1", "last_hidden_state"]),
        ("zlab_dflash2", ["FC", "inputs_embeds", "layers 0 and 1", "last_hidden_state", "candidate selector"]),
        ("deepspec_gated", ["FC", "embedding", "layers 0 and 1", "norm, lm_head", "Markov head"]),
        ("minicpm_pruned", ["FC", "embedding", "layers 0 and 1", "norm, lm_head", "Markov head"]),
    ],
)
def test_checkpoints(tmp_path: Path, name: str, wanted: list[str]) -> None:
    folder = checkpoints.write_checkpoint(tmp_path / name, *checkpoints.BUILDERS[name]())
    strip = draft_of(drawn(folder))
    assert [box.title for box in strip.boxes] == wanted
    assert strip.boxes[0].lines[:2] == ("32 → 16", "reads the outputs of target layers 1, 4")
    assert (strip.side, strip.entries) == (0, (2,))
    page = render_html(inspection.inspect(folder, FULL))
    assert len(re.findall(r'data-text="layer \d: attention', page)) == 2
    assert 'class="fc"' in page


def test_the_output_of_the_embedding_has_a_name(tmp_path: Path) -> None:
    config, tensors = checkpoints.deepspec_headless()
    config["target_layer_ids"] = [-1, 4]
    strip = draft_of(drawn(checkpoints.write_checkpoint(tmp_path / "c", config, tensors)))
    assert "reads the outputs of target layers embedding, 4" in strip.boxes[0].lines
    draft = models.tiny_dflash_draft(n=2, target_layer_ids=(-1, 2))
    for role, model in (("target", models.tiny_decoder(layers=4)), ("draft", draft)):
        models.write_package(model, tmp_path / "pair" / role)
    found = drawn(tmp_path / "pair")
    assert found.target is not None
    assert [found.target.boxes[tap].title for tap in found.taps] == ["embedding", "layer 2"]
    assert found.tap_text == "outputs of embedding, 2"


def test_a_target_and_a_checkpoint(tmp_path: Path) -> None:
    models.write_package(models.tiny_decoder(layers=6), tmp_path / "target")
    checkpoints.write_checkpoint(tmp_path / "draft", *checkpoints.zlab_dflash())
    found = drawn(tmp_path)
    assert found.target is not None
    assert [found.target.boxes[tap].title for tap in found.taps] == ["layer 1", "layer 4"]
    assert not found.exposed
    assert "t2 -> d0 [style=dashed" in picture_dot(found)


def test_bars_of_the_report(tmp_path: Path) -> None:
    """Only layers of the target are read by the draft, and the FC has a bar of its own."""
    draft = models.tiny_dflash_draft(layers=2, target_layer_ids=(0, 1, 3))
    for role, model in (("target", models.tiny_decoder(layers=4)), ("draft", draft)):
        models.write_package(model, tmp_path / role)
    page = render_html(inspection.inspect(tmp_path, FULL))
    bars = re.findall(r'<button type="button" class="([^"]*)"[^>]* data-model="(\d)" [^>]*data-text="([^":]*)', page)
    assert [text for _, model, text in bars if model == "0"] == [
        "embedding",
        *(f"layer {i}" for i in range(4)),
        "lm_head",
    ]
    assert [text for _, model, text in bars if model == "1"] == ["FC", "layer 0", "layer 1"]
    assert [text for style, _, text in bars if "tapped" in style] == ["layer 0", "layer 1", "layer 3"]


def test_layers_that_are_not_told(tmp_path: Path) -> None:
    model = models.tiny_dflash_draft()
    for node in model.get_ordered_ops():  # what the first branch adds to the stream now replaces it
        if node.get_friendly_name() == "__module.layers.0/aten::add/Add":
            node.output(0).replace(node.input_value(1))
    strip = draft_of(drawn(models.write_package(model, tmp_path / "d")))
    assert ("other", "layers") in rows(strip)
    assert strip.boxes[strip.entries[0]].lines == ("not told by the structure",)


def test_hostile_text_of_a_checkpoint(tmp_path: Path) -> None:
    folder = checkpoints.write_checkpoint(tmp_path / "a<b>&'\"", *checkpoints.zlab_dflash())
    drawn(folder)
    page = render_html(inspection.inspect(folder, FULL), HOSTILE[2])
    assert "<img" not in page
    assert page.count("</script>") == 2
