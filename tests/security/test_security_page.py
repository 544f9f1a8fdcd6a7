"""The tables in docs/pages/security_cases.md name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "pages" / "security_cases.md").read_text(encoding="utf-8")
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
    """By its name, or with the file that it is in."""
    known = named()
    whole = {file for file, test in known if not test}
    for path in sorted((ROOT / "tests" / "security").glob("test_*.py")):
        file = f"tests/security/{path.name}"
        tests = set(re.findall(r"^def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE))
        assert (
            file in whole
            or path.name in ("test_admission.py", "test_policy.py", "test_rules.py", Path(__file__).name)
            or not tests - {test for _, test in known}
        )


def test_every_promise_has_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "|---" not in line]
    promises = [row for row in rows if not row.startswith(("| promise |", "| option |"))]
    assert len(promises) > 25
    assert all("test_" in row.rpartition("|")[0].rpartition(" | ")[2] for row in promises)
