"""Read the metadata documents of all arrays and groups in few rounds, without a listing of chunks. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from refshard_fs.core import ome_zarr, zarrmeta
from refshard_fs.core.consolidated import parse_json
from refshard_fs.core.keys import is_key, is_within, iterate_splits, join, parent
from refshard_fs.core.model import Listed, Steps, run_together
from refshard_fs.core.ome_zarr import Kind
from refshard_fs.core.zarrmeta import CONSOLIDATED, NODE_DOCUMENTS
from refshard_fs.errors import ManifestError

DEEPEST: Final = 32  # levels of groups: links between directories could lead in circles

# leaves_out(path, is_group): whether the array ``path``, or the group and all nodes in it, need not be read.
LeavesOut = Callable[[str, bool], bool]

_Node = dict[str, bytes]  # the documents of an array or a group, by name
_NODE_DOCUMENTS: Final = frozenset(NODE_DOCUMENTS)

# The documents of version 2 that are read first of a node, by its kind; None is a directory in a listing.
_FIRST: Final[Mapping[Kind | None, Sequence[str]]] = {
    "resolution": (".zarray", ".zattrs"),
    "group": (".zgroup", ".zattrs"),
    "labels": (".zgroup",),
    "index": (".zgroup", ".zattrs"),
    None: (".zarray", ".zgroup", ".zattrs"),
}


class Readable(Protocol):
    """The part of a `KeySpace` that this module needs."""

    def read(self, key: str) -> Steps[bytes | None]: ...

    def can_list(self) -> Steps[bool]: ...

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]: ...


def read_node_documents(
    base: Readable, prefix: str = "", leaves_out: LeavesOut | None = None
) -> Steps[dict[str, bytes]]:
    """Return the metadata documents below ``prefix``, by key: from consolidated metadata, or else group by group.

    Nodes that attributes of OME-Zarr name may be missing if ``leaves_out`` is true for them. ManifestError for a
    damaged document, or for more than `DEEPEST` levels of groups.
    """
    root = yield from _read_documents(base, "", (CONSOLIDATED, "zarr.json"))
    found = _parse_consolidated(root)
    if found:
        return {key: data for key, data in found.items() if is_within(key, prefix)}
    if prefix:
        root = yield from _read_documents(base, prefix, ("zarr.json",))
    root.pop(CONSOLIDATED, None)
    return (yield from _walk_groups(base, prefix, root, leaves_out))


def _parse_consolidated(root: _Node) -> dict[str, bytes]:
    """Return the root's consolidated metadata, and the documents in them; empty if there are none."""
    found: dict[str, bytes] = {}
    for name, data in root.items():
        document = zarrmeta.object_in(data, repr(name))
        for path, member, content, _ in zarrmeta.iterate_consolidated_nodes(document, repr(name)):
            found[name] = data
            found[join(path, member)] = _encode_member(content, join(path, member))
    return found


def _encode_member(content: Any, key: str) -> bytes:
    """Return a document of consolidated metadata as a document of its own."""
    document = zarrmeta.object_in(content if isinstance(content, str) else zarrmeta.dumps(content), repr(key))
    return zarrmeta.dumps({name: value for name, value in document.items() if name != "consolidated_metadata"})


def _walk_groups(base: Readable, prefix: str, root: _Node, leaves_out: LeavesOut | None) -> Steps[dict[str, bytes]]:
    """Return the documents of all arrays and groups, level by level; directories of chunks are not listed.

    ``root`` has the document of version 3 of the group ``prefix``, if it exists. If the base cannot list, the
    attributes of groups name the nodes below, and only existing nodes are returned.
    """
    can_list = yield from base.can_list()
    versions = [3] if root else [2]  # all nodes have the version of the root
    if not root:
        root = yield from _read_version_2(base, prefix, "group")
        versions = versions if root else [3, 2]
    found = {join(prefix, name): data for name, data in root.items()}
    seen = {prefix}
    level: dict[str, _Node] = {prefix: root}
    for _ in range(DEEPEST):
        groups = {path: node for path, node in level.items() if not _is_array(path, node)}
        below = yield from run_together(
            [_list_below(base, path, node, seen, can_list=can_list) for path, node in groups.items()]
        )
        kinds = {path: kind for part in below for path, kind in part.items() if path not in seen}
        seen.update(kinds)
        wanted = {
            path: kind
            for path, kind in kinds.items()
            if kind is None or leaves_out is None or not leaves_out(path, kind != "resolution")
        }
        if not wanted:
            return found
        nodes = yield from _read_nodes(base, wanted, versions)
        if not can_list and all(kind == "index" for kind in kinds.values()):
            unnamed = yield from _find_unnamed(base, nodes)
            seen.update(unnamed)
            nodes |= yield from _read_nodes(base, dict.fromkeys(unnamed, "group"), versions)
        level = {path: node for path, node in nodes.items() if can_list or not _NODE_DOCUMENTS.isdisjoint(node)}
        found |= {join(path, name): data for path, node in level.items() for name, data in node.items()}
        if not can_list and prefix in groups and not level:
            yield from base.children(prefix)  # an error says why nothing is known below the group
    raise ManifestError(f"{next(iter(level))!r}: expected a path of at most {DEEPEST} groups: open a group deeper down")


def _find_unnamed(base: Readable, indexes: Mapping[str, _Node]) -> Steps[list[str]]:
    """Return the paths of groups beside ``indexes``, which have numbers; none if an index names groups."""
    if any([*ome_zarr.list_members(_get_attributes(node))] for node in indexes.values()):
        return []
    paths: dict[str, None] = {}
    for above in {parent(path)[0] for path in indexes}:
        listed = (yield from base.children(above)) or ()
        paths |= dict.fromkeys(join(above, each.name) for each in listed if each.is_directory)
    return [path for path in paths if path not in indexes]


def _list_below(
    base: Readable, path: str, node: _Node, seen: Collection[str], *, can_list: bool
) -> Steps[dict[str, Kind | None]]:
    """Return the paths of the nodes below the group ``path``, or of some, with the kind of each if attributes name it.

    ``seen`` are the paths that are known so far.
    """
    named: dict[str, Kind | None] = {}
    for member in ome_zarr.list_members(_get_attributes(node)):
        below = member.locate(path)
        if is_key(below) and below.count("/") < ome_zarr.DEEPEST:
            top = path if is_within(below, path) else parent(path)[0]
            between = [above for above, _ in iterate_splits(below) if len(above) > len(top) and above != below]
            named = {**dict.fromkeys(between, "group"), **named, below: member.kind}
    if not can_list and (named or any(is_within(other, path) for other in seen if other != path)):
        return named
    listed = (yield from base.children(path)) or ()
    kinds = {**named, join(path, "labels"): None}  # listed labels exist
    paths = [join(path, each.name) for each in listed if each.is_directory]
    return {below: kinds.get(below) for below in paths}


def _get_attributes(node: _Node) -> Any:
    """Return the attributes of a group; None if it has none."""
    if "zarr.json" not in node:
        return parse_json(node.get(".zattrs"))
    document = parse_json(node["zarr.json"])
    return document.get("attributes") if isinstance(document, dict) else None


def _read_nodes(base: Readable, kinds: Mapping[str, Kind | None], versions: Sequence[int]) -> Steps[dict[str, _Node]]:
    """Return the documents of nodes, by path, in the order of ``kinds``."""
    nodes = yield from run_together([_read_node(base, path, kind, versions) for path, kind in kinds.items()])
    return dict(zip(kinds, nodes, strict=True))


def _read_node(base: Readable, path: str, kind: Kind | None, versions: Sequence[int]) -> Steps[_Node]:
    """Return the documents of a node that has one of ``versions``."""
    found = (yield from _read_documents(base, path, ("zarr.json",))) if 3 in versions else {}
    return found if found or 2 not in versions else (yield from _read_version_2(base, path, kind))


def _read_version_2(base: Readable, path: str, kind: Kind | None) -> Steps[_Node]:
    """Return the documents of a node of version 2: an array has no `.zgroup`, and a group no `.zarray`."""
    found = yield from _read_documents(base, path, _FIRST[kind])
    if kind == "labels":  # an image may lack labels
        left: Sequence[str] = (".zattrs",) if found else ()
    else:
        left = () if _NODE_DOCUMENTS & found.keys() or kind is None else (".zarray", ".zgroup")
    return found | (yield from _read_documents(base, path, [name for name in left if name not in _FIRST[kind]]))


def _is_array(path: str, documents: _Node) -> bool:
    if ".zarray" in documents:
        return True
    document = documents.get("zarr.json")
    key = join(path, "zarr.json")
    return document is not None and zarrmeta.object_in(document, repr(key)).get("node_type") == "array"


def _read_documents(base: Readable, path: str, names: Sequence[str]) -> Steps[dict[str, bytes]]:
    """Return the existing documents among ``names`` of a node, by name."""
    read = yield from run_together([base.read(join(path, name)) for name in names])
    return {name: data for name, data in zip(names, read, strict=True) if data is not None}
