"""The table in SECURITY.md names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(?:(?P<file>[\w/]+\.py))?(?:::(?P<test>test_\w+))?`")


def named() -> list[tuple[str, str]]:
    """Return (file, test) of all that the table names; a test without a file is of the file before it."""
    found, file = [], ""
    for match in NAMED.finditer(PAGE):
        file = match["file"] or file
        if match["file"] or match["test"]:
            found.append((file, match["test"] or ""))
    return found


@pytest.mark.parametrize(("file", "test"), named())
def test_a_promise_names_a_test_that_there_is(file: str, test: str) -> None:
    path = ROOT / file if file.startswith("tests/") else ROOT / "tests" / file
    assert path.is_file()
    assert not test or f"def {test}(" in path.read_text(encoding="utf-8")


def test_every_attack_is_among_the_promises() -> None:
    tests = re.findall(
        r"^def (test_\w+)\(",
        (ROOT / "tests" / "security" / "test_security.py").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert len(tests) > 20
    assert not set(tests) - {test for _, test in named()}


def test_every_promise_has_a_test() -> None:
    rows = [line for line in PAGE.partition("| promise | test |")[2].splitlines() if line.startswith("| ")]
    assert len(rows) > 15
    assert all("test_" in row.rpartition("|")[0].rpartition(" | ")[2] for row in rows)
