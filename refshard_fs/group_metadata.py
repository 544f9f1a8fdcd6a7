"""Read the metadata of groups and of their arrays, as zarr does: from consolidated metadata, or node by node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast

from refshard_fs.core.keys import join, parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Steps
from refshard_fs.core.zarrmeta import CONSOLIDATED, iterate_consolidated_nodes, object_in, shorten
from refshard_fs.errors import ManifestError, NotListable, sanitize
from refshard_fs.reading.plan import Request
from refshard_fs.source.source import Source

Documents = dict[str, Mapping[str, Any]]  # the metadata documents of a node, by name

# The documents of a node by the version of its metadata; None if the version is not known.
_DOCUMENTS: Final = {
    2: (".zarray", ".zattrs", ".zgroup"),
    3: ("zarr.json",),
    None: ("zarr.json", ".zarray", ".zattrs", ".zgroup"),
}
_VERSIONS: Final = {".zarray": 2, ".zgroup": 2, "zarr.json": 3}  # the value of zarr_format


class ArrayNode(NamedTuple):
    """An array: its path, its ``.zarray`` or ``zarr.json``, and its attributes."""

    path: str
    document: Mapping[str, Any]
    attributes: dict[str, Any]


class GroupNode(NamedTuple):
    """A group: its path, the version of its metadata, its attributes, and its members by name."""

    path: str
    zarr_format: int
    attributes: dict[str, Any]
    arrays: dict[str, ArrayNode]
    groups: list[str]


async def read_groups(
    source: Source, path: str, *, consolidated: bool, zarr_format: int | None = None, is_deep: bool = False
) -> dict[str, GroupNode]:
    """Read the group ``path``, and with ``is_deep`` all groups below it; return them by path.

    ``consolidated``: read the consolidated metadata of the root; ValueError if the root has none. ``zarr_format``:
    the version of the metadata to read; by default, the version that the group has. FileNotFoundError if the
    group does not exist.
    """
    if consolidated:
        nodes = await _read_consolidated(source, zarr_format)
    else:
        nodes = await _read_nodes(source, [path], zarr_format)
    if not _is_group(nodes.get(path, {})):
        raise await _make_missing_error(source, path, nodes.get(path, {}), consolidated=consolidated)
    zarr_format = 3 if "zarr.json" in nodes[path] else 2
    keyspace = await source.keyspace()
    found: dict[str, GroupNode] = {}
    pending = [path]
    while pending:
        if not consolidated:
            nodes |= await _read_nodes(source, await _list_members(source, pending), zarr_format)
        members = _group_by_parent(pending, nodes)
        found |= {group: _make_group(group, keyspace.sort_paths(members[group]), nodes) for group in pending}
        pending = [join(group, name) for group in pending for name in found[group].groups] if is_deep else []
    return {group: found[group] for group in _walk_groups(path, found)}


def read_groups_now(source: Source, path: str, **options: Any) -> dict[str, GroupNode] | None:
    """Return the result of `read_groups`; None if it needs an event loop, or fails: it fails on an event loop, too."""
    reading = read_groups(cast(Source, _SourceWithoutLoop(source)), path, **options)
    try:
        reading.send(None)
    except StopIteration as stop:
        found: dict[str, GroupNode] = stop.value
        return found
    except Exception:  # noqa: BLE001  # `read_groups` raises the same error
        return None
    reading.close()
    return None


class _SourceWithoutLoop:
    """The methods of a source that `read_groups` calls, without waiting; NotImplementedError if they have to wait."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def keyspace(self) -> KeySpace:
        return self._source.open()

    async def read_all(self, requests: Sequence[Request]) -> list[Any]:
        return [self._read(request) for request in requests]

    def _read(self, request: Request) -> bytes | FileNotFoundError:
        try:
            data = self._source.read_now(request)
        except FileNotFoundError as e:
            return e
        if data is None:
            raise NotImplementedError
        return data

    async def look_up(self, key: str, steps: Steps[Any]) -> Any:
        raise NotImplementedError


def _walk_groups(path: str, groups: Mapping[str, GroupNode]) -> Iterator[str]:
    """Yield the path of a group, then the paths of all ``groups`` below it, outer groups first."""
    yield path
    for name in groups[path].groups:
        if join(path, name) in groups:
            yield from _walk_groups(join(path, name), groups)


async def _read_consolidated(source: Source, zarr_format: int | None) -> dict[str, Documents]:
    """Return the documents of all nodes by path, from the consolidated metadata of the root."""
    names = [name for name in ("zarr.json", CONSOLIDATED) if zarr_format != (2 if name == "zarr.json" else 3)]
    for name, document in (await _read_documents(source, names)).items():
        if isinstance(document.get("consolidated_metadata" if name == "zarr.json" else "metadata"), Mapping):
            nodes: dict[str, Documents] = {"": {name: document}} if name == "zarr.json" else {}
            for path, member, content, _ in iterate_consolidated_nodes(document, repr(name)):
                key = join(path, member)
                value = object_in(content, repr(key)) if isinstance(content, str) else content
                _check_version(key, value)
                nodes.setdefault(path, {})[member] = value if isinstance(value, Mapping) else {}
            return nodes
    raise ValueError(
        "consolidated=True: expected consolidated metadata at the root of the source, found none; pass "
        "consolidated=False to read the metadata of each node"
    )


async def _read_nodes(source: Source, paths: Sequence[str], zarr_format: int | None) -> dict[str, Documents]:
    """Read the documents of the nodes ``paths`` together; return them by path."""
    keys = [join(path, name) for path in paths for name in _DOCUMENTS[zarr_format]]
    nodes: dict[str, Documents] = {}
    for key, document in (await _read_documents(source, keys)).items():
        path, name = parent(key)
        nodes.setdefault(path, {})[name] = document
    return nodes


async def _read_documents(source: Source, keys: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Return the documents ``keys`` that exist, by key."""
    found: dict[str, Mapping[str, Any]] = {}
    for key, data in zip(keys, await source.read_all([Request(key) for key in keys]), strict=True):
        if isinstance(data, Exception) and not isinstance(data, FileNotFoundError):
            raise data
        if not isinstance(data, Exception):
            found[key] = object_in(bytes(data), repr(key))
            _check_version(key, found[key])
    return found


def _check_version(key: str, document: object) -> None:
    """Raise ManifestError unless a document has the version of zarr that its name implies."""
    expected = _VERSIONS.get(parent(key)[1])
    found = document.get("zarr_format") if isinstance(document, Mapping) else None
    if expected is not None and found != expected:
        raise ManifestError(f"{key!r}: expected zarr_format {expected}, got {shorten(found)}")


async def _list_members(source: Source, groups: Iterable[str]) -> list[str]:
    """Return the paths of all directories in ``groups``."""
    keyspace = await source.keyspace()
    found = []
    for group in groups:
        names = await source.look_up(group, keyspace.children(group))
        found += [join(group, listed.name) for listed in names or () if listed.is_directory]
    return found


def _group_by_parent(groups: Iterable[str], nodes: Iterable[str]) -> dict[str, list[str]]:
    """Return the paths of the nodes in each group."""
    members: dict[str, list[str]] = {group: [] for group in groups}
    for node in nodes:
        above = parent(node)[0]
        if node and above in members:
            members[above].append(node)
    return members


def _make_group(path: str, members: Iterable[str], nodes: Mapping[str, Documents]) -> GroupNode:
    arrays: dict[str, ArrayNode] = {}
    groups: list[str] = []
    for member in members:
        name, documents = parent(member)[1], nodes[member]
        document = documents.get("zarr.json", documents.get(".zarray"))
        if _is_group(documents):
            groups.append(name)
        elif document is not None:
            arrays[name] = ArrayNode(member, document, _get_attributes(documents))
    return GroupNode(path, 3 if "zarr.json" in nodes[path] else 2, _get_attributes(nodes[path]), arrays, groups)


def _is_group(documents: Documents) -> bool:
    if "zarr.json" in documents:
        return bool(documents["zarr.json"].get("node_type") == "group")
    return ".zgroup" in documents


def _get_attributes(documents: Documents) -> dict[str, Any]:
    found = documents["zarr.json"].get("attributes") if "zarr.json" in documents else documents.get(".zattrs")
    return dict(found) if isinstance(found, Mapping) else {}


async def _make_rootless_error(source: Source) -> Exception:
    """Return the error of a source without a group at its root, with the names of its members if they can be listed."""
    keyspace, url = await source.keyspace(), source.options.source
    where = f"{url} (format {keyspace.source.format})" if isinstance(url, str) else "the source in memory"
    found, remedy = "", "A group or an array below the root is opened by its path (group= in xarray, path= in zarr)"
    with suppress(NotListable):
        members = (await source.look_up("", keyspace.children(""))) or ()
        found = ", found " + (", ".join(repr(each.name) for each in members[:8]) or "no key at all")
        file = next((each.name for each in members if not each.is_directory), None)
        if not members:
            remedy = "Was it written to the end?"
        elif keyspace.member_protocol is not None and file is not None:
            remedy = f"To read a file in the archive, open '{keyspace.member_protocol}://{file}::{url}'"
    text = f"{where} has no group at its root: expected a key 'zarr.json' or '.zgroup'{found}. {remedy}"
    return FileNotFoundError(sanitize(text))


async def _make_missing_error(source: Source, path: str, documents: Documents, *, consolidated: bool) -> Exception:
    """Return the error of a group that does not exist, with the names of the groups in the next group above it."""
    if documents:
        return ValueError(f"expected a group at {path or 'the root'!r}, found an array: open its group")
    if not path:
        return await _make_rootless_error(source)
    above = ""
    names = sorted((await read_groups(source, above, consolidated=consolidated))[above].groups)
    for step in path.split("/"):
        if step not in names:
            break
        above = join(above, step)
        names = sorted((await read_groups(source, above, consolidated=consolidated))[above].groups)
    known = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
    place = f"in {above!r}" if above else "at the root"
    return FileNotFoundError(f"there is no group {path!r}: the groups {place} are {known or '(none)'}")
