"""The keys of a reference set as a key space: looked up and listed, URLs resolved. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from refshard_fs.core.columns import ABSENT, Row, Tables
from refshard_fs.core.directories import Listing, by_name, chunks_below, has_chunks_below
from refshard_fs.core.keys import join, parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Inline, Listed, Pin, Span, Steps
from refshard_fs.core.swar import Positions
from refshard_fs.errors import ManifestError, redacted
from refshard_fs.references.key_table import SideTable
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import METADATA, Value, decode

__all__ = ["FlatKeySpace"]

FEW: Final = 64  # names that are put among many others one by one

_NOTHING: Final[dict[str, bool]] = {}


class FlatKeySpace(KeySpace):
    """The keys of a reference set, its URLs resolved: ``resolve`` maps a URL as written to an absolute one."""

    in_memory = True

    def __init__(self, refs: ReferenceSet, resolve: Callable[[str | None], str], where: str) -> None:
        self.refs = refs
        self.where = where
        self.grids = refs.grids
        self.urls = refs.urls
        self.document_url = where
        self._resolve = resolve
        self._urls: list[str | None] = [None] * len(refs.urls)
        self._pins: dict[int, Pin | None] = {}
        self._tree: dict[str, dict[str, bool]] | None = None
        # Of a table of what lies aside, by directory. Made with the tree, in which directories without others are not.
        self._rows: Mapping[str, Positions] = {}
        self._holds_all_metadata: bool | None = None
        self._document_rows: Positions | None = None

    def find(self, key: str) -> Entry | None:
        """Return the entry of ``key``, or None; no further reads are ever needed."""
        value = self.refs.value(key)
        match value:
            case Row():
                try:
                    return self._span(value)
                except ManifestError as e:
                    raise ManifestError(f"{key!r} of {redacted(self.where)}: {e}") from e
            case None:
                return None
            case _:
                try:
                    return Inline(decode(value))
                except ValueError as e:
                    raise ManifestError(f"{key!r} of {redacted(self.where)}: {e}") from e

    @property
    def holds_all_metadata(self) -> bool:  # type: ignore[override]  # found when it is asked
        """Whether the metadata of every array is inline, and so no array can be learnt of by reading."""
        if self._holds_all_metadata is None:
            match self.refs.by_key:
                case SideTable() as table:
                    self._holds_all_metadata = bool((table.columns.targets[self._documents(table)] == ABSENT).all())
                case side:
                    self._holds_all_metadata = Row not in set(map(type, side.values())) or not any(
                        type(value) is Row and parent(key)[1] in METADATA
                        for key, value in side.items()
                        if key.endswith(METADATA)
                    )
        return self._holds_all_metadata

    def _documents(self, table: SideTable) -> Positions:
        """Return the rows of ``table``, which lies aside, that are metadata of arrays."""
        if self._document_rows is None:
            self._document_rows = table.named(METADATA)
        return self._document_rows

    def metadata_lacks(self, marks: tuple[bytes, ...]) -> bool:
        """Whether the metadata of the root and of every array is at hand as text, without any of ``marks``."""
        if not self.holds_all_metadata:
            return False
        match self.refs.by_key:
            case SideTable() as table:
                rows = self._documents(table)
                return len(self.refs.in_columns) <= len(rows) and table.lacks(rows, marks)
        get = self.refs.by_key.get
        stems = ["", *(path + "/" for path in self.refs.in_columns if path)]
        old, new = [get(stem + ".zarray") for stem in stems], [get(stem + "zarr.json") for stem in stems]
        if not set(map(type, chain(old, new))) <= {str, type(None)}:
            return False
        if any(a is None and b is None for a, b in zip(old[1:], new[1:], strict=True)):
            return False
        texts = {str(text) for text in {*old, *new} if text is not None}
        return not any(text.startswith("base64:") or any(mark.decode() in text for mark in marks) for text in texts)

    def lookup(self, key: str) -> Steps[Entry | None]:
        yield from ()
        return self.find(key)

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        yield from ()
        tree = self._directories()
        names = tree.get(prefix, _NOTHING if prefix in self._rows else None)
        stem = prefix + "/" if prefix else ""
        found = [chunks_below(self.refs.in_columns[path], below, stem) for path, below in self._tables_at(prefix)]
        many = [chunks for chunks in found if chunks]
        if names is None:
            aside = []
        else:
            aside = [
                Listed(name, None if is_directory else self._size(join(prefix, name)), is_directory)
                for name, is_directory in sorted(names.items())
            ]
            many += self._files_in_columns(prefix, stem)
            if not many:
                return aside
        listings = [listing for listing in many if isinstance(listing, Listing)]
        if len(listings) == len(many) > 1:  # of one name, what is aside hides what is in columns: it is the last
            together = dict[str, int | None]()
            for part in listings:
                together.update(zip(part.paths, part.sizes, strict=True))
            paths = sorted(together)
            many = [Listing(stem, paths, list(map(together.__getitem__, paths)))]
        match many:
            case []:
                return None
            case [Listing() as listing] if len(aside) <= FEW and not any(child.is_directory for child in aside):
                for file in aside:
                    listing.insert(file)
                return listing
        # Of one name, what is kept aside hides what the columns have.
        merged = {child.name: child for child in chain(*many, aside)}
        return sorted(merged.values(), key=by_name)

    def is_directory(self, prefix: str) -> Steps[bool]:
        yield from ()
        if prefix in self._directories() or prefix in self._rows:
            return True
        return any(has_chunks_below(self.refs.in_columns[path], below) for path, below in self._tables_at(prefix))

    def url(self, target: int) -> str:
        """Return the absolute URL of a row's ``target``."""
        url = self._urls[target]
        if url is None:
            url = self._urls[target] = self._resolve(self.refs.urls[target])
        return url

    def _span(self, row: Row) -> Span:
        url = self._urls[row.target] or self.url(row.target)
        stop = None if row.length is None else row.offset + row.length
        if self.refs.pins is None:
            return Span(url, row.offset, stop)
        return Span(url, row.offset, stop, pin=self.pin(row.target))

    def pin(self, target: int) -> Pin | None:
        """Return what a row's ``target`` must be, if the set says so."""
        if self.refs.pins is not None and target not in self._pins:
            self._pins[target] = self.refs.pins.pin(target)
        return self._pins.get(target)

    def _size(self, key: str) -> int | None:
        return self._size_of(key, self.refs.by_key[key])

    def _size_of(self, key: str, value: Value) -> int | None:
        if isinstance(value, Row):
            pin = self.pin(value.target) if value.length is None else None
            return value.length if pin is None else pin.size
        entry = self.find(key)
        return None if entry is None else entry.size

    def _files_in_columns(self, prefix: str, stem: str) -> Iterator[Listing]:
        """Yield what a table of what lies aside has directly below ``prefix``."""
        match self.refs.by_key:
            case SideTable() as table if prefix in self._rows:
                rows = self._rows[prefix]
                paths = table.keys_of(rows)
                sizes = table.sizes(rows)
                closer = {-1} if self.refs.pins is None else {-1, None}
                for i in [i for i, size in enumerate(sizes) if size in closer]:
                    sizes[i] = self._size_of(paths[i], table.value(int(rows[i])))
                order = sorted(range(len(paths)), key=paths.__getitem__)
                yield Listing(stem, [paths[i] for i in order], [sizes[i] for i in order])

    def _directories(self) -> dict[str, dict[str, bool]]:
        """Directory → name → whether that is one, of all that is not in columns; built at the first listing."""
        if self._tree is None:
            tree: dict[str, dict[str, bool]] = {"": {}}
            match self.refs.by_key:
                case SideTable() as table:
                    self._rows = table.directories()
                    _add_directories(tree, self._rows)
                case side:
                    for key in side:
                        directory, name = parent(key)
                        if directory not in tree:
                            tree[directory] = {}
                            _add_directories(tree, [directory])
                        tree[directory].setdefault(name, False)
            match self.refs.in_columns:
                case Tables() as tables:
                    _add_directories(tree, tables.full())
                case own:
                    _add_directories(tree, (path for path, chunks in own.items() if chunks))
            self._tree = tree
        return self._tree

    def _tables_at(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yield (array, rest) for each way to read ``prefix`` as a directory of chunks of an array."""
        if prefix in self.refs.in_columns:
            yield prefix, ""
        end = len(prefix)
        while end > 0:
            end = prefix.rfind("/", 0, end)
            path = prefix[:end] if end >= 0 else ""
            if path in self.refs.in_columns:
                yield path, prefix[end + 1 :]


def _add_directories(tree: dict[str, dict[str, bool]], paths: Iterable[str]) -> None:
    """Put directories, and those that they lie in, into a tree."""
    while paths:
        new = list[str]()
        for path in paths:
            if path:
                directory, _, name = path.rpartition("/")
                below = tree.get(directory)
                if below is None:
                    tree[directory] = {name: True}
                    new.append(directory)
                else:
                    below[name] = True
        paths = new
