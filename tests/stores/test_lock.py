"""The lock of a directory admits one commit at a time, and ends with its process."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from pathlib import Path

import pytest

from refshard_fs.stores.document import DocumentObject
from refshard_fs.stores.objects import Objects


def lock_at_once(path: Path) -> None:
    """Take the lock of a directory; BlockingIOError if another process or thread has it."""
    import fcntl  # not on Windows

    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("kind", ["objects", "document", "memory"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_child_forked_during_a_commit_holds_no_lock(tmp_path: Path, kind: str) -> None:
    def hold_lock() -> contextlib.AbstractContextManager[object]:
        match kind:
            case "objects":
                return Objects(str(tmp_path), {}).lock()
            case "memory":
                return Objects(f"memory://{tmp_path.name}", {}).lock()
        return DocumentObject(str(tmp_path / "x"), {}, None).stream()

    entered, leave = threading.Event(), threading.Event()

    def committing() -> None:
        with hold_lock():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=committing)
    thread.start()
    entered.wait(10)
    said, say = os.pipe()
    child = os.fork()
    if not child:  # the child lives longer than the commit of its parent
        if kind == "memory":
            with hold_lock():  # the child's copy of the lock in memory is free
                os.write(say, b"in")
        os.read(said, 1)
        os._exit(0)
    try:
        leave.set()
        thread.join()
        if kind == "memory":
            assert select.select([said], [], [], 10)[0], "the child waited for a thread that exists only in its parent"
            return
        lock_at_once(tmp_path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(said)
        os.close(say)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_child_does_not_hold_the_lock_of_its_killed_parent(tmp_path: Path) -> None:
    said, say = os.pipe()
    victim = os.fork()
    if not victim:
        with Objects(str(tmp_path), {}).lock():
            child = os.fork()
            if not child:
                os.write(say, str(os.getpid()).encode())  # at this point, the child has closed the inherited lock
            time.sleep(60)
        os._exit(0)
    child = int(os.read(said, 100))
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
    try:
        lock_at_once(tmp_path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(said)
        os.close(say)


def test_lock_admits_one_thread_at_a_time(tmp_path: Path) -> None:
    inside: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def first() -> None:
        with Objects(str(tmp_path), {}).lock():
            entered.set()
            leave.wait(30)
            inside.append("first")

    def second() -> None:
        with Objects(str(tmp_path), {}).lock():
            inside.append("second")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert entered.wait(30)
    threads[1].start()
    threads[1].join(0.2)
    assert inside == []
    leave.set()
    for thread in threads:
        thread.join(30)
    assert inside == ["first", "second"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_lock_is_taken_again_if_its_directory_was_removed(tmp_path: Path) -> None:
    """A commit may remove the last object, and the directory with its lock. Two later commits must still not run at
    the same time.
    """
    objects, inside = Objects(str(tmp_path / "d"), {}), threading.Event()
    entered, leave = threading.Event(), threading.Event()

    def waiting() -> None:
        inside.set()
        with objects.lock():
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=waiting)
    with objects.lock():
        thread.start()
        assert inside.wait(30)
        assert not entered.wait(0.2)
        objects.put("a", [b"x"])
        objects.remove("a")
        objects.tidy(["a"], with_root=False)
        assert (tmp_path / "d").exists()
        objects.tidy(["a"])
        assert not (tmp_path / "d").exists()
        objects.put("a", [b"x"])  # by another writer
    assert entered.wait(30)
    with pytest.raises(BlockingIOError):
        lock_at_once(tmp_path / "d")
    leave.set()
    thread.join(30)
