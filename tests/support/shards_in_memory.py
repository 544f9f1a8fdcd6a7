"""Drive formats over files in memory, one need at a time, and record the requested bytes of each file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from refshard_fs.core.format import OpenOptions
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Facts, Head, Inline, Load, Names, Need, Packed, Span, Stat, Steps
from refshard_fs.errors import DamagedIndex, RefShardError
from refshard_fs.reading.failures import describe
from refshard_fs.reading.loading import is_scanned
from refshard_fs.source import recognition as catalog

T = TypeVar("T")
ROOT = "files://x"


class Files:
    """Files by URL; their directories cannot be listed."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.wanted: list[tuple[str, int, int]] = []
        self.rounds = 0  # rounds with at least one request to a server; a round waits for the answers of the last one

    @classmethod
    def of(cls, path: Path) -> Files:
        """Return the file or the directory at ``path`` as files below the URL `ROOT`."""
        if path.is_file():
            return cls({ROOT: path.read_bytes()})
        return cls({f"{ROOT}/{p.relative_to(path).as_posix()}": p.read_bytes() for p in path.rglob("*") if p.is_file()})

    def run(self, steps: Steps[T]) -> T:
        answer: Any = None
        try:
            while True:
                need = steps.throw(answer) if isinstance(answer, Exception) else steps.send(answer)
                needs = need if isinstance(need, tuple) else (need,)
                self.rounds += any(map(_is_read, needs))
                try:
                    answer = tuple(map(self._answer_all, need)) if isinstance(need, tuple) else self._answer_all(need)
                except Exception as e:  # the steps get it as the answer to their need
                    answer = e
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # a StopIteration's value is Any

    def open(self, format: str | None = None, **options: Any) -> KeySpace:
        return self.run(catalog.open_source(ROOT, OpenOptions(**options), format))

    def read(self, keyspace: KeySpace, key: str) -> bytes | None:
        entry = self.run(keyspace.lookup(key))
        return None if entry is None else self.bytes(entry)

    def bytes(self, entry: Entry) -> bytes:
        match entry:
            case Inline(data):
                return data
            case Packed():
                return entry.finish(list(map(self.bytes, entry.spans)))
            case Span(url, start, stop):
                data = self.files[url]
                end = len(data) if stop is None else stop
                self.wanted.append((url, start, end))
                if entry.exact and end > len(data):
                    raise EOFError(f"{url} has {len(data)} bytes, [{start}, {end}) were asked for")
                return data[start:end]

    def _answer_all(self, need: Need) -> Any:
        match need:
            case Load(Span(url=url, optional=True)) if url not in self.files:
                return None
            case Load(Span() as source, index) if is_scanned(index):
                return self.run(index.scan(source))
            case Load(entry, index):
                try:
                    return index.decode(self.bytes(entry))
                except RefShardError:
                    raise
                except ValueError as e:
                    raise DamagedIndex("", describe(entry), str(e)) from e
            case Stat(url):
                return Facts(len(self.files[url])) if url in self.files else None
            case Head(url, length):
                data = self.files.get(url)
                return None if data is None else (Facts(len(data)), data[:length])
            case Names():
                return None


def _is_read(need: Need) -> bool:
    """Return whether a need takes a request to a server: bytes in memory do not."""
    match need:
        case Load(Inline()):
            return False
        case Load(index=index) if is_scanned(index):
            return False
    return True
