"""References as a zarr version 3 hierarchy with chunk manifests, piece by piece. No I/O here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ABSENT, WHOLE
from refshard_fs.core.keys import ChunkGrid, join, parent
from refshard_fs.core.version_3 import array_3, group_3
from refshard_fs.errors import ManifestError
from refshard_fs.formats.chunk_manifest import NAME
from refshard_fs.references.stream import Partition
from refshard_fs.references.values import check_name, is_utf8, object_in, spelled

MANIFEST = "manifest.json"


def hierarchy(documents: Iterable[tuple[str, Any]], grids: Mapping[str, ChunkGrid]) -> dict[str, dict[str, Any]]:
    """Return the version 3 metadata of every group and array, by path, of documents of either version.

    Raises ManifestError, which names the key, for what is no metadata, and where version 3 cannot say it.
    """
    found: dict[str, dict[str, Any]] = {}
    old: dict[str, dict[str, Any]] = {}
    for key, value in documents:
        path, name = parent(key)
        if name == ".zmetadata":
            continue
        if not zarrmeta.is_metadata(key):
            raise ManifestError(f"{key!r} is neither metadata nor a chunk of an array: a chunk manifest cannot hold it")
        if isinstance(value, list):
            raise ManifestError(f"{key!r} is a reference: metadata must be inline to become that of version 3")
        check_name(key)
        doc = object_in(value, repr(key))
        if name == "zarr.json":
            found[path] = {k: v for k, v in doc.items() if k != "consolidated_metadata"}
            if doc.get("node_type") not in ("array", "group"):
                raise ManifestError(f"{key!r} describes neither an array nor a group")
            if doc.get("storage_transformers"):
                raise ManifestError(f"{key!r} has storage_transformers, which cannot be carried over")
        else:
            old.setdefault(path, {})[name] = doc
    for path, docs in old.items():
        if path not in found:
            attributes = docs.get(".zattrs", {})
            array = docs.get(".zarray")
            key = join(path, ".zarray")
            found[path] = group_3(attributes) if array is None else array_3(array, attributes, key)
    for path, doc in found.items():
        if doc.get("node_type") == "array" and path not in grids:
            raise ManifestError(f"{join(path, 'zarr.json')!r}: its chunk grid or chunk keys are not known")
    for inner, doc in list(found.items()):
        path = inner
        while path:
            path = parent(path)[0]
            outer = found.setdefault(path, group_3({}))
            if outer.get("node_type") == doc.get("node_type") == "array":
                raise ManifestError(f"{join(inner, 'zarr.json')!r} is an array within the array {path!r}")
    return found or {"": group_3({})}


def with_manifest(doc: Mapping[str, Any], name: str = MANIFEST) -> dict[str, Any]:
    """Return an array's metadata that declares the manifest beside it."""
    transformer = {"name": NAME, "configuration": {"manifest": f"./{name}"}}
    return {**doc, "storage_transformers": [transformer]}


def manifest_members(grid: ChunkGrid, numbers: range, partition: Partition, array: str) -> list[str]:
    """Return the members of a manifest for chunks ``numbers``."""
    urls = [None if url is None else zarrmeta.dumps(url).decode() for url in partition.urls]
    odd = {target for target, url in enumerate(partition.urls) if url is not None and not is_utf8(url)}
    out = []
    rows = partition.present()
    targets, offsets, lengths = partition.ranges
    empty = [row for row, extras in partition.extras.items() if not extras]
    for row in sorted({*rows, *empty}) if empty else rows:
        key = ".".join(map(str, grid.coords(numbers.start + row))) or "0"
        target = int(targets[row])
        extras = partition.extras.get(row, {})
        more = "".join(f",{zarrmeta.dumps(k).decode()}:{zarrmeta.dumps(v).decode()}" for k, v in extras.items())
        if target != ABSENT:
            url = urls[target]
            if url is None:
                raise ManifestError(f"{join(array, grid.tail(numbers.start + row))!r} has no URL: open it with target=")
            if target in odd:
                key = join(array, grid.tail(numbers.start + row))
                raise ManifestError(f"{key!r} has the URL {partition.urls[target]!r}, which is no UTF-8")
            offset, length = int(offsets[row]), int(lengths[row])
            span = "" if length == WHOLE and not offset else f',"offset":{offset}'
            if length != WHOLE:
                span += f',"length":{length}'
            out.append(f'"{key}":{{"path":{url}{span}{more}}}')
        elif row in partition.inline:
            out.append(f'"{key}":{{"data":{zarrmeta.dumps(spelled(partition.inline[row])).decode()}{more}}}')
        else:
            out.append(f'"{key}":{{}}')
    return out
