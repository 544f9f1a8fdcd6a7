"""Read the metadata documents of all arrays and groups in few rounds, without a listing of chunks. No I/O here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import is_within, join
from refshard_fs.core.model import Listed, Steps, run_together
from refshard_fs.core.zarrmeta import CONSOLIDATED, NODE_DOCUMENTS
from refshard_fs.errors import ManifestError

DEEPEST: Final = 32  # levels of groups: links between directories could lead in circles


class Readable(Protocol):
    """The part of a `KeySpace` that this module needs."""

    def read(self, key: str) -> Steps[bytes | None]: ...

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]: ...


def read_node_documents(base: Readable, prefix: str = "") -> Steps[dict[str, bytes]]:
    """Return the metadata documents below ``prefix``, by key: from consolidated metadata, or else by listing groups.

    ManifestError for a damaged document, or for more than `DEEPEST` levels of groups.
    """
    found = yield from _read_consolidated(base)
    if found:
        return {key: data for key, data in found.items() if is_within(key, prefix)}
    return (yield from _walk_groups(base, prefix))


def _read_consolidated(base: Readable) -> Steps[dict[str, bytes]]:
    """Return the root's consolidated metadata, and the documents in them; empty if there are none."""
    found: dict[str, bytes] = {}
    for name, data in (yield from _read_documents(base, "", (CONSOLIDATED, "zarr.json"))).items():
        document = zarrmeta.object_in(data, repr(name))
        for path, member, content, _ in zarrmeta.iterate_consolidated_nodes(document, repr(name)):
            found[name] = data
            found[join(path, member)] = _encode_member(content, join(path, member))
    return found


def _encode_member(content: Any, key: str) -> bytes:
    """Return a document of consolidated metadata as a document of its own."""
    document = zarrmeta.object_in(content if isinstance(content, str) else zarrmeta.dumps(content), repr(key))
    return zarrmeta.dumps({name: value for name, value in document.items() if name != "consolidated_metadata"})


def _walk_groups(base: Readable, prefix: str) -> Steps[dict[str, bytes]]:
    """Return the documents of all arrays and groups, found by listing groups; directories of chunks are not listed."""
    found: dict[str, bytes] = {}
    every = (*NODE_DOCUMENTS, ".zattrs")
    root = (yield from _read_documents(base, prefix, every[:1])) or (
        yield from _read_documents(base, prefix, every[1:])
    )
    # All nodes have the version of the root.
    names = ("zarr.json",) if "zarr.json" in root else every[1:] if root else every
    level = [prefix]
    for _ in range(DEEPEST):
        nodes = yield from run_together([_read_documents(base, path, names) for path in level])
        found |= {
            join(path, name): data for path, node in zip(level, nodes, strict=True) for name, data in node.items()
        }
        groups = [path for path, node in zip(level, nodes, strict=True) if not _is_array(path, node)]
        listings = yield from run_together([base.children(path) for path in groups])
        level = [
            join(path, listed.name)
            for path, names_below in zip(groups, listings, strict=True)
            for listed in names_below or ()
            if listed.is_directory
        ]
        if not level:
            return found
    raise ManifestError(f"{level[0]!r}: expected a path of at most {DEEPEST} groups: open a group deeper down")


def _is_array(path: str, documents: dict[str, bytes]) -> bool:
    if ".zarray" in documents:
        return True
    document = documents.get("zarr.json")
    key = join(path, "zarr.json")
    return document is not None and zarrmeta.object_in(document, repr(key)).get("node_type") == "array"


def _read_documents(base: Readable, path: str, names: Sequence[str]) -> Steps[dict[str, bytes]]:
    """Return the existing documents among ``names`` of a node, by name."""
    read = yield from run_together([base.read(join(path, name)) for name in names])
    return {name: data for name, data in zip(names, read, strict=True) if data is not None}
