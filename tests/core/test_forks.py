"""A forked child finds all locks free, even those that a thread of its parent holds."""

from __future__ import annotations

import os
import threading

import pytest

from refshard_fs.core.forks import fork_safe


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks on this platform")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("make", [threading.Lock, threading.RLock])
def test_lock_that_a_parents_thread_holds_is_free_in_a_child(make: type) -> None:
    lock = fork_safe(make())
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if lock.acquire(blocking=False) else 1)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
