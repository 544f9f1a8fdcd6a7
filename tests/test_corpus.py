"""Real sets, shards and archives of other people's software, checked against values worked out independently.

The checker and its data lie in ``../shared/data`` (or ``$REFSHARD_SHARED/data``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

INNER, WHOLE = "refshard_fs:RefShardFileSystem", "tests.whole_shards:WholeShards"
PARTS = {"refs/": INNER, "values/": INNER, "shards": INNER, "manifest/": INNER, "bcolz/": INNER, "zip/": WHOLE}


@pytest.mark.parametrize(("part", "cls"), PARTS.items())
def test_the_corpus_reads_as_expected(part: str, cls: str, shared_data: Path) -> None:
    pytest.importorskip("pyarrow")
    zarr = pytest.importorskip("zarr")
    if zarr.__version__.startswith("2."):
        pytest.skip("the checker needs zarr 3")
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(shared_data), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "check.py", "--class", cls, "--hook", "refshard_hook:hook"]
    run = subprocess.run(
        [*command, "--only", part],
        cwd=shared_data,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [json.loads(line) for line in run.stdout.splitlines()[:-1]]
    failed = {row["case"]: row["detail"] for row in rows if row["ok"] is False}
    assert failed == {}
    assert any(row["ok"] for row in rows)
