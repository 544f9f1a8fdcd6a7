"""A file in memory has the same version in all threads, and a forked child can read it."""

from __future__ import annotations

import multiprocessing
import os
import threading

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from refshard_fs.targets.local import MemoryTarget


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no os.fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.evidence(id="T2")
def test_forked_child_reads_although_a_thread_was_reading() -> None:
    MemoryFileSystem().pipe({"/memory-target/a": b"0123", "/memory-target/b": b"4567"})
    target = MemoryTarget()
    drawing, release = threading.Event(), threading.Event()
    parent = threading.current_thread()

    class Numbers:
        def __next__(self) -> int:
            if threading.current_thread() is not parent and not drawing.is_set():
                drawing.set()
                release.wait()
            return 1

    target._next = Numbers()  # type: ignore[assignment]  # so that the thread waits in the middle of a read
    thread = threading.Thread(target=target.read_now, args=("/memory-target/a", 0, 2))
    thread.start()
    drawing.wait()
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def child() -> None:
        results.put(target.read_now("/memory-target/b", 0, 2).data)

    process = context.Process(target=child)
    process.start()
    process.join(20)
    process.kill()
    release.set()
    thread.join()
    assert process.exitcode == 0
    assert results.get() == b"45"


def test_concurrent_threads_get_one_version() -> None:
    MemoryFileSystem().pipe("/memory-target/c", b"0123")
    target = MemoryTarget()
    start = threading.Barrier(8)
    found = []

    def ask() -> None:
        start.wait()
        found.append(target.read_now("/memory-target/c", 0, 2).facts.etag)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
