"""The fsspec face: its parts put together (see `filesystem`), and what its arguments mean; nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, cast

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractFileSystem

from refshard_fs.core.edits import MEMORY
from refshard_fs.core.format import MANIFEST_BYTES, OpenOptions
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.overlay import Inherited
from refshard_fs.reading.dispatch import Budget
from refshard_fs.reading.plan import KIB, MIB, Limits
from refshard_fs.session.arguments import Settled, check_names
from refshard_fs.session.in_memory_source import Held, Source
from refshard_fs.session.interface import Interface
from refshard_fs.session.mapper import RefShardFile, RefShardMap
from refshard_fs.session.mixins import Insight, Listable, Readable
from refshard_fs.session.options import route
from refshard_fs.session.session import Session, SessionOptions
from refshard_fs.sharding.layout import check_options
from refshard_fs.targets import PoolOptions, Retry
from refshard_fs.tools.notebook import NotebookDisplay
from refshard_fs.writing.mixins import Writable
from refshard_fs.writing.options import INLINE, READ_AS, RECORD_SIZE, WriteOptions, data_url_of, overlay_for
from refshard_fs.writing.written_file import WrittenFile

__all__ = ["RefShardFileSystem", "replace_reference_filesystem"]


class RefShardFileSystem(NotebookDisplay, Interface, Readable, Listable, Insight, Writable, metaclass=Settled):
    """Archives seen as a plain zarr key space: each key is a byte range of some other file.

    Parameters
    ----------
    fo:
        The source: a URL (any fsspec protocol or chain), a path, a mapping, bytes or a
        binary file. Recognised by its content; ``format=`` overrides.
    target:
        The URL that references without one (``[null, offset, length]``) stand for.
    ref_storage_args:
        As ``target_options``: the name that fsspec had for it.
    target_protocol:
        Protocol of ``fo``, where it names none.
    target_options:
        Options for opening ``fo`` itself.
    remote_protocol:
        Protocol of references that name none.
    remote_options:
        Options for ``remote_protocol``; without that, for the first protocol that the
        references name.
    fs:
        A filesystem instance for the targets, or a mapping of protocol to instance or
        options. Synchronous or asynchronous, of any event loop.
    options:
        Options (and so credentials) per URL prefix: ``{"s3://bucket/a/": {...}}``. The
        longest prefix wins, and wins over ``remote_options``.
    template_overrides:
        Templates to use instead of the manifest's.
    simple_templates:
        False allows full jinja2 in templates, in a sandbox.
    base_url:
        The directory that relative URLs in a manifest start from; default: where it lies.
    format:
        Name of the source's format, where recognising it is not wanted.
    index_cache:
        Where manifests are kept in decoded form, for other processes to open at once: a
        directory; True: this platform's for the user's caches; False: nowhere; by default, as
        True, but large ones only.
    max_manifest_bytes:
        Bytes that a manifest, or a metadata document, may have, decompressed; by default 8 GiB.
        No more is fetched of one whose server tells no length. A compressed one whose
        bytes make more than 500 times as many is refused from 64 MiB on.
    max_gap:
        Ranges of one target are merged over gaps up to that many bytes (negative: never).
    max_block:
        Bytes of a request up to which ranges are merged. Of a server that is known to take
        its time, few bytes come in requests down to 512 KiB, up to 16 at once.
    retries:
        Further tries of a request that fails for a passing reason.
    timeout:
        Seconds that a request and its tries may take together.
    fast_s3:
        Whether S3 is read by requests of our own, where that can work, instead of s3fs's.
    readahead:
        Bytes that may be fetched ahead of reads that follow a pattern; 0 turns that off.
    max_memory:
        Bytes that may be under way from targets, or held until they are read, at a time.
    concurrency:
        Requests that may be under way to one host at a time. Where answers come at once,
        these are fewer.
    block_cache:
        Bytes of chunks to keep after they were read, for reading them again; by default none.
    cache_size:
        Partitions of a lazily read manifest that are kept at a time.
    allow:
        URL prefixes that references may point to, and no others; ``"any"`` for all. Without
        it, a source on this machine, or in memory, may point anywhere; one from elsewhere to
        where it came from, and without your credentials to other web servers and object
        stores: not to local files, chains or private networks. What you name in another
        option (a protocol, a URL prefix, an instance) is allowed.
    shards:
        ``"inner"`` shows sharded arrays as ordinary arrays of their inner chunks; ``"whole"``
        leaves them as they are.
    shard_options:
        What no file tells of zarr v2 prototype shards: ``{"endian": "big"}``,
        ``{"slots": "morton"}``.
    zarr_format:
        Version, 2 or 3, of the metadata that is shown for a source without zarr metadata of
        its own (bcolz, bloscpack).
    verify:
        Whether each chunk's checksum is verified, where the source (bloscpack) has them; a
        chunk is then read with the bytes of its checksum.
    mode:
        ``"r"`` refuses writes. ``"a"`` takes them into an overlay, which reads see at once and
        `commit` (or the end of ``with fs.transaction:``) makes part of the source; a source
        that does not exist begins as an empty one. ``"w"`` begins with an empty one in any case.
    overlay:
        `overlay` of another filesystem of this process: what is written goes there, and is
        committed with the rest. Implies ``mode="a"``. One that is made from a URL, and given
        neither (fsspec drops ``mode`` there), takes that of an instance with equal arguments.
    data_url, inline_threshold, content_addressed:
        Values of more than ``inline_threshold`` bytes become objects in the directory
        ``data_url``, as they are written; by default ``<fo>.data``. ``content_addressed``
        names them by their SHA-256, so that equal ones are stored once.
    write_memory:
        Bytes of chunks that wait in memory for the commit of a zarr hierarchy; beyond that they
        wait in a temporary file. Shards that are complete wait there in any case, each as the one
        object that the commit puts.
    record_size:
        References per file of a parquet set that a commit makes.

    Raises
    ------
    FileNotFoundError
        Only if there is no such key.
    SourceNotReachable
        If ``fo`` itself is missing or cannot be read.
    ReferenceNotReachable
        If a key exists and its bytes cannot be had.
    TargetNotAllowed
        If a key exists and points where ``allow`` does not let it.
    ManifestError
        If the source breaks its format.

    """

    def __init__(
        self,
        fo: Source,
        target: str | None = None,
        ref_storage_args: Mapping[str, Any] | None = None,
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        remote_protocol: str | None = None,
        remote_options: Mapping[str, Any] | None = None,
        fs: AbstractFileSystem | Mapping[str | None, AbstractFileSystem | Mapping[str, Any]] | None = None,
        template_overrides: Mapping[str, str] | None = None,
        simple_templates: bool = True,
        max_gap: int = 16 * KIB,
        max_block: int = 1 * MIB,
        cache_size: int = 128,
        *,
        retries: int = 5,
        timeout: float = 300.0,
        fast_s3: bool = True,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        base_url: str | None = None,
        format: str | None = None,
        allow: Iterable[str] | str | None = None,
        shards: str = "inner",
        shard_options: Mapping[str, Any] | None = None,
        zarr_format: int = 2,
        verify: bool = False,
        readahead: int = 64 * MIB,
        max_memory: int = 256 * MIB,
        concurrency: int = 128,
        block_cache: int = 0,
        max_manifest_bytes: int = MANIFEST_BYTES,
        index_cache: bool | str | os.PathLike[str] | None = None,
        mode: str | None = None,
        data_url: str | None = None,
        inline_threshold: int = INLINE,
        content_addressed: bool = False,
        write_memory: int = MEMORY,
        record_size: int = RECORD_SIZE,
        overlay: str | Inherited | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_names(kwargs, RefShardFileSystem.__init__)
        if shards not in ("inner", "whole"):
            raise ValueError(f"shards={shards!r}: it is 'inner' or 'whole'")
        check_options(shard_options or {})
        if zarr_format not in (2, 3):
            raise ValueError(f"zarr_format={zarr_format!r}: there are versions 2 and 3")
        fo = cast("str | Held", fo)  # what the metaclass made of it
        self.fo = fo
        self.mode = mode = mode or ("r" if overlay is None else "a")
        writes = WriteOptions(data_url_of(fo, data_url), inline_threshold, content_addressed, format, record_size)
        self._writes_with(overlay_for(mode, overlay, fo), writes)
        if self._overlay is not None:
            self._overlay.spool.memory = write_memory
        self._references: tuple[KeySpace, Mapping[str, Any]] | None = None
        source_options = ref_storage_args if ref_storage_args is not None else target_options
        source = fo if isinstance(fo, str) else None
        data_at = None if self._overlay is None else writes.data_url
        routes = route(source, fs, remote_protocol, remote_options, source_options, options, allow, data_at)
        self._session = Session(
            SessionOptions(
                source=fo,
                open=OpenOptions(
                    template_overrides=tuple(sorted((template_overrides or {}).items())),
                    simple_templates=simple_templates,
                    base_url=base_url,
                    target=target,
                    protocol=routes.bare_protocol,
                    bare_as_is=routes.bare_as_is,
                    shards=shards,
                    shard_options=tuple(sorted((shard_options or {}).items())),
                    cache_size=cache_size,
                    zarr_format=zarr_format,
                    verify=verify,
                    rule_of=routes.rule_of,
                    max_manifest_bytes=max_manifest_bytes,
                ),
                format=None if format is None else READ_AS.get(format, format),
                pool=PoolOptions(*routes[:3], Retry(retries, timeout), fast_s3),
                fallback=routes.fallback,
                limits=Limits(max_gap, max_block),
                budget=Budget(concurrency, max_memory),
                readahead=readahead,
                block_cache=block_cache,
                token=routes.token,
                overlay=self._overlay,
                index_cache=os.fspath(index_cache) if isinstance(index_cache, os.PathLike) else index_cache,
            )
        )

    def to_dict(self, *, include_password: bool = True) -> dict[str, Any]:
        """Return a JSON form of the arguments, as fsspec's.

        A source held in memory is spelled out up to 1 MiB. A larger one is only named, so that this takes no time,
        and the form is of use while this process holds it; elsewhere it is a ManifestError, and a pickle is not.
        """
        stand_in = object.__new__(type(self))
        stand_in.storage_args = tuple(_spelled(value) for value in self.storage_args)
        named = {} if self.overlay is None else {"overlay": self.overlay}
        given = {name: value for name, value in (self.storage_options | named).items() if value is not None}
        stand_in.storage_options = {name: _spelled(value) for name, value in given.items()}  # fsspec spells no None
        out: dict[str, Any] = AsyncFileSystem.to_dict(stand_in, include_password=include_password)
        return out

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> RefShardFile | WrittenFile:
        if mode != "rb":
            return self._open_to_write(path, mode)
        return RefShardFile(self, path, mode, block_size or "default", cache_options=cache_options, **kwargs)

    def get_mapper(
        self, root: str = "", check: bool = False, create: bool = False, missing_exceptions: Any = None
    ) -> RefShardMap:
        """Return the keys below ``root`` as a mapping; only a missing key is a KeyError."""
        return RefShardMap(root, self, check=check, create=create, missing_exceptions=(FileNotFoundError,))


def _spelled(argument: Any) -> Any:
    return argument.spelled() if isinstance(argument, Held) else argument


def replace_reference_filesystem() -> None:
    """Register this filesystem for the ``reference`` protocol too, so that ``engine="kerchunk"`` and recipes use it.

    It holds for this process, from now on: filesystems that exist stay what they are.

    >>> import fsspec, refshard_fs
    >>> refshard_fs.replace_reference_filesystem()
    >>> fsspec.get_filesystem_class("reference").__name__
    'RefShardFileSystem'
    """
    fsspec.register_implementation("reference", RefShardFileSystem, clobber=True)
