"""Writes to any filesystem are retried after temporary failures; after a lost answer, the object is looked up first."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from refshard_fs import ConflictError, RefShardFileSystem
from refshard_fs.core.model import ABSENT
from refshard_fs.stores import store
from refshard_fs.stores.objects import Objects


class Flaky(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Loses its connection once in each of the methods ``fails``, before or after the method has taken effect."""

    protocol = "flaky"
    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def __init__(self, *fails: str, when: str = "before", error: type[OSError] = ConnectionResetError) -> None:
        super().__init__()
        self.fails, self.when, self.error = [*fails], when, error
        self.calls: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.store.clear()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.partition("://")[2] if "://" in path else path))

    def _passing(self, name: str, *given: Any, **named: Any) -> Any:
        self.calls.append(name)
        fails = name in self.fails
        if fails:
            self.fails.remove(name)
        if fails and self.when == "before":
            raise self.error("lost")
        found = getattr(MemoryFileSystem, name)(self, *given, **named)
        if fails:
            self.meanwhile()
            raise self.error("lost")
        return found


class FlakySftp(Flaky):
    """A filesystem that renames a file over another one."""

    protocol = "sftp"


for name in ("pipe_file", "put_file", "cat_file", "rm_file", "info", "ls", "find", "mv", "makedirs"):
    setattr(Flaky, name, lambda self, *given, name=name, **named: self._passing(name, *given, **named))


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.time, "sleep", lambda seconds: None)


@pytest.mark.parametrize("kind", [Flaky, FlakySftp])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("condition", [None, ABSENT])
def test_put_is_repeated_when_connection_breaks(kind: type[Flaky], when: str, condition: Any) -> None:
    fs = kind("pipe_file", "mv", "info", when=when)
    Objects(f"{fs.protocol}:///place", fs).put("a", [b"da", b"ta"], condition)
    assert {path: file.getvalue() for path, file in fs.store.items()} == {"/place/a": b"data"}
    assert "pipe_file" not in fs.fails


def test_write_of_another_writer_after_a_lost_answer_is_kept() -> None:
    fs = Flaky("pipe_file", when="after")
    objects = Objects("flaky:///place", fs)
    fs.meanwhile = lambda: MemoryFileSystem.pipe_file(fs, "/place/a", b"theirs")
    with pytest.raises(ConflictError) as error:
        objects.put("a", [b"ours"], ABSENT)
    assert not error.value.is_certain
    assert fs.store["/place/a"].getvalue() == b"theirs"


def test_refused_put_is_not_repeated() -> None:
    fs = Flaky("pipe_file", error=PermissionError)
    with pytest.raises(PermissionError):
        Objects("flaky:///place", fs).put("a", [b"data"])
    assert fs.calls.count("pipe_file") == 1


def test_look_ups_and_removals_are_repeated() -> None:
    fs = Flaky()
    objects = Objects("flaky:///place", fs)
    objects.put("a", [b"data"])
    fs.fails = ["info", "cat_file", "ls", "find", "rm_file"]
    assert objects.list_names() == ["a"]
    assert list(objects.find("")) == ["a"]
    found = objects.fetch("a")
    assert found is not None
    assert found.data == b"data"
    objects.remove("a")
    assert fs.fails == []
    assert fs.store == {}


@pytest.mark.parametrize("retries", [0, 5])
def test_commit_uses_retries_of_its_filesystem(retries: int) -> None:
    fs = Flaky()
    MemoryFileSystem.pipe_file(fs, "/set.json", b'{"version": 1, "refs": {}}')
    written = RefShardFileSystem(
        "flaky:///set.json", mode="a", options={"flaky://": fs}, retries=retries, data_url="memory://unused"
    )
    written.pipe_file("k", b"value")
    fs.fails = ["pipe_file", "put_file"]
    if retries:
        written.commit()
        assert b"value" in fs.store["/set.json"].getvalue()
    else:
        with pytest.raises(ConnectionResetError):
            written.commit()
        written.discard()


def test_put_and_remove_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    objects = Objects("memory://logged", {})
    with caplog.at_level(logging.DEBUG, "refshard_fs"):
        objects.put("x", (b"abc",))
        objects.remove("x")
    found = [(record.method, record.url) for record in caplog.records if record.name == "refshard_fs.targets"]  # type: ignore[attr-defined]
    assert found == [("pipe_file", "/logged/x"), ("rm_file", "/logged/x")]
