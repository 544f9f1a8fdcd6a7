"""Show a source whose chunk manifest maps keys, and prefixes of keys, to other places. No I/O here.

Such a manifest makes one group of many stores. The entry of a key takes precedence over prefixes, and the longest
prefix over shorter ones and over the source's own keys. Listings show all keys. The manifest is in the metadata of the
root group, or it is a document: ``{"name": "chunk-manifest-json", "configuration": {"manifest": {...}}}``, with the
name first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from refshard_fs.core import zarrmeta
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.hierarchy import Hierarchy
from refshard_fs.core.keys import add_to_tree, is_key, iterate_splits, join, parent
from refshard_fs.core.keyspace import KeySpace, by_name
from refshard_fs.core.model import Entry, Listed, Load, Names, ParsedIndex, Span, Steps
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
    """Entries by key, and URLs by prefix. A prefix is a directory of keys; "" is the root."""

    keys: dict[str, JsonEntry]
    prefixes: dict[str, str]
    nbytes: int  # the approximate size in memory, in bytes


def parse_key_map(data: bytes, where: str) -> KeyMap:
    """Parse the manifest of a source. Raise ManifestError, which names ``where`` and the key, if it is invalid."""
    entries = parse_entries(data, where)
    prefixes: dict[str, str] = {}
    for key, prefix in entries.prefixes.items():
        if key and not key.endswith("/"):
            raise ManifestError(f"{where}: the prefix {key!r} is not a directory of keys: expected a slash at its end")
        if prefix.separator != ".":
            found = f"the prefix {key!r} has the separator {prefix.separator!r}"
            raise ManifestError(f"{where}: {found}: expected none, since only prefixes of chunks may have one")
        if not prefix.path:
            raise ManifestError(f"{where}: the prefix {key!r} has an empty path: expected a URL or a relative path")
        prefixes[key.removesuffix("/")] = prefix.path
    for key, text in (*zip(entries.keys, entries.keys, strict=True), *zip(prefixes, entries.prefixes, strict=False)):
        if key and not is_key(key):
            raise ManifestError(f"{where}: {text!r} is not a key: expected names with a slash between them")
    return KeyMap(entries.keys, prefixes, 4 * len(data) + 300 * len(entries.keys))


def _parse_document(data: bytes, where: str) -> KeyMap:
    """Parse a manifest that is a document. Unless it maps the metadata of the root, the root becomes a group."""
    match read_declaration(zarrmeta.object_in(data, where)):
        case bytes(manifest):
            keys = parse_key_map(manifest, where)
        case _:
            raise ManifestError(f"{where}: expected an object 'manifest' in its 'configuration', found another value")
    if "" not in keys.prefixes and keys.keys.keys().isdisjoint(zarrmeta.NODE_DOCUMENTS):
        keys.keys["zarr.json"] = JsonEntry(data=convert_group({}))
    return keys


class Composite(KeySpace):
    """The keys of ``base``, if there is one, and the keys that the manifest named ``where`` adds or replaces."""

    def __init__(self, base: KeySpace | None, keys: KeyMap, resolver: PathResolver, where: str) -> None:
        self.base = base
        self._map = keys
        self._resolver = resolver
        self._where = where
        self._mounts: dict[str, KeySpace | str] = {}  # prefix → a key space, or a directory of the base
        for prefix, path in keys.prefixes.items():
            match resolver.resolve(path, where, prefix):
                case Url(url):
                    self._mounts[prefix] = Hierarchy(url, listable=True)
                case Key(key):
                    self._mounts[prefix] = key.rstrip("/")
        self._probed: set[str] = set()  # prefixes that were listed, or cannot be listed
        # Directory → name → whether the name is a directory, for the keys and prefixes of the map.
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
            return (yield from self._make_entry(key, entry))
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
                located = yield from self._make_entry(key, entry)
                merged[name] = Listed(name, None if located is None else located.size)
        return sorted(merged.values(), key=by_name)

    def is_directory(self, prefix: str) -> Steps[bool]:
        if prefix in self._tree:
            return True
        owner, rest = yield from self._find_lister(prefix)
        return owner is not None and (yield from owner.is_directory(rest))

    def _find_owner(self, key: str) -> tuple[KeySpace | None, str, str | None]:
        """Return the key space that has ``key``, the name of the key in it, and the prefix that maps the key there.

        The prefix is None if the key space is the base.
        """
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
        """Return the key space that lists ``directory``, and the name of the directory in it."""
        owner, rest, prefix = self._find_owner(join(directory, "x"))
        if prefix is not None and prefix not in self._probed and isinstance(owner, Hierarchy):
            if (yield Names(owner.url)) is None:
                owner = self._mounts[prefix] = Hierarchy(owner.url, listable=False)
            self._probed.add(prefix)
        return owner, parent(rest)[0]

    def _make_entry(self, key: str, entry: JsonEntry) -> Steps[Entry | None]:
        """Return the entry of ``key`` for its ``entry`` in the manifest; None if it is empty."""
        value = locate_value(entry, key, self._where)
        return None if value is None else (yield from self._resolver.make_entry(value, self.base, self._where, key))


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a chunk manifest that is a document, as a source with the keys that it maps."""
    keys: KeyMap = yield Load(probe.document(options.max_manifest_bytes), ParsedIndex(_parse_document, (probe.url,)))
    resolver = PathResolver("", None if probe.is_in_memory else Span(probe.url), options, has_keys=False)
    return Composite(None, keys, resolver, probe.url)
