"""The small document that joins sets lazily: its pieces, how long each is, and along which axes. No I/O here.

``FORMATS.md`` is the specification. A piece is one line, so that a longer archive is a document with a line more. The
document is read whole: the lines of 100,000 files take 0.3 s of processor time, so that blocks would save little.
"""

from __future__ import annotations

import base64
import gzip
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import ArrayChunks, Chunks, ChunksBuilder, Contents, Numbers
from refshard_fs.core.compression import Inflate
from refshard_fs.core.dtypes import itemsize_of
from refshard_fs.core.format import MANIFEST_BYTES, check_size
from refshard_fs.core.keys import ChunkGrid, is_within, join, parent
from refshard_fs.core.keyspace import KeySpace, LookUp, View, by_name
from refshard_fs.core.model import Entry, Inline, Listed, Need, Origin, Steps, drive, of_origin
from refshard_fs.cubes import NAME
from refshard_fs.cubes.choice import Choice
from refshard_fs.cubes.recutting import Placement
from refshard_fs.errors import ManifestError
from refshard_fs.references.values import from_base64

DEEPEST: Final = 8  # documents within documents
PLAIN: Final = 1 << 20  # bytes of the longest document that is not compressed: about 10,000 pieces


# Ten thousand are read at once: without ``gc=False``, collecting garbage then can take more time than reading them.
class Piece(msgspec.Struct, frozen=True, gc=False):
    """One set: its URL as written, its length along the dimension, and the coordinate's bytes, if they are given.

    In place of a URL it may have a ``document``, which joins sets along another dimension. Without either it is a gap.
    ``places`` are the places of its elements along other dimensions, where it has only some elements. ``take`` is the
    first element that is joined, and the number of elements of the set; None if all are joined. ``select`` are the
    selections by which it is shown, after those of the document.
    """

    url: str
    length: int
    values: bytes | None = None
    document: ConcatDocument | None = None
    places: dict[str, Placement] = {}
    take: tuple[int, int] | None = None
    select: tuple[Choice, ...] = ()

    @property
    def is_gap(self) -> bool:
        return not self.url and self.document is None

    @property
    def name(self) -> str:
        """What it is called in errors."""
        return self.url if self.document is None else f"{self.document.pieces[0].name} and others"

    @property
    def total(self) -> int:
        """The length of the whole set along the dimension."""
        return self.length if self.take is None else self.take[1]

    def cut(self, start: int, stop: int) -> Piece:
        """Return elements ``[start, stop)`` of those that are joined."""
        size = len(self.values or b"") // self.length
        values = None if self.values is None else self.values[start * size : stop * size]
        begin = start if self.take is None else start + self.take[0]
        take = None if self.is_gap or (begin, stop - start) == (0, self.total) else (begin, self.total)
        return msgspec.structs.replace(self, length=stop - start, values=values, take=take)


_Axis = Annotated[int, msgspec.Meta(ge=0)]


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    """The members of a document but for its pieces: see `ConcatDocument`."""

    dim: str
    axes: dict[str, _Axis]
    coordinate: str | None = None
    chunks: dict[str, tuple[int, ...]] = {}
    join: Literal["exact", "outer"] = "exact"
    metadata: dict[str, dict[str, Any]] = {}
    bounds: dict[str, str] = {}
    stacked: tuple[str, ...] = ()
    unions: dict[str, dict[str, _Axis]] = {}
    select: tuple[Choice, ...] = ()
    view: tuple[Choice, ...] = ()
    lost: dict[str, str] = {}
    preprocess: str = ""


class _Line(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """A piece as it is written: its URL or document (None: a gap), and as much of the rest as it needs."""

    of: str | dict[str, Any] | None
    length: int | None = None
    values: str | None = None
    places: dict[str, tuple[tuple[int, int], ...]] = {}
    take: tuple[_Axis, int] | None = None
    select: tuple[Choice, ...] = ()


class _Json(_Head, forbid_unknown_fields=True, frozen=True, kw_only=True):
    refshard: Literal["concat"]
    sets: list[_Line | str]
    length: int | None = None
    held: dict[str, str] = {}
    beside: list[Any] = []


class ConcatDocument(_Head, frozen=True, kw_only=True):
    """Sets in a row along ``dim``: arrays in ``axes`` (path → axis) are joined, all else is the first set's.

    ``coordinate`` is the path of the array whose values the pieces hold, little-endian. Arrays in ``chunks`` are recut:
    shown in chunks of that shape, whatever the chunks of the pieces are. With ``join="outer"`` chunks of an array that
    a piece lacks do not exist. ``metadata`` are documents (by key) that are shown in place of the first piece's. Arrays
    in ``bounds`` have the units of another one, by path, in each piece. ``stacked`` arrays lack the dimension in the
    pieces, and each piece is one place along it; here it is their first. Of dimensions in ``unions`` (with the arrays
    that have them, by path, and as which axis) a piece may have only some elements. The coordinates of such dimensions
    are ``held``: the document has the bytes of their one chunk, without codecs. ``select`` are the selections by which
    each piece that is a URL is shown, one after the other: all else here describes what they show. Arrays of the
    documents ``beside`` it are shown with its own. ``view`` are the selections by which all of it is shown. ``lost``
    says by URL why sets could not be read when they were joined. ``preprocess`` names the function that chose what
    pieces `select`: it tells people, and nothing calls it.
    """

    pieces: tuple[Piece, ...]
    held: dict[str, bytes] = {}
    beside: tuple[ConcatDocument, ...] = ()

    @property
    def first(self) -> int:
        """The number of the piece that gives everything that is not joined: the first that is not a gap."""
        return next(number for number, piece in enumerate(self.pieces) if not piece.is_gap)

    @property
    def zarr_format(self) -> int | None:
        """The version of zarr's metadata that it was made of; None if nothing in it tells."""
        names = {parent(key)[1] for key in self.metadata}
        within = {piece.document.zarr_format for piece in self.pieces if piece.document is not None}
        return 3 if "zarr.json" in names or 3 in within else 2 if names or 2 in within else None

    @property
    def count(self) -> int:
        """Number of sets, those that documents within and beside it join among them."""
        own = sum(not piece.is_gap if piece.document is None else piece.document.count for piece in self.pieces)
        return own + sum(document.count for document in self.beside)

    @property
    def urls(self) -> list[str]:
        """The URLs of all sets, as written, those of documents within and beside it among them."""
        own = [
            [piece.url] if piece.document is None else piece.document.urls for piece in self.pieces if not piece.is_gap
        ]
        return [url for some in (*own, *(document.urls for document in self.beside)) for url in some]

    @property
    def starts(self) -> list[int]:
        """Where each piece begins along the dimension, and where the last one ends."""
        return list(accumulate((piece.length for piece in self.pieces), initial=0))

    @classmethod
    def read(cls, data: bytes, where: str, most: int = MANIFEST_BYTES) -> ConcatDocument:
        """Return the document in ``data``, plain or compressed; ManifestError, which begins with ``where``, if damaged.

        It may have at most ``most`` bytes when it is decompressed.
        """
        text = bytearray()
        try:
            for part in Inflate(data).feed(data, is_last=True):
                text += part
                check_size(len(text), most, where)
            return cls.of(zarrmeta.loads(bytes(text)), where)
        except (ValueError, msgspec.ValidationError) as e:
            raise ManifestError(f"{where}: {e}") from e

    @classmethod
    def of(cls, decoded: Any, where: str, depth: int = 0) -> ConcatDocument:
        """Return a document that is decoded from JSON, and lies in as many others as ``depth`` says."""
        if depth > DEEPEST:
            raise ValueError(f"documents are nested more than {DEEPEST} deep")
        given = msgspec.convert(decoded, _Json)
        pieces = tuple(
            _piece(_Line(line) if isinstance(line, str) else line, given, where, depth) for line in given.sets
        )
        if all(piece.is_gap for piece in pieces):
            raise ManifestError(f'{where}: expected "refshard": "{NAME}" with one set or more')
        if given.coordinate is not None and given.axes.get(given.coordinate) != 0:
            raise ManifestError(f"{where}: the coordinate {given.coordinate!r} is not in axes, with axis 0")
        if not given.axes.keys() >= given.chunks.keys() or any(min(c, default=0) < 1 for c in given.chunks.values()):
            raise ManifestError(f"{where}: its chunks are of an array that is not in axes, or of less than 1 element")
        for key in given.metadata:
            if not zarrmeta.is_metadata(key) or key.endswith(zarrmeta.CONSOLIDATED):
                raise ManifestError(f"{where}: expected documents of arrays and groups as metadata, got {key!r}")
        if any(given.axes.get(path) != 0 or any(piece.length != 1 for piece in pieces) for path in given.stacked):
            raise ManifestError(f"{where}: expected stacked arrays in axes, with axis 0, and sets of length 1")
        strange = {dim for piece in pieces for dim in piece.places} - (given.unions.keys() - {given.dim})
        if strange:
            raise ManifestError(f"{where}: its unions have no dimension {min(strange)!r}")
        head = {name: getattr(given, name) for name in _Head.__struct_fields__}
        beside = tuple(cls.of(each, where, depth + 1) for each in given.beside)
        held = {path: from_base64(data) for path, data in given.held.items()}
        return cls(**head, pieces=pieces, held=held, beside=beside)

    def dumps(self, respell: Callable[[str], str] = str) -> bytes:
        """Return the document as JSON, a line for each piece, URLs ``respell``-ed; a large document is compressed."""
        head = self._head(respell)
        lines = [zarrmeta.dumps(self._line(piece, respell)) for piece in self.pieces]
        text = zarrmeta.dumps(head)[:-1] + b',"sets":[\n' + b",\n".join(lines) + b"\n]}\n"
        return text if len(text) <= PLAIN else gzip.compress(text, 6, mtime=0)  # the same pieces give the same bytes

    def _to_json(self, respell: Callable[[str], str]) -> dict[str, Any]:
        return {**self._head(respell), "sets": [self._line(piece, respell) for piece in self.pieces]}

    def _head(self, respell: Callable[[str], str]) -> dict[str, Any]:
        members = {name: getattr(self, name) for name in _Head.__struct_fields__}
        members |= {"join": "outer" if self.join == "outer" else None}
        members["held"] = {path: _base64(data) for path, data in self.held.items()}
        members["select"] = [choice.to_json() for choice in self.select]
        members["view"] = [choice.to_json() for choice in self.view]
        members["lost"] = {respell(url): why for url, why in self.lost.items()}
        members["beside"] = [document._to_json(respell) for document in self.beside]
        always = {"refshard": NAME, "dim": self.dim, "axes": self.axes}
        return always | {name: value for name, value in members.items() if value}

    def with_values(self, values: bytes | None) -> ConcatDocument:
        """Return the document with other values of the coordinate, of all pieces."""
        if values is None:
            return self
        size = len(values) // self.starts[-1]
        split = [values[start * size : stop * size] for start, stop in pairwise(self.starts)]
        pieces = [msgspec.structs.replace(piece, values=data) for piece, data in zip(self.pieces, split, strict=True)]
        return msgspec.structs.replace(self, pieces=tuple(pieces))

    def _line(self, piece: Piece, respell: Callable[[str], str]) -> list[Any]:
        line: list[Any] = [respell(piece.url) if piece.url else None, piece.length]
        if piece.document is not None:
            line[0] = piece.document._to_json(respell)
        if self.coordinate is not None and piece.values is not None:
            line.append(_base64(piece.values))
        if piece.places or piece.take is not None or piece.select:
            line += [*([None] if len(line) == 2 else []), {dim: places.runs for dim, places in piece.places.items()}]
        if piece.take is not None or piece.select:
            line.append(piece.take)
        if piece.select:
            line.append([choice.to_json() for choice in piece.select])
        return line


def _base64(data: bytes) -> str:
    return "base64:" + base64.b64encode(data).decode()


def dump_with_marker(document: Mapping[str, Any]) -> bytes:
    """Return a decoded document as JSON that is recognised: the member that tells the format comes first."""
    return zarrmeta.dumps({"refshard": document["refshard"], **document})


def _piece(line: _Line, given: _Json, where: str, depth: int) -> Piece:
    if line.of is None and (line.length is None or line.places or line.take):
        raise ValueError("expected a gap, [null, length] or [null, length, coordinate]")
    document = ConcatDocument.of(line.of, where, depth + 1) if isinstance(line.of, dict) else None
    url = line.of if isinstance(line.of, str) else ""
    length = given.length if line.length is None else line.length
    if length is None or length < 1:
        raise ValueError(f"the set {url!r} has no length along {given.dim!r}: give [url, length], or a length for all")
    if line.take is not None and (line.take[0] + length > line.take[1] or given.stacked):
        raise ValueError(
            f"the set {url!r} has {line.take[1]} elements: {length} cannot be taken from {line.take[0]} on"
        )
    if given.coordinate is not None and line.values is None:
        raise ValueError(f"the set {url!r} lacks the values of the coordinate {given.coordinate!r}")
    try:
        values = None if line.values is None else from_base64(line.values)
    except ValueError as e:
        raise ValueError(f"the coordinate of the set {url!r}: {e}") from e
    if document is None and not (line.places or line.take or line.select):
        return Piece(url, length, values)
    places = {dim: Placement(runs) for dim, runs in line.places.items()}
    return Piece(url, length, values, document, places, line.take, line.select)


# ----------------------------------------------------------------------------------------------------
# Pieces from elsewhere in a document of the user's: what they ask for has their origin, by which it is judged.
#
# What a piece within a piece asks for has the origins of both, and both must be allowed to reach it.


T = TypeVar("T")


class PieceView(View):
    """The set at ``origin``, a piece of another one."""

    def __init__(self, base: KeySpace, origin: str) -> None:
        super().__init__(base)
        self._origin = (origin,)

    @property
    def strangers(self) -> frozenset[str]:
        return self.base.strangers.union(self._origin)

    def lookup(self, key: str) -> Steps[Entry | None]:
        return (yield from of_piece(self.base.lookup(key), self._origin))

    def lookups(self, keys: Sequence[str]) -> list[LookUp]:
        return [LookUp(places, self._entries(steps)) for places, steps in self.base.lookups(keys)]

    def _entries(self, steps: Steps[Sequence[Entry | None]]) -> Steps[Sequence[Entry | None]]:
        return [of_origin(entry, self._origin) for entry in (yield from of_piece(steps, self._origin))]

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        return (yield from of_piece(self.base.children(prefix), self._origin))

    def contents(self, prefix: str = "", errors: dict[str, Exception] | None = None) -> Steps[Contents]:
        return (yield from of_piece(self.base.contents(prefix, errors), self._origin))

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        return (yield from of_piece(self.base.chunks(array, numbers, grid), self._origin)).of_origin(self._origin)

    def is_directory(self, prefix: str) -> Steps[bool]:
        return (yield from of_piece(self.base.is_directory(prefix), self._origin))


def of_piece(steps: Steps[T], origin: Origin) -> Steps[T]:
    """Return what ``steps`` return; it and all that they need get the ``origin``."""

    def meet(need: Need | tuple[Need, ...]) -> Steps[Any]:
        return (yield of_origin(need, origin))

    return of_origin((yield from drive(steps, meet)), origin)


# ----------------------------------------------------------------------------------------------------
# Gaps, and pieces that are shown with other metadata.


class Nothing(KeySpace):
    """A gap: no key at all."""

    def lookup(self, key: str) -> Steps[Entry | None]:
        yield from ()
        return None

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        yield from ()
        return None

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        yield from ()
        return ChunksBuilder(len(numbers)).finish()


class Overlaid(View):
    """The keys of a piece, ``metadata`` (by key) in place of its own; arrays ``held`` (by path) have these bytes."""

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
            return (yield from self._consolidated_document(key))
        return None if self._is_hidden(key) else (yield from self.base.lookup(key))

    def _is_hidden(self, key: str) -> bool:
        """Whether a key of the piece is a chunk of an array that is held, or a directory of such."""
        return any(key.startswith(path + "/") for path in self._held) and not zarrmeta.is_metadata(key)

    def _consolidated_document(self, key: str) -> Steps[Entry | None]:
        """Return the root's document, in which consolidated metadata are those that are shown."""
        data = yield from self.base.read(key)
        doc: Any = {}
        with suppress(ValueError):  # a reader of the key gets the bytes as they are
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

    def contents(self, prefix: str = "", errors: dict[str, Exception] | None = None) -> Steps[Contents]:
        found = yield from self.base.contents(prefix, errors)
        members: dict[str, Any] = {key: value for key, value in found.members.items() if not self._is_hidden(key)}
        arrays, others = dict(found.arrays), {k: size for k, size in found.others.items() if not self._is_hidden(k)}
        for key, entry in self._inline.items():
            path = parent(key)[0]
            if not is_within(path, prefix) or not zarrmeta.is_metadata(key):
                continue
            members[key] = entry.data
            grid = zarrmeta.grid_of(self._metadata[key]) if zarrmeta.is_array_document(key) else None
            if grid is not None and path in self._held:
                sizes = np.array([len(self._held[path])], np.uint64)
                arrays[path] = ArrayChunks(grid, np.zeros(1, np.uint64), sizes)
            elif grid is not None:
                known = arrays.get(path, ArrayChunks(grid))
                arrays[path] = ArrayChunks(grid, known.numbers, known.sizes)
        return Contents(members, arrays, others, found.indexes)

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        if any(join(array, name) in self._metadata for name in zarrmeta.ARRAY_DOCUMENTS):
            return (yield from super().chunks(array, numbers, grid))
        return (yield from self.base.chunks(array, numbers, grid))


def stack_metadata(doc: Mapping[str, Any], chunks: Sequence[int], dim: str) -> dict[str, Any]:
    """Return the metadata of an array of chunks of that shape with ``dim``, of length 1, as its first dimension."""
    found = {**doc, "shape": [1, *doc["shape"]]}
    if doc.get("zarr_format") == 2:
        return {**found, "chunks": [1, *chunks]}
    found["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": [1, *chunks]}}
    return {**found, "dimension_names": [dim, *(doc.get("dimension_names") or [None] * len(chunks))]}
