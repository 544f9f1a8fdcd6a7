"""Names of tests are short, and pages refer to tests by ids, which are markers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "pages"
TESTS = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize(("page", "letter"), [("targets.md", "T"), ("howto_other_readers.md", "R")])
def test_each_id_on_a_page_is_the_marker_of_a_test(page: str, letter: str) -> None:
    named = set(re.findall(rf"(?<!\")\b{letter}\d+\b", (PAGES / page).read_text(encoding="utf-8")))
    marked = {found for text in TESTS.values() for found in re.findall(rf'evidence\(id="({letter}\d+)"\)', text)}
    assert named == marked != set()


def test_pages_do_not_name_our_tests() -> None:
    ours = {name for text in TESTS.values() for name in re.findall(r"def (test_\w+)\(", text)}
    for page in set(PAGES.glob("*.md")) - {PAGES / "deviations.md"}:  # which names tests of fsspec and zarr
        assert ours.isdisjoint(re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))), page


def test_pages_do_not_name_files_of_tests() -> None:
    for page in PAGES.glob("*.md"):
        assert re.findall(r"\btests/[\w/]*\btest_\w+\.py", page.read_text(encoding="utf-8")) == [], page


def test_names_have_at_most_60_characters() -> None:
    for path, text in TESTS.items():
        assert not [name for name in re.findall(r"def (test_\w+)\(", text) if len(name) > 60], path
