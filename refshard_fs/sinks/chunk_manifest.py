"""Chunk manifests: a zarr version 3 hierarchy whose arrays declare, in a document beside them, where chunks lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import join
from refshard_fs.formats.chunk_manifest.manifest import MANIFEST, declare_manifest, encode_members
from refshard_fs.references.stream import ReferenceStream, convert_documents
from refshard_fs.sinks.sink import Destination, Sink
from refshard_fs.stores.objects import Objects

ROWS: Final = 10_000  # references that become JSON at a time
_ROOT: Final = "zarr.json"


class ChunkManifestSink(Sink):
    """Writes a hierarchy. Metadata of zarr version 2 become version 3."""

    name = "chunk-manifest"
    holds_versions = True

    def write(self, references: ReferenceStream, destination: Destination) -> None:
        objects = destination.objects
        assert isinstance(objects, Objects), "a hierarchy has several objects"
        nodes = convert_documents(references.documents(), references.grids)
        names = objects.names()
        if names and not (destination.overwrite and (_ROOT in names or _is_unfinished(objects))):
            raise FileExistsError(f"{objects.url} is not empty; overwrite=True replaces a hierarchy of zarr version 3")
        written = {join(array, MANIFEST): manifest_of(references, array) for array in references.grids}
        origins = destination.origins()
        nodes |= {array: declare_manifest(nodes[array], origins) for array in references.grids}
        with objects.directory(replaces=bool(names)) as made:
            made.put_all(written)
            made.put_all({join(path, _ROOT): zarrmeta.dumps(doc) for path, doc in nodes.items() if path})
            made.put_all({_ROOT: zarrmeta.dumps(_root_of(nodes))})  # last: without it, nothing is there


def _is_unfinished(objects: Objects) -> bool:
    """Whether there are only the remains of a save that was killed."""
    return all(name.rpartition("/")[2] in (MANIFEST, _ROOT) for name in objects.find(""))


def _root_of(nodes: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the root's document with the documents of all other nodes in it."""
    root = nodes[""]
    if root.get("node_type") != "group":
        return root
    members = {path: document for path, document in nodes.items() if path}
    inline = {"kind": "inline", "must_understand": False, "metadata": members, "refshard": {}}
    return {**root, "consolidated_metadata": inline}


def manifest_of(references: ReferenceStream, array: str) -> bytes:
    """Return the chunk manifest of an array."""
    members: list[str] = []
    for numbers, partition in references.partitions(array, ROWS):
        members += encode_members(references.grids[array], numbers, partition, array)
    return ("{" + ",\n".join(members) + "}\n").encode()
