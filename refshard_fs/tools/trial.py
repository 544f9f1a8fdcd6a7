"""Chunks decoded on trial by zarr's own codecs, as readers would: to know whether they can be.

A codec cannot be interrupted in a thread, and may take all memory or end its process. Those of common codecs are
bounded by what `core.compression` lets pass; for other ones, chunks of a set from elsewhere are decoded in a process of
their own, which may end: then the chunk is left out.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import MutableMapping
from typing import Any, Final

from refshard_fs.core import zarrmeta
from refshard_fs.core.compression import check_chunk, promised
from refshard_fs.core.zarrmeta import ArrayMeta, check_blosc, is_blosc, unsafe
from refshard_fs.errors import told

PATIENCE: Final = 30.0  # seconds that a chunk from elsewhere may take: those of 256 MiB take one to three
MEMORY: Final = 2 << 30  # bytes that decoding it may take: zarr holds a chunk of 256 MiB up to four times
_STARTING: Final = 120.0  # seconds for the process to begin, which imports zarr


class NotDecoded(Exception):
    """A chunk was left out: decoding it takes too long, or too much memory, or ends the process."""


class Here:
    """An array without chunks, into which one stored chunk after the other is put, to be decoded. Not thread-safe.

    An array's chunks cannot be tried if no zarr here reads it, if they differ in shape, or if decoding may do harm.
    """

    def open(self, meta: ArrayMeta) -> None:
        """Have chunks of this array decoded; ValueError where its chunks cannot be tried."""
        harm = unsafe(meta)
        if harm is not None:
            raise ValueError(harm)
        if meta.chunks is None or meta.grid is None:
            raise ValueError("its chunks are of no one known shape")
        if meta.zarr_format == 2 and "shards" in meta.raw:
            raise ValueError("no zarr reads the shards of the version 2 prototype")
        self._chunks, self._grid, self._shape = meta.chunks, meta.grid, meta.shape
        promised(meta)
        self._is_blosc = is_blosc(meta)
        self._meta = meta
        zarr = importlib.import_module("zarr")
        self._is_zarr_2 = zarr.__version__.startswith("2.")
        name = ".zarray" if meta.zarr_format == 2 else "zarr.json"
        self._store: MutableMapping[str, Any] = {name: self._stored(zarrmeta.dumps(dict(meta.raw)))}
        try:
            store = self._store if self._is_zarr_2 else zarr.storage.MemoryStore(self._store)
            self._array = zarr.open_array(store, mode="r")
        except Exception as e:  # whatever codecs and extensions raise: it is the answer
            raise ValueError(f"zarr {zarr.__version__} does not open it: {type(e).__name__}: {e}") from e

    def decode(self, tail: str, data: bytes) -> None:
        """Decode the chunk keyed ``tail``; ValueError, saying why, where that fails."""
        number = self._grid.number(tail)
        if number is None:
            return
        starts = [c * size for c, size in zip(self._grid.coords(number), self._chunks, strict=True)]
        ends = [min(s + size, n) for s, size, n in zip(starts, self._chunks, self._shape, strict=True)]
        if self._is_blosc:
            check_blosc(data)
        check_chunk(self._meta, data)
        self._store[tail] = self._stored(data)
        try:
            self._array[tuple(map(slice, starts, ends))]
        except Exception as e:  # as above
            raise ValueError(f"{type(e).__name__}: {e}") from e
        finally:
            del self._store[tail]

    def _stored(self, data: bytes) -> Any:
        if self._is_zarr_2:
            return data
        return importlib.import_module("zarr.core.buffer").default_buffer_prototype().buffer.from_bytes(data)


class Apart:
    """Decodes in another process, which begins with the first array, and anew when a chunk has ended it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._array = b""

    def open(self, meta: ArrayMeta) -> None:
        """Have chunks of this array decoded; ValueError where neither this process nor that one can try them."""
        Here().open(meta)
        self._array = json.dumps({"raw": dict(meta.raw)}).encode() + b"\n"
        if self._process is None:
            self._begin()
        else:
            self._open()

    def decode(self, tail: str, data: bytes) -> None:
        """Decode the chunk keyed ``tail``; ValueError where that fails, NotDecoded where it was given up."""
        if self._process is None:
            self._begin()
        head = json.dumps({"tail": tail, "size": len(data)}).encode()
        self._asked(PATIENCE, head + b"\n", data)

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None and process.stdout is not None:
            process.kill()
            process.wait()
            process.stdout.close()
            with contextlib.suppress(BrokenPipeError):  # of what was not sent
                process.stdin.close()

    def _begin(self) -> None:
        found = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self._process = subprocess.Popen(  # noqa: S603  # our own code, by this interpreter
            [sys.executable, "-P", "-c", f"from {__name__} import work; work({MEMORY})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": found},
        )
        self._open()

    def _open(self) -> None:
        try:
            self._asked(_STARTING, self._array)
        except NotDecoded as e:
            raise ValueError(f"to open its array {e}") from e

    def _asked(self, patience: float, *parts: bytes) -> None:
        """Send ``parts`` and wait for the answer; ValueError or NotDecoded if it is not that all is well."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        is_late = threading.Event()

        def give_up() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(patience, give_up)
        timer.start()
        line = b""
        try:
            with contextlib.suppress(BrokenPipeError):
                for part in parts:
                    process.stdin.write(part)
                process.stdin.flush()
                line = process.stdout.readline()
        finally:
            timer.cancel()
        if not line.endswith(b"\n"):
            self.close()
            raise NotDecoded(f"takes more than {patience:g} s" if is_late.is_set() else "ends the process that does it")
        answer = json.loads(line)
        if answer["kind"] == "memory":
            raise NotDecoded(f"takes more than {MEMORY:,} bytes of memory")
        if answer["kind"] == "wrong":
            raise ValueError(answer["text"])


def work(memory: int) -> None:
    """Decode for an `Apart`: what comes by standard input, with answers to standard output."""
    given, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for shown in (1, 2):  # whatever a codec prints is no answer, and no text for a terminal
        os.dup2(nowhere, shown)
    importlib.import_module("zarr")
    _limit(memory)
    here = Here()
    while line := given.readline():
        asked = json.loads(line)
        kind = text = ""
        try:
            if "raw" in asked:
                here.open(_meta(asked["raw"]))
            else:
                here.decode(asked["tail"], given.read(asked["size"]))
        except (ValueError, MemoryError) as e:
            kind, text = "memory" if MemoryError in (type(e), type(e.__cause__)) else "wrong", told(str(e))
        answers.write(json.dumps({"kind": kind, "text": text}).encode() + b"\n")
        answers.flush()


def _meta(document: dict[str, Any]) -> ArrayMeta:
    meta = zarrmeta.array_meta(document, "the array")
    if meta is None:
        raise ValueError("it is no array")
    return meta


def _limit(memory: int) -> None:
    """Have allocations fail beyond ``memory`` bytes over what there is, where the system can do that."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        resource = importlib.import_module("resource")
        with open("/proc/self/statm", encoding="ascii") as statm:
            used = int(statm.read().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (used + memory, resource.getrlimit(resource.RLIMIT_DATA)[1]))
