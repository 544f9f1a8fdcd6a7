"""Decode stored chunks with zarr's own codecs, as readers would, to find those that cannot be decoded.

A codec cannot be interrupted in a thread, and may take all memory or end its process. Those of common codecs are
bounded by what `core.compression` lets pass; for other ones, chunks of a set from elsewhere are decoded in a process of
their own, which may end: then the chunk is left out.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Final

import msgspec

from refshard_fs.core import zarrmeta
from refshard_fs.core.compression import MOST, check_chunk, find_chunk_limits, is_bounded
from refshard_fs.core.dtypes import itemsize_of
from refshard_fs.core.keys import iterate_splits
from refshard_fs.core.zarrmeta import ArrayMeta, find_safety_problem
from refshard_fs.errors import ManifestError, sanitize

PATIENCE: Final = 30.0  # seconds that a stranger's chunk may take: 256 MiB take one to three
MEMORY: Final = 2 << 30  # bytes that decoding it may take: zarr holds a chunk of 256 MiB up to four times
_STARTING: Final = 120.0  # seconds for the process to begin, which imports zarr

StoredChunk = tuple[str, bytes]  # its key in the array, and its bytes as stored
Problem = ValueError | None  # why a chunk cannot be decoded


class NotDecoded(ValueError):
    """A chunk was left out: decoding it takes too long, or too much memory, or ends the process."""


class Trial:
    """An array without chunks, into which one stored chunk after the other is put, to be decoded. Not thread-safe.

    ValueError where its chunks cannot be tried: no zarr here reads it, they differ in shape, or decoding may do harm.
    """

    def __init__(self, meta: ArrayMeta) -> None:
        harm = find_safety_problem(meta)
        if harm is not None:
            raise ValueError(harm)
        if meta.chunks is None or meta.grid is None:
            raise ValueError("its chunks have several or unknown shapes")
        if meta.zarr_format == 2 and "shards" in meta.raw:
            raise ValueError("no version of zarr reads the shards of the version 2 prototype")
        self._meta, self._chunks, self._grid = meta, meta.chunks, meta.grid
        find_chunk_limits(meta)
        zarr = importlib.import_module("zarr")
        self._is_zarr_2 = zarr.__version__.startswith("2.")
        name = ".zarray" if meta.zarr_format == 2 else "zarr.json"
        self._store: MutableMapping[str, Any] = {name: self._to_buffer(zarrmeta.dumps(dict(meta.raw)))}
        try:
            store = self._store if self._is_zarr_2 else zarr.storage.MemoryStore(self._store)
            self._array = zarr.open_array(store, mode="r")
        except Exception as e:  # whatever codecs and extensions raise: it is the answer
            raise ValueError(f"zarr {zarr.__version__} does not open it: {type(e).__name__}: {e}") from e

    def problem(self, tail: str, data: bytes) -> Problem:
        """Return why the chunk keyed ``tail`` cannot be decoded; None if it can."""
        number = self._grid.number(tail)
        if number is None:
            return None
        starts = [c * size for c, size in zip(self._grid.coords(number), self._chunks, strict=True)]
        ends = [min(s + size, n) for s, size, n in zip(starts, self._chunks, self._meta.shape, strict=True)]
        try:
            check_chunk(self._meta, data)
        except ValueError as e:
            return e
        self._store[tail] = self._to_buffer(data)
        try:
            self._array[tuple(map(slice, starts, ends))]
        except MemoryError:
            return NotDecoded("takes more memory than there is")
        except Exception as e:  # noqa: BLE001  # whatever codecs raise
            return ValueError(f"{type(e).__name__}: {e}")
        finally:
            del self._store[tail]
        return None

    def problems(self, chunks: Sequence[StoredChunk], *, apart: bool) -> list[Problem]:
        """Return why each of ``chunks`` cannot be decoded, which happens ``apart`` in another process, or here.

        ValueError if the array cannot be opened there.
        """
        if not apart:
            return [self.problem(*chunk) for chunk in chunks]
        found: list[Problem] = []
        while len(found) < len(chunks):  # the process begins anew after a chunk that has ended it
            found += _problems_apart(self._meta, chunks[len(found) :])
        return found

    def _to_buffer(self, data: bytes) -> Any:
        if self._is_zarr_2:
            return data
        return importlib.import_module("zarr.core.buffer").default_buffer_prototype().buffer.from_bytes(data)


class OpeningGuard:
    """Bounds what chunks of somebody else's set take while xarray opens it, unasked.

    xarray loads index coordinates, and the first and the last value of all times. Each chunk, and each index
    coordinate, may take `MOST` bytes, whatever the codecs.
    """

    def __init__(self) -> None:
        self._documents: dict[str, Callable[[], bytes]] = {}  # metadata of arrays, by path
        self._arrays: dict[str, ArrayMeta | None] = {}  # the same, read

    def add(self, path: str, document: Callable[[], bytes], *, is_loaded: bool) -> None:
        """Bound chunks of the array ``path`` with this metadata; ManifestError if it is loaded whole and too large."""
        self._documents[path] = document
        meta = self._meta(path) if is_loaded else None
        size = 0 if meta is None else math.prod(meta.shape) * (itemsize_of(meta) or 1)
        if size > MOST:
            raise ManifestError(_refusal(path, f"it has {size:,} bytes, and {MOST:,} are loaded at most"))

    def _meta(self, path: str) -> ArrayMeta | None:
        """Return the metadata of an array; None if ``path`` is not one."""
        if path in self._documents and path not in self._arrays:
            found = zarrmeta.array_meta(zarrmeta.object_in(self._documents[path](), path), path)
            if found is not None and found.chunks is None:  # chunks that differ in size are at most as large as all
                found = msgspec.structs.replace(found, chunks=found.shape)
            self._arrays[path] = found
        return self._arrays.get(path)

    def check(self, key: str, data: bytes) -> None:
        """Raise ManifestError if decoding ``data``, the chunk ``key``, takes too much."""
        for path, tail in iterate_splits(key):
            meta = None if zarrmeta.is_metadata(key) else self._meta(path)
            if meta is None:
                continue
            try:
                check_chunk(meta, data)
                # Not by a `Trial`: this may run on zarr's own event loop.
                problem = None if is_bounded(meta) else _problems_apart(meta, [(tail, data)])[0]
            except ValueError as e:
                problem = e
            if problem is not None:
                raise ManifestError(_refusal(path, f"{key!r}: {problem}")) from problem


def _refusal(path: str, why: str) -> str:
    name = path.rpartition("/")[2]
    return (
        f"opening a set from elsewhere, xarray would load {path!r}, which takes too much: {why}. Open it without that "
        f"variable (drop_variables={name!r}), or name the set's URL in allow= if you trust it"
    )


def _problems_apart(meta: ArrayMeta, chunks: Sequence[StoredChunk]) -> list[Problem]:
    """Return why each chunk cannot be decoded, as a new process finds out, up to the chunk that ends the process."""
    done = subprocess.run(  # noqa: S603  # our own code, by this interpreter
        [sys.executable, "-P", "-c", f"from {__name__} import work; work({PATIENCE}, {MEMORY})"],
        input=msgspec.msgpack.encode((json.dumps(dict(meta.raw)), chunks)),
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
    )
    _, *answers = done.stdout.split(b"\n")  # the first line says that it is open, the last one is not complete
    if not answers:
        raise ValueError("the process that decodes them ends when it opens the array")
    found: list[Problem] = []
    for kind, text in map(msgspec.json.decode, answers[:-1]):
        found.append(None if not kind else NotDecoded(text) if kind == "left out" else ValueError(text))
    if len(found) < len(chunks):
        is_late = b"Timeout (" in done.stderr
        found.append(NotDecoded(f"takes more than {PATIENCE:g} s" if is_late else "ends the process that does it"))
    return found


def work(patience: float, memory: int) -> None:
    """Decode the chunks on standard input and write an answer for each to standard output: what the process runs."""
    answers, watchdog = os.fdopen(os.dup(1), "wb"), os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for shown in (1, 2):  # the output of a codec must reach neither the answer nor a terminal
        os.dup2(nowhere, shown)
    faulthandler.dump_traceback_later(_STARTING, exit=True, file=watchdog)  # also while a codec holds the GIL
    importlib.import_module("zarr")
    document, chunks = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=tuple[str, list[StoredChunk]])
    _limit(memory)
    meta = zarrmeta.array_meta(json.loads(document), "the array")
    assert meta is not None, "the other process has opened it"
    trial = Trial(meta)
    answers.write(b"open\n")
    for chunk in chunks:
        answers.flush()
        faulthandler.dump_traceback_later(patience, exit=True, file=watchdog)
        problem = trial.problem(*chunk)
        answer = ("", "") if problem is None else ("wrong", sanitize(str(problem)))
        if isinstance(problem, NotDecoded):
            answer = ("left out", f"takes more than {memory:,} bytes of memory")
        answers.write(msgspec.json.encode(answer) + b"\n")
    answers.flush()


def _limit(memory: int) -> None:
    """Let allocations fail beyond ``memory`` bytes more than are in use, where the system can do that."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        resource = importlib.import_module("resource")
        with open("/proc/self/statm", encoding="ascii") as statm:
            used = int(statm.read().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (used + memory, resource.getrlimit(resource.RLIMIT_DATA)[1]))
