"""Find the nodes that a selection takes from a source, and change their metadata. No I/O here."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from operator import index
from typing import Any, Final

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.array_group import ArrayDescription, ArrayGroup, SingleChunk
from refshard_fs.core.consolidated import reconsolidate, repeats
from refshard_fs.core.keys import is_within, join, nearest, parent
from refshard_fs.core.zarrmeta import CONSOLIDATED
from refshard_fs.errors import ManifestError

Attributes = dict[str, Any]

DIMENSIONS: Final = "_ARRAY_DIMENSIONS"  # the attribute in which xarray names them in version 2
COORDINATES: Final = "coordinates"
# Attributes of CF that name variables. A word that ends in a colon is a variable in some, and a role in others.
_NAMES: Final = (COORDINATES, "bounds", "climatology", "grid_mapping", "ancillary_variables")
_ROLES: Final = ("cell_measures", "formula_terms")
_SHOWN: Final = 20  # names in an error
_KINDS: Final = "biufSU"  # of types that are assigned


class Assigned(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An array that a selection adds: its dimensions, numpy's name of its type, and its values, little-endian."""

    dims: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    data: str
    attrs: Attributes = {}

    @classmethod
    def of(cls, name: str, given: Any) -> Assigned:
        """Return an array as xarray's ``assign_coords`` takes it: values, ``(dims, values[, attrs])``, or an array."""
        dims: Any
        attrs: Mapping[str, Any] = {}
        match given:
            case tuple() if len(given) in (2, 3):
                dims, given, attrs = given if len(given) == 3 else (*given, {})
                dims = (dims,) if isinstance(dims, str) else tuple(dims)
            case _ if hasattr(given, "dims") and hasattr(given, "values"):
                dims, given, attrs = tuple(given.dims), given.values, given.attrs
            case _:
                dims = None
        values = np.asarray(given)
        if values.dtype.kind == "O" and all(isinstance(value, str) for value in values.flat):
            values = values.astype("U")
        if values.dtype.kind == "O":  # of the standard library's times
            with suppress(ValueError):
                values = values.astype("M8[us]")
        if values.dtype.kind == "M":
            whole = values.astype("M8[s]")
            is_whole = (whole == values).all()
            unit = "seconds" if is_whole else "nanoseconds"
            values = (whole if is_whole else values.astype("M8[ns]")).astype("i8")
            attrs = {"units": f"{unit} since 1970-01-01", "calendar": "proleptic_gregorian", **attrs}
        if dims is None:
            dims = (name,) if values.ndim == 1 else ()
        if len(dims) != values.ndim or values.dtype.kind not in _KINDS:
            raise TypeError(
                f"assign={{{name!r}: ...}}: expected numbers, texts or times, as values or (dims, values, attrs), got "
                f"{values.dtype} of shape {values.shape} along {dims}"
            )
        values = values.astype(values.dtype.newbyteorder("<"))
        data = base64.b64encode(values.tobytes()).decode()
        return cls(dims, values.dtype.str, values.shape, data, dict(attrs))

    def description(self, path: str) -> ArrayDescription:
        """Return what its metadata say; ManifestError where its parts do not fit each other."""
        where = f"assign= of {path!r}"
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as e:
            raise ManifestError(f"{where}: {e}") from None
        if dtype.kind not in _KINDS or len(self.dims) != len(self.shape) or min(self.shape, default=0) < 0:
            raise ManifestError(f"{where}: {self.dtype} of shape {list(self.shape)} along {list(self.dims)}")
        if len(self.values()) != math.prod(self.shape) * dtype.itemsize:
            raise ManifestError(
                f"{where}: {len(self.values())} bytes do not fill the shape {list(self.shape)} with {self.dtype}"
            )
        chunks = tuple(max(length, 1) for length in self.shape)
        return ArrayDescription(where, self.shape, chunks, dtype, self.dims, self.attrs)

    def values(self) -> bytes:
        """Return the bytes of its one chunk; ManifestError where they are not base64."""
        try:
            return base64.b64decode(self.data, validate=True)
        except ValueError as e:
            raise ManifestError(f"assign=: {e}") from None


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The arguments of one selection; all names are names in the source.

    A name without a slash means the variables, or groups, of that name in every group; one with a slash is the path of
    one ("/air" in the root). ``isel`` has the bounds of slices. ``squeeze`` names dimensions of length 1 that are not
    shown, or is True for all. ``assign`` are arrays that are added, or shown in place of others, by path.
    """

    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] | None = None
    rename: dict[str, str] = {}
    attrs: dict[str, Attributes] = {}
    isel: dict[str, tuple[int | None, int | None]] = {}
    squeeze: tuple[str, ...] | bool = ()
    assign: dict[str, Assigned] = {}

    @classmethod
    def of(
        cls,
        drop: Iterable[str] | str = (),
        keep: Iterable[str] | str | None = None,
        rename: Mapping[str, str] | None = None,
        attrs: Mapping[str, Mapping[str, Any]] | None = None,
        isel: Mapping[str, Any] | None = None,
        squeeze: Iterable[str] | str | bool = (),
        assign: Mapping[str, Any] | None = None,
    ) -> Choice:
        """Return what the arguments of ``fs.select`` say; TypeError or ValueError for what they do not take."""
        single = [dim for dim, chosen in (isel or {}).items() if isinstance(chosen, int | np.integer)]
        squeezed: Any = True if squeeze is True else [*single, *_names_of(squeeze or ())]
        given = {
            "drop": _names_of(drop),
            "keep": None if keep is None else _names_of(keep),
            "rename": dict(rename or {}),
            "attrs": {path: dict(values) for path, values in (attrs or {}).items()},
            "isel": {dim: _bounds(dim, chosen) for dim, chosen in (isel or {}).items()},
            "squeeze": squeezed,
            "assign": {path: msgspec.to_builtins(Assigned.of(path, value)) for path, value in (assign or {}).items()},
        }
        return cls.read(given)

    @classmethod
    def read(cls, given: Any) -> Choice:
        """Return a selection given as JSON values; ValueError where it breaks the form."""
        try:
            return msgspec.convert(given, cls)
        except msgspec.ValidationError as e:
            raise ValueError(f"select={given!r:.500}: {e}") from None

    @property
    def only_leaves_out(self) -> bool:
        """Whether all arrays that it shows are shown as they are, under their own paths."""
        return self == Choice(self.drop, self.keep)

    def to_json(self) -> dict[str, Any]:
        """Return the selection as JSON values; TypeError for attributes that JSON cannot express."""
        found: dict[str, Any] = zarrmeta.loads(zarrmeta.dumps(msgspec.to_builtins(self)))
        return found

    def added(self, zarr_format: int) -> ArrayGroup:
        """Return the arrays that it adds, as a source of its own."""
        arrays = {path.strip("/"): one.description(path) for path, one in self.assign.items()}
        chunks = {path.strip("/"): SingleChunk(one.values()) for path, one in self.assign.items()}
        return ArrayGroup(arrays, chunks, zarr_format, {})


def _names_of(given: Iterable[str] | str) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _bounds(dim: str, chosen: Any) -> tuple[int | None, int | None]:
    if isinstance(chosen, int | np.integer):
        one = int(chosen)
        return one, None if one == -1 else one + 1
    if not isinstance(chosen, slice):
        raise TypeError(
            f"isel={{{dim!r}: {chosen!r}}}: expected an integer or a slice: chunks hold successive elements"
        )
    if chosen.step not in (None, 1):
        raise ValueError(f"isel={{{dim!r}: {chosen!r}}}: expected a slice with step 1: chunks hold successive elements")
    start, stop = (None if bound is None else index(bound) for bound in (chosen.start, chosen.stop))
    return start, stop


# ----------------------------------------------------------------------------------------------------
# The metadata of a source, by node.


class Node:
    """An array or a group: its metadata documents by name, which are its own. ``source`` is its path in the source.

    Of the elements of an array that is ``stored`` as its document there says, those from ``starts`` on are shown. The
    axes in ``dropped``, of length 1, are not; `drop_axes` takes them out of the documents.
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
        """The document that says how the array is stored."""
        document: dict[str, Any] = self.documents["zarr.json" if "zarr.json" in self.documents else ".zarray"]
        return document

    @property
    def shape(self) -> list[int]:
        """The shape of an array; empty for a group, and where metadata are damaged."""
        shape = self.array.get("shape") if self.is_array else None
        return list(shape) if isinstance(shape, list) and all(type(length) is int for length in shape) else []

    @property
    def attributes(self) -> Attributes:
        if "zarr.json" in self.documents:
            return _object(self.documents["zarr.json"].get("attributes"))
        return self.documents.get(".zattrs") or {}

    @property
    def dims(self) -> list[str | None]:
        """The names of the dimensions, as far as they have any."""
        named = self.documents.get("zarr.json", {}).get("dimension_names") or self.attributes.get(DIMENSIONS)
        if isinstance(named, list) and self.is_array and len(named) == len(self.shape):
            return [dim if isinstance(dim, str) else None for dim in named]
        return [None] * len(self.shape)

    def edit_attributes(self, edit: Callable[[Attributes], Attributes]) -> None:
        """Replace the attributes, in each version of the metadata, by what ``edit`` returns for them."""
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
        """Take the axes that are not shown out of the documents."""
        if not self.dropped:
            return

        def kept(values: Any) -> Any:
            return (
                [v for axis, v in enumerate(values) if axis not in self.dropped] if isinstance(values, list) else values
            )

        dims = [dim or "" for dim in kept(self.dims)]
        document = dict(self.array)
        for name in {"shape", "chunks", "dimension_names"} & document.keys():
            document[name] = kept(list(document[name] or ()) or None)
        grid = document.get("chunk_grid")
        if grid is not None:
            chunks = kept(list(grid["configuration"]["chunk_shape"]))
            document["chunk_grid"] = {**grid, "configuration": {**grid["configuration"], "chunk_shape": chunks}}
        self.documents["zarr.json" if "zarr.json" in self.documents else ".zarray"] = document
        self.edit_attributes(lambda attrs: {**attrs, DIMENSIONS: dims} if DIMENSIONS in attrs else attrs)
        self.dropped = ()

    def rename_dimensions(self, names: Mapping[str, str]) -> None:
        """Rename dimensions, wherever the metadata name them."""

        def renamed(attributes: Attributes) -> Attributes:
            dims = attributes.get(DIMENSIONS)
            return {**attributes, DIMENSIONS: changed(dims)} if isinstance(dims, list) else attributes

        def changed(dims: list[Any]) -> list[Any]:
            return [names.get(dim, dim) if isinstance(dim, str) else dim for dim in dims]

        document = self.documents.get("zarr.json")
        if document is not None and isinstance(document.get("dimension_names"), list):
            document["dimension_names"] = changed(document["dimension_names"])
        self.edit_attributes(renamed)


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

    def named(self, name: str) -> list[str]:
        """Return the paths of the arrays and groups that ``name`` means."""
        if "/" in name:
            path = name.strip("/")
            return [path] if path and path in self else []
        return list(self.by_name.get(name, ()))

    def matching(self, name: str, word: str) -> list[str]:
        """Return the same; ManifestError, which begins with the ``word`` that names them, if there are none."""
        found = self.named(name)
        if not found:
            raise self.unknown(f"{word}= names {name!r}, which the source does not have")
        return found

    def unknown(self, what: str, *, dims: bool = False) -> ManifestError:
        """Return the error that ends with the names that exist, or those of dimensions."""
        names: Iterable[str | None] = (dim for node in self.values() for dim in node.dims) if dims else self
        known = sorted(filter(None, dict.fromkeys(names)))
        more = "" if len(known) <= _SHOWN else f" and {len(known) - _SHOWN:,} more"
        return ManifestError(f"{what}: its {'dimensions' if dims else 'names'} are {', '.join(known[:_SHOWN])}{more}")


def nodes_of(documents: Mapping[str, Mapping[str, Any]]) -> Nodes:
    """Return the nodes that ``documents`` (by key) describe, by path; ManifestError for a damaged array."""
    by_path: dict[str, dict[str, Any]] = {}
    for key, document in documents.items():
        path, name = parent(key)
        by_path.setdefault(path, {})[name] = document
    for path in list(by_path):
        while path:
            path = parent(path)[0]
            by_path.setdefault(path, {})  # a group that has no document
    return Nodes((path, Node(path, by_path[path])) for path in sorted(by_path))


def documents_of(nodes: Mapping[str, Node]) -> dict[str, dict[str, Any]]:
    """Return the documents of ``nodes``, by key; those that repeat others repeat these."""
    found = {join(path, name): document for path, node in nodes.items() for name, document in node.documents.items()}
    for key in sorted(found, key=lambda key: -key.count("/")):
        if parent(key)[1] in ("zarr.json", CONSOLIDATED) and repeats(key, found[key]):
            others = {other: document for other, document in found.items() if other != key}
            found[key] = reconsolidate(key, found[key], others, lambda gone: gone not in found)
    return found


# ----------------------------------------------------------------------------------------------------
# What each word does.


def choose(nodes: Nodes, choice: Choice) -> dict[str, Node]:
    """Return what ``choice`` takes of ``nodes``, which it changes, by the paths under which that is shown.

    ManifestError, with the names that exist, for a name that the source does not have.
    """
    kept = set(nodes)
    if choice.keep is not None:
        kept = _paths_to_keep(nodes, {path for name in choice.keep for path in nodes.matching(name, "keep")})
    dropped = {path for name in choice.drop for path in nodes.matching(name, "drop")}
    kept = {path for path in kept if not _is_in(path, dropped)}
    shown = {path: node for path, node in nodes.items() if path in kept}
    _shorten(shown, nodes, choice.isel)
    if len(shown) < len(nodes):
        _mend_coordinates(shown, nodes)
    if choice.squeeze:
        _squeeze(shown, nodes, choice.squeeze)
    for name, values in choice.attrs.items():
        for path in nodes.matching(name, "attrs") if name.strip("/") else [""]:
            if path in shown:
                shown[path].edit_attributes(partial(_update_attributes, values))
    named = _rename_nodes(shown, nodes, choice.rename) if choice.rename else shown
    for path, added in choice.assign.items():
        group, name = parent(path.strip("/"))
        if group not in named:
            raise nodes.unknown(f"assign= names {path!r}, whose group the source does not have")
        named.pop(join(group, name), None)
        if added.dims != (name,):
            _add_coordinates(named[group], [name])
    return named


def _add_coordinates(group: Node, names: Iterable[str]) -> None:
    """Name variables that are coordinates in the attributes of their group."""
    words = dict.fromkeys([*_words(group), *names])
    group.edit_attributes(partial(_update_attributes, {COORDINATES: " ".join(words) or None}))


def _squeeze(shown: Mapping[str, Node], nodes: Nodes, dims: Sequence[str] | bool) -> None:
    """Let arrays not have dimensions of length 1; their coordinates become scalar ones."""
    lengths: dict[str | None, set[int]] = {}
    for node in shown.values():
        for dim, length in zip(node.dims, node.shape, strict=True):
            lengths.setdefault(dim, set()).add(length)
    if isinstance(dims, bool):
        dims = [dim for dim, known in lengths.items() if dim is not None and known == {1}]
    for dim in dims:
        if dim not in lengths:
            raise nodes.unknown(f"squeeze= names {dim!r}, which is not a dimension of the source", dims=True)
        if lengths[dim] != {1}:
            raise ManifestError(
                f"{dim!r} has the length {', '.join(map(str, sorted(lengths[dim])))}, and squeeze= drops dimensions of "
                f"length 1: isel={{{dim!r}: 0}} takes one element"
            )
    for path, node in shown.items():
        node.dropped = tuple(axis for axis, dim in enumerate(node.dims) if dim in dims)
        if node.dropped and node.dims == [parent(path)[1]]:
            _add_coordinates(shown[parent(path)[0]], node.dims[:1])  # type: ignore[arg-type]


def _update_attributes(values: Attributes, before: Attributes) -> Attributes:
    """Return the attributes ``before`` with others; those that are None are gone."""
    return {name: value for name, value in {**before, **values}.items() if value is not None}


def _is_in(path: str, paths: Container[str]) -> bool:
    """Whether ``path`` is one of ``paths``, or lies below one."""
    return path in paths or nearest(path, paths) is not None


def _paths_to_keep(nodes: Nodes, paths: set[str]) -> set[str]:
    """Return ``paths``, all below them, the groups above them, and the coordinates of arrays."""
    kept = {"", *(path for path in nodes if _is_in(path, paths))}
    arrays: dict[str, list[Node]] = {}
    for path in filter(None, list(kept)):
        if nodes[path].is_array:
            arrays.setdefault(parent(path)[0], []).append(nodes[path])
    for group, some in arrays.items():
        dims = {dim for node in some for dim in node.dims}
        words = {word for node in some for word in _words(node)}
        for above in ["", *_steps(group)]:
            members = nodes.by_group.get(above, {})
            names = {name for name, node in members.items() if node.dims == [name]} | _coordinate_names(
                nodes, above, members
            )
            kept |= {join(above, name) for name in names if name in words or dims.issuperset(members[name].dims)}
    return kept.union(*(map(_steps, kept)))


def _words(node: Node) -> list[str]:
    """Return the names of variables in the attribute ``coordinates``."""
    value = node.attributes.get(COORDINATES)
    return value.split() if isinstance(value, str) else []


def _coordinate_names(nodes: Mapping[str, Node], group: str, arrays: Mapping[str, Node]) -> set[str]:
    """Return the names of those ``arrays`` of a group that the attribute ``coordinates`` of any, or its own, names."""
    return {word for node in [*arrays.values(), nodes[group]] for word in _words(node) if word in arrays}


def _mend_coordinates(shown: Mapping[str, Node], nodes: Nodes) -> None:
    """Keep coordinates coordinates, and let the attribute ``coordinates`` name only variables that are left."""
    for group, before in nodes.by_group.items():
        after = {name: node for name, node in before.items() if join(group, name) in shown}
        if group not in shown or len(after) == len(before):
            continue
        named = _coordinate_names(nodes, group, before) & after.keys()
        for node in [*after.values(), shown[group]]:
            words = _words(node)
            left = [word for word in words if word in after or word not in before]
            if left != words:
                node.edit_attributes(partial(_update_attributes, {COORDINATES: " ".join(left) or None}))
        lost = named - _coordinate_names(shown, group, after)
        if lost:  # their names were in attributes of variables that are gone: in those of the group, they tell the same
            words = [*_words(shown[group]), *sorted(lost)]
            shown[group].edit_attributes(partial(_update_attributes, {COORDINATES: " ".join(words)}))


def _shorten(shown: Mapping[str, Node], nodes: Nodes, isel: Mapping[str, tuple[int | None, int | None]]) -> None:
    """Let arrays have the elements that ``isel`` takes alone."""
    known = {dim for node in nodes.values() for dim in node.dims}
    for name in isel:
        if name not in known:
            raise nodes.unknown(f"isel= names {name!r}, which is not a dimension of the source", dims=True)
    for node in shown.values():
        dims = node.dims
        if not any(dim in isel for dim in dims):
            continue
        starts, shape = list(node.starts), node.shape
        for axis, dim in enumerate(dims):
            if dim is not None and dim in isel:
                first, last = isel[dim]
                start, stop, _ = slice(first, last).indices(shape[axis])
                starts[axis] += start
                shape[axis] = max(stop - start, 0)
        node.starts = tuple(starts)
        for name in {"zarr.json", ".zarray"} & node.documents.keys():
            node.documents[name]["shape"] = shape


# ----------------------------------------------------------------------------------------------------
# Other names.


def _rename_nodes(kept: Mapping[str, Node], nodes: Nodes, rename: Mapping[str, str]) -> dict[str, Node]:
    """Return the nodes by their new paths, with the new names of dimensions, and of variables that attributes name."""
    names: dict[str, str] = {}  # new names, by path
    dims: list[tuple[str, str, str]] = []  # the group in which a dimension has a new name, the old name and the new one
    for old, new in rename.items():
        group, bare = parent(old.strip("/"))
        own = new.strip("/")
        if "/" in own and parent(own)[0] != group:
            raise ManifestError(f"rename= moves {old!r} to {new!r}: expected a name in the same group")
        own = parent(own)[1]
        if not zarrmeta.is_node_name(own):
            raise ManifestError(f"rename= gives {old!r} the name {new!r}: expected the name of a variable")
        found = nodes.named(old)
        is_dim = any(bare in node.dims for path, node in nodes.items() if is_within(path, group))
        if not found and not is_dim:
            raise nodes.unknown(f"rename= names {old!r}: expected a variable, group or dimension of the source")
        names |= dict.fromkeys(found, own)
        if is_dim:
            dims.append((group, bare, own))
    shown: dict[str, Node] = {}
    for path, node in kept.items():
        own_dims = {old: new for group, old, new in dims if is_within(path, group)}
        if any(dim in own_dims for dim in node.dims):
            after = [own_dims.get(dim, dim) if dim else None for dim in node.dims]
            if len(set(filter(None, after))) < len(set(filter(None, node.dims))):
                raise ManifestError(f"rename= gives two dimensions of {path!r} one name: {after}")
            node.rename_dimensions(own_dims)
        if names:
            group = parent(path)[0] if node.is_array else path
            node.edit_attributes(partial(_rename_in_attributes, partial(_new_name, names, nodes, group)))
        new_path = "/".join(names.get(above, parent(above)[1]) for above in _steps(path))
        if new_path in shown:
            raise ManifestError(f"rename= gives {shown[new_path].source!r} and {path!r} one name, {new_path!r}")
        shown[new_path] = node
    return shown


def _steps(path: str) -> Iterator[str]:
    """Yield the paths of the groups that ``path`` lies in, the outermost first, and ``path``."""
    parts = path.split("/") if path else []
    return ("/".join(parts[: depth + 1]) for depth in range(len(parts)))


def _new_name(names: Mapping[str, str], nodes: Nodes, group: str, word: str) -> str:
    """Return the new name of the variable that attributes in ``group`` call ``word``: of it, or of a group above."""
    for above in [*reversed([*_steps(group)]), ""]:
        if join(above, word) in nodes:
            return names.get(join(above, word), word)
    return word


def _rename_in_attributes(renamed: Callable[[str], str], attributes: Attributes) -> Attributes:
    """Return attributes in which variables are called what ``renamed`` returns for their names."""
    found = dict(attributes)
    for name in (*_NAMES, *_ROLES):
        value = attributes.get(name)
        words = value.split() if isinstance(value, str) else []
        after = [_reworded_one(word, renamed, has_roles=name in _ROLES) for word in words]
        if after != words:
            found[name] = " ".join(after)
    return found


def _reworded_one(word: str, renamed: Callable[[str], str], *, has_roles: bool) -> str:
    if not word.endswith(":"):
        return renamed(word)
    return word if has_roles else renamed(word[:-1]) + ":"
