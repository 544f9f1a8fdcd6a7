"""A chunk manifest of a whole source maps keys, and prefixes of keys, to other places. No I/O here.

It makes one group of many stores. An entry of a key counts before prefixes, and the longest prefix before shorter ones
and before the source's own keys; listings show all of them. The map is in the metadata of the root group, or it is a
document: ``{"name": "chunk-manifest-json", "configuration": {"manifest": {...}}}``, with the name first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from refshard_fs.core import zarrmeta
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.hierarchy import Hierarchy
from refshard_fs.core.keys import add_to_tree, is_key, iterate_splits, join, parent
from refshard_fs.core.keyspace import KeySpace, by_name
from refshard_fs.core.model import Entry, Listed, Load, Names, Parsed, Span, Steps
from refshard_fs.core.version_3 import convert_group
from refshard_fs.errors import ManifestError
from refshard_fs.formats.chunk_manifest.entries import (
    JsonEntry,
    Key,
    PathResolver,
    Url,
    locate_value,
    parse_entries,
    read_declaration,
)


class KeyMap(NamedTuple):
    """Entries by key, and URLs by prefix of keys (a directory; empty: the root)."""

    keys: dict[str, JsonEntry]
    prefixes: dict[str, str]
    nbytes: int


def parse_key_map(data: bytes, where: str) -> KeyMap:
    """Parse the key map called ``where``."""
    entries = parse_entries(data, where)
    prefixes: dict[str, str] = {}
    for key, prefix in entries.prefixes.items():
        if key and not key.endswith("/"):
            raise ManifestError(f"{where}: the prefix {key!r} is not a directory of keys: expected a slash at its end")
        if prefix.separator != ".":
            raise ManifestError(f"{where}: the prefix {key!r} has a separator: only prefixes of chunks may have one")
        if not prefix.path:
            raise ManifestError(f"{where}: the prefix {key!r} has an empty path")
        prefixes[key.removesuffix("/")] = prefix.path
    for key, spelled in (*zip(entries.keys, entries.keys, strict=True), *zip(prefixes, entries.prefixes, strict=False)):
        if key and not is_key(key):
            raise ManifestError(f"{where}: {spelled!r} is not a key: expected names with a slash between them")
    return KeyMap(entries.keys, prefixes, 4 * len(data) + 300 * len(entries.keys))


def _parse_document(data: bytes, where: str) -> KeyMap:
    """Parse a key map that is a document. If it does not map the root's metadata, the root is a group."""
    match read_declaration(zarrmeta.object_in(data, where)):
        case bytes(manifest):
            keys = parse_key_map(manifest, where)
        case _:
            raise ManifestError(f"{where}: its configuration lacks an object 'manifest'")
    if "" not in keys.prefixes and keys.keys.keys().isdisjoint(zarrmeta.NODE_DOCUMENTS):
        keys.keys["zarr.json"] = JsonEntry(data=convert_group({}))
    return keys


class Composite(KeySpace):
    """The keys of ``base`` (may be None), and the keys that the map called ``where`` adds or replaces."""

    def __init__(self, base: KeySpace | None, keys: KeyMap, origin: PathResolver, where: str) -> None:
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
        for key in empty:  # an empty key alone does not make a directory
            if parent(key)[0] in self._tree:
                add_to_tree(self._tree, key)

    def lookup(self, key: str) -> Steps[Entry | None]:
        entry = self._map.keys.get(key)
        if entry is not None:
            return (yield from self._entry(key, entry))
        owner, rest, _ = self._find_owner(key)
        return None if owner is None else (yield from owner.lookup(rest))

    def is_empty(self, key: str) -> Steps[bool]:
        yield from ()
        entry = self._map.keys.get(key)
        return entry is not None and entry.is_empty

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        owner, rest = yield from self._find_lister(prefix)
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
        owner, rest = yield from self._find_lister(prefix)
        return owner is not None and (yield from owner.is_directory(rest))

    def _find_owner(self, key: str) -> tuple[KeySpace | None, str, str | None]:
        """Return the key space that has ``key``, its key in there, and the prefix that leads there (or None)."""
        for prefix, rest in iterate_splits(key):
            match self._mounts.get(prefix):
                case None:
                    continue
                case str(directory):
                    return self.base, join(directory, rest), None
                case mount:
                    return mount, rest, prefix
        return self.base, key, None

    def _find_lister(self, directory: str) -> Steps[tuple[KeySpace | None, str]]:
        """Return the key space that lists ``directory``, and the directory in it."""
        owner, rest, prefix = self._find_owner(join(directory, "x"))
        if prefix is not None and prefix not in self._probed and isinstance(owner, Hierarchy):
            if (yield Names(owner.url)) is None:
                owner = self._mounts[prefix] = Hierarchy(owner.url, listable=False)
            self._probed.add(prefix)
        return owner, parent(rest)[0]

    def _entry(self, key: str, entry: JsonEntry) -> Steps[Entry | None]:
        source = locate_value(entry, key, self._where)
        return None if source is None else (yield from self._origin.entry(source, self.base, self._where, key))


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a key map."""
    keys: KeyMap = yield Load(probe.document(options.max_manifest_bytes), Parsed(_parse_document, (probe.url,)))
    origin = PathResolver("", None if probe.is_in_memory else Span(probe.url), options, has_keys=False)
    return Composite(None, keys, origin, probe.url)
