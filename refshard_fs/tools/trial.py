"""Decode stored chunks with zarr's own codecs, as readers would, to find chunks that cannot be decoded.

A codec cannot be interrupted in a thread, and may take all memory or end its process. For common codecs,
`core.compression` checks beforehand what a chunk would take. With other codecs, chunks of a set that is not the user's
own are decoded in another process. If this process ends, the chunk is left out.
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

PATIENCE: Final = 30.0  # seconds that decoding a chunk may take in another process: 256 MiB take one to three
MEMORY: Final = 2 << 30  # bytes that decoding a chunk may take: zarr holds a chunk of 256 MiB up to four times
_STARTING: Final = 120.0  # seconds that the process may take to start and to import zarr

StoredChunk = tuple[str, bytes]  # the key of a chunk in its array, and its bytes as stored
Problem = ValueError | None  # why a chunk cannot be decoded; None if it can


class NotDecoded(ValueError):
    """A chunk was left out: decoding it takes too long, or too much memory, or ends the process."""


class Trial:
    """An array in memory into which stored chunks are put one after the other, to be decoded. Not thread-safe.

    ValueError if its chunks cannot be tried: zarr cannot open it, its chunks have no single shape, or decoding may do
    harm.
    """

    def __init__(self, meta: ArrayMeta) -> None:
        harm = find_safety_problem(meta)
        if harm is not None:
            raise ValueError(harm)
        if meta.chunks is None or meta.grid is None:
            raise ValueError("expected chunks of one known shape, found another chunk grid")
        if meta.zarr_format == 2 and "shards" in meta.raw:
            raise ValueError("no version of zarr reads its shards, whose format is a prototype for zarr version 2")
        self._meta, self._chunks, self._grid = meta, meta.chunks, meta.grid
        find_chunk_limits(meta)
        zarr = importlib.import_module("zarr")
        self._is_zarr_2 = zarr.__version__.startswith("2.")
        name = ".zarray" if meta.zarr_format == 2 else "zarr.json"
        self._store: MutableMapping[str, Any] = {name: self._to_buffer(zarrmeta.dumps(dict(meta.raw)))}
        try:
            store = self._store if self._is_zarr_2 else zarr.storage.MemoryStore(self._store)
            self._array = zarr.open_array(store, mode="r")
        except Exception as e:  # codecs and extensions may raise anything
            raise ValueError(f"zarr {zarr.__version__} does not open it: {type(e).__name__}: {e}") from e

    def find_problem(self, tail: str, data: bytes) -> Problem:
        """Return why the chunk ``tail`` of the array cannot be decoded; None if it can, or is not in the grid."""
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
        except Exception as e:  # noqa: BLE001  # codecs may raise anything
            return ValueError(f"{type(e).__name__}: {e}")
        finally:
            del self._store[tail]
        return None

    def find_problems(self, chunks: Sequence[StoredChunk], *, apart: bool) -> list[Problem]:
        """Return why each of ``chunks`` cannot be decoded: in this process, or ``apart``, in another one.

        ValueError if the other process cannot open the array.
        """
        if not apart:
            return [self.find_problem(*chunk) for chunk in chunks]
        problems: list[Problem] = []
        while len(problems) < len(chunks):  # after a chunk that ended the process, a new one is started
            problems += _find_problems_apart(self._meta, chunks[len(problems) :])
        return problems

    def _to_buffer(self, data: bytes) -> Any:
        if self._is_zarr_2:
            return data
        return importlib.import_module("zarr.core.buffer").default_buffer_prototype().buffer.from_bytes(data)


class OpeningGuard:
    """Limit the memory and the time that chunks of a stranger's set may take while xarray opens the set.

    When xarray opens a set, it loads index coordinates, and the first and the last value of all times. Each chunk, and
    each index coordinate, may take at most `MOST` bytes, with any codec.
    """

    def __init__(self) -> None:
        self._documents: dict[str, Callable[[], bytes]] = {}  # metadata of arrays, by path
        self._arrays: dict[str, ArrayMeta | None] = {}  # the same metadata, parsed

    def add(self, path: str, document: Callable[[], bytes], *, is_loaded: bool) -> None:
        """Check chunks of the array ``path`` from now on.

        If the whole array ``is_loaded``, ManifestError if it is too large.
        """
        self._documents[path] = document
        meta = self._parse_meta(path) if is_loaded else None
        size = 0 if meta is None else math.prod(meta.shape) * (itemsize_of(meta) or 1)
        if size > MOST:
            raise ManifestError(_make_refusal(path, f"it has {size:,} bytes, and at most {MOST:,} are loaded"))

    def _parse_meta(self, path: str) -> ArrayMeta | None:
        """Return the metadata of an array; None if ``path`` is not one."""
        if path in self._documents and path not in self._arrays:
            found = zarrmeta.array_meta(zarrmeta.object_in(self._documents[path](), path), path)
            if found is not None and found.chunks is None:  # a chunk of unknown shape is at most as large as the array
                found = msgspec.structs.replace(found, chunks=found.shape)
            self._arrays[path] = found
        return self._arrays.get(path)

    def check(self, key: str, data: bytes) -> None:
        """Raise ManifestError if decoding ``data``, the chunk ``key``, takes too much memory or time."""
        for path, tail in iterate_splits(key):
            meta = None if zarrmeta.is_metadata(key) else self._parse_meta(path)
            if meta is None:
                continue
            try:
                check_chunk(meta, data)
                # A `Trial` in this process would wait for zarr's event loop, on which this method may run.
                problem = None if is_bounded(meta) else _find_problems_apart(meta, [(tail, data)])[0]
            except ValueError as e:
                problem = e
            if problem is not None:
                raise ManifestError(_make_refusal(path, f"{key!r}: {problem}")) from problem


def _make_refusal(path: str, why: str) -> str:
    name = path.rpartition("/")[2]
    return (
        f"opening a set from elsewhere, xarray would load {path!r}, which takes too much memory or time: {why}. Open "
        f"the set without that variable (drop_variables={name!r}), or name the set's URL in allow= if you trust it"
    )


def _find_problems_apart(meta: ArrayMeta, chunks: Sequence[StoredChunk]) -> list[Problem]:
    """Decode ``chunks`` in a new process; return the problem of each, up to the chunk that ends the process."""
    done = subprocess.run(  # noqa: S603  # our own code, by this interpreter
        [sys.executable, "-P", "-c", f"from {__name__} import work; work({PATIENCE}, {MEMORY})"],
        input=msgspec.msgpack.encode((json.dumps(dict(meta.raw)), chunks)),
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
    )
    _, *answers = done.stdout.split(b"\n")  # the first line says that the array is open; the last one is incomplete
    if not answers:
        raise ValueError("the process that decodes its chunks ends when it opens the array")
    found: list[Problem] = []
    for kind, text in map(msgspec.json.decode, answers[:-1]):
        found.append(None if not kind else NotDecoded(text) if kind == "left out" else ValueError(text))
    if len(found) < len(chunks):
        is_late = b"Timeout (" in done.stderr
        found.append(NotDecoded(f"takes more than {PATIENCE:g} s" if is_late else "ends its process"))
    return found


def work(patience: float, memory: int) -> None:
    """Decode the chunks on standard input, and write an answer for each to standard output, in another process."""
    answers, watchdog = os.fdopen(os.dup(1), "wb"), os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for shown in (1, 2):  # the output of a codec must reach neither the answer nor a terminal
        os.dup2(nowhere, shown)
    faulthandler.dump_traceback_later(_STARTING, exit=True, file=watchdog)  # also while a codec holds the GIL
    importlib.import_module("zarr")
    document, chunks = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=tuple[str, list[StoredChunk]])
    _limit(memory)
    meta = zarrmeta.array_meta(json.loads(document), "the array")
    assert meta is not None, "the parent process parsed the same metadata"
    trial = Trial(meta)
    answers.write(b"open\n")
    for chunk in chunks:
        answers.flush()
        faulthandler.dump_traceback_later(patience, exit=True, file=watchdog)
        problem = trial.find_problem(*chunk)
        answer = ("", "") if problem is None else ("wrong", sanitize(str(problem)))
        if isinstance(problem, NotDecoded):
            answer = ("left out", f"takes more than {memory:,} bytes of memory")
        answers.write(msgspec.json.encode(answer) + b"\n")
    answers.flush()


def _limit(memory: int) -> None:
    """Let allocations of more than ``memory`` further bytes fail, if the system supports that."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        resource = importlib.import_module("resource")
        with open("/proc/self/statm", encoding="ascii") as statm:
            used = int(statm.read().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (used + memory, resource.getrlimit(resource.RLIMIT_DATA)[1]))
