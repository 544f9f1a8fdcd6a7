"""Names of tests are short, and the tests that pages name as proof are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [page for page in sorted((ROOT / "docs" / "pages").glob("*.md")) if "`tests/" in page.read_text()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tests_that_a_page_names_are_there(page: Path) -> None:
    for path, names in re.findall(r"`(tests/[\w/]+\.py)`((?:[:,] `test_\w+`)*)", page.read_text()):
        text = (ROOT / path).read_text()
        assert [name for name in re.findall(r"`(\w+)`", names) if f"def {name}(" not in text] == [], path


def test_names_have_at_most_60_characters() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        names = re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8"))
        assert not [name for name in names if len(name) > 60], path
