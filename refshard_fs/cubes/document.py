"""The document of a cube: its pieces, their lengths, and the axes along which arrays are joined. No I/O here.

``FORMATS.md`` is the specification. Each piece is one line, so that an archive grows by appending a line. The document
is read whole: the lines of 100,000 files take 0.3 s of processor time, so that reading in blocks would save little.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise
from typing import Annotated, Any, Final, Literal

import msgspec

from refshard_fs.core import zarrmeta
from refshard_fs.core.compression import Inflate
from refshard_fs.core.format import MANIFEST_BYTES, check_size
from refshard_fs.core.keys import parent
from refshard_fs.core.stats import format_count
from refshard_fs.cubes import NAME
from refshard_fs.cubes.choice import Choice
from refshard_fs.cubes.placement import Placement
from refshard_fs.errors import ManifestError
from refshard_fs.references.values import decode_base64

DEEPEST: Final = 8  # levels of documents within documents
PLAIN: Final = 1 << 20  # bytes of the longest document that is not compressed: about 10,000 pieces


# ``gc=False``, since garbage collection could take longer than parsing ten thousand pieces.
class Piece(msgspec.Struct, frozen=True, gc=False):
    """One set: its URL as in the document, its length along the dimension, and the bytes of its coordinate (or None).

    In place of a URL it may have a ``document``, which joins sets along another dimension. A piece with neither URL nor
    document is a gap.
    ``places`` has an entry for each other dimension along which the piece lacks elements: the places of its elements.
    ``take`` is the first element that is joined, and the length of the set; None if all elements are joined. ``select``
    has the choices that are applied to the set, after those of the document.
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
        """The name of the piece in errors."""
        return self.url if self.document is None else f"{self.document.pieces[0].name} and others"

    @property
    def total(self) -> int:
        """The length of the whole set along the dimension."""
        return self.length if self.take is None else self.take[1]

    def cut(self, start: int, stop: int) -> Piece:
        """Return the piece with only the elements ``[start, stop)`` of its joined elements."""
        size = len(self.values or b"") // self.length
        values = None if self.values is None else self.values[start * size : stop * size]
        begin = start if self.take is None else start + self.take[0]
        take = None if self.is_gap or (begin, stop - start) == (0, self.total) else (begin, self.total)
        return msgspec.structs.replace(self, length=stop - start, values=values, take=take)


_Axis = Annotated[int, msgspec.Meta(ge=0)]


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    """The members that are the same in the JSON of a document and in `ConcatDocument`, which describes them."""

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
    """The line of a piece: its URL or document (None: a gap), and further members if the piece needs them."""

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
    """Sets in a row along ``dim``: arrays in ``axes`` (path → axis) are joined, all others come from the first set.

    - ``coordinate``: the path of the array whose values the pieces hold, little-endian.
    - ``chunks``: recut arrays, by path; they are shown in chunks of this shape, whatever the chunks of the pieces are.
    - ``join``: with "outer", a piece may lack arrays; their chunks do not exist there.
    - ``metadata``: documents, by key, that are shown instead of those of the first piece.
    - ``bounds``: by path of an array, the path of the coordinate whose units it has in each piece.
    - ``stacked``: arrays that lack the dimension in the pieces. In the cube, it is their first dimension, along which
      each piece has one element.
    - ``unions``: dimensions of which a piece may have only some elements, with their arrays: the axis by path.
    - ``held``: the coordinates of these dimensions, by path: the bytes of their one chunk, without codecs.
    - ``select``: choices that are applied, in order, to each piece with a URL; the other members describe the result.
    - ``beside``: documents whose arrays are shown together with those of this one.
    - ``view``: choices that are applied, in order, to the whole cube.
    - ``lost``: by URL, why a set could not be read when sets were joined.
    - ``preprocess``: the name of the function that chose the `select` of pieces, for information only.
    """

    pieces: tuple[Piece, ...]
    held: dict[str, bytes] = {}
    beside: tuple[ConcatDocument, ...] = ()

    @property
    def first(self) -> int:
        """The number of the first piece that is not a gap: all that is not joined comes from it."""
        return next(number for number, piece in enumerate(self.pieces) if not piece.is_gap)

    @property
    def zarr_format(self) -> int | None:
        """The version of the metadata of its sets; None if no metadata in the document show it."""
        names = {parent(key)[1] for key in self.metadata}
        within = {piece.document.zarr_format for piece in self.pieces if piece.document is not None}
        return 3 if "zarr.json" in names or 3 in within else 2 if names or 2 in within else None

    @property
    def count(self) -> int:
        """The number of sets, including the sets of documents within and beside it."""
        own = sum(not piece.is_gap if piece.document is None else piece.document.count for piece in self.pieces)
        return own + sum(document.count for document in self.beside)

    @property
    def dims(self) -> list[str]:
        """The dimensions along which sets are joined, also within pieces, the outermost first."""
        within = next((piece.document.dims for piece in self.pieces if piece.document is not None), [])
        others = [dim for document in self.beside for dim in document.dims]
        return list(dict.fromkeys([self.dim, *within, *others]))

    @property
    def summary(self) -> str:
        """What the document joins, in a few words: ``"12 sets joined along time"``."""
        return f"{format_count(self.count, 'set')} joined along {' and '.join(self.dims)}"

    @property
    def urls(self) -> list[str]:
        """The URLs of all sets, as in the document, including the sets of documents within and beside it."""
        own = [
            [piece.url] if piece.document is None else piece.document.urls for piece in self.pieces if not piece.is_gap
        ]
        return [url for urls in (*own, *(document.urls for document in self.beside)) for url in urls]

    @property
    def starts(self) -> list[int]:
        """The elements along the dimension at which the pieces begin, and the end of the last one."""
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
        """Return a document from decoded JSON; ``depth`` is the number of documents around it."""
        if depth > DEEPEST:
            raise ValueError(f"documents are nested too deeply: expected at most {DEEPEST} levels")
        given = msgspec.convert(decoded, _Json)
        pieces = tuple(
            _parse_piece(_Line(line) if isinstance(line, str) else line, given, where, depth) for line in given.sets
        )
        if all(piece.is_gap for piece in pieces):
            raise ManifestError(f'{where}: expected "refshard": "{NAME}" with one set or more')
        if given.coordinate is not None and given.axes.get(given.coordinate) != 0:
            raise ManifestError(f"{where}: expected the coordinate {given.coordinate!r} in axes, with axis 0")
        for path, shape in given.chunks.items():
            if path not in given.axes:
                raise ManifestError(f"{where}: expected only arrays in axes as members of chunks, got {path!r}")
            if min(shape, default=0) < 1:
                raise ManifestError(f"{where}: expected chunks of at least 1 element of {path!r}, got {list(shape)}")
        for key in given.metadata:
            if not zarrmeta.is_metadata(key) or key.endswith(zarrmeta.CONSOLIDATED):
                raise ManifestError(f"{where}: expected documents of arrays and groups as metadata, got {key!r}")
        if any(given.axes.get(path) != 0 or any(piece.length != 1 for piece in pieces) for path in given.stacked):
            raise ManifestError(f"{where}: expected stacked arrays in axes, with axis 0, and sets of length 1")
        strange = {dim for piece in pieces for dim in piece.places} - (given.unions.keys() - {given.dim})
        if strange:
            known = ", ".join(map(repr, sorted(given.unions))) or "none"
            raise ManifestError(
                f"{where}: a set has places along {min(strange)!r}: expected a dimension in unions of the document, "
                f"{known}"
            )
        head = {name: getattr(given, name) for name in _Head.__struct_fields__}
        beside = tuple(cls.of(each, where, depth + 1) for each in given.beside)
        held = {path: decode_base64(data) for path, data in given.held.items()}
        return cls(**head, pieces=pieces, held=held, beside=beside)

    def dumps(self, respell: Callable[[str], str] = str) -> bytes:
        """Return the document as JSON, a line for each piece, URLs ``respell``-ed; a large document is compressed."""
        head = self._make_head(respell)
        lines = [zarrmeta.dumps(self._make_line(piece, respell)) for piece in self.pieces]
        text = zarrmeta.dumps(head)[:-1] + b',"sets":[\n' + b",\n".join(lines) + b"\n]}\n"
        return text if len(text) <= PLAIN else gzip.compress(text, 6, mtime=0)  # the same pieces give the same bytes

    def _to_json(self, respell: Callable[[str], str]) -> dict[str, Any]:
        return {**self._make_head(respell), "sets": [self._make_line(piece, respell) for piece in self.pieces]}

    def _make_head(self, respell: Callable[[str], str]) -> dict[str, Any]:
        members = {name: getattr(self, name) for name in _Head.__struct_fields__}
        members |= {"join": "outer" if self.join == "outer" else None}
        members["held"] = {path: _encode_base64(data) for path, data in self.held.items()}
        members["select"] = [choice.to_json() for choice in self.select]
        members["view"] = [choice.to_json() for choice in self.view]
        members["lost"] = {respell(url): why for url, why in self.lost.items()}
        members["beside"] = [document._to_json(respell) for document in self.beside]
        always = {"refshard": NAME, "dim": self.dim, "axes": self.axes}
        return always | {name: value for name, value in members.items() if value}

    def with_values(self, values: bytes | None) -> ConcatDocument:
        """Return the document with other ``values`` of the coordinate, the bytes of all pieces together."""
        if values is None:
            return self
        size = len(values) // self.starts[-1]
        split = [values[start * size : stop * size] for start, stop in pairwise(self.starts)]
        pieces = [msgspec.structs.replace(piece, values=data) for piece, data in zip(self.pieces, split, strict=True)]
        return msgspec.structs.replace(self, pieces=tuple(pieces))

    def _make_line(self, piece: Piece, respell: Callable[[str], str]) -> list[Any]:
        line: list[Any] = [respell(piece.url) if piece.url else None, piece.length]
        if piece.document is not None:
            line[0] = piece.document._to_json(respell)
        if self.coordinate is not None and piece.values is not None:
            line.append(_encode_base64(piece.values))
        if piece.places or piece.take is not None or piece.select:
            line += [*([None] if len(line) == 2 else []), {dim: places.runs for dim, places in piece.places.items()}]
        if piece.take is not None or piece.select:
            line.append(piece.take)
        if piece.select:
            line.append([choice.to_json() for choice in piece.select])
        return line


def _encode_base64(data: bytes) -> str:
    return "base64:" + base64.b64encode(data).decode()


def dump_with_marker(document: Mapping[str, Any]) -> bytes:
    """Encode a document as JSON; the member ``refshard``, by which the format is recognised, comes first."""
    return zarrmeta.dumps({"refshard": document["refshard"], **document})


def _parse_piece(line: _Line, given: _Json, where: str, depth: int) -> Piece:
    if line.of is None and (line.length is None or line.places or line.take):
        found = zarrmeta.shorten(msgspec.to_builtins(line))
        raise ValueError(f"expected a gap as [null, length] or [null, length, coordinate], found {found}")
    document = ConcatDocument.of(line.of, where, depth + 1) if isinstance(line.of, dict) else None
    url = line.of if isinstance(line.of, str) else ""
    name = repr(url) if url else "that is a document"
    length = given.length if line.length is None else line.length
    if length is None or length < 1:
        found = f"the set {name} has the length {length} along {given.dim!r}"
        raise ValueError(f"{found}: expected at least 1, as [url, length] or as a length for all sets")
    if line.take is not None and given.stacked:
        raise ValueError(
            f"the set {name} begins at element {line.take[0]} of {line.take[1]}: expected the whole set, since "
            "its arrays are stacked"
        )
    if line.take is not None and line.take[0] + length > line.take[1]:
        raise ValueError(
            f"the set {name} has {line.take[1]} elements: expected a part of these, got {length} elements from "
            f"{line.take[0]} on"
        )
    if given.coordinate is not None and line.values is None:
        raise ValueError(f"the set {name}: expected values of the coordinate {given.coordinate!r}, found none")
    try:
        values = None if line.values is None else decode_base64(line.values)
    except ValueError as e:
        raise ValueError(f"the coordinate of the set {name}: {e}") from e
    if document is None and not (line.places or line.take or line.select):
        return Piece(url, length, values)
    places = {dim: Placement(runs) for dim, runs in line.places.items()}
    return Piece(url, length, values, document, places, line.take, line.select)
