"""Look up keys in a reference set, and make its URLs absolute. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from refshard_fs.core.chunks import ArrayChunks, Chunks, Contents, Numbers
from refshard_fs.core.columns import NO_TARGET, Ranges, Row, find_distinct_codes
from refshard_fs.core.dtypes import LONG, check_length
from refshard_fs.core.keys import ChunkGrid, add_to_tree, is_within, iterate_splits, join, parent
from refshard_fs.core.keyspace import (
    KeySpace,
    Listing,
    find_chunk,
    has_chunks_below,
    list_chunks_below,
    merge_listings,
)
from refshard_fs.core.model import Entry, Inline, Listed, Origin, Pin, Span, Steps
from refshard_fs.core.zarrmeta import ArrayMeta, array_meta
from refshard_fs.errors import ManifestError
from refshard_fs.references.key_table import Value
from refshard_fs.references.pieces import Positions
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import METADATA, decode, object_in
from refshard_fs.security.origins import Origins


class FlatKeySpace(KeySpace):
    """The keys of a reference set; ``resolve`` makes a URL of the set absolute."""

    in_memory = True
    is_reference_set = True
    committed_as = "kerchunk-json"

    def __init__(self, refs: ReferenceSet, resolve: Callable[[str | None], str], where: str) -> None:
        self.refs = self.references = refs
        self.version = refs.version
        self.where = where
        self.grids = refs.grids
        self.urls = refs.urls
        self.document_url = where
        self._resolve = resolve
        self._urls: list[str | None] = [None] * len(refs.urls)
        self._pins: dict[int, Pin | None] = {}
        self._origins: dict[int, Origin] = {}
        self._has_only_urls = refs.pins is None and not refs.origins  # whether targets have neither pins nor origins

    def find(self, key: str) -> Entry | None:
        """Return the entry of ``key``; None if the key does not exist."""
        value = self.refs.get_value(key)
        if value is None:
            return None
        try:
            if type(value) is not Row:
                return Inline(decode(value))
            if value.length is not None and value.length > LONG:
                check_length(key, value.length, self._find_meta_above(key))
            return self._make_span(value)
        except ValueError as e:
            kind = type(e) if isinstance(e, ManifestError) else ManifestError
            raise kind(f"{key!r} of {self.where}: {e}") from e

    def _find_meta_above(self, key: str) -> ArrayMeta | None:
        """Return the inline metadata of the array that has the chunk ``key``; None if there are none."""
        at = find_chunk(self.grids, key)
        if at is None:
            return None
        for name in METADATA:
            document = join(at.array, name)
            value = self.refs.get_value(document)
            if value is not None and type(value) is not Row:
                return array_meta(object_in(value, document), document)
        return None

    @cached_property
    def _documents(self) -> Positions:
        """The rows in ``refs.keys`` of ``.zarray`` and ``zarr.json`` documents."""
        return self.refs.keys.keys_in_rows.find_named(METADATA)

    @cached_property
    def holds_all_metadata(self) -> bool:  # type: ignore[override]  # a property, since it depends on the set
        """Whether the metadata of every array are inline."""
        return bool((self.refs.keys.ranges.targets[self._documents] == NO_TARGET).all())

    def metadata_lacks(self, marks: tuple[bytes, ...]) -> bool:
        """Return whether all ``.zarray`` and ``zarr.json`` are plain text in the set, and contain none of ``marks``."""
        return len(self.refs.chunks) <= len(self._documents) and not self.refs.keys.has_marks(self._documents, marks)

    def lookup(self, key: str) -> Steps[Entry | None]:
        yield from ()
        return self.find(key)

    @property
    def order(self) -> Iterable[str]:
        return (parent(key)[0] for key in self.refs.keys.get_keys(self._documents).list_names())

    @property
    def origins(self) -> Origins:
        return self.refs.origins

    def resolve(self, url: str | None) -> str:
        return self._resolve(url)

    def contents(self, prefix: str = "", errors: dict[str, Exception] | None = None) -> Steps[Contents]:
        yield from ()
        members, inline = self._members
        arrays = {}
        for path, table in self.refs.tables.items():
            if is_within(path, prefix):
                numbers = table.list_present() if table.numbers is not None else [range(table.grid.size)]
                if isinstance(numbers, np.ndarray) and path in inline:
                    numbers = np.union1d(numbers, np.fromiter(inline[path], np.uint64, len(inline[path])))
                arrays[path] = ArrayChunks(table.grid, numbers)
        return Contents({key: value for key, value in members.items() if is_within(key, prefix)}, arrays)

    @cached_property
    def _members(self) -> tuple[dict[str, Any], dict[str, dict[int, Value]]]:
        """The members that are not chunks, by key; and the inline chunks, by array and number."""
        refs = self.refs
        members: dict[str, Any] = {}
        inline: dict[str, dict[int, Value]] = {}
        for key, value in refs.side.items():
            if type(value) is Row:
                members[key] = value.to_json(refs.urls[value.target])
            elif (at := find_chunk(self.grids, key)) is None:
                members[key] = value
            else:
                inline.setdefault(at.array, {})[at.number] = value
        return members, inline

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        if array not in self.refs.tables:  # the array's metadata are a reference: only a view has read them
            return (yield from super().chunks(array, numbers, grid))
        table = self.refs.tables[array]
        if isinstance(numbers, range):
            present = table.list_present(numbers.start, numbers.stop)
            rows = present.astype(np.int64) - numbers.start
        else:
            known = table.list_present()
            rows = np.flatnonzero(np.isin(numbers, known))
            present = numbers[rows]
        found = table.make_part(present).ranges
        targets, codes = find_distinct_codes(found.targets, len(self.refs.urls))
        ranges = Ranges.make_absent(len(numbers))
        ranges.put(rows, found._replace(targets=codes.astype(np.uint32)))
        pins = () if self.refs.pins is None else self.refs.pins.take(np.array(targets, np.int64))
        origins = [self.get_origin(target) for target in targets] if self.refs.origins else ()
        inline: dict[int, bytes] = {}
        values = self._members[1].get(array)
        if values:
            places = range(len(numbers)) if isinstance(numbers, range) else np.argsort(numbers).tolist()
            row_of = dict(
                zip(numbers if isinstance(numbers, range) else np.sort(numbers).tolist(), places, strict=True)
            )
            for number in values.keys() & row_of.keys():
                inline[row_of[number]] = self._decode_value(join(array, table.grid.tail(number)), values[number])
            ranges.targets[list(inline)] = NO_TARGET
        urls = self.refs.urls.take(np.array(targets, np.int64))
        return Chunks(urls, ranges, inline, pins=pins, origins=origins)

    def _decode_value(self, key: str, value: Value) -> bytes:
        try:
            return decode(value)
        except ValueError as e:
            raise ManifestError(f"{key!r} of {self.where}: {e}") from e

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        yield from ()
        stem = prefix + "/" if prefix else ""
        chunks = [
            list_chunks_below(self.refs.chunks[path], below, stem) for path, below in self._iterate_tables_at(prefix)
        ]
        directories = [Listed(name, None, True) for name in self._tree.get(prefix, ())]
        found = merge_listings(*chunks, self._list_files(prefix, stem), directories)
        return found if found or not prefix or prefix in self._rows else None

    def is_directory(self, prefix: str) -> Steps[bool]:
        yield from ()
        if prefix in self._tree or prefix in self._rows:
            return True
        return any(has_chunks_below(self.refs.chunks[path], below) for path, below in self._iterate_tables_at(prefix))

    def get_url(self, target: int) -> str:
        """Return the absolute URL of a row's ``target``."""
        url = self._urls[target]
        if url is None:
            url = self._urls[target] = self._resolve(self.refs.urls[target])
        return url

    def _make_span(self, row: Row) -> Span:
        url = self._urls[row.target] or self.get_url(row.target)
        stop = None if row.length is None else row.offset + row.length
        if self._has_only_urls:
            return Span(url, row.offset, stop)
        return Span(url, row.offset, stop, pin=self.get_pin(row.target), origin=self.get_origin(row.target))

    def get_pin(self, target: int) -> Pin | None:
        """Return the pin of a row's ``target``, if the set has one."""
        if self.refs.pins is not None and target not in self._pins:
            self._pins[target] = self.refs.pins.get_pin(target)
        return self._pins.get(target)

    def get_origin(self, target: int) -> Origin:
        """Return the origin of a row's ``target``: the servers of the sets from elsewhere that named its URL."""
        if not self.refs.origins:
            return ()
        found = self._origins.get(target)
        if found is None:
            found = self._origins[target] = self.refs.origins.of(self.get_url(target))
        return found

    @property
    def strangers(self) -> frozenset[str]:
        return self.refs.origins.servers

    def _list_files(self, prefix: str, stem: str) -> Sequence[Listed]:
        """List the members of ``refs.keys`` directly below ``prefix``."""
        keys, rows = self.refs.keys, self._rows.get(prefix)
        if rows is None:
            return []
        paths, known = keys.get_keys(rows).list_names(), keys.get_sizes(rows)
        sizes = [
            self._find_size(path, keys.get_value(int(row))) if size < 0 else size
            for path, size, row in zip(paths, known, rows, strict=True)
        ]
        order = sorted(range(len(paths)), key=paths.__getitem__)
        return Listing(stem, [paths[i] for i in order], [sizes[i] for i in order])

    def _find_size(self, key: str, value: Value) -> int | None:
        if isinstance(value, Row):
            pin = self.get_pin(value.target) if value.length is None else None
            return value.length if pin is None else pin.size
        entry = self.find(key)
        return None if entry is None else entry.size

    @cached_property
    def _rows(self) -> Mapping[str, Positions]:
        """The rows of ``refs.keys`` by directory."""
        return self.refs.keys.keys_in_rows.group_by_directory()

    @cached_property
    def _tree(self) -> dict[str, dict[str, bool]]:
        """The names of directories in each directory: path → name → True."""
        tree: dict[str, dict[str, bool]] = {"": {}}
        for path in chain(self._rows, (path for path, table in self.refs.chunks.items() if table)):
            add_to_tree(tree, path, is_directory=True)
        return tree

    def _iterate_tables_at(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yield (array, rest of the path) for each array in ``refs.chunks`` that is at or above ``prefix``."""
        return (at for at in ((prefix, ""), *iterate_splits(prefix)) if at[0] in self.refs.chunks)
