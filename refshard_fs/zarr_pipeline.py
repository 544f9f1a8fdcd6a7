"""A codec pipeline for zarr that reads all chunks of a selection together, and decodes each as it arrives.

zarr 3 hands all chunks of a selection to its codec pipeline in one call. For arrays in a `RefShardFileSystem`, this
pipeline passes all of their keys to the filesystem together. The filesystem looks them up in rounds, and fetches them
in few requests at full concurrency within ``max_memory``. zarr's own pipeline requests each chunk alone, ten at a time
(``async.concurrency``). Arrays in other stores get zarr's own pipeline.

No code of zarr is replaced: its setting ``codec_pipeline.path`` names our class, unless the user set another one (see
`install`). ``REFSHARD_ZARR_PIPELINE=0`` in the environment and ``tune_zarr(pipeline=False)`` turn this off.

Source: zarr-python's `zarr.abc.codec.CodecPipeline`. With zarr 3.4, its `FusedCodecPipeline` decodes each chunk as it
arrives; with zarr 3.1 to 3.3, its `BatchedCodecPipeline` decodes batches of chunks after they have been read.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import threading
from collections import deque
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property, partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import zarr
from fsspec.implementations.dirfs import DirFileSystem
from zarr.abc.codec import CodecPipeline
from zarr.codecs._v2 import V2Codec
from zarr.core import codec_pipeline
from zarr.core.array import AsyncArray, create_codec_pipeline
from zarr.core.config import config
from zarr.registry import register_pipeline
from zarr.storage import FsspecStore, StorePath

from refshard_fs.core.columns import Texts
from refshard_fs.core.keys import join
from refshard_fs.core.libdeflate import accelerate_codec
from refshard_fs.errors import RefShardError
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.reading.memory import Share, SharedMemory
from refshard_fs.reading.selection import ANSWER, TOGETHER
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.source.in_memory_source import InMemorySource, compute_digest
from refshard_fs.zarr_store import Store

if TYPE_CHECKING:
    from zarr.abc import store as abc
    from zarr.core.buffer import Buffer, BufferPrototype, NDBuffer
    from zarr.core.metadata import ArrayMetadata


TESTED: Final = ("3.1.", "3.2.", "3.3.", "3.4.")  # versions of zarr
SETTING: Final = "codec_pipeline.path"
OUR_PATH: Final = f"{__name__}.RefShardCodecPipeline"

_Fused: Any = getattr(codec_pipeline, "FusedCodecPipeline", None)  # since zarr 3.4
_decode_and_scatter: Any = getattr(codec_pipeline, "decode_and_scatter_chunk", None)
_Base: Any = _Fused or codec_pipeline.BatchedCodecPipeline
_factory: ContextVar[Any] = ContextVar("_factory", default=None)  # makes the pipeline of the next call of from_codecs


class RefShardCodecPipeline(CodecPipeline):
    """The class in zarr's setting: make our pipeline for our arrays, and zarr's pipeline for all others."""

    @classmethod
    def from_array_metadata_and_store(cls, array_metadata: ArrayMetadata, store: abc.Store) -> Any:
        """Make the pipeline of one array: ours if ``store`` is ours and the trial has passed, else zarr-python's."""
        factory = (
            _get_zarr_pipeline().from_codecs
            if _find_filesystem(store) is None or wait_for_trial() is not None
            else partial(_make_selection_pipeline, _compute_chunk_size(array_metadata))
        )
        token = _factory.set(factory)
        try:
            return create_codec_pipeline(array_metadata)  # this calls `from_codecs`
        finally:
            _factory.reset(token)

    @classmethod
    def from_codecs(cls, codecs: Iterable[Any], **options: Any) -> Any:
        """Make a pipeline of ``codecs``: ours if `from_array_metadata_and_store` chose it, else zarr's.

        zarr calls this again for codecs inside a codec, such as those of shards: they get zarr's pipeline.
        """
        factory = _factory.get() or _get_zarr_pipeline().from_codecs
        _factory.set(None)
        return factory(codecs, **options)


def _make_selection_pipeline(chunk_size: int, codecs: Iterable[Any], **options: Any) -> Any:
    """Make a pipeline of ``codecs`` for chunks of ``chunk_size`` bytes, with libdeflate in place of zlib."""
    return SelectionPipeline.from_codecs([_use_libdeflate(codec, chunk_size) for codec in codecs], **options)


def _compute_chunk_size(metadata: ArrayMetadata) -> int:
    """Return the bytes of a decoded chunk; 0 if its elements have no fixed size."""
    grid: Any = metadata if metadata.zarr_format == 2 else metadata.chunk_grid
    chunks = getattr(grid, "chunks" if metadata.zarr_format == 2 else "chunk_shape", None)
    dtype: Any = metadata.dtype.to_native_dtype() if hasattr(metadata.dtype, "to_native_dtype") else metadata.dtype
    is_fixed = chunks is not None and getattr(dtype, "hasobject", True) is False and getattr(dtype, "char", "T") != "T"
    return math.prod(chunks or ()) * dtype.itemsize if is_fixed else 0


def _use_libdeflate(codec: Any, chunk_size: int) -> Any:
    """Return zarr's ``codec`` with libdeflate in place of zlib; ``codec`` itself if it does not use zlib."""
    if isinstance(codec, V2Codec):
        return replace(codec, compressor=accelerate_codec(codec.compressor, chunk_size))
    for name in ("_codec", "_gzip_codec"):  # cached properties of zarr's codecs that hold a codec of numcodecs
        original = getattr(codec, name, None) if isinstance(getattr(type(codec), name, None), cached_property) else None
        fast = accelerate_codec(original, chunk_size)
        if fast is not original:
            changed = replace(codec) if name == "_gzip_codec" else type(codec)(**codec.codec_config)
            changed.__dict__[name] = fast
            return changed
    return codec


class SelectionPipeline(_Base):
    """The codec pipeline of one array in a `RefShardFileSystem`."""

    async def read(self, batch_info: Iterable[Any], out: NDBuffer, drop_axes: tuple[int, ...] = ()) -> Any:
        """Read the chunks of a selection into ``out``; fill chunks that do not exist, and raise all other errors."""
        batch = list(batch_info)
        found = _find_filesystem(batch[0][0].store) if batch and isinstance(batch[0][0], StorePath) else None
        if found is None:
            return await super().read(batch, out, drop_axes)
        fs, root = found
        spec = batch[0][1]
        size = math.prod(spec.shape) * spec.dtype.to_native_dtype().itemsize
        together = TOGETHER.get()
        if together is None:
            return await self._read_batch(fs, root, size, batch, out, drop_axes)
        async with together.reserve(fs.source.selections, len(batch) * size):
            return await self._read_batch(fs, root, size, batch, out, drop_axes)

    async def _read_batch(
        self, fs: RefShardFileSystem, root: str, size: int, batch: list[Any], out: NDBuffer, drop_axes: Any
    ) -> Any:
        if self.supports_partial_decode:
            return await self._read_parts(fs, root, size, batch, out, drop_axes)
        keys = [join(root, getter.path) for getter, *_ in batch]
        transform = getattr(self, "sync_transform", None)
        if transform is None or _decode_and_scatter is None:
            return await self._read_then_decode(fs, keys, size, batch, out, drop_axes)
        results: list[Any] = [None] * len(batch)

        def take(number: int, data: bytes | None) -> None:
            _, spec, chunk_selection, out_selection, _ = batch[number]
            results[number] = _decode_and_scatter(
                None if data is None else spec.prototype.buffer.from_bytes(data),
                out,
                chunk_spec=spec,
                chunk_selection=chunk_selection,
                out_selection=out_selection,
                drop_axes=drop_axes,
                decode=transform.decode_chunk,
            )

        await fs.source.read_selection(keys, take, chunk_size=size, threads=self._is_compressed)
        return tuple(results)

    async def _read_parts(
        self, fs: RefShardFileSystem, root: str, size: int, batch: list[Any], out: NDBuffer, drop_axes: Any
    ) -> tuple[Any, ...]:
        """Let zarr read ranges of each shard, with as many shards at a time as fit into memory."""
        memory = fs.source.selections
        share = Share(memory, memory.memory // 2)  # the rest is for the bytes of requests, which zarr makes one by one
        results: list[Any] = [None] * len(batch)
        waiting = deque(range(len(batch)))
        running: dict[asyncio.Future[Any], int] = {}
        ended: asyncio.Queue[asyncio.Future[Any]] = asyncio.Queue()
        try:
            while waiting or running:
                for _ in range(share.take(repeat(size, len(waiting)))):
                    number = waiting.popleft()
                    task = asyncio.ensure_future(super().read([batch[number]], out, drop_axes))
                    task.add_done_callback(ended.put_nowait)
                    running[task] = number
                task = await ended.get()
                number = running.pop(task)
                try:
                    results[number] = task.result()
                except Exception as e:
                    if not isinstance(e, RefShardError):  # the texts of our errors have the key already
                        await fs.source.note_decoding(e, join(root, batch[number][0].path))
                    raise
                share.give_back(size)
        finally:
            for task in running:
                task.cancel()
            try:
                await asyncio.gather(
                    *running, return_exceptions=True
                )  # until then, they write into the caller's memory
            finally:
                share.give_back(share.used)
        return tuple(result for results_of_shard in results for result in results_of_shard or ())

    async def _read_then_decode(
        self, fs: RefShardFileSystem, keys: list[str], size: int, batch: list[Any], out: NDBuffer, drop_axes: Any
    ) -> Any:
        """Read as many chunks as fit into memory, let zarr's pipeline decode them, and so on to the last chunk."""
        results: list[Any] = []
        share = Share(fs.source.selections, ANSWER)
        first = 0
        try:
            while first < len(batch):
                step = share.take(repeat(2 * size, len(batch) - first))  # memory for a chunk's bytes and its values
                infos, names = batch[first : first + step], keys[first : first + step]
                chunks: list[bytes | None] = [None] * step
                # `share` has reserved this memory until the end of decoding.
                memory: SharedMemory = SharedMemory(2 * step * size)
                await fs.source.read_selection(names, chunks.__setitem__, chunk_size=size, threads=False, memory=memory)
                in_memory = [(_InMemory(data), *info) for data, (_, *info) in zip(chunks, infos, strict=True)]
                try:
                    results += await super().read(in_memory, out, drop_axes) or ()
                except Exception as e:
                    await fs.source.note_decoding(e, names[await self._find_failing_chunk(in_memory, out, drop_axes)])
                    raise
                share.give_back(share.used)
                first += step
        finally:
            share.give_back(share.used)
        return tuple(results)

    async def _find_failing_chunk(self, chunks: list[Any], out: NDBuffer, drop_axes: Any) -> int:
        """Decode one chunk after the other, and return the number of the first that cannot be decoded."""
        for number, chunk in enumerate(chunks[:-1]):
            try:
                await super().read([chunk], out, drop_axes)
            except Exception:  # noqa: BLE001  # codecs raise anything
                return number
        return len(chunks) - 1

    @property
    def _is_compressed(self) -> bool:
        """Whether decoding calls a codec, which releases the GIL, so that threads help."""
        return bool(self.bytes_bytes_codecs) or getattr(self.array_bytes_codec, "compressor", None) is not None


class _InMemory:
    """The bytes of a chunk, with the method of `StorePath` by which zarr's pipelines read chunks."""

    def __init__(self, data: bytes | None) -> None:
        self._data = data

    async def get(self, prototype: BufferPrototype, byte_range: Any = None) -> Buffer | None:
        return None if self._data is None else prototype.buffer.from_bytes(self._data)


def _find_filesystem(store: Any) -> tuple[RefShardFileSystem, str] | None:
    """Return the `RefShardFileSystem` of ``store``, and the key of the store's root; None for other stores."""
    if isinstance(store, Store) and type(store).get is Store.get:
        return store.fs, ""
    if not isinstance(store, FsspecStore) or type(store).get is not FsspecStore.get:
        return None
    fs, path = store.fs, store.path.strip("/")
    while type(fs) is DirFileSystem:
        fs, path = fs.fs, f"{fs.path}/{path}"
    return (fs, fs._strip_protocol(path)) if isinstance(fs, RefShardFileSystem) else None


def _get_default_path() -> str:
    path: str = config.defaults[0]["codec_pipeline"]["path"]
    return path


def _get_zarr_pipeline() -> Any:
    """Return zarr's own class of pipelines."""
    module, _, name = _get_default_path().rpartition(".")
    return getattr(importlib.import_module(module), name)


def make_setting(ours: bool) -> dict[str, str]:
    """Return zarr's setting for our pipeline (``ours``), or for zarr's own pipeline."""
    factory: Any = RefShardCodecPipeline  # type checkers refuse an abstract class here; it is never instantiated
    register_pipeline(factory)
    return {SETTING: OUR_PATH if ours else _get_default_path()}


def is_set() -> bool:
    """Return whether zarr uses our pipeline for our arrays."""
    wait_for_trial()
    return bool(config.get(SETTING) == OUR_PATH)


def install() -> None:
    """Make zarr use our pipeline for our arrays, unless the user has set another pipeline.

    A version of zarr that is not in `TESTED` may have changed its pipelines. For such a version, a thread first reads
    two chunks on trial, so that users do not see an error. This takes some milliseconds, during the first request for a
    source; `wait_for_trial` waits for its end.
    """
    global _trial
    if config.get(SETTING) != _get_default_path():
        return
    config.set(make_setting(True))
    if zarr.__version__.startswith(TESTED):
        return
    trial = _Trial(name="refshard-trial")
    trial.start()
    _trial = trial  # after the start, since other threads join it


def wait_for_trial() -> Exception | None:
    """Wait until the trial of this version of zarr has ended; return its error, or None.

    After an error, zarr uses its own pipeline.
    """
    trial = _trial
    if trial is None or trial is threading.current_thread():
        return None
    trial.join()
    return trial.error


class _Trial(threading.Thread):
    """Read two chunks in a thread, on its own event loop: the starting thread may be running an event loop."""

    error: Exception | None = None

    def run(self) -> None:
        try:
            asyncio.run(_read_two_chunks())
        except Exception as e:  # noqa: BLE001  # a later zarr may fail in any way
            self.error = e
            config.set(make_setting(False))


_trial: _Trial | None = None


async def _read_two_chunks() -> None:
    meta = {"zarr_format": 2, "shape": [2], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": 0}
    document = json.dumps({**meta, "filters": None, "compressor": None}).encode()
    # A dict of references would do, but the module that parses dicts is slow to import.
    refs = ReferenceSet(Texts.of(()), {}, {".zarray": document, "0": b"a", "1": b"b"})
    fs = RefShardFileSystem(InMemorySource(refs, compute_digest(refs)), asynchronous=True, skip_instance_cache=True)
    array = await AsyncArray.open(StorePath(FsspecStore(fs, read_only=True, path="")), zarr_format=2)
    if type(array.codec_pipeline) is not SelectionPipeline:
        raise NotImplementedError("zarr does not use the pipeline in its setting codec_pipeline.path for our arrays")
    values: Any = await array.getitem(slice(None))
    if bytes(values) != b"ab":
        raise NotImplementedError(f"zarr read wrong bytes through our pipeline: expected b'ab', got {bytes(values)!r}")
