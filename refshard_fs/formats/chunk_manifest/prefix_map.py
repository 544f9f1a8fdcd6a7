"""A chunk manifest of a whole source: keys, and prefixes of keys, mapped to other places. No I/O here.

So one group is made from many stores. A key's own entry beats prefixes, the longest prefix beats shorter ones and what
lies in the source itself; listings show all of them. The map stands in the root group's metadata, or is a document of
its own: ``{"name": "chunk-manifest-json", "configuration": {"manifest": {...}}}``, that member first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from refshard_fs.core import zarrmeta
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.hierarchy import Hierarchy
from refshard_fs.core.keys import add_to_tree, is_key, join, parent, splits
from refshard_fs.core.keyspace import KeySpace, by_name
from refshard_fs.core.model import Entry, Listed, Load, Names, Parsed, Span, Steps
from refshard_fs.core.version_3 import group_3
from refshard_fs.errors import ManifestError
from refshard_fs.formats.chunk_manifest.entries import (
    JsonEntry,
    Key,
    Origin,
    Url,
    declaration,
    entries_in,
    source_of,
)


class KeyMap(NamedTuple):
    """Entries by key, and URL prefixes by key prefix (a directory; empty: the root)."""

    keys: dict[str, JsonEntry]
    prefixes: dict[str, str]
    nbytes: int


def parse_key_map(data: bytes, where: str) -> KeyMap:
    """Return the key map called ``where``."""
    entries = entries_in(data, where)
    prefixes: dict[str, str] = {}
    for key, prefix in entries.prefixes.items():
        if key and not key.endswith("/"):
            raise ManifestError(f"{where}: the prefix {key!r} does not end in a slash: it is no directory of keys")
        if prefix.separator != ".":
            raise ManifestError(f"{where}: the prefix {key!r} has a separator, which only those of chunks may have")
        if not prefix.path:
            raise ManifestError(f"{where}: the prefix {key!r} has an empty path")
        prefixes[key.removesuffix("/")] = prefix.path
    for key, spelled in (*zip(entries.keys, entries.keys, strict=True), *zip(prefixes, entries.prefixes, strict=False)):
        if key and not is_key(key):
            raise ManifestError(f"{where}: {spelled!r} is no key; its parts are names with a slash between them")
    return KeyMap(entries.keys, prefixes, 4 * len(data) + 300 * len(entries.keys))


def _parse_document(data: bytes, where: str) -> KeyMap:
    """Return a key map that is a document of its own. Where nothing says what its root is, that is a group."""
    match declaration(zarrmeta.object_in(data, where)):
        case bytes(manifest):
            keys = parse_key_map(manifest, where)
        case _:
            raise ManifestError(f"{where}: its configuration has no object 'manifest'")
    if "" not in keys.prefixes and keys.keys.keys().isdisjoint(zarrmeta.NODE_DOCUMENTS):
        keys.keys["zarr.json"] = JsonEntry(data=group_3({}))
    return keys


class Composite(KeySpace):
    """The keys of ``base`` (None: there is none), and those that the map called ``where`` adds or replaces."""

    def __init__(self, base: KeySpace | None, keys: KeyMap, origin: Origin, where: str) -> None:
        self.base = base
        self._map = keys
        self._origin = origin
        self._where = where
        self._mounts: dict[str, KeySpace | str] = {}  # a key space, or a directory of the base
        for prefix, path in keys.prefixes.items():
            match self._origin.place(path, where, prefix):
                case Url(url):
                    self._mounts[prefix] = Hierarchy(url, listable=True)
                case Key(key):
                    self._mounts[prefix] = key.rstrip("/")
        self._probed: set[str] = set()
        self._tree: dict[str, dict[str, bool]] = {"": {}}
        for prefix in keys.prefixes:
            add_to_tree(self._tree, prefix, is_directory=True)
        empty = [key for key, entry in keys.keys.items() if entry.is_empty]
        for key in keys.keys.keys() - set(empty):
            add_to_tree(self._tree, key)
        for key in empty:  # what is not there makes no directory
            if parent(key)[0] in self._tree:
                add_to_tree(self._tree, key)

    def lookup(self, key: str) -> Steps[Entry | None]:
        entry = self._map.keys.get(key)
        if entry is not None:
            return (yield from self._entry(key, entry))
        owner, rest, _ = self._owner(key)
        return None if owner is None else (yield from owner.lookup(rest))

    def is_empty(self, key: str) -> Steps[bool]:
        yield from ()
        entry = self._map.keys.get(key)
        return entry is not None and entry.is_empty

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        owner, rest = yield from self._lister(prefix)
        names = None if owner is None else (yield from owner.children(rest))
        own = self._tree.get(prefix)
        if own is None:
            return names
        merged = {listed.name: listed for listed in names or ()}
        for name, is_directory in own.items():
            key = join(prefix, name)
            entry = self._map.keys.get(key)
            if entry is None or is_directory:
                merged[name] = Listed(name, None, True)
            elif entry.is_empty:
                merged.pop(name, None)
            else:
                found = yield from self._entry(key, entry)
                merged[name] = Listed(name, None if found is None else found.size)
        return sorted(merged.values(), key=by_name)

    def is_directory(self, prefix: str) -> Steps[bool]:
        if prefix in self._tree:
            return True
        owner, rest = yield from self._lister(prefix)
        return owner is not None and (yield from owner.is_directory(rest))

    def _owner(self, key: str) -> tuple[KeySpace | None, str, str | None]:
        """Return the key space that has ``key``, what it is called there, and the prefix that says so (if one does)."""
        for prefix, rest in splits(key):
            match self._mounts.get(prefix):
                case None:
                    continue
                case str(directory):
                    return self.base, join(directory, rest), None
                case mount:
                    return mount, rest, prefix
        return self.base, key, None

    def _lister(self, directory: str) -> Steps[tuple[KeySpace | None, str]]:
        """Return the key space that has the keys in ``directory``, and what that is called there."""
        owner, rest, prefix = self._owner(join(directory, "x"))
        if prefix is not None and prefix not in self._probed and isinstance(owner, Hierarchy):
            if (yield Names(owner.url)) is None:
                owner = self._mounts[prefix] = Hierarchy(owner.url, listable=False)
            self._probed.add(prefix)
        return owner, parent(rest)[0]

    def _entry(self, key: str, entry: JsonEntry) -> Steps[Entry | None]:
        source = source_of(entry, key, self._where)
        return None if source is None else (yield from self._origin.entry(source, self.base, self._where, key))


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a key map."""
    keys: KeyMap = yield Load(probe.document(options.max_manifest_bytes), Parsed(_parse_document, (probe.url,)))
    origin = Origin("", None if probe.is_in_memory else Span(probe.url), options, has_keys=False)
    return Composite(None, keys, origin, probe.url)
