"""Reads of threads and processes, with faults of the server, return right bytes and take little more memory."""

from __future__ import annotations

import faulthandler
import sys
import threading
from pathlib import Path

import pytest

from refshard_fs.targets import connections
from tests.soak.reading import IDLE, Sample
from tests.soak.soaking import MIB, Outcome, _run_in_threads, _summarise, soak

pytest.importorskip("distributed")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory and descriptors are read from /proc")


@pytest.fixture(autouse=True)
def _connections_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close idle connections soon, also those of earlier tests, and restore the limit for later tests."""
    monkeypatch.setattr(connections, "KEEPALIVE", IDLE)
    for loop in list(connections._all):  # connectors that earlier tests of this process made
        for connector in loop._connectors.values():
            monkeypatch.setattr(connector, "_keepalive_timeout", IDLE)


def check(outcome: Outcome, reads: int, files: int) -> None:
    print(outcome)
    assert outcome.right + outcome.errors >= reads * 0.9  # reads that do not fill a task are left out
    assert 0 < outcome.errors < (outcome.right + outcome.errors) * 0.1
    assert outcome.memory < 32 * MIB
    assert outcome.files <= files


@pytest.mark.usefixtures("cheap_collections")
def test_threads_and_processes_read_right_bytes_and_grow_little(tmp_path: Path) -> None:
    check(soak(tmp_path, keys=10_000, reads=8_000, threads=4, processes=2, patience=120, each=125), 8_000, files=16)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_million_reads_return_right_bytes_and_grow_little(tmp_path: Path) -> None:
    check(
        soak(tmp_path, keys=1_000_000, reads=1_000_000, threads=8, processes=8, patience=3000, each=2000),
        1_000_000,
        files=4,
    )


def test_soak_summary_finds_growth_of_memory_and_files() -> None:
    flat = [Sample(1, 10, 1, 100 * MIB, 20)] * 40
    assert _summarise(1.0, flat)[1:] == (400, 40, 1, 0, 100 * MIB, 0)
    leaking = [Sample(2, 10, 0, (100 + i) * MIB, 20 + i // 10) for i in range(40)]
    found = _summarise(1.0, [*flat, *leaking])
    assert (found.processes, found.memory, found.files) == (2, 20 * MIB, 2)


def test_hanging_read_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    monkeypatch.setattr(faulthandler, "dump_traceback", shown.append)
    never = threading.Event()
    with pytest.raises(TimeoutError, match="still read"):
        _run_in_threads(never.wait, 2, 2, 0.2)  # type: ignore[arg-type]  # returns nothing in time
    assert shown
    never.set()


def test_error_in_a_reading_thread_is_raised() -> None:
    def wrong() -> Sample:
        raise AssertionError("a wrong byte")

    with pytest.raises(AssertionError, match="wrong"):
        _run_in_threads(wrong, 2, 4, 5)
