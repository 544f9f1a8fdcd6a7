"""A zarr hierarchy: every object below a URL is a key. No I/O here.

If the target can list, so does the hierarchy. If it cannot (plain HTTP), groups are listed from consolidated metadata,
or from attributes that name what is in them, as OME-Zarr's do; what these do not say is an error, never an empty
listing. Reads need no listing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from refshard_fs.core import zarrmeta
from refshard_fs.core.consolidated import DOCUMENTS, ROOT, parsed, repeats
from refshard_fs.core.keys import is_key, join, parent
from refshard_fs.core.keyspace import KeySpace, by_name
from refshard_fs.core.model import (
    Directories,
    Entry,
    Inline,
    Listed,
    Load,
    Names,
    Parsed,
    Span,
    Stat,
    Steps,
    Tree,
    together,
)
from refshard_fs.core.zarrmeta import ARRAY_DOCUMENTS, CONSOLIDATED, NODE_DOCUMENTS
from refshard_fs.errors import ManifestError, NotListable
from refshard_fs.security.policy import locator

DEEPEST: Final = 8  # names in a path; OME-Zarr has seven: row, column, field, "labels", label, resolution, document


class Hierarchy(KeySpace):
    """The keys below ``url``; ``listable`` says whether the target can list, None that nobody has tried yet.

    ``root_documents`` were read to recognise the source; None for one that is absent. Each answers one look-up, and
    none after another key was looked up: later ones may be others.
    """

    url_of: Callable[[str], str]
    committed_as = "zarr-hierarchy"

    def __init__(self, url: str, *, listable: bool | None, documents: Mapping[str, bytes | None] | None = None) -> None:
        self.url = self.root_url = url
        self._listable = listable
        self.root_documents = documents or {}
        self.consolidates = any(map(_has_members, self.root_documents.items()))
        self._is_bare = bool(documents) and not self.consolidates  # without consolidated metadata
        self._named_arrays: set[str] = set()
        self.url_of = locator(url)
        self.document_url = self.url_of("zarr.json")

    def lookup(self, key: str) -> Steps[Entry | None]:
        yield from ()
        return self._entry(key) if is_key(key) else None

    def _entry(self, key: str) -> Entry | None:
        documents, self.root_documents = self.root_documents, {}
        if key in documents:
            self.root_documents = {name: data for name, data in documents.items() if name != key}
            return None if (data := documents[key]) is None else Inline(data)
        entry = Span(self.url_of(key), optional=True)
        check_name(key, entry.url)
        return entry

    def can_list(self) -> Steps[bool]:
        """Return whether the target can list; if that is not known yet, by listing the root."""
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
        known = Known() if self._is_bare else (yield from self.consolidated())
        return _listing(known if known.keys else (yield from self._named(prefix)), prefix, self.url)

    def directories(self, prefix: str) -> Steps[Directories | None]:
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
            if name:  # else a marker of a directory
                known[name] = msgspec.structs.replace(listed, name=name)
        return {self.url_of(join(prefix, path)): tuple(sorted(x.values(), key=by_name)) for path, x in below.items()}

    def is_directory(self, prefix: str) -> Steps[bool]:
        if not prefix:
            return True
        if not is_key(prefix):
            return False
        if (yield from self.can_list()):
            return (yield Names(self.url_of(prefix))) is not None
        markers = yield tuple(Stat(self.url_of(join(prefix, marker))) for marker in NODE_DOCUMENTS)
        return any(facts is not None for facts in markers)

    def known(self) -> Steps[Known]:
        """Return all that can be known without listings: from consolidated metadata, or attributes that name nodes."""
        found = yield from self.consolidated()
        if found.keys:
            return found
        keys: set[str] = set()
        arrays: set[str] = set()
        groups, level = {""}, [""]
        while level:
            for part in (yield from together([self._named(path) for path in level])):
                keys |= part.keys
                arrays |= part.arrays
            level = sorted({parent(key)[0] for key in keys} - arrays - groups)
            groups |= set(level)
        return Known(frozenset(keys), frozenset(arrays))

    def _named(self, prefix: str) -> Steps[Known]:
        """Return what the attributes of the group ``prefix``, or of one above, name, as those of OME-Zarr's images do.

        Nothing if they name nothing that is there.
        """
        if prefix in self._named_arrays:
            return Known(frozenset(), frozenset([prefix]))
        own = yield from self._nodes([prefix], (*NODE_DOCUMENTS, ".zattrs"))
        if any(node.is_array for node in own.values()):
            return Known(frozenset(own), frozenset([prefix]))
        paths = [join(prefix, name) for node in own.values() for name in node.members]
        documents = ARRAY_DOCUMENTS[:1] if join(prefix, "zarr.json") in own else NODE_DOCUMENTS[1:]
        below = yield from self._nodes(
            [p for p in dict.fromkeys(paths) if is_key(p) and p.count("/") < DEEPEST], documents
        )
        if below:
            arrays = frozenset(parent(key)[0] for key, node in below.items() if node.is_array)
            self._named_arrays |= arrays
            return Known(frozenset(own) | frozenset(below), arrays)
        return (yield from self._named(parent(prefix)[0])) if prefix else Known()

    def _nodes(self, paths: Sequence[str], names: Sequence[str]) -> Steps[dict[str, Node]]:
        """Return those documents ``names`` of the nodes at ``paths`` that there are, by key."""
        entries = {key: self._entry(key) for key in [join(path, name) for path in paths for name in names]}
        needs = {key: Load(entry, Parsed(_node, (key,))) for key, entry in entries.items() if entry is not None}
        answers = (yield tuple(needs.values())) if needs else ()
        return {key: node for key, node in zip(needs, answers, strict=True) if node is not None}

    def consolidated(self) -> Steps[Known]:
        """Return what is known from consolidated metadata; nothing if there are none."""
        entries = {name: self._entry(name) for name in (".zmetadata", "zarr.json", ".zarray")}
        needs = [Load(entry, Parsed(_known, (name,))) for name, entry in entries.items() if entry is not None]
        found = yield tuple(needs)
        return next((known for known in found if known is not None and known.keys), Known())


def check_name(key: str, url: str) -> None:
    """Raise ManifestError if ``url``, that of the object ``key``, leads elsewhere.

    The object may exist all the same, as a local file may: it must not be taken for missing.
    """
    if "::" in key and key in url:  # over HTTP it is percent-encoded
        raise ManifestError(
            f"{url}: '::' joins the URLs of a chain to fsspec, so that no URL leads to an object called {key!r}: give "
            "it another name"
        )


def _has_members(document: tuple[str, bytes | None]) -> bool:
    """Whether a document of the root has consolidated metadata."""
    name, data = document
    if data is None or not repeats(name, data) or name not in DOCUMENTS:
        return False
    doc = parsed(data)
    members = doc.get("consolidated_metadata") if isinstance(doc, dict) and name == ROOT else doc
    return isinstance(members, dict) and isinstance(members.get("metadata"), dict)


class Known(msgspec.Struct, frozen=True):
    """What consolidated metadata, or the root if it is an array, say: keys of metadata, and the paths of arrays."""

    keys: frozenset[str] = frozenset()
    arrays: frozenset[str] = frozenset()


def _known(data: bytes, name: str) -> Known:
    """Return what is known from ``name``, a document of consolidated metadata or of an array."""
    doc = zarrmeta.loads(data)
    if not isinstance(doc, dict):
        return Known()
    if name == ".zarray" or doc.get("node_type") == "array":
        return Known(frozenset([name, ".zattrs"]), frozenset([""]))
    nodes = list(zarrmeta.consolidated_nodes(doc))
    keys = {join(path, document) for path, document, _ in nodes}
    if name == CONSOLIDATED or doc.get("consolidated_metadata"):
        keys.add(name)
    return Known(frozenset(keys), frozenset(path for path, _, array in nodes if array is not None))


class Node(msgspec.Struct, frozen=True):
    """What a document says of its node, and the paths of nodes below it that its attributes name."""

    is_array: bool
    members: tuple[str, ...] = ()


def _node(data: bytes, key: str) -> Node:
    """Return what the document ``key`` says; its attributes may be those of OME-Zarr 0.4 or 0.5."""
    doc, name = parsed(data), parent(key)[1]
    if not isinstance(doc, dict):
        return Node(False)
    attributes = doc.get("attributes") if name == ROOT else doc if name == ".zattrs" else None
    found = attributes.get("ome", attributes) if isinstance(attributes, dict) else None
    return Node(name == ".zarray" or doc.get("node_type") == "array", tuple(_members(found)))


def _members(attributes: Any) -> Iterator[str]:
    """Yield the paths that the attributes of OME-Zarr name: resolutions, labels, wells, images, series."""
    match attributes:
        case {"multiscales": [*scales]}:
            yield from (path for scale in scales for path in _paths(scale, "datasets"))
            yield "labels"
    match attributes:
        case {"labels": [*names]} | {"series": [*names]}:
            yield from (name for name in names if isinstance(name, str))
    for holder, member in (("plate", "wells"), ("well", "images")):
        if isinstance(attributes, dict):
            yield from _paths(attributes.get(holder), member)


def _paths(holder: Any, member: str) -> Iterator[str]:
    members = holder.get(member) if isinstance(holder, dict) else None
    for one in members if isinstance(members, list) else ():
        if isinstance(one, dict) and isinstance(one.get("path"), str):
            yield one["path"]


def _listing(known: Known, prefix: str, url: str) -> list[Listed] | None:
    stem = prefix + "/" if prefix else ""
    names: dict[str, bool] = {}
    for key in known.keys:
        if key.startswith(stem):
            name, deeper, _ = key[len(stem) :].partition("/")
            names[name] = names.get(name, False) or bool(deeper)
    if prefix in known.arrays:
        raise NotListable(
            f"the chunks of the array {prefix or '/'!r} at {url} cannot be listed, as over plain HTTP. They can be "
            "read; to have those that exist listed, pin them (refshard snapshot SOURCE refs.json asks for each), or "
            "give the store's address on an object store, such as s3://bucket/store"
        )
    if not names:
        raise NotListable(
            f"{url} cannot be listed, as over plain HTTP, and has no consolidated metadata that tell what lies in "
            f"{prefix or '/'!r}. Open an array by its path, which needs no listing; or consolidate the store "
            "(zarr.consolidate_metadata), or give its address on an object store, such as s3://bucket/store"
        )
    return [Listed(name, None, names[name]) for name in sorted(names)]
