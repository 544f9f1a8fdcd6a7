"""Check a whole source before others rely on it: its metadata, the ranges that it names, and the objects they lie in.

Nothing is taken for right because it was not looked at: a report says how much was read and decoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, get_args

import numpy as np
from fsspec.asyn import get_loop, sync
from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import WHOLE
from refshard_fs.core.keys import join, parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.errors import NotListable, RefShardError
from refshard_fs.reading.engine import Request
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.session.session import Session
from refshard_fs.tools.check_metadata import Metadata, Trial, zarr_version
from refshard_fs.tools.check_targets import CHUNK_NAME, Columns, Keys, Ranges, Targets, list_all
from refshard_fs.tools.findings import CheckMode, Finding, Findings, Report

__all__ = ["CheckMode", "Finding", "Report", "check"]

TOGETHER: Final = 1024  # look-ups, documents or chunks that are asked for at a time
MEMORY: Final = 1 << 26  # bytes of chunks that are read at a time, by their mean size
SOUGHT: Final = 1_000_000  # chunks of an array that are looked for one by one, where they cannot be listed
_UNKNOWN = np.uint64(WHOLE)


class Checked(Protocol):
    """What is needed of a filesystem: `RefShardFileSystem`."""

    @property
    def loop(self) -> Any: ...
    @property
    def _session(self) -> Session: ...


def check(fs: Checked, mode: CheckMode = "head", *, sample: int = 100, callback: Callback = DEFAULT_CALLBACK) -> Report:
    """Check all of ``fs``: metadata, ranges, and one question to each target; data as ``mode`` says.

    ``"head"`` reads no chunk, ``"read"`` reads ``sample`` chunks that are evenly spaced over all there are, ``"full"``
    reads every chunk and, where zarr is installed, decodes it. What is wrong is in the report, and no exception.

    >>> import json, refshard_fs
    >>> meta = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "order": "C",
    ...         "fill_value": None, "filters": None, "compressor": None}
    >>> fs = refshard_fs.RefShardFileSystem({"a/.zarray": json.dumps(meta), "a/0": "ab", "a/7": "cd"})
    >>> report = refshard_fs.check(fs)
    >>> report.missing, [(finding.kind, finding.key) for finding in report.findings]
    (1, [('outside-grid', 'a/7')])
    """
    if not hasattr(fs, "_session"):
        raise TypeError(f"check takes a filesystem, such as RefShardFileSystem({fs!r}), not {type(fs).__name__}")
    if mode not in get_args(CheckMode):
        raise ValueError(f"mode={mode!r}: it is 'head', 'read' or 'full'")
    if sample < 1:
        raise ValueError(f"sample={sample}: at least one chunk is read")
    report: Report = sync(fs.loop or get_loop(), _Check(fs, mode, sample, callback).run)
    return report


class _Check:
    """One check on its way."""

    def __init__(self, fs: Checked, mode: CheckMode, sample: int, callback: Callback) -> None:
        self._session = fs._session
        self._mode, self._sample, self._callback = mode, sample, callback
        self._found = Findings()
        self._notes: list[str] = []
        self._ranges = Ranges()
        self._unlisted: dict[str, Exception] = {}
        self._closed: set[str] = set()  # directories of which nobody knows what lies there
        self._keys = self._missing = self._damaged = self._read = self._bytes = self._decoded = 0
        self._metadata = Metadata(self._found)
        self._chunks: list[Keys] = []

    async def run(self) -> Report:
        try:
            keyspace = await self._session.keyspace()
            names = await self._names(keyspace)
        except NotListable as e:
            self._found.add("error", "not-listable", text=f"its keys cannot be listed, and so not be checked: {e}")
        except (RefShardError, OSError, ValueError) as e:
            self._found.add("error", "source", text=str(e) or type(e).__name__)
        else:
            for path, reason in keyspace.reports.items():
                self._found.add("warning", "left-whole", path, text=f"its shards are left whole: {reason}")
            await self._check(keyspace, names)
        return Report(
            self._mode,
            tuple(sorted(self._found.shown, key=lambda finding: finding.severity)),
            self._found.counts,
            self._keys,
            len(self._metadata.arrays),
            sum(len(keys) for keys in self._chunks),
            self._missing - self._damaged,
            len(self._ranges.urls),
            self._read,
            self._bytes,
            self._decoded,
            tuple(self._notes),
        )

    async def _names(self, keyspace: KeySpace) -> list[str]:
        """Return the keys that have no place in columns, after those that have."""
        match keyspace:
            case FlatKeySpace(refs=refs):
                self._chunks += self._ranges.add_flat(keyspace)
                names = list(refs.side)
                self._keys = len(refs)
            case _:
                engine = self._session.engine()
                names = await list_all(keyspace, engine, self._found, self._unlisted, self._existing)
                self._keys = len(names)
        return names

    async def _existing(self, names: list[str]) -> list[str]:
        """Return those of ``names``, in a directory that cannot be listed, that are there, or whose reading fails."""
        self._closed.update(parent(name)[0] for name in names)
        found = await self._session.read_all(list(map(Request, names)))
        return [name for name, data in zip(names, found, strict=True) if not isinstance(data, FileNotFoundError)]

    async def _sought(self, keyspace: KeySpace) -> list[str]:
        """Return the chunks of arrays that cannot be listed, looked for one by one; what is damaged is found so."""
        names = []
        for prefix, error in self._unlisted.items():
            path = self._metadata.array_of(join(prefix, "0"))
            meta = self._metadata.arrays.get(path)
            if meta is None or meta.grid is None or meta.grid.size > SOUGHT:
                self._found.add_error(prefix, error)
                continue
            stem = prefix + "/" if prefix else ""
            keys = [key for tail in meta.grid.tails() if (key := join(path, tail)).startswith(stem)]
            for some in _batches(keys, TOGETHER):
                found = await self._session.engine().find_all(keyspace, some)
                for key, entry in zip(some, found, strict=True):
                    match entry:
                        case None:
                            continue
                        case Exception():
                            self._damaged += 1
                            self._found.add_error(key, entry)
                        case _:
                            names.append(key)
        self._keys += len(names)
        return names

    async def _check(self, keyspace: KeySpace, names: Sequence[str]) -> None:
        for some in _batches([name for name in names if zarrmeta.is_metadata(name)], TOGETHER):
            for name, data in zip(some, await self._session.read_all(list(map(Request, some))), strict=True):
                self._metadata.add(name, data)
        self._metadata.compare()
        if self._unlisted:
            names = [*names, *await self._sought(keyspace)]
        self._check_grids([name for name in names if not zarrmeta.is_metadata(name)])
        for some in _batches(names, TOGETHER):
            found = await self._session.engine().find_all(keyspace, some)
            entries = []
            for name, entry in zip(some, found, strict=True):
                match entry:
                    case None:
                        self._found.add("error", "unreadable", name, text="it is listed, and there is no such key")
                    case Exception():
                        self._found.add_error(name, entry)
                    case _:
                        entries.append((name, entry))
            self._ranges.add(entries)
        wanted = self._wanted()
        self._callback.set_size(len(self._ranges.urls) + sum(len(positions) for _, positions in wanted))
        columns = self._ranges.settled()
        await Targets(self._ranges, self._found, self._callback).check(columns, self._session.engine().need)
        version = zarr_version() if self._mode == "full" else None
        if self._mode == "full" and version is None:
            self._notes.append("zarr is not installed: chunks were read, and none was decoded")
        mean = _mean_size(columns)
        for keys, positions in wanted:
            await self._read_chunks(keys, positions, version, max(1, min(TOGETHER, MEMORY // mean)))

    def _check_grids(self, names: Iterable[str]) -> None:
        """Sort keys that stand by themselves into the grids of their arrays; count what is missing."""
        inside: dict[str, list[str]] = {}
        for name in names:
            path = self._metadata.array_of(name)
            meta = self._metadata.arrays.get(path)
            if meta is None:
                continue
            tail = _tail(name, path)
            if meta.grid is None or meta.grid.number(tail) is not None:
                inside.setdefault(path, []).append(name)
            elif CHUNK_NAME.fullmatch(tail):
                shape = " × ".join(map(str, meta.grid.counts)) or "one chunk"
                self._found.add(
                    "error", "outside-grid", name, text=f"array {path!r} has no such chunk: its grid is {shape}"
                )
        hidden = {path: _hidden(keys, inside.get(path, ())) for keys in self._chunks if (path := keys.array) in inside}
        present = {keys.array: len(keys) - hidden.get(keys.array, 0) for keys in self._chunks}
        self._chunks += [Keys.spelled(path, found) for path, found in inside.items()]
        for path, meta in self._metadata.arrays.items():
            if meta.grid is not None and path not in self._closed:
                self._missing += meta.grid.size - present.get(path, 0) - len(inside.get(path, ()))

    # ------------------------------------------------------------------ data

    def _wanted(self) -> list[tuple[Keys, Sequence[int]]]:
        """Return which chunks are to be read, by their position among keys."""
        match self._mode:
            case "head":
                return []
            case "full":
                return [(keys, range(len(keys))) for keys in self._chunks]
        total = sum(len(keys) for keys in self._chunks)
        chosen = np.unique(np.linspace(0, total - 1, min(self._sample, total)).round().astype(np.int64))
        wanted: list[tuple[Keys, Sequence[int]]] = []
        start = 0
        for keys in self._chunks:
            end = start + len(keys)
            wanted.append((keys, (chosen[(chosen >= start) & (chosen < end)] - start).tolist()))
            start = end
        return wanted

    async def _read_chunks(self, keys: Keys, positions: Sequence[int], version: int | None, batch: int) -> None:
        trial, meta = None, self._metadata.arrays.get(keys.array)  # of damaged metadata there is a finding
        if version is not None and meta is not None and positions:
            try:
                trial = await asyncio.to_thread(Trial, meta, version)
            except ValueError as e:
                self._found.add(
                    "warning", "not-decoded", keys.array, text=f"its chunks were read, and not decoded: {e}"
                )
        for some in _batches(positions, batch):
            names = [keys.key(position) for position in some]
            found = await self._session.read_all(list(map(Request, names)), self._callback.relative_update)
            chunks = []
            for name, data in zip(names, found, strict=True):
                if isinstance(data, Exception):
                    self._found.add_error(name, data)
                    continue
                self._read += 1
                self._bytes += len(data)
                chunks.append((name, data))
            if trial is not None:
                await asyncio.to_thread(self._decode, trial, keys.array, chunks)

    def _decode(self, trial: Trial, array: str, chunks: Iterable[tuple[str, bytes]]) -> None:
        for name, data in chunks:
            try:
                trial.decode(_tail(name, array), data)
                self._decoded += 1
            except ValueError as e:
                self._found.add(
                    "error", "undecodable", name, text=f"its {len(data):,} bytes are not what zarr decodes: {e}"
                )


def _tail(key: str, array: str) -> str:
    return key[len(array) + 1 :] if array else key


def _hidden(keys: Keys, names: Iterable[str]) -> int:
    """Return how many of ``names``, which stand by themselves, are in columns as well."""
    grid = None if keys.table is None else keys.table.grid
    if grid is None:
        return 0
    numbers = {grid.number(_tail(name, keys.array)) for name in names} - {None}
    return int(np.isin(np.array(sorted(n for n in numbers if n is not None), np.uint64), keys.numbers).sum())


def _mean_size(columns: Columns) -> int:
    known = columns.stops != _UNKNOWN
    lengths = (columns.stops - columns.starts)[known]
    return max(1, int(lengths.astype(float).mean())) if len(lengths) else MEMORY // 16


def _batches(items: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), most):
        yield items[start : start + most]
