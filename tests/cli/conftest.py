"""Sources for the tests of commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli_sets import REFS, Refs


@pytest.fixture
def refs(tmp_path: Path) -> Refs:
    """Write a reference set and its target; return the set's path."""
    (tmp_path / "data.bin").write_bytes(b"01234567")

    def write(content: object = REFS, name: str = "refs.json") -> str:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps({"version": 1, "refs": content}))
        return str(path)

    return write


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a wide terminal, so that tables do not depend on the terminal in which tests run."""
    monkeypatch.setenv("COLUMNS", "1000")
