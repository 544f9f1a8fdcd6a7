"""Icechunk repositories: ranges of objects that Icechunk can read become virtual chunks, other chunks native chunks.

The package ``icechunk`` (extra ``icechunk``) writes, and opens the repository's storage by itself. zarr-python and
VirtualiZarr read the repository without refshard_fs. Specification: https://icechunk.io, version 2.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import accumulate, groupby, repeat
from typing import Any, Final
from urllib.parse import quote, urlsplit

import numpy as np
import numpy.typing as npt
from fsspec.asyn import get_loop, sync

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunk_boxes import cut_to_boxes
from refshard_fs.core.chunks import Chunks
from refshard_fs.core.columns import NO_TARGET, WHOLE
from refshard_fs.core.keys import ChunkGrid, find_nearest, join
from refshard_fs.core.model import Entry, Pin, Span
from refshard_fs.core.stats import format_bytes, format_count
from refshard_fs.errors import ConflictError, ManifestError, sanitize
from refshard_fs.formats.icechunk import REPO
from refshard_fs.formats.icechunk.objects import ORIGINS
from refshard_fs.references.stream import ReferenceStream, convert_documents
from refshard_fs.security.origins import Origins
from refshard_fs.security.policy import find_common_server, protocol_of
from refshard_fs.sinks.sink import Destination, Sink
from refshard_fs.stores.objects import Objects

ROWS: Final = 100_000  # references in one call of icechunk
COPIED: Final = 16 << 20  # bytes of native chunks that are read at a time
TOGETHER: Final = 64  # native chunks that are put at a time
S3: Final = ("s3", "s3a")
GCS: Final = ("gs", "gcs")
WEB: Final = ("http", "https")
AS_WRITTEN: Final = ("s3://", "gs://", "http://", "https://")  # beginnings of URLs that Icechunk spells as we do
LEAST_RUN: Final = 4  # chunks: if runs of one version are shorter, single references take less time
MOST_CHUNKS: Final = 1 << 32  # along a dimension: indexes have 32 bits
MOST_DIRECTORIES: Final = 16  # the most prefixes of local stores: a reader has to authorise each
NAMED: Final = 5  # the most keys that a message names
MAIN_BRANCH: Final = "main"
OTHER_CREDENTIALS: Final = ("profile", "session", "sas_token", "connection_string", "credential")  # fsspec's options
REMAINS: Final = {"snapshots", "transactions", "repo#1"}  # left by a killed process that created the repository
OLDEST: Final = (2, 3)  # version of icechunk, as setup.cfg has it
_MADE_TWICE: Final = "another process created the repository {} meanwhile: nothing was written; save again"
_WHY: Final = "they are not ranges of objects that Icechunk can read"

IntArray = npt.NDArray[np.int64]
Read = Callable[[Mapping[str, Entry | bytes]], Sequence[bytes]]

_is_plain = re.compile(r"[\w.~-]*", re.ASCII).fullmatch  # names that percent-encoding leaves as they are
_are_plain_urls = re.compile(r"[\w.~/:-]*", re.ASCII).fullmatch

logger = logging.getLogger(__package__)


class IcechunkSink(Sink):
    """Commit a set to a branch of a repository, which is created if it does not exist. Metadata become zarr version 3.

    One commit makes the whole set visible. With ``overwrite``, it replaces the content of the branch; earlier snapshots
    stay. Settings: ``branch`` (``"main"``), ``message`` of the commit, ``virtual_stores``: Icechunk's
    `ObjectStoreConfig` by the prefix of URLs, for targets that need an endpoint or a region.
    """

    name = "icechunk"
    holds_versions = True
    holds_packed = True
    needs_lengths = True
    settings = ("branch", "message", "virtual_stores")

    def write(self, references: ReferenceStream, destination: Destination) -> str | None:
        settings = destination.settings
        for name in ("branch", "message"):
            if not isinstance(settings.get(name, ""), str):
                raise TypeError(f"invalid {name}={settings[name]!r}: expected a text")
        documents, left_out = _divide_documents(references)
        nodes = convert_documents(documents, references.grids)
        branch = settings.get("branch") or MAIN_BRANCH
        with translate_errors(destination.url):
            stores = VirtualStores(settings.get("virtual_stores") or {}, destination.find_options)
            storage = make_storage(destination.url, destination.options)
            repository, is_new = _open_repository(storage, destination)
            session = open_session(repository, branch)
            arguments = session.store, nodes, references, stores, destination.url
            count, size = sync(get_loop(), _write, *arguments, is_new=is_new)
            stores.save(storage)
            commit(repository, branch, session, settings.get("message"), destination.origins())
        remarks = []
        if count:
            copies = f"{format_count(count, 'chunk')}, {format_bytes(size)}"
            remarks.append(f"{copies}, were copied into the repository: {_WHY}")
        if left_out:
            keys = f"{format_count(len(left_out), 'key is', 'keys are')} left out"
            remarks.append(f"{keys}, since they are neither metadata nor chunks: {', '.join(left_out[:NAMED])}")
        for prefix in stores.find():
            if protocol_of(prefix) == "s3" and _find_endpoint(destination.find_options(prefix))["region"] is None:
                advice = f"save with virtual_stores={{{prefix!r}: icechunk.s3_store(region=...)}}"
                remarks.append(f"other readers need AWS_REGION for {sanitize(prefix)}, or {advice}")
        return "; ".join(remarks) or None


def _require_icechunk() -> Any:
    try:
        import icechunk
    except ImportError as e:
        raise ImportError(
            "writing Icechunk repositories needs the package icechunk, which needs Python 3.12 or later: "
            "pip install 'refshard_fs[icechunk]'"
        ) from e
    if _parse_version(icechunk) < OLDEST:
        raise ImportError(
            f"writing Icechunk repositories needs icechunk {'.'.join(map(str, OLDEST))} or later, on Python 3.12 or "
            f"later: found {icechunk.__version__}: pip install 'refshard_fs[icechunk]'"
        )
    return icechunk


def _parse_version(package: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in package.__version__.split(".")[:2] if part.isdecimal())


@contextlib.contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """Raise OSError in place of Icechunk's own errors, whose texts have many lines."""
    icechunk = _require_icechunk()
    try:
        yield
    except icechunk.IcechunkError as e:
        reason = str(e).partition("\n")[0]
        advice = ": client_kwargs={'region_name': ...} sets it, or AWS_REGION" if "region must be set" in reason else ""
        raise OSError(sanitize(f"Icechunk cannot write to {url}: {reason}{advice}")) from e


def _open_repository(storage: Any, destination: Destination) -> tuple[Any, bool]:
    """Return the repository, which is created if it does not exist, and whether it is new."""
    icechunk = _require_icechunk()
    if not icechunk.Repository.exists(storage):
        return _create_repository(storage, destination), True
    repository = icechunk.Repository.open(storage)
    # A save that failed leaves a repository without any commit.
    is_new = all(next(iter(repository.ancestry(branch=name))).parent_id is None for name in repository.list_branches())
    if not is_new and not destination.overwrite:
        raise FileExistsError(
            f"{destination.url} holds an Icechunk repository: overwrite=True commits the set in place of its content"
        )
    return repository, is_new


def _create_repository(storage: Any, destination: Destination) -> Any:
    icechunk = _require_icechunk()
    try:
        return icechunk.Repository.create(storage)
    except icechunk.InvalidInputError as e:
        assert isinstance(destination.objects, Objects), "a repository has several objects"
        names = set(destination.objects.list_names())
        if REPO not in names and not names <= REMAINS:
            raise FileExistsError(
                f"{destination.url} is not empty, and it is not an Icechunk repository: give another place"
            ) from e
    except icechunk.ConflictError as e:
        raise ConflictError(_MADE_TWICE.format(destination.url)) from e
    try:
        return icechunk.Repository.create(storage, check_clean_root=False)
    except icechunk.ConflictError as e:
        raise ConflictError(_MADE_TWICE.format(destination.url)) from e


def open_session(repository: Any, branch: str) -> Any:
    """Return a writable session at ``branch``; if it does not exist, at the main branch: `commit` then creates it."""
    return repository.writable_session(branch if branch in repository.list_branches() else MAIN_BRANCH)


def commit(repository: Any, branch: str, session: Any, message: str | None, origins: Origins) -> None:
    """Commit the writes of a session to ``branch``. ConflictError if another process committed to it meanwhile."""
    icechunk = _require_icechunk()
    message = message or "Written by refshard_fs"
    metadata = {ORIGINS: json.dumps(origins.to_json())} if origins else None
    try:
        if session.branch == branch:
            session.commit(message, metadata=metadata, allow_empty=True)
        else:  # create the branch last, so that readers never see it without its commit
            repository.create_branch(branch, session.flush(message, metadata=metadata))
    except (icechunk.ConflictError, icechunk.AlreadyExistsError) as e:
        raise ConflictError(
            f"another process committed to the branch {branch!r}: nothing was written. Open the repository again, and "
            "repeat your writes"
        ) from e


def make_storage(url: str, options: Mapping[str, Any]) -> Any:
    """Return Icechunk's storage at ``url``, with fsspec's ``options``."""
    icechunk = _require_icechunk()
    protocol = protocol_of(url)
    if protocol in (None, "file", "local"):
        path = os.path.abspath(os.path.expanduser(url.removeprefix("file://").removeprefix("local://")))
        return icechunk.local_filesystem_storage(path)
    refused = (*OTHER_CREDENTIALS, "token") if protocol in GCS else OTHER_CREDENTIALS
    if others := [name for name in refused if options.get(name) is not None]:
        raise ValueError(
            f"Icechunk cannot write to {url} with {others[0]}=: expected key=, secret= and token= (s3://), "
            "account_name= and account_key= (az://), or the credentials of the environment"
        )
    parts = urlsplit(url)
    prefix = parts.path.strip("/")
    if protocol in S3:
        key = options.get("key")
        return icechunk.s3_storage(
            bucket=parts.netloc,
            prefix=prefix,
            **_find_endpoint(options),
            access_key_id=key,
            secret_access_key=options.get("secret"),
            session_token=options.get("token"),
            anonymous=True if options.get("anon") else None,
            from_env=None if key or options.get("anon") else True,
        )
    if protocol in GCS:
        return icechunk.gcs_storage(bucket=parts.netloc, prefix=prefix, from_env=True)
    if protocol in ("az", "abfs") and options.get("account_name"):
        account, key = options["account_name"], options.get("account_key")
        from_env = None if key else True
        return icechunk.azure_storage(
            account=account, container=parts.netloc, prefix=prefix, access_key=key, from_env=from_env
        )
    raise ValueError(
        f"no Icechunk repository can be written to {url}: expected a path, s3://, gs://, or az:// with account_name="
    )


class VirtualStores:
    """The stores in which the targets of virtual chunks lie, by the prefix of their locations.

    A repository lists the stores in its configuration, and readers authorise each of them. ``user_stores`` come first.
    The region and the endpoint of other buckets are those in fsspec's options, which ``find_options`` returns.
    """

    def __init__(self, user_stores: Mapping[str, Any], find_options: Callable[[str], Any]) -> None:
        self._user_stores = user_stores
        self._find_options = find_options
        self._beginnings: dict[str, str | None] = {}  # of locations, by the directory of the URL
        self._urls: dict[str, str] = {}  # a URL below each prefix
        for prefix, store in user_stores.items():
            _make_container(prefix, store)  # refuses invalid objects before anything is written

    def locate(self, urls: Sequence[str | None]) -> Sequence[str | None]:
        """Return ``urls`` in Icechunk's spelling, None for those that Icechunk cannot read; remember their stores."""
        server = find_common_server(urls)
        if server is not None and self._keeps_urls(server, urls):
            self._locate_first(urls[0])
            return urls
        found: list[str | None] = []
        for url in urls:
            directory, _, name = (url or "").rpartition("/")
            if url is None or directory not in self._beginnings or not _is_plain(name):
                location = self._locate_first(url)
                if _is_plain(name) and not directory.endswith("/"):  # "s3:/" is not a directory
                    self._beginnings[directory] = location and location.removesuffix(name)
            else:
                beginning = self._beginnings[directory]
                location = beginning and beginning + name
            found.append(location)
        return found

    def _keeps_urls(self, server: str, urls: Sequence[str | None]) -> bool:
        """Return whether ``urls``, all of one ``server``, are in Icechunk's spelling, and lie in one store."""
        if not server.startswith(AS_WRITTEN) or any(prefix.startswith(server) for prefix in self._user_stores):
            return False
        text = "".join(filter(None, urls))
        return text.count(":") == len(urls) and _are_plain_urls(text) is not None

    def _locate_first(self, url: str | None) -> str | None:
        """Return the location of ``url``, and remember its store."""
        location = _make_location(url)
        if location is not None and not location.startswith(tuple(self._user_stores)):
            self._urls.setdefault(_find_prefix(location), url or "")
        return location

    def find(self) -> dict[str, Any]:
        """Return the stores that the user did not give, by prefix."""
        icechunk = _require_icechunk()
        stores: dict[str, Any] = {}
        for prefix in _merge_directories(self._urls):
            protocol = protocol_of(prefix)
            if protocol == "file":
                stores[prefix] = icechunk.local_filesystem_store("/" + prefix.removeprefix("file:///"))
            elif protocol == "s3":
                stores[prefix] = icechunk.s3_store(**_find_endpoint(self._find_options(self._urls[prefix])))
            elif protocol in GCS:
                stores[prefix] = icechunk.gcs_store()
            else:
                stores[prefix] = icechunk.http_store()
        return stores

    def save(self, storage: Any) -> None:
        """Add the stores to the configuration of a repository; only the user's stores replace known ones."""
        icechunk = _require_icechunk()
        config = icechunk.Repository.fetch_config(storage) or icechunk.RepositoryConfig.default()
        known = tuple(config.virtual_chunk_containers or ())
        added = {prefix: store for prefix, store in self.find().items() if not prefix.startswith(known)}
        for prefix, store in {**added, **self._user_stores}.items():
            config.set_virtual_chunk_container(_make_container(prefix, store))
        if added or self._user_stores:
            icechunk.Repository.open(storage, config).save_config()


def _make_container(prefix: str, store: Any) -> Any:
    try:
        return _require_icechunk().VirtualChunkContainer(prefix, store)
    except TypeError as e:
        raise TypeError(
            f"invalid virtual_stores={{{prefix!r}: {store!r}}}: expected an object such as "
            "icechunk.s3_store(region=...)"
        ) from e


def _merge_directories(prefixes: Iterable[str]) -> list[str]:
    """Replace the deepest local directories by the directories above them, until there are at most `MOST_DIRECTORIES`.

    Each chunk of a local zarr store may lie in a directory of its own.
    """
    others = [prefix for prefix in prefixes if not prefix.startswith("file:")]
    local = {prefix for prefix in prefixes if prefix.startswith("file:")}
    while len(local) > MOST_DIRECTORIES and (deepest := max(map(_count_steps, local))) > 1:
        local = {
            prefix[: prefix.rindex("/", 0, -1) + 1] if _count_steps(prefix) == deepest else prefix for prefix in local
        }
    return [*others, *sorted(local)]


def _count_steps(prefix: str) -> int:
    """Return the number of directories in the prefix of a local store."""
    return prefix.removeprefix("file:///").count("/")


def _find_endpoint(options: Any) -> dict[str, Any]:
    """Return icechunk's arguments for the endpoint and the region in fsspec's ``options`` for S3.

    If ``options`` is a filesystem or another object, both are unknown.
    """
    options = options if isinstance(options, Mapping) else {}
    client = options.get("client_kwargs") or {}
    endpoint = options.get("endpoint_url") or client.get("endpoint_url")
    return {
        "region": client.get("region_name") or ("us-east-1" if endpoint else None),
        "endpoint_url": endpoint,
        "allow_http": bool(endpoint and endpoint.startswith("http://")),
        "force_path_style": endpoint is not None,
    }


def _find_prefix(location: str) -> str:
    """Return the prefix of the store that holds ``location``: a bucket, a server, or a directory of this machine.

    Icechunk finds no store by a prefix with percent-encoded characters, so the directory is above names with these.
    """
    parts = urlsplit(location)
    if parts.scheme == "file":
        return location.partition("%")[0].rpartition("/")[0] + "/"
    return f"{parts.scheme}://{parts.netloc}/"


def _make_location(url: str | None) -> str | None:
    """Return ``url`` in Icechunk's spelling; None if Icechunk cannot read it."""
    if url is None or "::" in url:
        return None
    protocol = protocol_of(url)
    if protocol in (None, "file", "local"):
        path = url.removeprefix("file://").removeprefix("local://")
        location = "file://" + quote(path)
        can_read = os.path.isabs(path) and _find_prefix(location) != "file:///"  # the root cannot be a prefix
        return location if can_read else None
    if protocol in WEB:
        return url
    if protocol in (*S3, *GCS):
        parts = url.partition("://")[2]
        return f"{'s3' if protocol in S3 else 'gs'}://{quote(parts)}"
    return None


def _divide_documents(references: ReferenceStream) -> tuple[list[tuple[str, Any]], list[str]]:
    """Return the documents for a repository, and the keys that it cannot hold.

    The keys within an array count as documents: a chunk that does not fit the metadata must be an error.
    """
    documents, left_out = [], []
    for key, value in references.documents():
        if zarrmeta.is_metadata(key) or find_nearest(key, references.grids) is not None:
            documents.append((key, value))
        else:
            left_out.append(key)
    return documents, left_out


async def _write(
    store: Any,
    nodes: Mapping[str, Mapping[str, Any]],
    references: ReferenceStream,
    stores: VirtualStores,
    url: str,
    *,
    is_new: bool,
) -> tuple[int, int]:
    """Write all of ``references`` to a session's store; return how many chunks were copied, and how many bytes."""
    if not is_new:
        await store.clear()
    for path in sorted(nodes):
        key = join(path, "zarr.json")
        await put_document(store, key, encode_document(nodes[path], key))
    count = size = 0
    left: dict[str, list[range]] = {}
    for array, grid in references.grids.items():
        partitions = references.partitions(array, ROWS)
        while (part := await asyncio.to_thread(next, partitions, None)) is not None:
            native, bytes_ = await put_virtual(store, array, grid, *part, stores)
            count, size = count + native, size + bytes_
            if native:
                left.setdefault(array, []).append(part[0])
    logger.log(
        logging.WARNING if size > COPIED else logging.INFO,
        "%s, about %s, are copied into %s: %s",
        *(format_count(count, "chunk"), format_bytes(size), sanitize(url), _WHY),
    )
    size = 0
    for array, blocks in left.items():
        for numbers in blocks:
            chunks = await asyncio.to_thread(references.chunks, array, numbers)
            size += await put_native(store, array, references.grids[array], numbers, chunks, stores, references.read)
    return count, size


def encode_document(document: Mapping[str, Any], key: str) -> bytes:
    """Return the metadata of a node. Icechunk accepts only one encoding of keys, and JSON without NaN."""
    if document.get("node_type") not in ("array", "group"):
        raise ManifestError(f"{key!r} has node_type={document.get('node_type')!r}: expected 'array' or 'group'")
    if document.get("node_type") == "array":
        encoding = {"name": "default", "configuration": {"separator": "/"}}
        document = {**document, "chunk_key_encoding": encoding}
    return zarrmeta.dumps(zarrmeta.replace_non_finite(document))


async def put_document(store: Any, key: str, document: bytes) -> None:
    """Put the metadata of a node into zarr's ``store``; ManifestError if Icechunk refuses them."""
    try:
        await put(store, {key: document})
    except _require_icechunk().InvalidInputError as e:
        reason = str(e).partition("\n")[0]
        attributes = zarrmeta.shorten(zarrmeta.loads(document).get("attributes"))
        raise ManifestError(
            f"{key!r}: Icechunk refuses its metadata ({reason}), with the attributes {attributes}. Save the set as "
            "JSON or parquet"
        ) from e


def _refuse_empty(array: str, grid: ChunkGrid, numbers: range, chunks: Chunks) -> None:
    """Raise ManifestError for chunks without bytes, which Icechunk cannot hold."""
    rows = np.flatnonzero((chunks.ranges.targets != NO_TARGET) & (chunks.ranges.lengths == 0)).tolist()
    for row in (*rows, *(row for row, data in chunks.inline.items() if not data)):
        key = join(array, grid.tail(numbers.start + row))
        raise ManifestError(
            f"{key!r} has no bytes: an Icechunk repository cannot hold a chunk of length 0. Save the set as JSON or "
            "parquet"
        )


async def put_virtual(
    store: Any, array: str, grid: ChunkGrid, numbers: range, chunks: Chunks, stores: VirtualStores
) -> tuple[int, int]:
    """Set virtual chunks: ranges of objects that Icechunk can read. Save ``stores`` before the commit.

    Return the number of the other chunks, which `put_native` copies, and about how many bytes they have.
    """
    if max(grid.counts, default=0) > MOST_CHUNKS:
        raise ManifestError(
            f"{array!r} has {grid.counts} chunks: Icechunk holds at most {MOST_CHUNKS} along a dimension. Save the set "
            "as JSON or parquet"
        )
    _refuse_empty(array, grid, numbers, chunks)
    locations = stores.locate(chunks.urls)
    others = _list_native(array, grid, numbers, chunks, locations)
    size = sum(len(entry) if isinstance(entry, bytes) else entry.size or 0 for entry in others.values())
    left = len(others), size
    is_readable = np.array([location is not None for location in locations], bool)
    targets, _, lengths = chunks.ranges
    rows = np.flatnonzero(targets != NO_TARGET)
    rows = rows[is_readable[targets[rows]] & (lengths[rows] != WHOLE)]
    if len(rows):
        texts = [location or "" for location in locations]
        failed = await asyncio.to_thread(_set_references, store, array, grid, numbers, chunks, rows, texts)
        if failed:
            raise ManifestError(
                f"{array!r}: Icechunk refuses the references of {len(failed)} chunks, such as {failed[0]}. Save the "
                "set as JSON or parquet"
            )
    return left


def _set_references(
    store: Any, array: str, grid: ChunkGrid, numbers: range, chunks: Chunks, rows: IntArray, texts: Sequence[str]
) -> list[tuple[int, ...]]:
    """Set the chunks in ``rows``, whose targets are at ``texts``; return the indexes of chunks that icechunk refuses.

    A call of icechunk takes a box of chunks that have one version, or objects for single chunks, which take longer.
    """
    targets, offsets, lengths = chunks.ranges
    versions, codes = _list_versions(rows, chunks, texts)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(codes)) + 1])  # of runs of rows with the same version
    if len(rows) < LEAST_RUN * len(starts):
        return _set_single_references(store, array, grid, numbers, chunks, rows, texts, versions, codes)
    names = [""] * len(numbers)  # empty names for missing chunks
    for row, target in zip(rows.tolist(), targets[rows].tolist(), strict=True):
        names[row] = texts[target]
    failed: list[tuple[int, ...]] = []
    runs = zip(rows[starts], rows[np.append(starts[1:], len(rows)) - 1] + 1, codes[starts], strict=True)
    for first, last, code in ((*map(int, run),) for run in runs):
        at = first
        for corner, shape in cut_to_boxes(grid.counts, numbers.start + first, numbers.start + last):
            part = slice(at, at + math.prod(shape))
            columns = names[part], offsets[part], lengths[part]
            options = {"arr_offset": corner, "checksum": versions[code], "validate_containers": False}
            failed += store.set_virtual_refs_arr(array, shape, *columns, **options) or ()
            at = part.stop
    return failed


def _set_single_references(
    store: Any,
    array: str,
    grid: ChunkGrid,
    numbers: range,
    chunks: Chunks,
    rows: IntArray,
    texts: Sequence[str],
    versions: Sequence[str | datetime | None],
    codes: IntArray,
) -> list[tuple[int, ...]]:
    """Set the chunks in ``rows`` by an object for each; ``codes`` are the indexes of their ``versions``."""
    from icechunk import VirtualChunkSpec

    targets, offsets, lengths = (column[rows].tolist() for column in chunks.ranges)
    indexes: Iterable[tuple[int, ...]] = repeat((), len(rows))
    if grid.counts:
        indexes = zip(*(axis.tolist() for axis in np.unravel_index(rows + numbers.start, grid.counts)), strict=True)
    columns = [versions]
    if datetime in set(map(type, versions)):
        columns = [[version if isinstance(version, kind) else None for version in versions] for kind in (str, datetime)]
    checks = (map(column.__getitem__, codes.tolist()) for column in columns)
    specs = map(VirtualChunkSpec, indexes, map(texts.__getitem__, targets), offsets, lengths, *checks)
    failed: list[tuple[int, ...]] = store.set_virtual_refs(array, list(specs), validate_containers=False) or []
    return failed


async def put_native(
    store: Any, array: str, grid: ChunkGrid, numbers: range, chunks: Chunks, stores: VirtualStores, read: Read
) -> int:
    """Copy the chunks that `put_virtual` leaves, about `COPIED` bytes at a time; return how many bytes they have."""
    native = _list_native(array, grid, numbers, chunks, stores.locate(chunks.urls))
    size = 0
    ends = accumulate(len(entry) if isinstance(entry, bytes) else entry.size or 0 for entry in native.values())
    for _, batch in groupby(zip(native, ends, strict=True), lambda pair: pair[1] // COPIED):
        keys = [key for key, _ in batch]
        data = await asyncio.to_thread(read, {key: native[key] for key in keys})
        await put(store, dict(zip(keys, data, strict=True)))
        size += sum(map(len, data))
    return size


def _list_versions(
    rows: IntArray, chunks: Chunks, texts: Sequence[str]
) -> tuple[Sequence[str | datetime | None], IntArray]:
    """Return versions that Icechunk checks, and for each of ``rows`` the index of its version.

    ``texts`` are the locations of the targets.
    """
    if not chunks.pins and not chunks.checks:
        return [None], np.zeros(len(rows), np.int64)
    pins = [pin or Pin() for pin in chunks.pins or [None] * len(texts)]
    versions = [  # calls for targets that have an ETag, and lie on no web server, would take half of the time
        pin.etag if pin.etag is not None and text[:1] not in "hH" else _find_version(pin.etag, pin.last_modified, text)
        for pin, text in zip(pins, texts, strict=True)
    ]
    targets = chunks.ranges.targets
    if not chunks.checks and len(rows) < LEAST_RUN * len(set(versions)):  # runs are too short to group chunks
        return versions, targets[rows].astype(np.int64)
    codes = {version: code for code, version in enumerate(dict.fromkeys(versions))}
    code_of_target = list(map(codes.__getitem__, versions))
    code_of_row = np.array(code_of_target, np.int64)[targets[rows]]
    for place in np.flatnonzero(np.isin(rows, list(chunks.checks))).tolist():
        row = int(rows[place])
        target = int(targets[row])
        facts = {**pins[target].version, **chunks.checks[row]}
        version = _find_version(facts.get("etag"), facts.get("last_modified"), texts[target])
        code_of_row[place] = codes.setdefault(version, len(codes))
    return list(codes), code_of_row


def _find_version(etag: str | None, time: str | None, location: str) -> str | datetime | None:
    """Return the version of a target that Icechunk checks: its ETag, or the time of its last modification."""
    if etag is not None and location[:4].lower() != "http":  # web servers refuse ETags as Icechunk sends them: unquoted
        return etag
    if time is None:
        return None
    try:
        return datetime.fromtimestamp(math.ceil(float(time)), UTC)
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(time)
    except ValueError:
        return datetime.fromisoformat(time)


def _list_native(
    array: str, grid: ChunkGrid, numbers: range, chunks: Chunks, locations: Sequence[str | None]
) -> dict[str, Entry | bytes]:
    """Return the chunks that have to be copied, by their keys in the repository."""
    native: dict[int, Entry | bytes] = {**chunks.inline, **chunks.packed}
    targets, offsets, lengths = chunks.ranges
    is_left = np.array([location is None for location in (*locations, "")], bool)[np.minimum(targets, len(locations))]
    for row in np.flatnonzero((targets != NO_TARGET) & (is_left | (lengths == WHOLE))).tolist():
        url = chunks.urls[targets[row]]
        stop = None if lengths[row] == WHOLE else int(offsets[row] + lengths[row])
        if url is not None:
            native[row] = Span(url, int(offsets[row]), stop)
    return {make_key(array, grid, numbers.start + row): native[row] for row in sorted(native)}


def make_key(array: str, grid: ChunkGrid, number: int) -> str:
    """Return the key that a chunk has in a repository."""
    return join(array, "/".join(["c", *map(str, grid.coords(number))]))


async def put(store: Any, objects: Mapping[str, bytes]) -> None:
    """Put ``objects``, by key, into zarr's ``store``, several at a time."""
    from zarr.core.buffer import default_buffer_prototype

    make = default_buffer_prototype().buffer.from_bytes
    items = list(objects.items())
    for start in range(0, len(items), TOGETHER):
        await asyncio.gather(*(store.set(key, make(data)) for key, data in items[start : start + TOGETHER]))
