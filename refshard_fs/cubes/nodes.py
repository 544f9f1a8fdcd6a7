"""The metadata of a source by node, that is, by array or group. No I/O here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Final

from refshard_fs.core import zarrmeta
from refshard_fs.core.consolidated import may_repeat, reconsolidate
from refshard_fs.core.dtypes import holds_characters
from refshard_fs.core.keys import join, parent
from refshard_fs.core.version_3 import convert_array, convert_group
from refshard_fs.core.zarrmeta import CONSOLIDATED, object_in
from refshard_fs.cubes.choice import DIMENSIONS, Attributes
from refshard_fs.errors import ManifestError

_SHOWN: Final = 20  # the most names in an error


class Node:
    """An array or a group: a copy of its metadata documents, by name. ``source`` is its path in the source.

    ``stored`` is the document of an array as it is in the source, and ``starts`` has the first element that is shown
    along each axis. The axes in ``dropped``, of length 1, are not shown; `drop_axes` removes them from the documents.
    """

    def __init__(self, source: str, documents: Mapping[str, Any]) -> None:
        self.source = source
        self.documents = {name: dict(document) for name, document in documents.items()}
        self.stored = dict(self.array) if self.is_array else {}
        self.starts = (0,) * len(self.shape)
        self.dropped: tuple[int, ...] = ()

    @property
    def is_array(self) -> bool:
        return ".zarray" in self.documents or self.documents.get("zarr.json", {}).get("node_type") == "array"

    @property
    def array(self) -> dict[str, Any]:
        """The document with the shape and the chunks of an array."""
        document: dict[str, Any] = self.documents["zarr.json" if "zarr.json" in self.documents else ".zarray"]
        return document

    @property
    def shape(self) -> list[int]:
        """The shape of an array; empty for a group, and for damaged metadata."""
        shape = self.array.get("shape") if self.is_array else None
        return list(shape) if isinstance(shape, list) and all(type(length) is int for length in shape) else []

    @property
    def attributes(self) -> Attributes:
        if "zarr.json" in self.documents:
            return _object(self.documents["zarr.json"].get("attributes"))
        return self.documents.get(".zattrs") or {}

    @property
    def dims(self) -> list[str | None]:
        """The names of the dimensions; None for a dimension without a name."""
        named = self.documents.get("zarr.json", {}).get("dimension_names") or self.attributes.get(DIMENSIONS)
        if isinstance(named, list) and self.is_array and len(named) == len(self.shape):
            return [dim if isinstance(dim, str) else None for dim in named]
        return [None] * len(self.shape)

    @property
    def shown_dims(self) -> list[str | None]:
        """The dimensions that xarray shows: it joins single characters to texts along their last dimension."""
        dims, meta = self.dims, None
        with contextlib.suppress(ManifestError):  # the reader of the array raises it
            meta = zarrmeta.array_meta(self.array, self.source) if len(dims) > 1 else None
        return dims[:-1] if meta is not None and holds_characters(meta) else dims

    def edit_attributes(self, edit: Callable[[Attributes], Attributes]) -> None:
        """Replace the attributes, in each version of the metadata, by the result of ``edit``."""
        if "zarr.json" in self.documents:
            document = self.documents["zarr.json"]
            before = _object(document.get("attributes"))
            after = edit(before)
            if after != before:
                document["attributes"] = after
        if self.documents.keys() & {".zarray", ".zgroup", ".zattrs"}:
            before = self.documents.get(".zattrs") or {}
            after = edit(before)
            if after != before:
                self.documents[".zattrs"] = after

    def drop_axes(self) -> None:
        """Remove the axes in ``dropped`` from the documents."""
        if not self.dropped:
            return

        def remove_dropped(values: Any) -> Any:
            return (
                [v for axis, v in enumerate(values) if axis not in self.dropped] if isinstance(values, list) else values
            )

        dims = [dim or "" for dim in remove_dropped(self.dims)]
        document = dict(self.array)
        for name in {"shape", "chunks", "dimension_names"} & document.keys():
            document[name] = remove_dropped(list(document[name] or ()) or None)
        grid = document.get("chunk_grid")
        if grid is not None:
            chunks = remove_dropped(list(grid["configuration"]["chunk_shape"]))
            document["chunk_grid"] = {**grid, "configuration": {**grid["configuration"], "chunk_shape": chunks}}
        self.documents["zarr.json" if "zarr.json" in self.documents else ".zarray"] = document
        self.edit_attributes(lambda attrs: {**attrs, DIMENSIONS: dims} if DIMENSIONS in attrs else attrs)
        self.dropped = ()

    def convert_to_version_3(self) -> None:
        """Convert documents of version 2; ManifestError if version 3 cannot express an array."""
        if "zarr.json" in self.documents or not self.documents:
            return
        attributes = self.documents.get(".zattrs") or {}
        array = self.documents.get(".zarray")
        key = join(self.source, ".zarray")
        self.documents = {
            "zarr.json": convert_group(attributes) if array is None else convert_array(array, attributes, key)
        }
        self.stored = dict(self.array) if self.is_array else {}

    def rename_dimensions(self, names: Mapping[str, str]) -> None:
        """Rename dimensions in all metadata that name them."""

        def rename_in(attributes: Attributes) -> Attributes:
            dims = attributes.get(DIMENSIONS)
            return {**attributes, DIMENSIONS: rename_each(dims)} if isinstance(dims, list) else attributes

        def rename_each(dims: list[Any]) -> list[Any]:
            return [names.get(dim, dim) if isinstance(dim, str) else dim for dim in dims]

        document = self.documents.get("zarr.json")
        if document is not None and isinstance(document.get("dimension_names"), list):
            document["dimension_names"] = rename_each(document["dimension_names"])
        self.edit_attributes(rename_in)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


class Nodes(dict[str, Node]):
    """All arrays and groups of a source, by path."""

    @cached_property
    def by_name(self) -> Mapping[str, list[str]]:
        """The paths that end in each name."""
        found: dict[str, list[str]] = {}
        for path in filter(None, self):
            found.setdefault(parent(path)[1], []).append(path)
        return found

    @cached_property
    def by_group(self) -> Mapping[str, dict[str, Node]]:
        """The arrays of each group, by name."""
        found: dict[str, dict[str, Node]] = {}
        for path, node in self.items():
            if path and node.is_array:
                group, name = parent(path)
                found.setdefault(group, {})[name] = node
        return found

    def find_all(self, name: str) -> list[str]:
        """Return the paths of the arrays and groups that ``name`` means: one path with a slash, else in all groups."""
        if "/" in name:
            path = name.strip("/")
            return [path] if path and path in self else []
        return list(self.by_name.get(name, ()))

    def find(self, name: str, argument: str) -> list[str]:
        """Return the paths of `find_all`; ManifestError, which begins with the ``argument``, if there are none."""
        found = self.find_all(name)
        if not found:
            raise self.make_unknown_error(f"{argument}= names {name!r}, which the source does not have")
        return found

    def make_unknown_error(self, what: str, *, dims: bool = False) -> ManifestError:
        """Return an error that ends with names of nodes, or with ``dims`` of dimensions: at most `_SHOWN` of them."""
        names: Iterable[str | None] = (dim for node in self.values() for dim in node.dims) if dims else self
        known = sorted(filter(None, dict.fromkeys(names)))
        more = "" if len(known) <= _SHOWN else f" and {len(known) - _SHOWN:,} more"
        return ManifestError(f"{what}: its {'dimensions' if dims else 'names'} are {', '.join(known[:_SHOWN])}{more}")


def parse_documents(documents: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """Parse metadata documents; ManifestError, which names the key, for one that is not a JSON object."""
    return {key: object_in(data, repr(key)) for key, data in documents.items()}


def group_by_node(documents: Mapping[str, Mapping[str, Any]]) -> Nodes:
    """Return the nodes that ``documents`` (by key) describe, by path, and the groups above them."""
    by_path: dict[str, dict[str, Any]] = {}
    for key, document in documents.items():
        path, name = parent(key)
        by_path.setdefault(path, {})[name] = document
    for path in list(by_path):
        while path:
            path = parent(path)[0]
            by_path.setdefault(path, {})  # a group without a document
    return Nodes((path, Node(path, by_path[path])) for path in sorted(by_path))


def collect_documents(nodes: Mapping[str, Node]) -> dict[str, dict[str, Any]]:
    """Return the documents of ``nodes``, by key; consolidated metadata among them repeat these documents."""
    found = {join(path, name): document for path, node in nodes.items() for name, document in node.documents.items()}
    for key in sorted(found, key=lambda key: -key.count("/")):
        if parent(key)[1] in ("zarr.json", CONSOLIDATED) and may_repeat(key, found[key]):
            others = {other: document for other, document in found.items() if other != key}
            found[key] = reconsolidate(key, found[key], others, lambda gone: gone not in found)
    return found
