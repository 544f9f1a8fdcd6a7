"""Write the references of a source in the format of a sink, one partition at a time.

Memory does not grow with the number of references if the source is a reference set, or if an Icechunk repository is
written from a source whose chunks are all ranges. References of other sources are collected in memory first.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
import uuid
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, BinaryIO, Final

from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs.core.columns import Row
from refshard_fs.core.edits import unwrap_if_unedited
from refshard_fs.core.format import OpenOptions
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Span
from refshard_fs.core.stats import format_bytes, format_count
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.stream import ReferenceStream, Respell, keep_url
from refshard_fs.references.values import make_resolver
from refshard_fs.security import policy
from refshard_fs.security.origins import NOTHING, Adoption, Origins
from refshard_fs.sinks import find_sink, load_sinks
from refshard_fs.sinks.sink import Destination, Sink
from refshard_fs.source.collect import Checks, Collection, collect, collect_keys, gather
from refshard_fs.source.settings import choose_data_url
from refshard_fs.source.source import Source
from refshard_fs.stores.objects import Objects

logger = logging.getLogger(__package__)

NOTEWORTHY: Final = 1 << 20  # bytes of copies in a set from which a warning says how many there are


def save(
    keyspace: KeySpace,
    source: Source,
    url: str,
    format: str,
    record_size: int,
    overwrite: bool,
    options: Mapping[str, Any],
    callback: Callback = DEFAULT_CALLBACK,
) -> str | None:
    """Write the references of ``keyspace`` to ``url``. Relative URLs are changed, so that targets stay the same.

    Return a remark for the user, such as a line about copies in an object beside the set; or None. Raise ManifestError,
    which names the key, if the format cannot hold a reference: then nothing is written. Raise FileExistsError if
    ``url`` is the source, or a directory that is not empty, unless ``overwrite`` permits to replace the set in it.
    """
    sink = find_sink(format)
    settings = {name: options[name] for name in sink.settings if name in options}
    options = {name: value for name, value in options.items() if name not in settings}
    _check_settings(sink, options)
    objects = Objects(url, options)
    spell = partial(make_speller, source.options.open, source.options.source)
    whole, spelled = spell(), spell(url if sink.holds_relative_urls else None)
    rule = source.admission
    adoption = Adoption(rule)  # the new set is the user's own
    recorded = NOTHING

    @cache  # many references have the same URL
    def respell(written: str | None) -> str | None:
        adoption.add(whole(written))
        return spelled(written)

    found = unwrap_if_unedited(keyspace).whole_shards
    if found.root_url is not None and objects.is_at(found.root_url):
        raise FileExistsError(f"these references are read from {url}: give another URL, or use commit()")
    folder = choose_data_url(make_absolute(url), None)
    with contextlib.nullcontext() if folder is None else CopiesBeside(folder, options, callback) as copies:
        if found.edits is not None:
            for edit in found.edits.list_changes().values():
                if isinstance(edit, Span) and not edit.origin:
                    adoption.add_own(edit.url)
        if rule.admits_all:
            stream = make_stream(found, source, spelled, copies, sink, keeps_absolute=True)
        else:
            stream = make_stream(found, source, respell, copies, sink)
        callback.set_size(sink.passes(stream) * sum(grid.size for grid in stream.grids.values()))
        stream.on_progress = callback.relative_update

        def origins() -> Origins:  # the origins of all references that were written so far
            if copies is not None and copies.remark is not None:
                adoption.add_own(copies.url)
            nonlocal recorded
            recorded = adoption.combine_origins(stream.origins)
            return recorded

        find_options = source.options.pool.find_options
        destination = Destination(url, objects, record_size, overwrite, origins, options, settings, find_options)
        remark = sink.write(stream, destination)
    if recorded.remark:
        warnings.warn(recorded.remark, UserWarning, stacklevel=3)
    return remark if copies is None or copies.remark is None else copies.remark


def _check_settings(sink: Sink, options: Iterable[str]) -> None:
    """Raise TypeError for an option that is the setting of another sink, or is spelled nearly like a setting.

    Filesystems ignore options that they do not know, so nobody would notice the mistake.
    """
    sinks = {setting: known.name for known in load_sinks().values() for setting in known.settings}
    for name in options:
        if name in sinks:
            raise TypeError(
                f"save has no argument {name}= for format={sink.name!r}: leave it out, or save with "
                f"format={sinks[name]!r}"
            )
        near = difflib.get_close_matches(name, sinks, 1, 0.8)
        if near:
            raise TypeError(f"save has no argument {name}=: did you mean {near[0]}=?")


def make_stream(
    keyspace: KeySpace,
    source: Source,
    respell: Respell,
    copies: CopiesBeside | None,
    sink: Sink | type[Sink],
    *,
    keeps_absolute: bool = False,
) -> ReferenceStream:
    """Return the references of ``keyspace`` in the form that ``sink`` accepts.

    If chunks are not ranges of objects, and the sink cannot hold them, they are stored inline, or in ``copies`` if they
    are too large together. ``keeps_absolute`` states that ``respell`` does not change URLs with a protocol.
    """
    run = source.run

    def read(entries: Mapping[str, Entry]) -> Sequence[bytes]:
        return source.wait(source.read_entries, entries)

    options: dict[str, Any] = {"read": read, "needs_lengths": sink.needs_lengths, "keeps_absolute": keeps_absolute}
    if keyspace.is_reference_set or (keyspace.has_only_ranges and sink.holds_versions and sink.holds_packed):
        return ReferenceStream(keyspace, run, respell, **options)
    checks: Checks = {}
    packed: dict[str, dict[int, Entry]] = {}
    if keyspace.edits is not None:
        refs, spell = collect(keyspace, run, respell), keep_url
    else:
        if sink.holds_packed:
            collection = run("", partial(collect_keys, keyspace, with_lengths=sink.needs_lengths, for_others=True))
            for packed_key in collection.packed:
                packed.setdefault(packed_key.array or "", {})[packed_key.number] = packed_key.entry
            refs, checks = collection.finish()
        elif copies is None:
            refs, checks = run("", partial(gather, keyspace))
        else:
            refs, checks = _gather_with_copies(keyspace, source, copies)

        def spell(url: str | None) -> str | None:
            is_own = url is None or (copies is not None and url == copies.url)
            return url if is_own else respell(make_absolute(url or ""))

    return ReferenceStream.of_set(refs, spell, checks, run, packed=packed, **options)


def _gather_with_copies(keyspace: KeySpace, source: Source, copies: CopiesBeside) -> tuple[ReferenceSet, Checks]:
    """Return references to all keys of ``keyspace``, as `gather` does, but without a limit for computed chunks.

    If these have more than `MAX_INLINE` bytes together, their bytes go to ``copies``.
    """
    collection = source.run("", partial(collect_keys, keyspace, for_others=True))
    is_much = collection.find_first_beyond_limit() is not None
    if sum(packed.size for packed in collection.packed) > NOTEWORTHY or is_much:
        _warn_of_copies(collection, keyspace, copies.url if is_much else "the set")
    if is_much:
        copies.begin(len(collection.packed))
        target = collection.urls.setdefault(copies.url, len(collection.urls))
    for batch in collection.iterate_batches():
        read = source.wait(source.read_entries, {packed.key: packed.entry for packed in batch})
        for packed, data in zip(batch, read, strict=True):
            collection.add_bytes(packed, Row(target, copies.add(data), len(data)) if is_much else data)
    copies.finish()
    return collection.finish()


def _warn_of_copies(collection: Collection, keyspace: KeySpace, where: str) -> None:
    """Log a warning: how many bytes will be copied to ``where``, and how to avoid that."""
    size = format_bytes(sum(packed.size for packed in collection.packed))
    space: KeySpace | None = keyspace
    while space is not None and space.cube is None:
        space = space.base
    advice = (
        "" if space is None else ". A name that ends in .refshard saves the document of the cube, and copies nothing"
    )
    count = format_count(len(collection.packed), "chunk")
    text = "%s, %s, are computed when they are read: references cannot describe them, so they are copied to %s%s"
    logger.warning(text, count, size, where, advice)


class CopiesBeside:
    """An object in ``folder`` with copies of computed chunks, for which there can be no references.

    The object is complete before the set that refers to it appears. Its name is new, so that readers of an older set
    at the same URL still have their copies. It is removed if the set is not written. ``callback`` counts the chunks.
    """

    def __init__(self, folder: str, options: Mapping[str, Any], callback: Callback) -> None:
        self._folder = Objects(folder, options)
        self._name = uuid.uuid4().hex
        self.url = self._folder.url_of(self._name)
        self._callback = callback
        self._opened = contextlib.ExitStack()
        self._file: BinaryIO | None = None
        self._count = self._size = 0

    def begin(self, count: int) -> None:
        """Open the object for ``count`` chunks."""
        self._file = self._opened.enter_context(self._folder.stream(self._name))
        self._callback.set_size(count)

    def add(self, data: bytes) -> int:
        """Append the bytes of one more chunk; return their offset."""
        assert self._file is not None, "begin() comes first"
        start = self._size
        self._file.write(data)
        self._count += 1
        self._size += len(data)
        self._callback.relative_update(1)
        return start

    def finish(self) -> None:
        """Complete the object, if there is one."""
        self._opened.close()
        self._callback.absolute_update(0)  # writing the set counts from zero

    @property
    def remark(self) -> str | None:
        """One line about the copies; None without copies."""
        if self._file is None:
            return None
        what = f"{format_count(self._count, 'chunk')}, {format_bytes(self._size)}"
        return (
            f"{what}, were copied to {self.url}, since references cannot describe them: keep this object with the set"
        )

    def __enter__(self) -> CopiesBeside:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._opened.__exit__(kind, error, trace)
        if kind is not None and self._file is not None:
            self._folder.remove(self._name)
            self._folder.tidy([self._name])


def make_speller(options: OpenOptions, source: object, url: str | None = None) -> Respell:
    """Return a function that converts URLs in the set ``source`` (its URL, or a source in memory) for a set at ``url``.

    A relative URL stays as it is if it names the same object in both sets. Otherwise, and if ``url`` is None, it
    becomes absolute.
    """
    resolve = make_resolver(options, policy.directory_of(source.rstrip("/")) if isinstance(source, str) else None)
    directory = None if url is None else policy.directory_of(make_absolute(url).rstrip("/"))

    def respell(written: str | None) -> str | None:
        if written is None:
            written = options.target
        if written is None or policy.has_protocol(written):
            return written
        if options.bare_as_is and options.base_url is None:
            return written
        whole = make_absolute(resolve(written))
        return written if directory and policy.resolve(written, directory, None) == whole else whole

    return respell


def make_absolute(url: str) -> str:
    """Return a URL, or a local path, as an absolute one."""
    is_absolute = url.startswith("/") and "//" not in url and "/." not in url and not url.endswith("/")
    if (is_absolute and "::" not in url) or policy.has_protocol(url):  # abspath takes ten times as long
        return url
    return os.path.abspath(os.path.expanduser(url))
