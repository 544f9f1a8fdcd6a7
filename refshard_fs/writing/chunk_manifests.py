"""Commits to hierarchies with chunk manifests: new manifests first, then the root's document, which has all metadata.

That one PUT is the commit. What follows writes each node's own document, for readers that ignore consolidated
metadata. If that is interrupted, the root says which are still to be written, and readers of this package know that.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import Texts
from refshard_fs.core.edits import EditedKeySpace
from refshard_fs.core.hierarchy import Hierarchy
from refshard_fs.core.keys import ChunkGrid, is_within, join, parent, relative
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Inline, Steps
from refshard_fs.errors import ManifestError, ReadOnlyError
from refshard_fs.formats.chunk_manifest import NAME
from refshard_fs.formats.chunk_manifest import manifest as manifest_writing
from refshard_fs.formats.chunk_manifest.view import root_with
from refshard_fs.references.reference_set import ReferenceSet, with_edits, within
from refshard_fs.references.stream import FlatStream
from refshard_fs.session.collect import gather
from refshard_fs.session.recognition import manifests_of
from refshard_fs.writing.committer import Committing, DirectoryCommit
from refshard_fs.writing.save import absolute, manifest_of

_ROOT = "zarr.json"
Nodes = dict[str, dict[str, Any]]


class ManifestCommit(DirectoryCommit):
    """One commit to the hierarchy at the source's URL, which is made if there is none."""

    def __init__(self, committing: Committing) -> None:
        super().__init__(committing, _ROOT)
        self._nodes_after: Nodes = {}
        self._changed: list[str] = []  # nodes whose own documents are to be written
        self._gone: list[str] = []  # nodes whose documents are to be removed
        self._done: list[str] = []  # manifests that this commit replaces: the next one removes them
        self._useless: list[str] = []  # manifests of nodes that are gone
        self._replaced: list[str] = []  # manifests that the commit before replaced
        is_new = committing.base.facts is None
        self._view = None if is_new else manifests_of(committing.base.keyspace)
        if not is_new and not (self._view and isinstance(self._view.base, Hierarchy | EditedKeySpace)):
            raise ReadOnlyError(f"{self._store.url} maps the keys of its whole source, and takes no writes")

    def _put_objects(self) -> bytes:
        nodes: Nodes = self._nodes()
        old: Nodes = {} if self._view is None else self._run("", partial(_documents, self._view.base))
        touched = [
            path
            for path, doc in nodes.items()
            if doc.get("node_type") == "array" and self._touches(path, doc, old.get(path))
        ]
        self._replaced = _replaced(old.get("", {}))
        self._done = [join(path, name) for path in touched if (name := _manifest(old.get(path)))]
        self._useless = [join(path, name) for path in set(old) - set(nodes) if (name := _manifest(old.get(path)))]
        for path in touched:
            nodes[path] = self._write(path, nodes[path], old.get(path))
        for path in nodes.keys() - set(touched):
            nodes[path] = _declaring(nodes[path], old.get(path))
        changed = {path for path, doc in nodes.items() if path and doc != old.get(path)}
        self._nodes_after = nodes
        self._changed = sorted(changed | _unfinished(old.get("", {}), "pending").intersection(nodes))
        self._gone = sorted({*old, *_unfinished(old.get("", {}), "gone")} - set(nodes) - {""})
        return zarrmeta.dumps(root_with(nodes, self._changed, self._gone, self._done))

    def _tidy(self) -> None:
        for path in self._changed:
            self._store.put(join(path, _ROOT), (zarrmeta.dumps(self._nodes_after[path]),))
        self._store.remove_all(join(path, _ROOT) for path in self._gone)
        self._publish_again(zarrmeta.dumps(root_with(self._nodes_after, [], [], self._done)))
        self._store.remove_all(self._useless)
        self._store.remove_all(self._replaced)  # of the last commit: who had it open has had time

    # ------------------------------------------------------------------ metadata

    def _nodes(self) -> Nodes:
        """Return the documents of all groups and arrays after the edits, without what declares their manifests."""
        edits = self._edits
        shown: dict[str, Any] = {}
        if self._view is not None:
            for path in self._run("", partial(_documents, self._view.base)):
                entry = self._run(path, partial(self._view.read, join(path, _ROOT)))
                if entry is not None and not edits.hides(join(path, _ROOT)):
                    shown[join(path, _ROOT)] = entry
        for key, edit in edits.changes().items():
            if not zarrmeta.is_metadata(key):
                continue
            if isinstance(edit, Inline):
                shown[key] = edit.data
            else:
                shown.pop(key, None)
        arrays = {key: zarrmeta.object_in(shown[key], repr(key)) for key in shown if zarrmeta.is_array_document(key)}
        found = ((parent(key)[0], _grid(parent(key)[0], doc)) for key, doc in arrays.items())
        grids = {path: grid for path, grid in found if grid is not None}
        return manifest_writing.hierarchy(shown.items(), grids)

    def _touches(self, path: str, doc: Mapping[str, Any], old: Mapping[str, Any] | None) -> bool:
        """Whether the array ``path`` needs another manifest."""
        edits = self._edits
        if old is None or edits.hides(path) or _grid(path, doc) != _grid(path, old):
            return True
        has_chunks = any(is_within(key, path) and not zarrmeta.is_metadata(key) for key in edits.changes())
        return has_chunks or any(is_within(prefix, path) for prefix in edits.prefixes())

    # ------------------------------------------------------------------ manifests

    def _write(self, path: str, doc: dict[str, Any], old: Mapping[str, Any] | None) -> dict[str, Any]:
        """Write the manifest of the array ``path``, and return its metadata, which names that."""
        grid = _grid(path, doc)
        if grid is None:
            raise ManifestError(f"{join(path, _ROOT)!r}: its chunk grid or chunk keys are not known")
        refs, extras = ReferenceSet(Texts.of(()), {}, {}), {}
        if self._view is not None and old is not None and not self._edits.hides(path):
            refs, found = self._run(path, partial(gather, self._view, path))
            extras = _moved(found.get(path, {}), _grid(path, old), grid)
        edits = within(self._edits, path)
        edits.put(join(path, _ROOT), Inline(zarrmeta.dumps(doc)))
        for key in edits.changes():
            number = grid.number(relative(key, path))
            if number is not None:
                extras.pop(number, None)
        refs = with_edits(refs, edits, self._url)
        for key in refs.side:
            if not zarrmeta.is_metadata(key) and grid.number(relative(key, path)) is None:
                raise ManifestError(
                    f"{key!r} is neither metadata nor a chunk of an array: a chunk manifest cannot hold it"
                )
        stream = FlatStream(refs, lambda url: None if url is None else absolute(url), {path: extras})
        data = manifest_of(stream, self._run, path)
        name = f"manifest.{self._token}.json"
        self._written.append(join(path, name))
        self._store.put(join(path, name), (data,))
        return manifest_writing.with_manifest(doc, name)


def _documents(keyspace: KeySpace) -> Steps[Nodes]:
    """Return the document of every node as it is stored, by path: as the root has them, or each one's own."""
    root = yield from _document(keyspace, _ROOT)
    if root is None:
        return {}
    match root:
        case {"consolidated_metadata": {"metadata": dict(members)}}:
            return {"": root, **{path: doc for path, doc in members.items() if isinstance(doc, dict)}}
    found = {"": root}
    groups = [""] if root.get("node_type") == "group" else []
    while groups:
        path = groups.pop()
        for listed in (yield from keyspace.children(path)) or ():
            below = join(path, listed.name)
            doc = (yield from _document(keyspace, join(below, _ROOT))) if listed.is_directory else None
            if doc is not None:
                found[below] = doc
                if doc.get("node_type") == "group":
                    groups.append(below)
    return found


def _document(keyspace: KeySpace, key: str) -> Steps[dict[str, Any] | None]:
    data = yield from keyspace.read(key)
    return None if data is None else zarrmeta.object_in(data, repr(key))


def _grid(path: str, doc: Mapping[str, Any]) -> ChunkGrid | None:
    meta = zarrmeta.array_meta(doc, repr(join(path, _ROOT)))
    return None if meta is None else meta.grid


def _manifest(doc: Mapping[str, Any] | None) -> str | None:
    """Return the name of the manifest, beside it, that an array's document declares and that a commit wrote."""
    match doc:
        case {"storage_transformers": [{"name": name, "configuration": {"manifest": str(path)}}]} if name == NAME:
            plain = path.removeprefix("./")
            return plain if plain.startswith("manifest.") and "/" not in plain else None
    return None


def _declaring(doc: dict[str, Any], old: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return an array's new metadata, which declares the manifest that the old one does."""
    if old is None or "storage_transformers" not in old:
        return doc
    return {**doc, "storage_transformers": old["storage_transformers"]}


def _unfinished(root: Mapping[str, Any], what: str) -> set[str]:
    match root:
        case {"consolidated_metadata": {"refshard": {**ours}}}:
            paths: Any = ours.get(what, ())
            return {path for path in paths if isinstance(path, str)}
    return set()


def _replaced(root: Mapping[str, Any]) -> list[str]:
    found = _unfinished(root, "replaced")
    return sorted(key for key in found if parent(key)[1].startswith("manifest.") and ".." not in key.split("/"))


def _moved(
    extras: Mapping[int, Mapping[str, str]], before: ChunkGrid | None, after: ChunkGrid
) -> dict[int, Mapping[str, str]]:
    """Return what is said of chunks by their numbers in another grid; of those outside of it, nothing."""
    if before is None or len(before.counts) != len(after.counts):
        return {}
    moved = {after.number_of(before.coords(number)): said for number, said in extras.items()}
    return {number: said for number, said in moved.items() if number is not None}
