"""What a selection takes of a source, and how the metadata of what it takes are shown. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import index
from typing import Any, Final

import msgspec

from refshard_fs.core import zarrmeta
from refshard_fs.core.consolidated import reconsolidated, repeats
from refshard_fs.core.keys import is_within, join, parent
from refshard_fs.core.zarrmeta import CONSOLIDATED
from refshard_fs.errors import ManifestError

Attributes = dict[str, Any]

DIMENSIONS: Final = "_ARRAY_DIMENSIONS"  # the attribute in which xarray names them in version 2
COORDINATES: Final = "coordinates"
# Attributes of CF that name variables. A word that ends in a colon is a variable in some, and a role in others.
_NAMES: Final = (COORDINATES, "bounds", "climatology", "grid_mapping", "ancillary_variables")
_ROLES: Final = ("cell_measures", "formula_terms")
_SHOWN: Final = 20  # names in an error


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The words of one selection; all names are those of the source.

    A name without a slash means the variables, or groups, of that name in every group; one with a slash is the path of
    one ("/air" in the root). ``isel`` has the bounds of slices.
    """

    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] | None = None
    rename: dict[str, str] = {}
    attrs: dict[str, Attributes] = {}
    isel: dict[str, tuple[int | None, int | None]] = {}

    @classmethod
    def of(
        cls,
        drop: Iterable[str] | str = (),
        keep: Iterable[str] | str | None = None,
        rename: Mapping[str, str] | None = None,
        attrs: Mapping[str, Mapping[str, Any]] | None = None,
        isel: Mapping[str, Any] | None = None,
    ) -> Choice:
        """Return what the arguments of ``fs.select`` say; TypeError or ValueError for what they do not take."""
        given = {
            "drop": _names_of(drop),
            "keep": None if keep is None else _names_of(keep),
            "rename": dict(rename or {}),
            "attrs": {path: dict(values) for path, values in (attrs or {}).items()},
            "isel": {dim: _bounds(dim, chosen) for dim, chosen in (isel or {}).items()},
        }
        return cls.read(given)

    @classmethod
    def read(cls, given: Any) -> Choice:
        """Return a selection given as JSON values; ValueError where it breaks the form."""
        try:
            return msgspec.convert(given, cls)
        except msgspec.ValidationError as e:
            raise ValueError(f"select={given!r:.500}: {e}") from None

    def spelled(self) -> dict[str, Any]:
        """Return the selection as JSON values; TypeError for attributes that JSON cannot express."""
        found: dict[str, Any] = zarrmeta.loads(zarrmeta.dumps(msgspec.to_builtins(self)))
        return found


def _names_of(given: Iterable[str] | str) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _bounds(dim: str, chosen: Any) -> tuple[int | None, int | None]:
    if not isinstance(chosen, slice):
        one = f"slice({chosen}, {chosen + 1})" if isinstance(chosen, int) and chosen != -1 else "a slice of length 1"
        raise TypeError(
            f"isel={{{dim!r}: {chosen!r}}}: expected a slice. {one} keeps the dimension; squeeze() of the opened "
            "dataset drops it"
        )
    if chosen.step not in (None, 1):
        raise ValueError(f"isel={{{dim!r}: {chosen!r}}}: expected a slice of step 1, for chunks hold all elements")
    start, stop = (None if bound is None else index(bound) for bound in (chosen.start, chosen.stop))
    return start, stop


# ----------------------------------------------------------------------------------------------------
# The metadata of a source, by node.


class Node:
    """An array or a group: its metadata documents by name, which are its own. ``source`` is its path in the source.

    Of the elements of an array that is ``stored`` as its document there says, those from ``starts`` on are shown.
    """

    def __init__(self, source: str, documents: Mapping[str, Any]) -> None:
        self.source = source
        self.documents = {name: dict(document) for name, document in documents.items()}
        self.stored = dict(self.array) if self.is_array else {}
        self.starts = (0,) * len(self.shape)

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
        return list(self.array.get("shape") or ()) if self.is_array else []

    @property
    def attributes(self) -> Attributes:
        if "zarr.json" in self.documents:
            return self.documents["zarr.json"].get("attributes") or {}
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
            before = document.get("attributes") or {}
            after = edit(before)
            if after != before:
                document["attributes"] = after
        if self.documents.keys() & {".zarray", ".zgroup", ".zattrs"}:
            before = self.documents.get(".zattrs") or {}
            after = edit(before)
            if after != before:
                self.documents[".zattrs"] = after

    def rename_dimensions(self, names: Mapping[str, str]) -> None:
        """Rename dimensions, wherever the metadata name them."""
        document = self.documents.get("zarr.json")
        if document is not None and isinstance(document.get("dimension_names"), list):
            document["dimension_names"] = [names.get(dim, dim) for dim in document["dimension_names"]]

        def renamed(attributes: Attributes) -> Attributes:
            dims = attributes.get(DIMENSIONS)
            if not isinstance(dims, list):
                return attributes
            return {**attributes, DIMENSIONS: [names.get(dim, dim) if isinstance(dim, str) else dim for dim in dims]}

        self.edit_attributes(renamed)


Nodes = dict[str, Node]


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
    return {path: Node(path, by_path[path]) for path in sorted(by_path)}


def documents_of(nodes: Nodes) -> dict[str, dict[str, Any]]:
    """Return the documents of ``nodes``, by key; those that repeat others repeat these."""
    found = {join(path, name): document for path, node in nodes.items() for name, document in node.documents.items()}
    for key in sorted(found, key=lambda key: -key.count("/")):
        if parent(key)[1] in ("zarr.json", CONSOLIDATED) and repeats(key, found[key]):
            others = {other: document for other, document in found.items() if other != key}
            found[key] = reconsolidated(key, found[key], others, lambda gone: gone not in found)
    return found


# ----------------------------------------------------------------------------------------------------
# What each word does.


def chosen(nodes: Nodes, choice: Choice) -> Nodes:
    """Return what ``choice`` takes of ``nodes``, which it may change, by the paths under which that is shown.

    ManifestError, with the names that exist, for a name that the source does not have.
    """
    kept = nodes
    if choice.keep is not None:
        kept = _kept(nodes, choice.keep)
    gone = {path for name in choice.drop for path in _matching(nodes, name, "drop")}
    kept = {path: node for path, node in kept.items() if not any(is_within(path, one) for one in gone)}
    _shorten(kept, nodes, choice.isel)
    targets = [(path, name, values) for name, values in choice.attrs.items() for path in _paths(nodes, name, "attrs")]
    if len(kept) < len(nodes):
        _mend_coordinates(kept, nodes)
    for path, _, values in targets:
        if path in kept:
            kept[path].edit_attributes(lambda before, values=values: _changed(before, values))  # type: ignore[misc]
    return _renamed(kept, nodes, choice.rename) if choice.rename else kept


def _changed(before: Attributes, values: Attributes) -> Attributes:
    return {name: value for name, value in {**before, **values}.items() if value is not None}


def _paths(nodes: Nodes, name: str, word: str) -> list[str]:
    return [""] if name.strip("/") == "" else _matching(nodes, name, word)


def _matching(nodes: Nodes, name: str, word: str) -> list[str]:
    """Return the paths of the nodes that ``name`` means; ManifestError if there is none."""
    found = _named(nodes, name)
    if not found:
        raise _unknown(f"{word}= names {name!r}, which the source does not have", nodes)
    return found


def _named(nodes: Nodes, name: str) -> list[str]:
    if "/" in name:
        path = name.strip("/")
        return [path] if path and path in nodes else []
    return [path for path in nodes if path and parent(path)[1] == name]


def _unknown(what: str, nodes: Nodes, dims: bool = False) -> ManifestError:
    named = [dim for node in nodes.values() for dim in node.dims if dim] if dims else [path for path in nodes if path]
    names = sorted(dict.fromkeys(named))
    more = "" if len(names) <= _SHOWN else f" and {len(names) - _SHOWN:,} more"
    return ManifestError(f"{what}: its {'dimensions' if dims else 'names'} are {', '.join(names[:_SHOWN])}{more}")


def _kept(nodes: Nodes, names: Sequence[str]) -> Nodes:
    """Return the nodes that ``names`` mean, all below them, the groups above them, and their coordinates."""
    found = {path for name in names for path in _matching(nodes, name, "keep")}
    kept = {path for path in nodes if any(is_within(path, one) for one in found)}
    for group, arrays in _arrays_by_group(nodes, kept).items():
        needed = {dim for path in arrays for dim in nodes[path].dims}
        named = {word for path in arrays for word in _words(nodes[path].attributes.get(COORDINATES))}
        above = group
        while True:
            own = _coordinates(nodes, above)
            kept |= {path for path in own if needed.issuperset(nodes[path].dims) or parent(path)[1] in named}
            if not above:
                break
            above = parent(above)[0]
    for path in list(kept):
        while path:
            path = parent(path)[0]
            kept.add(path)
    return {path: node for path, node in nodes.items() if path in kept or not path}


def _arrays_by_group(nodes: Nodes, paths: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in paths:
        if nodes[path].is_array:
            found.setdefault(parent(path)[0] if path else "", []).append(path)
    return found


def _words(value: Any) -> list[str]:
    return value.split() if isinstance(value, str) else []


def _coordinates(nodes: Nodes, group: str) -> set[str]:
    """Return the arrays of a group that xarray takes for coordinates: of a dimension, or named as such."""
    arrays = {parent(path)[1]: node for path, node in nodes.items() if path and parent(path)[0] == group}
    arrays = {name: node for name, node in arrays.items() if node.is_array}
    dims = {name for name, node in arrays.items() if node.dims == [name]}
    return {join(group, name) for name in dims | _named_coordinates(nodes, group, arrays)}


def _named_coordinates(nodes: Nodes, group: str, arrays: Mapping[str, Node]) -> set[str]:
    """Return the names of those ``arrays`` of a group that the attribute ``coordinates`` of any, or its own, names."""
    nodes_that_name = [*arrays.values(), *([nodes[group]] if group in nodes else [])]
    return {word for node in nodes_that_name for word in _words(node.attributes.get(COORDINATES)) if word in arrays}


def _mend_coordinates(kept: Nodes, nodes: Nodes) -> None:
    """Let arrays that are coordinates stay coordinates, and no attribute ``coordinates`` name what is gone."""
    for group in {parent(path)[0] for path in nodes if path}:
        if group not in kept:
            continue
        before = {parent(p)[1]: n for p, n in nodes.items() if p and n.is_array and parent(p)[0] == group}
        after = {name: node for name, node in before.items() if join(group, name) in kept}
        named = _named_coordinates(nodes, group, before) & after.keys()
        gone = before.keys() - after.keys()

        def mended(attributes: Attributes, gone: Iterable[str] = gone) -> Attributes:
            words = _words(attributes.get(COORDINATES))
            left = [word for word in words if word not in gone]
            return attributes if left == words else _changed(attributes, {COORDINATES: " ".join(left) or None})

        for node in [*after.values(), kept[group]]:
            node.edit_attributes(mended)
        lost = sorted(named - _named_coordinates(kept, group, after))
        if lost:

            def told(attributes: Attributes, lost: Sequence[str] = lost) -> Attributes:
                return {**attributes, COORDINATES: " ".join([*_words(attributes.get(COORDINATES)), *lost])}

            kept[group].edit_attributes(told)


def _shorten(kept: Nodes, nodes: Nodes, isel: Mapping[str, tuple[int | None, int | None]]) -> None:
    """Let arrays have the elements that ``isel`` takes alone."""
    known = {dim for node in nodes.values() for dim in node.dims}
    for name in isel:
        if name not in known:
            raise _unknown(f"isel= names {name!r}, which is not a dimension of the source", nodes, dims=True)
    for node in kept.values():
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


def _renamed(kept: Nodes, nodes: Nodes, rename: Mapping[str, str]) -> Nodes:
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
        found = _named(nodes, old)
        is_dim = any(bare in node.dims for path, node in nodes.items() if is_within(path, group))
        if not found and not is_dim:
            raise _unknown(f"rename= names {old!r}, which is no variable, group or dimension of the source", nodes)
        names |= dict.fromkeys(found, own)
        if is_dim:
            dims.append((group, bare, own))
    shown: Nodes = {}
    for path, node in kept.items():
        own_dims = {old: new for group, old, new in dims if is_within(path, group)}
        if any(dim in own_dims for dim in node.dims):
            after = [own_dims.get(dim, dim) if dim else None for dim in node.dims]
            if len(set(filter(None, after))) < len(set(filter(None, node.dims))):
                raise ManifestError(f"rename= gives two dimensions of {path!r} one name: {after}")
            node.rename_dimensions(own_dims)
        words = _new_words(names, path, node)
        if words:
            node.edit_attributes(lambda before, words=words: _reworded(before, words))  # type: ignore[misc]
        new_path = "/".join(names.get(above, parent(above)[1]) for above in _steps(path))
        if new_path in shown:
            raise ManifestError(f"rename= gives {shown[new_path].source!r} and {path!r} one name, {new_path!r}")
        shown[new_path] = node
    return shown


def _steps(path: str) -> Iterator[str]:
    """Yield the paths of the groups that ``path`` lies in, the outermost first, and ``path``."""
    parts = path.split("/") if path else []
    return ("/".join(parts[: depth + 1]) for depth in range(len(parts)))


def _new_words(names: Mapping[str, str], path: str, node: Node) -> dict[str, str]:
    """Return the new names of variables that a node's attributes may name: of its group, or of one above."""
    group = parent(path)[0] if node.is_array else path
    found: dict[str, str] = {}
    for above in ["", *_steps(group)]:
        found |= {parent(old)[1]: new for old, new in names.items() if parent(old)[0] == above}
    return found


def _reworded(attributes: Attributes, names: Mapping[str, str]) -> Attributes:
    found = dict(attributes)
    for name in (*_NAMES, *_ROLES):
        words = _words(attributes.get(name))
        after = [_reworded_one(word, names, has_roles=name in _ROLES) for word in words]
        if after != words:
            found[name] = " ".join(after)
    return found


def _reworded_one(word: str, names: Mapping[str, str], *, has_roles: bool) -> str:
    if not word.endswith(":"):
        return names.get(word, word)
    return word if has_roles else names.get(word[:-1], word[:-1]) + ":"
