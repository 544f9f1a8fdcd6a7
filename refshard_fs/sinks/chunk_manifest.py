"""Chunk manifests: a zarr version 3 hierarchy whose arrays declare, in a document beside them, where chunks lie."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import is_key, join, parent
from refshard_fs.formats.chunk_manifest.manifest import MANIFEST, declare_manifest, encode_members
from refshard_fs.references.stream import ReferenceStream, convert_documents
from refshard_fs.sinks.sink import Destination, Sink
from refshard_fs.stores.objects import Objects
from refshard_fs.stores.replaced_document import ReplacedDocument

ROWS: Final = 10_000  # references that are encoded as JSON at a time
_ROOT: Final = "zarr.json"
_OURS: Final = re.compile(r"zarr\.json|manifest(\.[0-9a-f]+)?\.json", re.ASCII)


class ChunkManifestSink(Sink):
    """Write a hierarchy of zarr version 3; metadata of version 2 are converted."""

    name = "chunk-manifest"
    holds_versions = True

    def write(self, references: ReferenceStream, destination: Destination) -> None:
        objects = destination.objects
        assert isinstance(objects, Objects), "a hierarchy has several objects"
        nodes = convert_documents(references.documents(), references.grids)
        names = objects.list_names()
        if names and not (destination.overwrite and (_ROOT in names or _is_unfinished(objects))):
            if not destination.overwrite:
                raise FileExistsError(
                    f"{objects.url} is not empty: overwrite=True replaces a hierarchy of zarr version 3"
                )
            raise FileExistsError(
                f"{objects.url}: expected an empty directory or a hierarchy of zarr version 3, found "
                f"{', '.join(sorted(names)[:3])}: remove the directory, or give another place"
            )
        is_in_place = bool(names) and not objects.is_local
        manifest = f"manifest.{uuid.uuid4().hex}.json" if is_in_place else MANIFEST
        written = {join(array, manifest): encode_manifest(references, array) for array in references.grids}
        origins = destination.origins()
        nodes |= {array: declare_manifest(nodes[array], origins, manifest) for array in references.grids}
        if is_in_place:
            _replace_in_place(objects, written, nodes)
            return
        with objects.directory(replaces=bool(names)) as directory:
            directory.put_all(written)
            directory.put_all(_encode_below_root(nodes))
            directory.put_all({_ROOT: _encode_root(nodes)})  # last: readers open this document first


def _replace_in_place(objects: Objects, manifests: Mapping[str, bytes], nodes: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace a hierarchy in an object store: readers see the old hierarchy until the root's document is put.

    The ``manifests`` have new names. Until the documents below the root are put, the root's document contains them.
    """
    root, documents = ReplacedDocument(objects, _ROOT), _encode_below_root(nodes)
    replaced = set(objects.find("")) - {_ROOT}
    paths = {path for path, name in map(parent, replaced) if name == _ROOT and is_key(path)}
    try:
        objects.put_all(manifests)
        root.put(_encode_root(nodes, pending=[path for path in nodes if path], gone=sorted(paths - nodes.keys())))
    except BaseException:
        if root.is_unseen:
            objects.remove_all(manifests)
        raise
    objects.put_all(documents)
    objects.remove_all(replaced - documents.keys())
    root.put(_encode_root(nodes))


def _is_unfinished(objects: Objects) -> bool:
    """Return whether there are only the remains of a save that was killed."""
    return all(_OURS.fullmatch(name.rpartition("/")[2]) for name in objects.find(""))


def _encode_below_root(nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
    """Return the documents of all nodes but the root, by name."""
    return {join(path, _ROOT): zarrmeta.dumps(document) for path, document in nodes.items() if path}


def _encode_root(
    nodes: Mapping[str, Mapping[str, Any]], *, pending: Sequence[str] = (), gone: Sequence[str] = ()
) -> bytes:
    """Return the root's document with the documents of all other nodes in it.

    For ``pending`` nodes, readers use these documents, whatever the objects at their keys are. Nodes in ``gone`` do not
    exist for readers, even if their objects still do.
    """
    root = nodes[""]
    if root.get("node_type") == "group":
        members = {path: document for path, document in nodes.items() if path}
        ours = {"pending": pending, "gone": gone} if pending or gone else {}
        inline = {"kind": "inline", "must_understand": False, "metadata": members, "refshard": ours}
        root = {**root, "consolidated_metadata": inline}
    return zarrmeta.dumps(root)


def encode_manifest(references: ReferenceStream, array: str) -> bytes:
    """Return the chunk manifest of an array."""
    members: list[str] = []
    for numbers, partition in references.partitions(array, ROWS):
        members += encode_members(references.grids[array], numbers, partition, array)
    return ("{" + ",\n".join(members) + "}\n").encode()
