"""The small document that joins sets lazily: its parts, how long each is, and along which axes. No I/O here.

``FORMATS.md`` is the specification. A part is one line, so that a longer archive is a document with a line more.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from refshard_fs.core import zarrmeta
from refshard_fs.core.documents import Documents, Shown
from refshard_fs.core.dtypes import itemsize_of
from refshard_fs.core.keys import ChunkGrid, is_within, join, parent, relative, splits
from refshard_fs.core.keyspace import KeySpace, View, by_name
from refshard_fs.core.model import Entry, Inline, Listed, Need, Steps, driven, of_origin, together
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.errors import ManifestError
from refshard_fs.formats.virtual_concat import NAME
from refshard_fs.formats.virtual_concat.cf_times import calendar_of, is_time
from refshard_fs.formats.virtual_concat.recoding import RECODED, RECODED_ATTRIBUTES, Recoding, recoding
from refshard_fs.formats.virtual_concat.recutting import Placement
from refshard_fs.references.values import METADATA, from_base64

DEEPEST: Final = 8  # documents within documents


# Ten thousand are read at once: without ``gc=False``, collecting garbage then can take more time than reading them.
class Part(msgspec.Struct, frozen=True, gc=False):
    """One set: its URL as written, its length along the dimension, and the coordinate's bytes, if they are given.

    In place of a URL it may have a ``document``, which joins sets along another dimension. Without either it is a gap:
    nothing is there, along that length. ``places`` say, by dimension, where its elements lie along others of which it
    has not all.
    """

    url: str
    length: int
    values: bytes | None = None
    document: ConcatDocument | None = None
    places: dict[str, Placement] = {}

    @property
    def is_gap(self) -> bool:
        return not self.url and self.document is None

    @property
    def name(self) -> str:
        """What it is called in errors."""
        return self.url if self.document is None else f"{self.document.parts[0].name} and others"

    def cut(self, start: int, stop: int) -> Part:
        """Return elements ``[start, stop)`` of a gap."""
        size = len(self.values or b"") // self.length
        values = None if self.values is None else self.values[start * size : stop * size]
        return msgspec.structs.replace(self, length=stop - start, values=values)


_Axis = Annotated[int, msgspec.Meta(ge=0)]


class _Members(msgspec.Struct, forbid_unknown_fields=True):
    refshard: Literal["concat"]
    dim: str
    axes: dict[str, _Axis]
    sets: list[Any]
    length: int | None = None
    coordinate: str | None = None
    chunks: dict[str, tuple[int, ...]] = {}
    join: Literal["exact", "outer"] = "exact"
    metadata: dict[str, dict[str, Any]] = {}
    bounds: dict[str, str] = {}
    stacked: tuple[str, ...] = ()
    unions: dict[str, dict[str, _Axis]] = {}
    held: dict[str, str] = {}


class ConcatDocument(msgspec.Struct, frozen=True):
    """Sets in a row along ``dim``: arrays in ``axes`` (path → axis) are joined, all else is the first set's.

    ``coordinate`` is the path of the array whose values the parts here hold, little-endian. Arrays in ``chunks`` are
    recut: shown in chunks of that shape, whatever the chunks of the parts are. Where sets are joined as ``is_outer``,
    chunks of an array that a part lacks do not exist. ``metadata`` are documents (by key) that are shown in place
    of the first part's: of arrays that are shown otherwise than that part stores them. Arrays in ``bounds`` have the
    units of another one, by path, in each part. Arrays that are ``stacked`` lack the dimension in the parts, each of
    which has one place along it: it is their first one here. Of dimensions in ``unions`` parts may have some elements
    only, of arrays that have them as the axis that is given there by path; arrays that are ``held`` are one chunk
    without codecs, which the document has: the coordinates of such dimensions.
    """

    dim: str
    axes: dict[str, int]
    parts: tuple[Part, ...]
    coordinate: str | None = None
    chunks: dict[str, tuple[int, ...]] = {}
    is_outer: bool = False
    metadata: dict[str, dict[str, Any]] = {}
    bounds: dict[str, str] = {}
    stacked: tuple[str, ...] = ()
    unions: dict[str, dict[str, int]] = {}
    held: dict[str, bytes] = {}

    @property
    def first(self) -> int:
        """The number of the part that gives all that is not joined: the first one that is no gap."""
        return next(number for number, part in enumerate(self.parts) if not part.is_gap)

    @property
    def zarr_format(self) -> int | None:
        """The version of zarr's metadata that it was made of; None if nothing in it tells."""
        names = {parent(key)[1] for key in self.metadata}
        within = {part.document.zarr_format for part in self.parts if part.document is not None}
        return 3 if "zarr.json" in names or 3 in within else 2 if names or 2 in within else None

    @property
    def count(self) -> int:
        """Number of sets, those that documents within it join among them."""
        return sum(1 if part.document is None else part.document.count for part in self.parts)

    @property
    def starts(self) -> list[int]:
        """Where each part begins along the dimension, and where the last one ends."""
        return list(accumulate((part.length for part in self.parts), initial=0))

    @classmethod
    def read(cls, data: bytes, where: str) -> ConcatDocument:
        """Return the document in ``data``; ManifestError, which begins with ``where``, where it breaks the format."""
        try:
            return cls.of(zarrmeta.loads(data), where)
        except (ValueError, msgspec.ValidationError) as e:
            raise ManifestError(f"{where}: {e}") from e

    @classmethod
    def of(cls, decoded: Any, where: str, depth: int = 0) -> ConcatDocument:
        """Return a document that is decoded from JSON, and lies in as many others as ``depth`` says."""
        if depth > DEEPEST:
            raise ValueError(f"documents lie in documents, more than {DEEPEST} deep")
        given = msgspec.convert(decoded, _Members)
        parts = tuple(_part(entry, given, where, depth) for entry in given.sets)
        if all(part.is_gap for part in parts):
            raise ManifestError(f'{where}: it is no "refshard": "{NAME}" with one set or more')
        if given.coordinate is not None and given.axes.get(given.coordinate) != 0:
            raise ManifestError(f"{where}: the coordinate {given.coordinate!r} is not in axes, with axis 0")
        if not given.axes.keys() >= given.chunks.keys() or any(min(c, default=0) < 1 for c in given.chunks.values()):
            raise ManifestError(f"{where}: its chunks are of an array that is not in axes, or of less than 1 element")
        for key in given.metadata:
            if not zarrmeta.is_metadata(key) or key.endswith(zarrmeta.CONSOLIDATED):
                raise ManifestError(f"{where}: its metadata have {key!r}, which is no document of an array or a group")
        if any(given.axes.get(path) != 0 or any(part.length != 1 for part in parts) for path in given.stacked):
            raise ManifestError(f"{where}: what is stacked is not in axes, with axis 0, or a set is longer than 1")
        strange = {dim for part in parts for dim in part.places} - (given.unions.keys() - {given.dim})
        if strange:
            raise ManifestError(f"{where}: its unions have no dimension {min(strange)!r}")
        return cls(
            given.dim,
            given.axes,
            parts,
            given.coordinate,
            given.chunks,
            given.join == "outer",
            given.metadata,
            given.bounds,
            given.stacked,
            given.unions,
            {path: from_base64(data) for path, data in given.held.items()},
        )

    def dumps(self, respell: Callable[[str], str] = str) -> bytes:
        """Return the document as JSON, a line for each part, URLs ``respell``-ed."""
        head = self._head()
        lines = [zarrmeta.dumps(self._line(part, respell)) for part in self.parts]
        return zarrmeta.dumps(head)[:-1] + b',"sets":[\n' + b",\n".join(lines) + b"\n]}\n"

    def _head(self) -> dict[str, Any]:
        members = {
            "coordinate": self.coordinate,
            "chunks": self.chunks,
            "join": "outer" if self.is_outer else None,
            "metadata": self.metadata,
            "bounds": self.bounds,
            "stacked": self.stacked,
            "unions": self.unions,
            "held": {path: _spelled(data) for path, data in self.held.items()},
        }
        given = {name: value for name, value in members.items() if value}
        return {"refshard": NAME, "dim": self.dim, "axes": self.axes, **given}

    def with_parts(self, more: Sequence[Part]) -> ConcatDocument:
        """Return the document with ``more`` parts at its end."""
        return msgspec.structs.replace(self, parts=(*self.parts, *more))

    def with_values(self, values: bytes | None) -> ConcatDocument:
        """Return the document with other values of the coordinate, of all parts."""
        if values is None:
            return self
        size = len(values) // self.starts[-1]
        pieces = [values[start * size : stop * size] for start, stop in pairwise(self.starts)]
        parts = [msgspec.structs.replace(part, values=data) for part, data in zip(self.parts, pieces, strict=True)]
        return msgspec.structs.replace(self, parts=tuple(parts))

    def _line(self, part: Part, respell: Callable[[str], str]) -> list[Any]:
        line: list[Any] = [respell(part.url) if part.url else None, part.length]
        if part.document is not None:
            within = part.document
            line[0] = {**within._head(), "sets": [within._line(each, respell) for each in within.parts]}
        if self.coordinate is not None and part.values is not None:
            line.append(_spelled(part.values))
        if part.places:
            line += [*([None] if len(line) == 2 else []), {dim: places.runs for dim, places in part.places.items()}]
        return line


def _spelled(data: bytes) -> str:
    return "base64:" + base64.b64encode(data).decode()


def with_marker_first(document: Mapping[str, Any]) -> bytes:
    """Return a decoded document as JSON that is recognised: the member that tells the format comes first."""
    return zarrmeta.dumps({"refshard": document["refshard"], **document})


def _part(entry: Any, given: _Members, where: str, depth: int) -> Part:
    document: ConcatDocument | None = None
    of, length, values, places = (
        [*entry, None, None, None, None][:4] if isinstance(entry, list) else (entry, *[None] * 3)
    )
    match entry:
        case str() | [str()] | [str(), int()] | [str(), int(), str()] | [str(), int(), str() | None, {}]:
            pass
        case [None, int()] | [None, int(), str()]:
            of = ""
        case [None, *_]:
            raise ValueError(f"{entry!r} is no gap, [null, length] or [null, length, coordinate]")
        case [{}, int()] | [{}, int(), str()] | [{}, int(), str() | None, {}]:
            of, document = "", ConcatDocument.of(of, where, depth + 1)
        case _:
            raise ValueError(f"{entry!r} is no URL, [URL, length] or [URL, length, coordinate]")
    length = given.length if length is None else length
    if isinstance(length, bool) or length is None or length < 1:
        raise ValueError(f"the set {of!r} has no length along {given.dim!r}: give [url, length], or a length for all")
    if given.coordinate is not None and values is None:
        raise ValueError(f"the set {of!r} lacks the values of the coordinate {given.coordinate!r}")
    runs = msgspec.convert(places or {}, dict[str, tuple[tuple[int, int], ...]])
    try:
        data = None if values is None else from_base64(values)
    except ValueError as e:
        raise ValueError(f"the coordinate of the set {of!r}: {e}") from e
    return Part(of, length, data, document, {dim: Placement(some) for dim, some in runs.items()})


# ----------------------------------------------------------------------------------------------------
# What arrays must have in common to be joined along a dimension, now or when they are read. No I/O here.


# Attributes that say what the values mean. All others may differ.
MEANING: Final = ("units", "calendar", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
# Fields that say how the values are stored; they may differ where these are stored anew.
STORAGE: Final = frozenset({"chunks", "compressor", "filters", "codecs", "chunk_grid", "order"})
# Fields that say how chunks are called.
KEYS: Final = frozenset({"dimension_separator", "chunk_key_encoding"})


class Described(NamedTuple):
    """An array as it is compared with others; ``name`` is what its set is called in errors."""

    name: str
    meta: ArrayMeta
    attributes: Mapping[str, Any]


def check_metadata(path: str, one: Described, other: Described, ignored: Container[str] = ()) -> None:
    """Raise ManifestError, which names the field, where two arrays ``path`` differ in one that is not ``ignored``.

    An attribute's field is ``attribute NAME``.
    """
    mine, theirs = _fields(one), _fields(other)
    for field in dict.fromkeys([*mine, *theirs]):
        first, second = mine.get(field), theirs.get(field)
        if field not in ignored and zarrmeta.dumps(first) != zarrmeta.dumps(second):
            raise difference(path, field, one.name, first, other.name, second)


def recoding_of(path: str, one: Described, other: Described, *, is_recut: bool = False) -> Recoding | None:
    """Return how chunks of the array ``path`` of ``other`` become chunks of that of ``one``; None where they are.

    Where the array is recut, how its chunks are cut and compressed makes no difference. ManifestError, which names the
    field, where the arrays differ in what is no matter of encoding.
    """
    ignored = {"shape"} | (STORAGE | KEYS if is_recut else frozenset())
    if is_time(one.attributes) and is_time(other.attributes):
        ignored |= {"attribute units"}
        if one.attributes["units"] != other.attributes["units"]:
            check_metadata(path, one, other, ignored | RECODED | RECODED_ATTRIBUTES)
            return recoding(path, (one.meta, one.attributes), (other.meta, other.attributes), one.name, other.name)
    check_metadata(path, one, other, ignored | RECODED | RECODED_ATTRIBUTES)
    try:
        check_metadata(path, one, other, ignored)
    except ManifestError:
        return recoding(path, (one.meta, one.attributes), (other.meta, other.attributes), one.name, other.name)
    return None


def difference(path: str, field: str, one: str, mine: Any, other: str, theirs: Any) -> ManifestError:
    """Return the error that says what array ``path`` has in one set and in another."""
    return ManifestError(f"{path!r} has the {field} {mine!r} in {one}, and {theirs!r} in {other}")


def _fields(array: Described) -> dict[str, Any]:
    meta = array.meta
    fields = {name: value for name, value in meta.raw.items() if name != "attributes"}
    if meta.zarr_format == 2:
        fields |= {"dimension_separator": fields.get("dimension_separator") or ".", "dtype": meta.dtype}
        fields["filters"] = fields.get("filters") or None
    else:
        fields["data_type"] = meta.dtype
    fields |= {f"attribute {name}": array.attributes.get(name) for name in MEANING}
    return fields | ({"attribute calendar": calendar_of(array.attributes)} if is_time(array.attributes) else {})


# ----------------------------------------------------------------------------------------------------
# Parts that are somebody else's, within a document of the user's: what they ask for says whose it is. No I/O here.
#
# It is judged where it is opened. Of a part within a part, the outer one counts: the user named that.


T = TypeVar("T")


class PartView(View):
    """The set at ``origin``, a part of another one."""

    def __init__(self, base: KeySpace, origin: str) -> None:
        super().__init__(base)
        self._origin = origin

    def lookup(self, key: str) -> Steps[Entry | None]:
        return (yield from of_part(self.base.lookup(key), self._origin))

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        return (yield from of_part(self.base.children(prefix), self._origin))

    def is_directory(self, prefix: str) -> Steps[bool]:
        return (yield from of_part(self.base.is_directory(prefix), self._origin))


def of_part(steps: Steps[T], origin: str) -> Steps[T]:
    """Return what ``steps`` return; it, and all that they need, is of ``origin``."""

    def meet(need: Need | tuple[Need, ...]) -> Steps[Any]:
        return (yield of_origin(need, origin))

    return of_origin((yield from driven(steps, meet)), origin)


# ----------------------------------------------------------------------------------------------------
# Parts that are nothing, or have other metadata than they are stored with. No I/O here.


class Nothing(KeySpace):
    """A gap: no key at all."""

    def lookup(self, key: str) -> Steps[Entry | None]:
        yield from ()
        return None

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        yield from ()
        return None


class Overlaid(View):
    """The keys of a part, ``metadata`` (by key) in place of its own, and arrays ``held`` (by path) with their bytes."""

    def __init__(self, base: KeySpace, metadata: Mapping[str, Any], held: Mapping[str, bytes], where: str) -> None:
        super().__init__(base)
        self._metadata = metadata
        self._inline = {key: Inline(zarrmeta.dumps(doc)) for key, doc in metadata.items()}
        self._held = held
        for path, data in held.items():
            docs = [metadata[key] for key in (join(path, "zarr.json"), join(path, ".zarray")) if key in metadata]
            meta = zarrmeta.array_meta(docs[0], f"{path!r} of {where}") if docs else None
            if meta is None or meta.grid is None or meta.grid.size != 1:
                raise ManifestError(
                    f"{where}: it holds {path!r}, which its metadata do not show as an array of one chunk"
                )
            if len(data) != math.prod(meta.chunks or ()) * (itemsize_of(meta) or 0):
                raise ManifestError(
                    f"{where}: it holds {len(data)} bytes of {path!r}, which has the shape {meta.shape}"
                )
            self._inline[join(path, meta.grid.tail(0))] = Inline(data)

    def lookup(self, key: str) -> Steps[Entry | None]:
        found = self._inline.get(key)
        if found is not None:
            return found
        if key == zarrmeta.CONSOLIDATED or key == "zarr.json":
            return (yield from self._consolidated(key))
        return None if self._is_hidden(key) else (yield from self.base.lookup(key))

    def _is_hidden(self, key: str) -> bool:
        """Whether a key of the part is a chunk of an array that is held, or a directory of such."""
        return any(key.startswith(path + "/") for path in self._held) and not zarrmeta.is_metadata(key)

    def _consolidated(self, key: str) -> Steps[Entry | None]:
        """Return the root's document: what it tells of all arrays is what is shown of them."""
        data = yield from self.base.read(key)
        doc: Any = {}
        with suppress(ValueError):  # whoever reads it sees the bytes as they are
            doc = {} if data is None else zarrmeta.loads(data)
        if not isinstance(doc, dict):
            doc = {}
        known = doc.get("metadata")
        if key == zarrmeta.CONSOLIDATED and isinstance(known, dict):
            return Inline(zarrmeta.dumps({**doc, "metadata": {**known, **self._metadata}}))
        if "consolidated_metadata" in doc:  # readers ask for each document then
            return Inline(zarrmeta.dumps({name: doc[name] for name in doc if name != "consolidated_metadata"}))
        return (yield from self.base.lookup(key))

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        names = None if self._is_hidden(prefix) else (yield from self.base.children(prefix))
        found = {listed.name: listed for listed in names or () if not self._is_hidden(join(prefix, listed.name))}
        for key, entry in self._inline.items():
            directory, name = parent(key)
            if directory == prefix:
                found[name] = Listed(name, len(entry.data))
            elif directory.startswith(join(prefix, "")):
                below = directory[len(prefix) :].strip("/").partition("/")[0]
                found.setdefault(below, Listed(below, None, True))
        return sorted(found.values(), key=by_name) if found or names is not None else None


class _StackedArray(NamedTuple):
    """An array with a dimension more: its chunks' grid as it is shown, and their grid in the part."""

    grid: ChunkGrid | None
    stored: ChunkGrid


class _Stacking(msgspec.Struct, frozen=True, cache_hash=True):
    """Rewrites metadata: arrays ``paths`` are shown with ``dim``, of length 1, as their first dimension."""

    paths: tuple[str, ...]
    dim: str
    where: str

    def over(self, data: bytes) -> Callable[[Mapping[str, Any], str], Shown[_StackedArray]]:
        return self._shown

    def _shown(self, doc: Mapping[str, Any], path: str) -> Shown[_StackedArray]:
        meta = zarrmeta.array_meta(doc, f"{path!r} of {self.where}") if path in self.paths else None
        if meta is None:
            return doc, None
        if meta.grid is None or meta.chunks is None:
            raise ManifestError(
                f"{path!r} of {self.where} cannot get the dimension {self.dim!r}: its chunks are not of one size"
            )
        shown = stacked(doc, meta.chunks, self.dim)
        return shown, _StackedArray(zarrmeta.grid_of(shown), meta.grid)


def stacked(doc: Mapping[str, Any], chunks: Sequence[int], dim: str) -> dict[str, Any]:
    """Return the metadata of an array of chunks of that shape with ``dim``, of length 1, as its first dimension."""
    found = {**doc, "shape": [1, *doc["shape"]]}
    if doc.get("zarr_format") == 2:
        return {**found, "chunks": [1, *chunks]}
    found["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": [1, *chunks]}}
    return {**found, "dimension_names": [dim, *(doc.get("dimension_names") or [None] * len(chunks))]}


class Stacked(View):
    """A part whose arrays ``paths`` lie at one place along ``dim``, which the part itself has not."""

    def __init__(self, base: KeySpace, paths: Sequence[str], dim: str, where: str) -> None:
        super().__init__(base)
        self._paths = frozenset(paths)
        self._documents = Documents(base, _Stacking(tuple(paths), dim, where))
        self.grids = self._documents.grids

    def lookup(self, key: str) -> Steps[Entry | None]:
        if self._documents.is_document(key):
            return (yield from self._documents.lookup(key))
        path, array = yield from self._array_of(key)
        if array is None or array.grid is None:
            return (yield from self.base.lookup(key))
        encoding, tail = array.grid.encoding, relative(key, path)
        coords = encoding.decode(tail, len(array.grid.counts))
        if coords is None:
            is_stored = encoding.decode(tail, len(array.stored.counts)) is not None
            return None if is_stored else (yield from self.base.lookup(key))
        return None if coords[0] else (yield from self.base.lookup(join(path, encoding.encode(coords[1:]))))

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        path, array = yield from self._array_of(join(prefix, "x"))
        if array is None:
            names = yield from self.base.children(prefix)
            return None if names is None else (yield from self._documents.sized(prefix, names))
        encoding = array.stored.encoding
        if encoding.separator == ".":
            names = []
            for n in (yield from self.base.children(prefix)) or ():
                coords = encoding.decode(n.name, len(array.stored.counts)) if prefix == path else None
                names.append(n if coords is None else msgspec.structs.replace(n, name=encoding.encode([0, *coords])))
            return sorted((yield from self._documents.sized(prefix, names)), key=by_name)
        top = join(path, "c") if encoding.name == "default" else path  # where directories of chunks begin
        below = [step for step in prefix[len(top) :].split("/") if step] if is_within(prefix, top) else None
        if below:
            return None if below[0] != "0" else (yield from self.base.children("/".join([top, *below[1:]])))
        found = (yield from self.base.children(prefix)) or ()
        others = [n for n in found if below is None or not array.stored.has_name(n.name, is_directory=n.is_directory)]
        first = [] if below is None else [Listed("0", None, True)]
        if prefix == top != path:
            others = []
        return sorted([*(yield from self._documents.sized(prefix, others)), *first], key=by_name)

    def _array_of(self, key: str) -> Steps[tuple[str, _StackedArray | None]]:
        """Return path and array of the one that is shown otherwise and that ``key`` lies below, if there is one."""
        path = next((path for path, _ in splits(key) if path in self._paths), None)
        if path is None:
            return "", None
        if path not in self._documents.arrays:
            yield from together([self._documents.lookup(join(path, name)) for name in METADATA])
        return path, self._documents.arrays.get(path)
