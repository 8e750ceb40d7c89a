"""The report in a real browser: it opens, its console stays silent, search and graph work."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ovgraft import inspection
from ovgraft.cli.main import cli
from ovgraft.inspection.as_html import render_html
from ovgraft.inspection.as_svg import picture_svg
from ovgraft.inspection.layout import UNICODE
from ovgraft.inspection.picture import picture
from tests import models
from tests.inspection import browser
from tests.inspection.test_pictures import FULL, inspected, rename
from tests.support import ROOT

pytestmark = pytest.mark.slow

_TYPE = """<script>
const box = document.getElementById("search");
box.value = "%s";
box.dispatchEvent(new Event("input"));
document.querySelector("#rows tbody tr").click();
</script>"""


@pytest.fixture(scope="module")
def chromium() -> str:
    return browser.find()


def rows(dom: str) -> list[str]:
    """Names in the node table, as text."""
    table = dom[dom.index('<div id="rows">') : dom.index('id="hops"')]
    return re.findall(r'class="c-name name">([^<]*)</td>', table)


def drawn_nodes(dom: str) -> int:
    return len(re.findall(r'<g class="node', dom))


def test_it_opens_and_search_works(chromium: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(render_html(inspected(models.tiny_decoder(layers=4))), "utf-8")
    seen = browser.look(chromium, page.as_uri(), tmp_path / "profile")
    assert seen.console == ()
    assert len(rows(seen.dom)) == 200
    assert drawn_nodes(seen.dom) > 3
    typed = tmp_path / "typed.html"
    typed.write_text(page.read_text("utf-8").replace("</body>", _TYPE % "LM_HEAD matmul" + "</body>"), "utf-8")
    seen = browser.look(chromium, typed.as_uri(), tmp_path / "profile")
    assert seen.console == ()
    assert rows(seen.dom) == ["__module.lm_head/aten::linear/MatMul"]
    assert re.search(r'id="about"[^>]*>#\d+ MatMul __module.lm_head/aten::linear/MatMul<', seen.dom)
    seen = browser.look(chromium, f"{page.as_uri()}#q=%230", tmp_path / "profile")
    assert len(rows(seen.dom)) == 1


@pytest.mark.parametrize(("width", "flags"), [(1200, ()), (400, ("--force-dark-mode",))])
def test_hostile_names_are_text(chromium: str, tmp_path: Path, width: int, flags: tuple[str, ...]) -> None:
    page = tmp_path / "report.html"
    page.write_text(render_html(inspected(rename(models.tiny_decoder()))), "utf-8")
    check = """<script>
document.title = `images ${document.images.length} wide ${document.documentElement.scrollWidth > innerWidth}`;
</script></body>"""
    page.write_text(page.read_text("utf-8").replace("</body>", check), "utf-8")
    seen = browser.look(chromium, page.as_uri(), tmp_path / "profile", width=width, flags=flags)
    assert seen.console == ()
    assert "<title>images 0 wide false</title>" in seen.dom
    assert any("onerror" in name for name in rows(seen.dom))


@pytest.mark.parametrize(("width", "shown"), [(1200, "wide"), (500, "narrow")])
def test_one_picture_that_fits_is_shown(chromium: str, tmp_path: Path, width: int, shown: str) -> None:
    """Side by side on a wide page; target above draft, in full width, on a phone."""
    for role, model in (("target", models.tiny_decoder(layers=4)), ("draft", models.tiny_dflash_draft())):
        models.write_package(model, tmp_path / "pair" / role)
    page = tmp_path / "report.html"
    page.write_text(render_html(inspection.inspect(tmp_path / "pair", FULL)), "utf-8")
    check = """<script>
const there = ["wide", "narrow"].filter((name) => document.querySelector("." + name).offsetWidth > 0);
const box = document.querySelector("." + there[0] + " svg").getBoundingClientRect();
document.title = `${there} fits ${box.left >= 0 && box.right <= innerWidth}`;
</script></body>"""
    page.write_text(page.read_text("utf-8").replace("</body>", check), "utf-8")
    seen = browser.look(chromium, page.as_uri(), tmp_path / "profile", width=width)
    assert seen.console == ()
    assert f"<title>{shown} fits true</title>" in seen.dom


def test_the_console_of_a_broken_page_is_heard(chromium: str, tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    page.write_text("<script>nothing.there()</script>", "utf-8")
    assert any("nothing" in line for line in browser.look(chromium, page.as_uri(), tmp_path / "profile").console)


def test_pictures_for_the_docs(chromium: str, tmp_path: Path) -> None:
    """The sample pair, grafted; with OVGRAFT_UPDATE_IMAGES the files under docs/images are written anew."""
    pair = ROOT / "samples" / "pair"
    args = ["apply", "--target", str(pair / "target"), "--draft", str(pair / "draft"), "--preset", "dflash"]
    assert CliRunner().invoke(cli, [*args, "-o", str(tmp_path / "grafted")]).exit_code == 0
    found = inspection.inspect(tmp_path / "grafted", FULL)
    scene = picture(found, UNICODE)
    assert scene is not None
    assert (scene.exposed, scene.fc is not None, len(scene.taps)) == (True, True, 3)
    page = tmp_path / "report.html"
    page.write_text(render_html(found, "grafted"), "utf-8")
    images = ROOT / "docs" / "images" if os.environ.get("OVGRAFT_UPDATE_IMAGES") else tmp_path
    images.mkdir(exist_ok=True)
    (images / "graft.svg").write_text(picture_svg(scene), "utf-8")
    for name, size, flags in (
        ("report.png", (1200, 1500), ()),
        ("report-phone.png", (500, 1100), ("--force-dark-mode",)),
    ):
        browser.photograph(chromium, page.as_uri(), tmp_path / "profile", images / name, size=size, flags=flags)
        assert (images / name).stat().st_size > 20_000
    assert (ROOT / "docs" / "images" / "graft.svg").read_text("utf-8") == picture_svg(scene)
