"""What a commit to a hierarchy replaces, kept until it is done: a commit that is cut short can be undone by anybody.

A record in the hierarchy (`commit_record`) says what is kept. It is put before anything is, on condition that there is
none; it is what shows readers the state before the commit; and putting it a last time, as ``done``, is the commit.
Where no lock tells whether its writer lives, the writer says so again and again, and stops when somebody took over.
A store may do what it was asked for and the answer be lost: which record is there is then read, never guessed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from refshard_fs.core.model import Facts
from refshard_fs.errors import ConflictError, RefShardError, SourceNotReachable
from refshard_fs.formats.zarr_hierarchy.commit_record import NAME, CommitRecord, copy_name
from refshard_fs.targets.objects import ABSENT, Condition, Objects

__all__ = ["LEASE", "Undo", "WORKERS", "abandoned", "is_abandoned"]

WORKERS: Final = 8  # objects under way at a time
LEASE: Final = 900.0  # seconds without a sign of life after which a writer is taken for dead
RENEWAL: Final = 120.0  # seconds between two of them


class Undo:
    """One commit to ``objects`` that can be undone: its ``record`` is stored, in the version ``stored``."""

    def __init__(self, objects: Objects, record: CommitRecord, stored: Condition) -> None:
        self.record = record
        self.is_lost = False  # somebody else has taken over
        self._objects = objects
        self._stored = stored
        self._sent: dict[bytes, CommitRecord] = {}  # that one, and those since then, of which each may be there instead
        self._alive = time.time()
        self._lock = threading.Lock()

    @classmethod
    def begin(cls, objects: Objects) -> Undo:
        """Return a new one; ConflictError if there is the record of another commit."""
        now = time.time()
        undo = cls(objects, CommitRecord(uuid.uuid4().hex, _writer(), now, now, "begun"), ABSENT)
        with _ending(undo.record):
            undo._store()
        return undo

    @property
    def is_done(self) -> bool:
        """Whether the state that is there now counts: the commit is made, or all of it was put back."""
        return self.record.state == "done"

    def take_over(self) -> None:
        """Go on in place of the writer; ConflictError if somebody else does."""
        self._store(by=_writer())

    # ------------------------------------------------------------------ keeping, and putting back

    def keep(self, before: Mapping[str, Facts | None]) -> None:
        """Keep all objects that there are of ``before``; from then on readers see these, and none of the others.

        Raises ConflictError if one is another version by now.
        """
        kept = {name: found for name, found in before.items() if found is not None}
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(self._keep, range(len(kept)), kept, kept.values()))
        rows = tuple((name, found.size) for name, found in kept.items())
        self._store(state="replacing", kept=rows, absent=tuple(name for name in before if name not in kept))

    def _keep(self, number: int, name: str, found: Facts) -> None:
        self.check()
        if not self._objects.copy(name, copy_name(self.record, number), found):
            raise ConflictError(f"{self._objects.url_of(name)} was removed by somebody else")

    def put_back(self, names: Collection[str] | None = None) -> None:
        """Let the objects (all, or those of ``names``) be what they were before the commit."""
        before = {name: copy for name, copy in self.record.before().items() if names is None or name in names}
        kept = {name: copy.name for name, copy in before.items() if copy is not None}
        absent = [name for name, copy in before.items() if copy is None]
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(self._put_back, kept, kept.values()))
            list(pool.map(self._remove, absent))
        if names is None:
            self._objects.sweep([*before, NAME])
        self._objects.tidy(absent)

    def _put_back(self, name: str, copy: str) -> None:
        self.check()
        if not self._objects.copy(copy, name):
            urls = self._objects.url_of(copy), self._objects.url_of(name)
            raise SourceNotReachable(f"{urls[0]}, which is what {urls[1]} was, is gone: it cannot be put back")

    def _remove(self, name: str) -> None:
        self.check()
        self._objects.remove(name)

    def finish(self) -> None:
        """Let the state that is there now be the one that counts, and remove all that was kept."""
        self._store(state="done", kept=(), absent=())
        self._clean()

    def _clean(self) -> None:
        with contextlib.suppress(OSError, ConflictError):  # the record says that it is of no use: others remove it, too
            self._objects.clear(self.record.folder)
            assert not isinstance(self._stored, type(ABSENT)), "it was stored"
            self._objects.remove(NAME, self._stored)
            self._objects.tidy([NAME])

    def roll_back(self, names: Collection[str], error: BaseException) -> dict[str, Facts] | None:
        """Put back ``names``, of which some may have been changed before ``error``; it is noted if that fails, too.

        Returns the versions of what was put back, of which some stores take copies for other ones; None, and nothing is
        put back, if the commit is made after all: what ends it had arrived, and only the answer to that was lost.
        """
        if self.is_done:
            return None
        stored = self._for_certain(error)
        if stored is None:
            return {}
        if stored.state == "done":
            self._clean()
            return None
        versions: dict[str, Facts | None] = {}
        try:
            self.put_back(names)
            with ThreadPoolExecutor(WORKERS) as pool:
                versions = dict(zip(names, pool.map(self._objects.facts, names), strict=True))
            self.finish()
        except (OSError, RefShardError) as e:
            error.add_note(self._not_all(e))
        return {name: found for name, found in versions.items() if found is not None}

    def _for_certain(self, error: BaseException) -> CommitRecord | None:
        """Return the record that is there: ours, and nothing that was sent before can replace it any more.

        None if that cannot be had. Then nothing may be put back (readers may see what is there), and a note says why.
        """
        try:
            self._store()
        except ConflictError:
            error.add_note(f"Nothing was put back: somebody else has taken over, and undoes it ({self._objects.url}).")
        except (OSError, RefShardError) as e:
            is_sent = any(record.state == "done" for record in self._sent.values())
            error.add_note(self._unknown(e) if is_sent else self._not_all(e))
        else:
            return self.record
        return None

    def _unknown(self, error: Exception) -> str:
        return (
            f"Nothing was put back: the store does not tell whether the commit is made ({error}). Readers see all of "
            f"it or nothing; the next commit, or `refshard recover {self._objects.url}`, undoes it if it is not made."
        )

    def _not_all(self, error: Exception) -> str:
        return (
            f"Not everything could be put back ({error}). Readers see the state before the commit all the same; the "
            f"next commit, or `refshard recover {self._objects.url}`, restores it."
        )

    # ------------------------------------------------------------------ saying that one lives

    @contextlib.contextmanager
    def lease(self) -> Iterator[None]:
        """Say again and again that this writer lives, where that is of use; when this ends, it does nothing more."""
        if self._objects.excludes:
            yield
            return
        ended = threading.Event()
        thread = threading.Thread(target=self._renew, args=(ended,), name="refshard-lease", daemon=True)
        thread.start()
        try:
            with _ending(self.record):
                yield
        finally:
            ended.set()
            thread.join()

    def check(self) -> None:
        """Raise ConflictError if somebody else took over: then nothing more may be changed."""
        if not self._objects.excludes and not 0 <= time.time() - self._alive < 2 * RENEWAL:  # as after a night's sleep
            self._store()
        if self.is_lost:
            raise ConflictError(
                f"{self._objects.url}: this commit gave no sign of life for too long, and somebody else has undone it"
            )

    def _renew(self, ended: threading.Event) -> None:
        while not ended.wait(RENEWAL):
            with contextlib.suppress(OSError, ConflictError):  # `check` tells of the latter, and tries again
                self._store()

    def _store(self, **changes: Any) -> None:
        """Put the record, changed and renewed; of one that turns out to say ``done`` already, only take note.

        Raises ConflictError if it is neither the one that was put last nor one of those of which no answer came.
        """
        with self._lock:
            for is_last in (False, True):
                record = msgspec.structs.replace(self.record, renewed=time.time(), **changes)
                try:
                    self._put(record)
                except ConflictError:
                    if is_last or not self._finds_own():
                        self.is_lost = True
                        raise
                    if self.is_done:
                        return
                except OSError:
                    with contextlib.suppress(OSError):
                        if self._finds_own() and (self.record is record or self.is_done):
                            return
                    raise
                else:
                    return

    def _put(self, record: CommitRecord) -> None:
        data = record.dumps()
        self._sent[data] = record
        try:
            found = self._objects.put(NAME, (data,), self._stored)
        except OSError:  # it may have been stored: if so, putting the same once more finds that out
            found = self._objects.put(NAME, (data,), self._stored)
        self._know(record, found if found is not None else self._objects.facts(NAME))
        self._alive = time.time()

    def _finds_own(self) -> bool:
        """Whether what is there is one of the records that were sent, which then is the one that was put last."""
        fetched = self._objects.fetch(NAME)
        record = None if fetched is None else self._sent.get(bytes(fetched.data))
        if fetched is not None and record is not None:
            self._know(record, fetched.facts)
        return record is not None

    def _know(self, record: CommitRecord, stored: Condition) -> None:
        self.record = record
        self._stored = stored
        self._sent = {record.dumps(): record}  # others are refused: they were to replace an earlier one


abandoned: Final[set[str]] = set()  # ids of commits that an error ended in this process; records may be left of them


@contextlib.contextmanager
def _ending(record: CommitRecord) -> Iterator[None]:
    try:
        yield
    except BaseException:
        abandoned.add(record.id)
        raise


def is_abandoned(record: CommitRecord) -> bool:
    """Whether it was put last by this process, which goes on with it no more."""
    return record.id in abandoned and record.by == _writer()


def _writer() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
