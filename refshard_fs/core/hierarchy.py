"""A zarr hierarchy: every object below a URL is a key. No I/O here.

If the target can list, the hierarchy uses its listings. If it cannot (plain HTTP), groups are listed from consolidated
metadata, or from attributes that name the members of a group, as OME-Zarr's do. If there are none, listing raises an
error, and never returns an empty list. Reads need no listing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Final

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import Chunks, Numbers, make_column
from refshard_fs.core.columns import WHOLE, Ranges
from refshard_fs.core.consolidated import DOCUMENTS, ROOT, may_repeat, parse_json
from refshard_fs.core.keys import ChunkGrid, is_key, join, parent
from refshard_fs.core.keyspace import KeySpace, by_name, make_tails
from refshard_fs.core.model import (
    Directories,
    Entry,
    Inline,
    Listed,
    Load,
    Names,
    ParsedIndex,
    Span,
    Stat,
    Steps,
    Tree,
    run_together,
)
from refshard_fs.core.ome_zarr import DEEPEST, Member, list_members
from refshard_fs.core.zarrmeta import ARRAY_DOCUMENTS, CONSOLIDATED, NODE_DOCUMENTS
from refshard_fs.errors import ManifestError, NotListable
from refshard_fs.security.policy import make_locator

MOST_NUMBERED: Final = 10_000  # images that a hierarchy may number without naming them


class Hierarchy(KeySpace):
    """The keys below ``url``; ``listable`` says whether the target can list (None: unknown).

    ``documents`` are documents of the root that were read to recognise the source; None stands for an absent one. Each
    answers one look-up. A look-up of any other key drops all of them: objects may change later.
    """

    url_of: Callable[[str], str]
    committed_as = "zarr-hierarchy"
    is_hierarchy = True

    @property
    def order(self) -> Iterable[str]:
        return ()  # unknown without reads

    def __init__(self, url: str, *, listable: bool | None, documents: Mapping[str, bytes | None] | None = None) -> None:
        self.url = self.root_url = url
        self._listable = listable
        self.root_documents = documents or {}
        self.consolidates = any(map(_has_members, self.root_documents.items()))
        # Whether consolidated metadata are known to be absent.
        self._is_bare = not self.consolidates and self.root_documents.keys() >= {ROOT, CONSOLIDATED}
        self._named_arrays: set[str] = set()
        self._is_v3 = self.root_documents.get(ROOT) is not None  # then all nodes below have version 3, too
        self.url_of = make_locator(url)
        self.document_url = self.url_of("zarr.json")

    def lookup(self, key: str) -> Steps[Entry | None]:
        yield from ()
        return self._find_entry(key) if is_key(key) else None

    def _find_entry(self, key: str) -> Entry | None:
        documents, self.root_documents = self.root_documents, {}
        if key in documents:
            self.root_documents = {name: data for name, data in documents.items() if name != key}
            return None if (data := documents[key]) is None else Inline(data)
        entry = Span(self.url_of(key), optional=True)
        check_name(key, entry.url)
        return entry

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        grid = self.grids[array] if grid is None else grid
        column = make_column(numbers)
        if not len(column) or not is_key(join(array, grid.tail(int(column.max())))):
            return (yield from super().chunks(array, column, grid))
        urls = [self.url_of(join(array, tail)) for tail in make_tails(grid, column)]
        check_name(array, urls[0])
        self.root_documents = {}
        count = len(column)
        whole = np.full(count, WHOLE, np.uint64)
        return Chunks(urls, Ranges(np.arange(count, dtype=np.uint32), np.zeros(count, np.uint64), whole), {})

    def can_list(self) -> Steps[bool]:
        """Return whether the target can list; if this is unknown, list the root to find out."""
        if self._listable is None:
            self._listable = (yield Names(self.url)) is not None
        return self._listable

    def children(self, prefix: str) -> Steps[list[Listed] | None]:
        if prefix and not is_key(prefix):
            return None
        if (yield from self.can_list()):
            names: Sequence[Listed] | None = yield Names(self.url_of(prefix))
            if names is None:
                return None
            return sorted((listed for listed in names if is_key(join(prefix, listed.name))), key=by_name)
        known = KnownNodes() if self._is_bare else (yield from self.read_consolidated())
        return _list_nodes(known if known.keys else (yield from self._find_named(prefix)), prefix, self.url)

    def list_directories(self, prefix: str) -> Steps[Directories | None]:
        files: Sequence[Listed] | None = (yield Tree(self.url_of(prefix))) if (yield from self.can_list()) else None
        if not files:
            return None if files is None else {}
        below: dict[str, dict[str, Listed]] = {"": {}}
        for listed in files:
            path, name = parent(listed.name)
            known = below.get(path)
            if known is None:
                known = below[path] = {}
                while path:
                    path, directory = parent(path)
                    is_new = path not in below
                    below.setdefault(path, {})[directory] = Listed(directory, None, True)
                    if not is_new:
                        break
            if name:  # an empty name marks a directory
                known[name] = msgspec.structs.replace(listed, name=name)
        return {
            self.url_of(join(prefix, path)): tuple(sorted(members.values(), key=by_name))
            for path, members in below.items()
        }

    def is_directory(self, prefix: str) -> Steps[bool]:
        if not prefix:
            return True
        if not is_key(prefix):
            return False
        if (yield from self.can_list()):
            return (yield Names(self.url_of(prefix))) is not None
        markers = yield tuple(Stat(self.url_of(join(prefix, marker))) for marker in NODE_DOCUMENTS)
        return any(facts is not None for facts in markers)

    def find_nodes(self) -> Steps[KnownNodes]:
        """Find nodes without listings: from consolidated metadata, or from attributes that name nodes."""
        found = yield from self.read_consolidated()
        if found.keys:
            return found
        keys: set[str] = set()
        arrays: set[str] = set()
        groups, level = {""}, [""]
        while level:
            for part in (yield from run_together([self._find_named(path) for path in level])):
                keys |= part.keys
                arrays |= part.arrays
            level = sorted({parent(key)[0] for key in keys} - arrays - groups)
            groups |= set(level)
        return KnownNodes(frozenset(keys), frozenset(arrays))

    def _find_named(self, prefix: str) -> Steps[KnownNodes]:
        """Find nodes that attributes name (as in OME-Zarr): attributes of the group ``prefix``, or of a group above it.

        Only existing nodes are returned. If ``prefix`` is an array, the result is this array.
        """
        found = yield from self._find_members(prefix)
        while prefix and not (found.keys or found.arrays):
            prefix = parent(prefix)[0]
            found = yield from self._find_members(prefix)
        return found

    def _find_members(self, prefix: str) -> Steps[KnownNodes]:
        """Find the nodes that attributes of the group ``prefix`` name. If it names no existing node, return none."""
        if prefix in self._named_arrays:
            return KnownNodes(frozenset(), frozenset([prefix]))
        own = yield from self._read_nodes([prefix], (ROOT,) if self._is_v3 else (*NODE_DOCUMENTS, ".zattrs"))
        if any(node.is_array for node in own.values()):
            return KnownNodes(frozenset(own), frozenset([prefix]))
        members = {member.locate(prefix): member for node in own.values() for member in node.members}
        members = {path: member for path, member in members.items() if is_key(path) and path.count("/") < DEEPEST}
        documents = ARRAY_DOCUMENTS[:1] if join(prefix, "zarr.json") in own else NODE_DOCUMENTS[1:]
        below = yield from self._read_nodes([*members], documents)
        indexes = [path for path, member in members.items() if member.kind == "index"]
        parts = yield from run_together([self._find_members(path) for path in indexes])
        if indexes and len(indexes) == len(members) and not any(part.keys for part in parts):
            below |= yield from self._read_numbered_nodes(prefix, documents)
        if not below:
            return KnownNodes()
        arrays = frozenset(parent(key)[0] for key, node in below.items() if node.is_array)
        self._named_arrays |= arrays
        parts = [KnownNodes(frozenset(own) | frozenset(below), arrays), *parts]
        return KnownNodes(
            frozenset().union(*(part.keys for part in parts)), frozenset().union(*(part.arrays for part in parts))
        )

    def _read_numbered_nodes(self, prefix: str, names: Sequence[str]) -> Steps[dict[str, Node]]:
        """Read the documents ``names`` of the nodes 0, 1, 2 and so on below ``prefix``, until one does not exist.

        bioformats2raw numbers its images so, and OME-Zarr requires it if no group names them.
        """
        found: dict[str, Node] = {}
        count, are_all_there = 0, True
        while are_all_there and count < MOST_NUMBERED:
            paths = [join(prefix, str(number)) for number in range(count, 2 * count + 4)]
            nodes = yield from self._read_nodes(paths, names)
            existing = {parent(key)[0] for key in nodes}
            known = [*takewhile(existing.__contains__, paths)]
            found |= {key: node for key, node in nodes.items() if parent(key)[0] in known}
            count, are_all_there = count + len(paths), len(known) == len(paths)
        return found

    def _read_nodes(self, paths: Sequence[str], names: Sequence[str]) -> Steps[dict[str, Node]]:
        """Read the documents ``names`` of the nodes at ``paths``; return the existing ones by key."""
        entries = {key: self._find_entry(key) for key in [join(path, name) for path in paths for name in names]}
        needs = {
            key: Load(entry, ParsedIndex(_parse_node, (key,))) for key, entry in entries.items() if entry is not None
        }
        answers = (yield tuple(needs.values())) if needs else ()
        return {key: node for key, node in zip(needs, answers, strict=True) if node is not None}

    def read_consolidated(self) -> Steps[KnownNodes]:
        """Return the nodes in the root's consolidated metadata, or the root if it is an array; else no nodes."""
        entries = {name: self._find_entry(name) for name in (".zmetadata", "zarr.json", ".zarray")}
        needs = [
            Load(entry, ParsedIndex(_parse_consolidated, (name,)))
            for name, entry in entries.items()
            if entry is not None
        ]
        found = yield tuple(needs)
        return next((known for known in found if known is not None and known.keys), KnownNodes())


def check_name(key: str, url: str) -> None:
    """Raise ManifestError if ``url`` does not lead to the object ``key``.

    The object may exist, for example as a local file, so it must not count as missing.
    """
    if "::" in key and key in url:  # URLs of HTTP are percent-encoded
        raise ManifestError(
            f"{url}: the object {key!r} has no URL, because fsspec splits URLs at '::' into a chain: rename the object"
        )


def _has_members(document: tuple[str, bytes | None]) -> bool:
    """Return whether a document of the root has consolidated metadata."""
    name, data = document
    if data is None or not may_repeat(name, data) or name not in DOCUMENTS:
        return False
    doc = parse_json(data)
    members = doc.get("consolidated_metadata") if isinstance(doc, dict) and name == ROOT else doc
    return isinstance(members, dict) and isinstance(members.get("metadata"), dict)


class KnownNodes(msgspec.Struct, frozen=True):
    """Nodes that are known without listings: the keys of their metadata, and the paths of the arrays among them."""

    keys: frozenset[str] = frozenset()
    arrays: frozenset[str] = frozenset()


def _parse_consolidated(data: bytes, name: str) -> KnownNodes:
    """Return the nodes in the document ``name``: consolidated metadata, or the metadata of an array."""
    doc = zarrmeta.loads(data)
    if not isinstance(doc, dict):
        return KnownNodes()
    if name == ".zarray" or doc.get("node_type") == "array":
        return KnownNodes(frozenset([name, ".zattrs"]), frozenset([""]))
    nodes = list(zarrmeta.iterate_consolidated_nodes(doc))
    keys = {join(path, document) for path, document, _, _ in nodes}
    if name == CONSOLIDATED or doc.get("consolidated_metadata"):
        keys.add(name)
    return KnownNodes(frozenset(keys), frozenset(path for path, _, _, is_array in nodes if is_array))


class Node(msgspec.Struct, frozen=True):
    """A node: whether it is an array, and the nodes that its attributes name."""

    is_array: bool
    members: tuple[Member, ...] = ()


def _parse_node(data: bytes, key: str) -> Node:
    """Parse the document ``key``; its attributes may follow OME-Zarr 0.4 or 0.5."""
    doc, name = parse_json(data), parent(key)[1]
    if not isinstance(doc, dict):
        return Node(False)
    attributes = doc.get("attributes") if name == ROOT else doc if name == ".zattrs" else None
    is_array = name == ".zarray" or doc.get("node_type") == "array"
    return Node(is_array, tuple(list_members(attributes)))


def _list_nodes(known: KnownNodes, prefix: str, url: str) -> list[Listed] | None:
    stem = prefix + "/" if prefix else ""
    names: dict[str, bool] = {}
    for key in known.keys:
        if key.startswith(stem):
            name, deeper, _ = key[len(stem) :].partition("/")
            names[name] = names.get(name, False) or bool(deeper)
    if prefix in known.arrays:
        raise NotListable(
            f"the chunks of the array {prefix or '/'!r} at {url} cannot be listed, since its server has no listings. "
            "They can be read. To list the existing chunks, make references to them (refshard snapshot SOURCE "
            "refs.json requests each chunk), or open the store by its URL on an object store, such as s3://bucket/store"
        )
    if not names:
        raise NotListable(
            f"{url} cannot be listed, since its server has no listings, and no consolidated metadata name the members "
            f"of {prefix or '/'!r}. Open an array by its path, which needs no listing; or consolidate the store "
            "(zarr.consolidate_metadata), or open it by its URL on an object store, such as s3://bucket/store"
        )
    return [Listed(name, None, names[name]) for name in sorted(names)]
