"""Real sets, shards and archives of other software, compared with values that were computed independently.

The checker and its data lie in ``../shared/data`` (or ``$REFSHARD_SHARED/data``).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

CLASS = "refshard_fs:RefShardFileSystem"
PARTS = [(CLASS, part) for part in ("refs/", "values/", "shards", "manifest/", "bcolz/")]
PARTS.append(("tests.support.whole_shards:WholeShards", "zip/"))
CHECK = """
import os, runpy, sys
os.environ["PYTHONHASHSEED"] = "0"  # without it, the checker starts an interpreter, which does not find tests.support
sys.dont_write_bytecode = True
runpy.run_path("check.py", run_name="__main__")
"""


@pytest.mark.parametrize(("cls", "part"), PARTS)
def test_files_of_the_corpus_have_their_recorded_values(
    cls: str, part: str, shared_data: Path, fast_python: list[str]
) -> None:
    pytest.importorskip("pyarrow")
    if pytest.importorskip("zarr").__version__.startswith("2."):
        pytest.skip("the checker needs zarr 3")
    run = subprocess.run(
        [*fast_python, "-c", CHECK, "--class", cls, "--hook", "refshard_hook:hook", "--only", part],
        cwd=shared_data,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [json.loads(line) for line in run.stdout.splitlines()[:-1]]
    assert {row["case"]: row["detail"] for row in rows if row["ok"] is False} == {}
    assert any(row["ok"] for row in rows if part in row["case"])
