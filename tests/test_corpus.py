"""Real sets, shards and archives of other people's software, checked against values worked out independently.

The checker and its data lie in ``../shared/data`` (or ``$REFSHARD_SHARED/data``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

INNER, WHOLE = "refshard_fs:RefShardFileSystem", "tests.support.whole_shards:WholeShards"
PARTS = {"refs/": INNER, "values/": INNER, "shards": INNER, "manifest/": INNER, "bcolz/": INNER, "zip/": WHOLE}


@pytest.fixture(scope="module")
def found(shared_data: Path) -> Callable[[str], list[dict[str, Any]]]:
    """Call it with a class: what the checker found of all that is read with this one."""
    pytest.importorskip("pyarrow")
    zarr = pytest.importorskip("zarr")
    if zarr.__version__.startswith("2."):
        pytest.skip("the checker needs zarr 3")
    return cache(lambda cls: checked(cls, shared_data))


def checked(cls: str, shared_data: Path) -> list[dict[str, Any]]:
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(shared_data), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "check.py", "--class", cls, "--hook", "refshard_hook:hook"]
    run = subprocess.run(
        [*command, "--only", *(part for part, read_with in PARTS.items() if read_with == cls)],
        cwd=shared_data,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in run.stdout.splitlines()[:-1]]


@pytest.mark.parametrize(("part", "cls"), PARTS.items())
def test_corpus_reads_as_expected(part: str, cls: str, found: Callable[[str], list[dict[str, Any]]]) -> None:
    rows = [row for row in found(cls) if part in row["case"]]
    failed = {row["case"]: row["detail"] for row in rows if row["ok"] is False}
    assert failed == {}
    assert any(row["ok"] for row in rows)
