"""Read all metadata of a source in few rounds. No I/O here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import join
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Steps, run_together
from refshard_fs.core.zarrmeta import CONSOLIDATED, NODE_DOCUMENTS
from refshard_fs.cubes.nodes import Node

DEEPEST: Final = 32  # the most levels of groups that are listed


def read_all_documents(base: KeySpace) -> Steps[dict[str, dict[str, Any]]]:
    """Return all metadata documents of ``base``, by key: from consolidated metadata, or else found by listing."""
    if not (base.holds_all_metadata or base.is_reference_set):
        found = yield from _read_consolidated(base)
        return found or (yield from _walk(base))
    documents = yield from base.documents()
    return {key: zarrmeta.object_in(data, repr(key)) for key, data in documents.items()}


def _read_consolidated(base: KeySpace) -> Steps[dict[str, dict[str, Any]]]:
    """Return the root's consolidated metadata, and the documents in them; empty if there are none."""
    found: dict[str, dict[str, Any]] = {}
    for name, data in (yield from _read(base, "", (CONSOLIDATED, "zarr.json"))).items():
        for path, document, content, _ in zarrmeta.iterate_consolidated_nodes(data, repr(name)):
            key = join(path, document)
            member = zarrmeta.object_in(content if isinstance(content, str) else zarrmeta.dumps(content), repr(key))
            found[name] = data
            found[key] = {field: member[field] for field in member if field != "consolidated_metadata"}
    return found


def _walk(base: KeySpace) -> Steps[dict[str, dict[str, Any]]]:
    """Return the documents of all arrays and groups, found by listing groups; directories of chunks are not listed."""
    found: dict[str, dict[str, Any]] = {}
    level = [""]
    every = (*NODE_DOCUMENTS, ".zattrs")
    root = (yield from _read(base, "", every[:1])) or (yield from _read(base, "", every[1:]))
    # All nodes have the version of the root.
    names = ("zarr.json",) if "zarr.json" in root else every[1:] if root else every
    for _ in range(DEEPEST):
        nodes = yield from run_together([_read(base, path, names) for path in level])
        groups = []
        for path, documents in zip(level, nodes, strict=True):
            found |= {join(path, name): document for name, document in documents.items()}
            if not Node(path, documents).is_array:
                groups.append(path)
        listings = yield from run_together([base.children(path) for path in groups])
        level = [
            join(path, listed.name)
            for path, names in zip(groups, listings, strict=True)
            for listed in names or ()
            if listed.is_directory
        ]
        if not level:
            break
    return found


def _read(base: KeySpace, path: str, names: Sequence[str]) -> Steps[dict[str, dict[str, Any]]]:
    """Return the existing documents among ``names`` of a node, by name."""
    read = yield from run_together([base.read(join(path, name)) for name in names])
    return {
        name: zarrmeta.object_in(data, repr(join(path, name)))
        for name, data in zip(names, read, strict=True)
        if data is not None
    }
