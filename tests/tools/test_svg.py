"""SVG and HTML are well-formed, also with hostile keys and URLs, and contain no credentials."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from refshard_fs.cli import main
from tests.support.tool_sources import make_source, make_sources, place_in_files

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = [
    "</text><script>alert(1)</script>",
    '" onload="alert(1)',
    "]]><svg onload=alert(1)>",
    "&lt;&#x0;\x01\x1b[31m\u202e",
    "</style><img src=x onerror=alert(1)>",
    "'--><!--",
]
ALLOWED = {"svg", "title", "desc", "style", "rect", "path", "text"}


def parse_svg(text: str) -> ElementTree.Element:
    """Return the root of an SVG; check that it has only the elements and attributes that we draw."""
    root = ElementTree.fromstring(text)
    for element in root.iter():
        assert element.tag.removeprefix(SVG) in ALLOWED
        for name, value in element.attrib.items():
            assert not name.startswith("on")
            assert "href" not in name
            assert "url(" not in value
    return root


@pytest.mark.parametrize("name", list(make_sources()))
def test_svg_is_well_formed_and_has_all_labels(name: str) -> None:
    fs, select = make_sources()[name]
    made = fs.visualize(None, select)
    root = parse_svg(made._repr_svg_())
    texts = ["".join([e.text or "", *(child.tail or "" for child in e)]) for e in root.iter(f"{SVG}text")]
    assert texts == [label.text for label in made.scene.labels]


@pytest.mark.parametrize("evil", HOSTILE)
@pytest.mark.case(id="P22")
def test_hostile_keys_and_urls_are_text(evil: str) -> None:
    path = evil.replace("/", "_").replace("\x01", "").strip(".")
    fs = make_source((3,), lambda n: [f"s3://bucket/{evil}/{n}", n, 1], path=path or "a", dims=[evil])
    made = fs.visualize(None, (slice(0, 1),))
    root = parse_svg(made._repr_svg_())
    assert any(evil[:5] in (e.text or "") for e in root.iter())
    page = made.encode(".html").decode()
    assert "<script" not in page
    assert not re.search(r"<(?!/?(!DOCTYPE|html|head|body|meta|title|style|svg|desc|rect|path|text)\b)", page)


@pytest.mark.case(id="P23")
def test_picture_hides_the_password_and_token_of_a_url() -> None:
    fs = make_source((3,), lambda n: [f"https://me:hush@host/{n}?token=secret&x=1", n, 1])
    said = fs.visualize(None, "air[:2]")._repr_html_()
    assert "https://...@host/" in said
    assert "hush" not in said
    assert "secret" not in said


def test_svg_has_styles_for_dark_themes() -> None:
    said = make_source((3,), place_in_files(1)).visualize()._repr_svg_()
    assert "@media(prefers-color-scheme:dark)" in said
    assert 'data-jp-theme-light="false"' in said
    assert "<script" not in said


def test_svg_scales_to_its_container() -> None:
    root = parse_svg(make_source((3,), place_in_files(1)).visualize()._repr_svg_())
    assert root.get("viewBox") is not None
    assert root.get("width") is None
    assert root.get("height") is None


def test_picture_of_a_real_set_has_its_labels_and_counts(shared_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "sst.svg"
    path = str(shared_data / "refs" / "goes-sst-template" / "mur_sst.json")
    assert main(["map", path, "SST", "-o", str(out), "--select", "SST[1000:2300, 2000:3400]"]) == 0
    root = parse_svg(out.read_text())
    said = [element.text for element in root.iter(f"{SVG}text")]
    assert "SST" in said
    assert "524 of 576 chunks  ·  27 MiB  ·  1 file" in said
    assert {"SST[1000:2300, 2000:3400]", "reads 56 chunks in 20 requests to 1 file  ·  3.3 MiB"} <= set(said)
    titles = [element.text or "" for element in root.iter(f"{SVG}title")]
    assert len({title for title in titles if title.startswith("chunk ")}) == 576
    assert len({title for title in titles if title.endswith(": missing")}) == 576 - 524
    assert out.stat().st_size < 300_000
