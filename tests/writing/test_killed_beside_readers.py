"""While writers are killed at any time, readers see committed states of a set, or whole objects of a hierarchy."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from refshard_fs import TargetChanged
from tests.support.killed_beside_readers import count_chunks, make_chunk, open_source, write

SCRIPT = Path(__file__).parents[1] / "support/killed_beside_readers.py"
KILLS = 25


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL here")
@pytest.mark.parametrize("format", ["kerchunk-json", "kerchunk-parquet", "zarr-hierarchy"])
def test_readers_beside_killed_writers_see_whole_states(format: str, tmp_path: Path) -> None:
    path = str(tmp_path / {"kerchunk-json": "refs.json", "kerchunk-parquet": "refs.parquet"}.get(format, "h.zarr"))
    write(path, format, 1)
    chance, reads = random.Random(1), 0
    numbers: set[int] = set()
    command = [sys.executable, str(SCRIPT), path, format]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        victim = 0
        try:
            for _ in range(KILLS):
                print(file=process.stdin, flush=True)
                victim = json.loads(process.stdout.readline())
                before, end = len(numbers), float("inf")
                while time.monotonic() < end:
                    numbers |= read(path, format)
                    reads += 1
                    if end == float("inf") and len(numbers) > before:  # a reader saw the first commit of many
                        end = time.monotonic() + chance.uniform(0.0, 0.3)
                os.kill(victim, signal.SIGKILL)
                assert json.loads(process.stdout.readline()) is True
                numbers |= read(path, format)
        except BaseException:  # raised again below
            os.kill(victim, signal.SIGKILL)  # otherwise the writer would never end
            raise
        finally:
            process.stdin.close()
    print(f"{format}: {KILLS} kills, {reads + KILLS} reads of {len(numbers)} states")
    write(path, format, 10**6)  # files that killed writers left do not stop the next one
    assert read(path, format) == {10**6}


def read(path: str, format: str) -> set[int]:
    """Return the numbers of the commits whose chunks a new filesystem reads, and check that the chunks are whole."""
    fs = open_source(path, format, "r")
    try:
        length = json.loads(fs.cat_file("a/zarr.json"))["shape"][0]
        chunks = fs.cat("a/c", recursive=True, on_error="omit" if format == "zarr-hierarchy" else "raise")
    except TargetChanged:  # there were more commits since the set was opened than it keeps versions
        assert format == "kerchunk-parquet"
        return set()
    numbers = {int(data.rstrip(b".")) for data in chunks.values()}
    assert set(chunks.values()) == set(map(make_chunk, numbers))
    if format != "zarr-hierarchy":  # in a hierarchy each object is replaced at once, but a commit is not
        assert len(numbers) == 1
        assert len(chunks) == length == count_chunks(*numbers)
    return numbers
