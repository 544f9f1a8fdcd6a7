"""Commits to a hierarchy of several objects: undone whole where they fail, invisible until done, one at a time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from refshard_fs import ConflictError, ManifestError, RefShardFileSystem, TargetChanged
from refshard_fs.formats.zarr_hierarchy.commit_record import NAME, CommitRecord
from refshard_fs.targets.objects import Buffer, Condition, Objects
from refshard_fs.writing import undo
from refshard_fs.writing.hierarchy import ours
from refshard_fs.writing.recovery import recover
from refshard_fs.writing.undo import LEASE, Undo
from tests.servers.http import RangeServer
from tests.servers.log import Request
from tests.servers.proxy import CountingProxy
from tests.servers.s3 import SeaweedServer
from tests.servers.wire import Answer, Head, failure
from tests.writes.overwriting import begin, found, leftovers, state, write

pytestmark = pytest.mark.filterwarnings("ignore::refshard_fs.CostlyPattern")


class Place:
    """A hierarchy in the state 1."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.url = url
        self.options = {"target_options": options} if options else {}
        self.objects = Objects(url, options)
        begin(url, 1, **self.options)

    def opened(self, mode: str = "a") -> RefShardFileSystem:
        return RefShardFileSystem(self.url, mode=mode, skip_instance_cache=True, **self.options)

    def seen(self) -> dict[str, Any]:
        return found(self.opened("r"))

    def written(self, number: int) -> RefShardFileSystem:
        """A filesystem to which a state was written, and not committed."""
        fs = self.opened()
        write(fs, number)
        return fs


@pytest.fixture(params=["local", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    name = uuid.uuid4().hex
    match request.param:
        case "local":
            yield Place(str(tmp_path / "h"), {})
        case "memory":
            yield Place(f"memory://{name}", {})
            MemoryFileSystem().rm(f"/{name}", recursive=True)
        case _:
            server: SeaweedServer = request.getfixturevalue("s3_server")
            server.create_bucket("undone")
            yield Place(f"s3://undone/{name}", server.storage_options)


class Failure(OSError):
    """No space is left, a server does not answer."""


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets the put number ``at`` of a commit, from 0, fail: not at all, or after it was made; and all later changes."""
    put, others = Objects.put, {name: getattr(Objects, name) for name in ("remove", "copy", "clear")}

    def failing(at: int, error: type[BaseException] = Failure, *, made: bool = False, for_good: bool = False) -> None:
        lock, count = threading.Lock(), [0]

        def failing_put(self: Objects, name: str, parts: Sequence[Buffer], condition: Condition = None) -> Any:
            with lock:
                number = count[0]
                count[0] += 1
            if number != at and not (for_good and number > at):
                return put(self, name, parts, condition)
            if made and number == at:
                put(self, name, parts, condition)
            raise error(name)

        def changing(name: str) -> Callable[..., Any]:
            def call(self: Objects, *args: Any) -> Any:
                if for_good and count[0] > at:
                    raise error(name)
                return others[name](self, *args)

            return call

        monkeypatch.setattr(Objects, "put", failing_put)
        for name in others:
            monkeypatch.setattr(Objects, name, changing(name))

    return failing


# ------------------------------------------------------------------ a commit that fails


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("at", [2, 7, 12])
def test_a_commit_that_fails_in_its_middle_changes_nothing_and_can_be_made_again(
    place: Place, failing: Callable[..., None], monkeypatch: pytest.MonkeyPatch, at: int, made: bool
) -> None:
    before = {name: place.objects.facts(name) for name in place.objects.names("")}
    fs, other = place.written(2), place.opened("r")
    assert found(other) == state(1)
    failing(at, made=made)
    with pytest.raises(Failure):
        fs.commit()
    monkeypatch.undo()
    assert place.seen() == found(other) == state(1)
    assert {name: place.objects.facts(name) for name in place.objects.names("")} == before, "to the version"
    assert place.objects.facts(NAME) is None
    assert found(fs) == state(2), "what was written is kept"
    fs.commit()
    assert place.seen() == found(fs) == state(2)


def test_a_commit_of_which_nothing_is_known_but_that_the_last_answer_was_lost_is_made(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place.objects.is_at_hand:
        pytest.skip("there are no answers to lose")
    fs = place.written(2)
    counted = [0]
    put = Objects.put

    def losing(self: Objects, name: str, parts: Sequence[Buffer], condition: Condition = None) -> Any:
        answer = put(self, name, parts, condition)
        if name == NAME and b'"done"' in parts[0] and not counted[0]:
            counted[0] += 1
            raise Failure("the answer was lost")
        return answer

    monkeypatch.setattr(Objects, "put", losing)
    fs.commit()
    assert place.seen() == state(2)


class Losing:
    """Loses answers about the record, from the first put of ``state`` on, which ``arrives`` or not; ``lost`` in all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, state: str, lost: int, *, arrives: bool = True) -> None:
        put, fetch = Objects.put, Objects.fetch
        left = [lost]
        changed: list[str] = []

        def losing_put(self: Objects, name: str, parts: Sequence[Buffer], condition: Condition = None) -> Any:
            is_first = left[0] == lost and name == NAME and f'"state":"{state}"'.encode() in parts[0]
            if not left[0] or (left[0] == lost and not is_first) or name != NAME:
                if left[0] < lost:
                    changed.append(name)
                return put(self, name, parts, condition)
            left[0] -= 1
            if is_first and arrives:
                put(self, name, parts, condition)
            raise Failure("the answer was lost")

        def losing_fetch(self: Objects, name: str) -> Any:
            if name == NAME and 0 < left[0] < lost:
                left[0] -= 1
                raise Failure("no answer")
            return fetch(self, name)

        def noted(name: str) -> Callable[..., Any]:
            made = getattr(Objects, name)

            def call(self: Objects, first: str, *args: Any) -> Any:
                if left[0] < lost:
                    changed.append(args[0] if name == "copy" else first)
                return made(self, first, *args)

            return call

        for name in ("copy", "remove"):
            monkeypatch.setattr(Objects, name, noted(name))
        monkeypatch.setattr(Objects, "put", losing_put)
        monkeypatch.setattr(Objects, "fetch", losing_fetch)
        self.changed = changed  # what was changed since

    @property
    def keys(self) -> list[str]:
        return [name for name in self.changed if not name.startswith(".refshard")]


@pytest.mark.parametrize("lost", [1, 2, 3, 4, 5])
def test_a_commit_of_which_several_answers_were_lost_is_made_and_nothing_is_put_back(
    place: Place, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    fs = place.written(2)
    losing = Losing(monkeypatch, "done", lost)
    fs.commit()
    assert losing.keys == []
    assert place.seen() == found(fs) == state(2)
    assert place.objects.facts(NAME) is None
    assert place.objects.names(".refshard") == []


class Forgetful(CountingProxy):
    """Passes on what ``loses`` says, and answers with an error: the first ``count`` times."""

    loses: Callable[[Head, bytes], bool] = staticmethod(lambda head, body: False)
    count = 0

    async def answer(self, head: Head, body: bytes, request: Request) -> Answer:
        answer = await super().answer(head, body, request)
        if not self.count or not self.loses(head, body):
            return answer
        self.count -= 1
        return failure(503)


@pytest.fixture
def forgetful(s3_server: SeaweedServer) -> Iterator[tuple[Forgetful, Place]]:
    """A hierarchy on S3 behind a server that loses answers, to clients that ask twice."""
    s3_server.create_bucket("undone")
    with Forgetful(s3_server.endpoint_url) as proxy:
        once = {"config_kwargs": {"retries": {"total_max_attempts": 2}}}
        options = {**s3_server.storage_options, "client_kwargs": {"endpoint_url": proxy.url}, **once}
        yield proxy, Place(f"s3://undone/{uuid.uuid4().hex}", options)


@pytest.mark.parametrize("lost", [1, 2, 4, 6])
def test_a_commit_whose_end_arrived_at_a_store_that_did_not_say_so_is_made(
    forgetful: tuple[Forgetful, Place], lost: int
) -> None:
    proxy, place = forgetful
    fs = place.written(2)
    ended = [False]

    def loses(head: Head, body: bytes) -> bool:
        ended[0] = ended[0] or b'"state":"done"' in body
        return ended[0] and head.path.endswith(NAME)

    proxy.loses, proxy.count = loses, lost
    fs.commit()
    assert proxy.count == 0
    assert place.seen() == state(2)
    assert place.objects.facts(NAME) is None


@pytest.mark.parametrize("lost", [1, 2])
def test_a_shard_whose_removal_was_not_confirmed_is_put_back_with_all_else_or_gone(
    forgetful: tuple[Forgetful, Place], lost: int
) -> None:
    proxy, place = forgetful
    fs = place.opened()
    rest = {
        key: data for key, data in state(1).items() if not key.startswith("s/c/0/") and not key.startswith("s/c/1/")
    }
    for key in state(1).keys() - rest.keys():
        fs.rm_file(key)
    fs.pipe_file("p/c/0", b"12345678")
    proxy.loses, proxy.count = lambda head, body: head.method == "DELETE" and "/s/c/" in head.path, lost
    is_made = False
    with contextlib.suppress(OSError):
        fs.commit()
        is_made = True
    proxy.count = 0
    assert place.seen() == (rest | {"p/c/0": b"12345678"} if is_made else state(1))
    fs.commit()
    assert place.seen() == rest | {"p/c/0": b"12345678"}


@pytest.mark.parametrize("arrives", [True, False])
def test_where_the_store_does_not_tell_whether_the_commit_is_made_nothing_is_put_back(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, arrives: bool
) -> None:
    fs = place.written(2)
    losing = Losing(monkeypatch, "done", 1000, arrives=arrives)
    with pytest.raises(Failure) as failed:
        fs.commit()
    assert losing.keys == []
    monkeypatch.undo()
    [note] = failed.value.__notes__
    assert "Nothing was put back: the store does not tell whether the commit is made" in note
    assert place.seen() == state(2 if arrives else 1), "all or nothing"
    assert found(fs) == state(2), "what was written is kept"
    fs.commit()
    assert place.seen() == found(fs) == state(2)
    assert place.objects.facts(NAME) is None


@pytest.mark.parametrize("made", [True, False])
def test_an_interrupt_while_the_last_request_is_under_way_leaves_all_or_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, made: bool
) -> None:
    fs = place.written(2)
    put, done = Objects.put, [False]

    def interrupted(self: Objects, name: str, parts: Sequence[Buffer], condition: Condition = None) -> Any:
        if not (name == NAME and b'"done"' in parts[0]) or done[0]:
            return put(self, name, parts, condition)
        done[0] = True
        if made:
            put(self, name, parts, condition)
        raise KeyboardInterrupt

    monkeypatch.setattr(Objects, "put", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        fs.commit()
    assert any("made all the same" in note for note in getattr(stopped.value, "__notes__", ())) is made
    assert place.seen() == state(2 if made else 1)
    assert place.objects.facts(NAME) is None
    fs.commit()
    assert place.seen() == found(fs) == state(2)


def test_nothing_is_put_back_where_somebody_else_has_taken_over(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = place.written(2)
    put, done = Objects.put, [False]

    def overtaken(self: Objects, name: str, parts: Sequence[Buffer], condition: Condition = None) -> Any:
        if name == NAME and b'"done"' in parts[0] and not done[0]:
            done[0] = True
            assert recover(place.objects, at_once=True)
            put(self, "p/c/0", (b"somebody's",))
        return put(self, name, parts, condition)

    monkeypatch.setattr(Objects, "put", overtaken)
    with pytest.raises(ConflictError) as refused:
        fs.commit()
    assert refused.value.__cause__ is not None
    assert "Nothing was put back: somebody else has taken over" in refused.value.__cause__.__notes__[0]
    assert place.seen() == state(1) | {"p/c/0": b"somebody's"}
    fs.discard()


@pytest.mark.parametrize("state_of", ["begun", "replacing"])
@pytest.mark.parametrize("lost", [1, 2, 3, 1000])
def test_a_commit_of_which_earlier_answers_were_lost_goes_on_or_can_be_made_again_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, state_of: str, lost: int
) -> None:
    fs = place.written(2)
    Losing(monkeypatch, state_of, lost)
    is_made = False
    with contextlib.suppress(Failure):
        fs.commit()
        is_made = True
    assert is_made is (lost < 3), "what comes next finds out"
    monkeypatch.undo()
    assert place.seen() == state(2 if is_made else 1)
    fs.commit()
    assert place.seen() == found(fs) == state(2)
    assert place.objects.facts(NAME) is None
    fs.discard()


def test_what_cannot_be_put_back_either_is_the_old_state_to_readers_all_the_same(
    place: Place, failing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = place.written(2)
    failing(6, for_good=True)
    with pytest.raises(Failure) as failed:
        fs.commit()
    monkeypatch.undo()
    fs.discard()
    assert "Not everything could be put back" in failed.value.__notes__[0]
    assert place.objects.facts(NAME) is not None
    assert place.seen() == state(1)
    assert place.opened().recover() is True
    assert place.opened().recover() is False
    assert place.objects.facts(NAME) is None
    assert place.seen() == state(1)


def test_a_conflict_in_the_middle_undoes_the_rest_and_leaves_what_somebody_else_wrote(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = place.written(2)
    put, done = Objects.put, [False]
    name = next(key for key in state(2) if key.startswith("p/c/"))

    def interfering(self: Objects, key: str, parts: Sequence[Buffer], condition: Condition = None) -> Any:
        if key == name and not done[0]:
            done[0] = True
            put(self, key, (b"somebody's",))
        return put(self, key, parts, condition)

    monkeypatch.setattr(Objects, "put", interfering)
    with pytest.raises(ConflictError) as refused:
        fs.commit()
    assert "have been put" not in str(refused.value)
    assert place.seen() == state(1) | {name: b"somebody's"}
    assert place.objects.facts(NAME) is None
    fs.discard()


def test_an_interrupted_commit_changes_nothing(place: Place, failing: Callable[..., None]) -> None:
    fs = place.written(2)
    failing(8, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        fs.commit()
    assert place.seen() == state(1)
    fs.discard()


@pytest.mark.skipif(not hasattr(signal, "SIGINT"), reason="interrupts as POSIX does")
@pytest.mark.parametrize("at", [0, 1, 4, 12, "done"])
@pytest.mark.parametrize("again", [False, True])
def test_ctrl_c_is_raised_when_the_commit_has_been_undone_or_made_and_nothing_is_under_way(
    place: Place, monkeypatch: pytest.MonkeyPatch, at: int | str, *, again: bool
) -> None:
    fs = place.written(2)
    put, lock, count, puts = Objects.put, threading.Lock(), [0], [0, 0]  # puts: begun, ended

    def interrupted(self: Objects, name: str, parts: Sequence[Buffer], condition: Condition = None) -> Any:
        with lock:
            number, count[0] = count[0], count[0] + 1
            puts[0] += 1
        if number == at or (at == "done" and b'"state":"done"' in b"".join(parts)):
            for _ in range(1 + again):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.05)
        try:
            return put(self, name, parts, condition)
        finally:
            with lock:
                puts[1] += 1

    monkeypatch.setattr(Objects, "put", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        fs.commit()
    assert puts[0] == puts[1]
    assert not [thread.name for thread in threading.enumerate() if thread.name == "refshard-lease"]
    monkeypatch.undo()
    is_made = place.seen() == state(2)  # a handler is called when the main thread gets its turn
    assert is_made or (at != "done" and place.seen() == state(1))
    assert getattr(stopped.value, "__notes__", []) == (["It is made all the same."] if is_made else [])
    assert place.objects.facts(NAME) is None
    assert found(fs) == state(2)
    fs.commit()
    assert place.seen() == found(fs) == state(2)


# ------------------------------------------------------------------ what readers see meanwhile


class Crash(BaseException):
    """The process ends here."""


def crashed(place: Place, failing: Callable[..., None], monkeypatch: pytest.MonkeyPatch, at: int = 9) -> None:
    """Let a commit of the state 2 be cut short, as if its process had been killed."""
    fs = place.written(2)
    failing(at, Crash, for_good=True)
    with pytest.raises(Crash):
        fs.commit()
    monkeypatch.undo()
    fs.discard()
    ours.clear()
    undo.abandoned.clear()


def test_readers_see_what_there_was_before_and_nothing_of_what_keeps_it(
    place: Place, failing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(place.opened("r").find(""))
    crashed(place, failing, monkeypatch)
    fs = place.opened("r")
    assert sorted(fs.find("")) == before
    assert not [name for name in fs.ls("", detail=False) if "refshard" in name]
    for key in (".refshard", NAME, f"{NAME}/x"):
        assert not fs.exists(key)
        with pytest.raises(FileNotFoundError):
            fs.cat_file(key)
    for key in before:
        assert fs.info(key)["size"] == len(fs.cat_file(key))
    for name in {key.rpartition("/")[0] for key in [*before, *state(2)]} - {""}:
        assert fs.isdir(name) is any(key.startswith(name + "/") for key in before)


def test_a_reader_that_comes_too_late_for_what_was_kept_is_told_and_never_fills(
    place: Place, failing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed(place, failing, monkeypatch)
    reader = place.opened("r")
    keys = sorted(reader.find(""))
    assert place.opened().recover()
    outcomes = set()
    for key in keys:
        try:
            assert reader.cat_file(key) is not None
        except TargetChanged as e:
            assert "open it again" in str(e)
            outcomes.add(key)
    assert outcomes
    reader.invalidate_cache()
    assert found(reader) == state(1)


def test_no_references_are_made_to_what_is_kept(
    place: Place, failing: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from refshard_fs import snapshot

    crashed(place, failing, monkeypatch)
    fs = place.opened("r")
    with pytest.raises(ConflictError, match="refshard recover"):
        fs.save(str(tmp_path / "refs.json"))
    with pytest.raises(ConflictError, match="refshard recover"):
        snapshot(place.url, **place.options)


def test_the_next_commit_undoes_the_one_that_was_cut_short(
    place: Place, failing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    early = place.written(3)
    crashed(place, failing, monkeypatch)
    late = place.opened()
    late.pipe_file("new/zarr.json", b"{}")
    if not place.objects.excludes:
        for fs in (early, late):
            with pytest.raises(ConflictError, match=r"under way since .*alive \d+ s ago.*refshard recover"):
                fs.commit()
        monkeypatch.setattr("refshard_fs.writing.recovery.LEASE", -1.0)
    late.commit()
    assert place.seen() == state(1) | {"new/zarr.json": {}}
    early.commit()
    assert place.seen() == state(3) | {"new/zarr.json": {}}


def test_who_opens_what_was_cut_short_in_the_end_writes_over_the_state_before_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Objects.put
    fs = place.written(2)

    def ending(self: Objects, name: str, parts: Sequence[Buffer], condition: Condition = None) -> Any:
        if name == NAME and b'"done"' in parts[0]:
            monkeypatch.setattr(Undo, "roll_back", lambda *_: {})
            raise Crash
        return put(self, name, parts, condition)

    monkeypatch.setattr(Objects, "put", ending)
    with pytest.raises(Crash):
        fs.commit()
    monkeypatch.undo()
    fs.discard()
    ours.clear()
    late = place.written(3)
    late.commit()
    assert place.seen() == found(late) == state(3)


def test_one_chunk_that_an_unfinished_commit_is_not_about_can_be_committed(
    place: Place, failing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if place.objects.excludes:
        pytest.skip("the next commit undoes it first")
    early = place.opened()
    early.pipe_file("notes", b"mine")
    crashed(place, failing, monkeypatch)
    early.commit()
    assert place.seen() == state(1) | {"notes": b"mine"}
    assert place.opened().recover()
    assert place.seen() == state(1) | {"notes": b"mine"}


@pytest.mark.parametrize("keeps", [False, True])
def test_one_chunk_that_is_put_while_another_commit_begins_is_not_lost_if_that_is_cut_short(
    place: Place, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    """The other one has kept what there was before: recovery puts that back."""
    if place.objects.excludes:
        pytest.skip("one commit at a time")
    put = Objects.put
    others: list[Undo] = []

    def putting(self: Objects, name: str, parts: Sequence[Buffer], condition: Condition = None) -> Any:
        if name == "p/c/0" and not others:
            others.append(Undo.begin(place.objects))
            if keeps:
                others[0].keep({name: place.objects.facts(name)})
        return put(self, name, parts, condition)

    fs = place.opened()
    fs.pipe_file("p/c/0", b"12345678")
    monkeypatch.setattr(Objects, "put", putting)
    with pytest.raises(ConflictError, match=r"may be undone.*is kept"):
        fs.commit()
    recover(place.objects, at_once=True)
    assert fs.cat_file("p/c/0") == b"12345678"
    fs.commit()
    assert place.seen() == state(1) | {"p/c/0": b"12345678"}
    assert not place.opened().recover()
    assert place.seen() == state(1) | {"p/c/0": b"12345678"}


def test_what_was_read_before_a_commit_that_has_ended_since_is_not_written_over_it(
    place: Place, failing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed(place, failing, monkeypatch)
    fs = place.written(3)
    assert place.opened().recover()
    with pytest.raises(ConflictError, match="has ended since"):
        fs.commit()
    fs.discard()
    write(fs, 3)
    fs.commit()
    assert place.seen() == state(3)


def test_nothing_is_written_where_commits_keep_what_they_replace(place: Place) -> None:
    fs = place.opened()
    fs.pipe_file(NAME, b"{}")
    with pytest.raises(ManifestError, match="nothing else can be written there"):
        fs.commit()
    fs.discard()


def test_a_damaged_record_is_an_error_that_names_it(place: Place) -> None:
    place.objects.put(NAME, [b'{"refshard":"commit","version":2}'])
    with pytest.raises(ManifestError, match=r"\.refshard/commit\.json.*damaged"):
        place.seen()


@pytest.mark.parametrize("listable", [True, False])
def test_a_web_server_is_asked_once_for_a_record_and_its_readers_see_the_old_state(
    http_server: RangeServer,
    tmp_path: Path,
    failing: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    listable: bool,
) -> None:
    place = Place(str(tmp_path / "h"), {})
    before = {key: place.opened("r").cat_file(key) for key in place.opened("r").find("")}

    def serve() -> None:
        for path in (tmp_path / "h").rglob("*"):
            if path.is_file():
                http_server.put(f"/h/{path.relative_to(tmp_path / 'h').as_posix()}", path.read_bytes())

    serve()
    assert RefShardFileSystem(f"{http_server.url}/h", skip_instance_cache=True).exists("zarr.json")
    assert sum(NAME in request.path for request in http_server.requests()) == 1
    crashed(place, failing, monkeypatch)
    serve()
    fs = RefShardFileSystem(f"{http_server.url}/h", skip_instance_cache=True)
    for key in {*before, *state(2)}:
        if key in before:
            assert fs.cat_file(key) == before[key]
        else:
            assert not fs.exists(key)


def test_a_hierarchy_that_was_never_finished_is_none(
    tmp_path: Path, failing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> RefShardFileSystem:
        fs = RefShardFileSystem(str(tmp_path / "new.zarr"), mode="a", skip_instance_cache=True)
        for key, data in state(5).items():
            fs.pipe_file(key, data if isinstance(data, bytes) else json.dumps(data).encode())
        return fs

    for at in (3, 30):
        fs = made()
        failing(at, Crash, for_good=True)
        with pytest.raises(Crash):
            fs.commit()
        monkeypatch.undo()
        fs.discard()
        with pytest.raises(Exception, match="the commit that is to make it"):
            RefShardFileSystem(str(tmp_path / "new.zarr"), skip_instance_cache=True).find("")
    made().commit()
    assert found(RefShardFileSystem(str(tmp_path / "new.zarr"), skip_instance_cache=True)) == state(5)
    assert leftovers(tmp_path) == []


# ------------------------------------------------------------------ one at a time, and alive


@pytest.fixture(params=["local", "memory", "s3", "other"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Objects]]:
    """Makes several writers of one place."""
    name = uuid.uuid4().hex
    match request.param:
        case "local":
            yield lambda: Objects(str(tmp_path), {})
        case "memory":
            yield lambda: Objects(f"memory://{name}", {})
            with contextlib.suppress(FileNotFoundError):
                MemoryFileSystem().rm(f"/{name}", recursive=True)
        case "s3":
            server: SeaweedServer = request.getfixturevalue("s3_server")
            server.create_bucket("undone")
            yield lambda: Objects(f"s3://undone/{name}", server.storage_options)
        case _:
            fs = DirFileSystem(str(tmp_path), LocalFileSystem(auto_mkdir=True))
            yield lambda: Objects("dir://x", fs)


def held(objects: Objects, *names: str) -> list[bytes | None]:
    return [None if (found := objects.fetch(name)) is None else bytes(found.data) for name in names]


def kept(objects: Objects) -> Undo:
    """A commit that keeps "a", of which there is one, and "b", of which there is none, and has put both."""
    objects.put("a", [b"old"])
    undo = Undo.begin(objects)
    undo.keep({"a": objects.facts("a"), "b": None})
    objects.put("a", [b"new"])
    objects.put("b", [b"new"])
    return undo


def test_what_is_kept_is_put_back_as_often_as_one_likes(objects: Callable[[], Objects]) -> None:
    undo = kept(objects())
    for _ in range(3):
        undo.put_back()
        assert held(objects(), "a", "b") == [b"old", None]
    undo.finish()
    assert held(objects(), "a", "b", NAME) == [b"old", None, None]
    assert objects().names("") == ["a"]
    assert not objects().found(undo.record.folder)


def test_what_is_done_is_not_undone(objects: Callable[[], Objects]) -> None:
    kept(objects()).finish()
    assert recover(objects(), at_once=True) is None
    assert held(objects(), "a", "b") == [b"new", b"new"]


def test_a_second_commit_is_refused_until_the_first_is_done(objects: Callable[[], Objects]) -> None:
    undo = kept(objects())
    with pytest.raises(ConflictError):
        Undo.begin(objects())
    undo.finish()
    Undo.begin(objects()).finish()


def test_a_writer_that_was_taken_for_dead_stops(objects: Callable[[], Objects]) -> None:
    undo = kept(objects())
    assert recover(objects(), at_once=True) == undo.record
    with pytest.raises(ConflictError):
        undo.finish()
    assert undo.is_lost
    with pytest.raises(ConflictError, match="no sign of life"):
        undo.check()
    undo.roll_back(["a", "b"], OSError())
    assert held(objects(), "a", "b") == [b"old", None]


def test_a_writer_renews_its_record_while_it_works(
    objects: Callable[[], Objects], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = objects()
    monkeypatch.setattr(undo, "RENEWAL", 0.01)
    mine = kept(place)
    before = mine.record.renewed
    with mine.lease():
        for _ in range(500):
            if mine.record.renewed != before or place.excludes:
                break
            time.sleep(0.01)
    assert place.excludes or mine.record.renewed > before
    mine.check()
    mine.finish()


def test_an_abandoned_record_is_told_by_the_stores_own_clock(objects: Callable[[], Objects]) -> None:
    place = objects()
    kept(place)
    age = place.age(NAME)
    assert age is not None
    assert -5 < age < LEASE


def test_a_record_says_who_and_since_when(objects: Callable[[], Objects]) -> None:
    begun = time.time()
    record: CommitRecord = kept(objects()).record
    assert "process" in record.by
    assert begun <= record.begun <= record.renewed <= time.time()
    assert record.concerns == {"a", "b"}


# ------------------------------------------------------------------ what it costs


def test_one_object_takes_no_record_and_two_take_few_requests(s3_server: SeaweedServer) -> None:
    s3_server.create_bucket("undone")
    with CountingProxy(s3_server.endpoint_url) as proxy:
        options = {**s3_server.storage_options, "client_kwargs": {"endpoint_url": proxy.url}}
        place = Place(f"s3://undone/{uuid.uuid4().hex}", options)
        fs = place.opened()
        fs.pipe_file("p/c/0", b"12345678")
        proxy.clear()
        fs.commit()
        assert [r.method for r in proxy.requests() if "refshard" in r.path] == ["HEAD", "HEAD"]
        assert sum(r.method == "PUT" for r in proxy.requests()) == 1
        first, second = [key for key in fs.find("p/c") if key in state(1)][:2]
        fs.pipe({first: b"00000000", second: b"11111111"})
        proxy.clear()
        fs.commit()
        record = [r.method for r in proxy.requests() if r.path.endswith(NAME)]
        assert record == ["PUT", "PUT", "PUT", "DELETE"]
        copies = [r.method for r in proxy.requests() if ".refshard/" in r.path and not r.path.endswith(NAME)]
        assert copies.count("PUT") == 2
        assert sum(r.method == "PUT" and "/p/c/" in r.path for r in proxy.requests()) == 2

        url = f"s3://undone/{uuid.uuid4().hex}"
        Objects(url, options).put("zarr.json", [b"{}"])
        proxy.clear()
        assert RefShardFileSystem(url, target_options=options, skip_instance_cache=True).cat_file("zarr.json")
        assert not [r for r in proxy.requests() if "refshard" in r.path], "the listing tells that there is none"


def test_many_objects_are_listed_and_not_asked_for_one_by_one(s3_server: SeaweedServer) -> None:
    s3_server.create_bucket("undone")
    count = 300
    array = {**state(1)["p/zarr.json"], "shape": [2 * count]}
    with CountingProxy(s3_server.endpoint_url) as proxy:
        options = {**s3_server.storage_options, "client_kwargs": {"endpoint_url": proxy.url}}
        url = f"s3://undone/{uuid.uuid4().hex}"

        def opened() -> RefShardFileSystem:
            given: dict[str, Any] = {"target_options": options, "format": "zarr-hierarchy"}
            return RefShardFileSystem(url, mode="a", skip_instance_cache=True, **given)

        def asked(method: str, part: str) -> int:
            return sum(r.method == method and part in r.path + "?" + r.query for r in proxy.requests())

        fs = opened()
        fs.pipe({"zarr.json": json.dumps(state(1)["zarr.json"]).encode(), "p/zarr.json": json.dumps(array).encode()})
        fs.pipe({f"p/c/{i}": b"first" for i in range(0, count, 2)})
        fs.commit()
        assert asked("PUT", ".refshard/") == 3, "there was nothing to keep"
        fs = opened()
        fs.pipe({f"p/c/{i}": b"again" for i in range(count)})
        proxy.clear()
        fs.commit()
        assert asked("HEAD", "/p/c/") == 0
        assert asked("GET", "list-type=2") <= 4
        assert asked("PUT", ".refshard/") == 3 + count // 2
        assert opened().cat_file("p/c/299") == b"again"
