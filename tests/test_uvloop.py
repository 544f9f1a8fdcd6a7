"""Remote reads work on uvloop: some tests of each kind of read run again with loops of uvloop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("uvloop")
pytestmark = pytest.mark.skipif("REFSHARD_UVLOOP" in os.environ, reason="this run uses uvloop already")

TESTS = [
    "tests/targets/test_answer.py",
    "tests/targets/test_http.py::test_options_for_one_server_do_not_reach_another",
    "tests/targets/test_http.py::test_temporary_failures_are_retried",
    "tests/targets/test_s3.py::test_certificates_are_verified_as_botocore_does",
    "tests/test_fs.py",
    "tests/test_dask.py::test_local_schedulers_read_the_values[threads-zarr-dict]",
]
# Tests that start an object store and a cluster.
SERVERS = ["tests/session/test_s3.py", "tests/test_dask.py::test_cluster_reads_the_values[zarr-path]"]


@pytest.mark.parametrize("tests", [TESTS, pytest.param(SERVERS, marks=pytest.mark.slow)], ids=["reads", "servers"])
def test_remote_reads_work_on_loops_of_uvloop(tests: list[str]) -> None:
    environment = {**os.environ, "REFSHARD_UVLOOP": "1", "DASK_DISTRIBUTED__ADMIN__EVENT_LOOP": "uvloop"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    root = Path(__file__).resolve().parents[1]
    run = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-5000:]
