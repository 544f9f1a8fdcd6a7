"""Each promise in docs/pages/security_cases.md has tests, marked with its id, and each attack belongs to a promise."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "pages" / "security_cases.md").read_text(encoding="utf-8")
MARK = re.compile(r'case\(id="(P\d+)"\)')
OF_RULES = ("test_admission.py", "test_policy.py", "test_rules.py", Path(__file__).name)  # more cases than promises


@cache
def texts() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}


def test_each_id_has_one_promise_and_a_test() -> None:
    ids = re.findall(r"\bP\d+\b(?!\")", PAGE)
    assert len(ids) == len(set(ids)) > 30
    assert set(ids) == {found for text in texts().values() for found in MARK.findall(text)}


def test_each_row_has_an_id() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "|---" not in line]
    promises = [row for row in rows if not row.startswith(("| promise |", "| option |"))]
    assert [row for row in promises if not re.search(r" \| P\d+[^|]* \|$", row)] == []


def test_tests_of_this_folder_name_a_promise_or_are_exempt() -> None:
    for path, text in texts().items():
        if path.parent != Path(__file__).parent or path.name in OF_RULES:
            continue
        if re.search(r"^pytestmark = .*case\(", text, re.MULTILINE) or path.name == "test_attacks.py":
            continue
        found = re.findall(r"((?:^@.*\n(?:^[ )\]].*\n|^\n)*)*)^def (test_\w+)\(", text, re.MULTILINE)
        assert [name for marks, name in found if "case(" not in marks] == [], path.name
