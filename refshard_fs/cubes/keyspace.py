"""The key space of a cube: show sets, joined along a dimension, as one set. No I/O here.

A look-up translates the key to a key of a piece, which is opened when it is first needed. Arrays along the dimension
have the chunks of all pieces, and the first piece's metadata with the whole length. Everything else comes from the
first piece. If an array of a piece does not fit the array of the first piece, or the document, reading it raises an
error.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import ArrayChunks, Chunks, ChunksBuilder, Contents, Numbers
from refshard_fs.core.columns import WHOLE, UInt64s
from refshard_fs.core.documents import Documents
from refshard_fs.core.dtypes import itemsize_of
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keys import ChunkDirectory, ChunkGrid, ChunkKeyEncoding, iterate_splits, join, make_relative
from refshard_fs.core.keyspace import KeySpace, LookUp, by_name, find_chunk, make_tails
from refshard_fs.core.lru import LRU
from refshard_fs.core.model import Entry, Inline, Listed, Load, ParsedIndex, Steps, iterate_batches, run_together
from refshard_fs.core.sharing import Sharing
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.cubes.cf_times import UNITS
from refshard_fs.cubes.document import DEEPEST, ConcatDocument
from refshard_fs.cubes.fit import ArrayFacts, Fit, fit
from refshard_fs.cubes.merging import apply_choices, merge, open_selected
from refshard_fs.cubes.moving import Move, find_range, move_numbers, shift_by
from refshard_fs.cubes.overlaid import Gap, OverlaidPiece
from refshard_fs.cubes.piece_view import PieceView, with_origin_of_piece
from refshard_fs.cubes.placement import Placement
from refshard_fs.cubes.recutting import SECTIONS, Recut, cut_sections
from refshard_fs.cubes.sections import check_sections, join_sections
from refshard_fs.cubes.shown_array import ConcatArray, FullLength, add_dimension
from refshard_fs.errors import ManifestError, NotListable, RefShardError
from refshard_fs.references.values import METADATA, make_resolver
from refshard_fs.security.admission import is_trusted
from refshard_fs.security.policy import directory_of, server_of

LISTED: Final = 10_000_000  # most names in a directory: a few lines of nested documents can claim any number
COUNTED: Final = 100_000_000  # most chunks of an array that are listed as columns
TOGETHER: Final = 64  # the number of pieces opened at a time when all pieces are listed


class _OpenPiece:
    """An open piece, and the fit of its arrays with the shown arrays, by path; arrays are added when they are read."""

    def __init__(self, space: KeySpace) -> None:
        self.space = space
        self.fits: dict[str, Fit] = {}


def _find_unread_blocks(
    piece: _OpenPiece, path: str, array: ConcatArray, coords: Sequence[int]
) -> Iterator[Sequence[int]]:
    """Yield, for each block of the piece's index that has not been read, the coordinates of one chunk in it."""
    fit = piece.fits.get(path)
    stored = None if fit is None else fit.find_stored_chunk(coords)
    if fit is None or stored is None or array.grid is None:
        return
    encoding = fit.encoding or array.grid.encoding
    for key in piece.space.list_keys_of_other_parts(join(path, encoding.encode(array.find_stored_coords(stored)))):
        grid = piece.space.grids[path]
        found = grid.encoding.decode(make_relative(key, path), len(grid.counts))
        placed = None if found is None else fit.find_shown_chunk((0, *found) if array.is_stacked else found)
        if placed is not None:
            yield placed


def _list_chunks(directory: ChunkDirectory | None, size: int | None) -> list[Listed]:
    """List a directory of chunks, all of which have the same ``size`` (None: unknown)."""
    if directory is None:
        return []
    is_leaf = directory.is_leaf
    return [
        Listed(directory.name_child(number), size if is_leaf else None, not is_leaf) for number in directory.numbers
    ]


class ConcatKeySpace(KeySpace):
    """Show the pieces of ``document`` as one set; ``open_piece`` opens a piece by its number."""

    resolves_manifests = True  # each piece resolves its own

    def __init__(
        self,
        document: ConcatDocument,
        where: str,
        first: KeySpace,
        open_piece: Callable[[int], Steps[KeySpace]],
        resolve: Callable[[str | None], str],
        keep: int,
    ) -> None:
        is_shown_otherwise = document.metadata or document.held
        self.first = OverlaidPiece(first, document.metadata, document.held, where) if is_shown_otherwise else first
        self.attribute_dtypes = first.attribute_dtypes
        self.unlimited_dimensions = first.unlimited_dimensions
        self.document = document
        self.document_url = where
        self.where = where
        self._resolve = resolve
        full_length = FullLength(document, where)
        self._documents = Documents(self.first, full_length)
        self.grids: Mapping[str, ChunkGrid] = self._documents.grids
        self._inline_grids: Mapping[str, ChunkGrid] = {}
        self._starts = full_length.starts
        self._values = b"".join(piece.values or b"" for piece in document.pieces)  # values of the coordinate
        self._open_piece = open_piece
        self._keep = max(keep, 1)
        self._first = document.first
        self._first_piece = _OpenPiece(first)
        self.has_hierarchies = first.may_be_rewritten  # whether a piece that was opened is a hierarchy
        self._pieces: LRU[int, _OpenPiece] = LRU(self._keep)  # the pieces read last, without the first piece
        self._sharing = Sharing()  # opens a piece once, and compares an array once, for all look-ups that wait for it
        # By array: length, metadata and units of the last piece that needed no recoding, and its fit. A piece for which
        # all of these are equal has the same fit.
        self._plain: dict[str, tuple[tuple[Any, ...], Fit]] = {}

    @property
    def cube(self) -> ConcatKeySpace:
        return self

    @property
    def order(self) -> Iterable[str]:
        return self.first.order

    @property
    def strangers(self) -> frozenset[str]:
        return self.first.strangers  # the metadata shown are the first piece's

    @property
    def holds_all_metadata(self) -> bool:  # type: ignore[override]  # a property, so that it follows the first piece
        return self.first.holds_all_metadata

    def resolve(self, url: str | None) -> str:
        return self._resolve(url)

    def register_arrays(self) -> Steps[None]:
        """Read the metadata of the document's arrays; ManifestError if the first piece lacks one of them."""
        for path in self.document.axes:
            for name in METADATA:
                if path not in self._documents.arrays:
                    yield from self._documents.lookup(join(path, name))
            if path not in self._documents.arrays:
                raise ManifestError(f"{self.where}: expected the array {path!r} in the first set, found none")
        if self.document.coordinate is not None:
            self._check_coordinate(self.document.coordinate)
        inline = dict(self.first.inline_grids)
        along = {path: self._documents.arrays[path].grid for path in self.document.axes if path in inline}
        self._inline_grids = inline | {path: grid for path, grid in along.items() if grid is not None}

    def read_first_documents(self) -> Steps[dict[str, dict[str, Any]]]:
        """Return the documents of joined arrays and of their groups, as the cube shows them, by key.

        A document that records them as `metadata` can have another piece as its first one.
        """
        found: dict[str, dict[str, Any]] = {}
        paths = {above for path in self.document.axes for above, _ in iterate_splits(path)} | self.document.axes.keys()
        for key in (join(path, name) for path in sorted(paths) for name in (*METADATA, ".zattrs")):
            data = None if key in self.document.metadata else (yield from self.first.read(key))
            doc = None if data is None else zarrmeta.object_in(data, f"{key!r} of {self.where}")
            if doc is not None and key.rpartition("/")[0] in self.document.stacked and not key.endswith(".zattrs"):
                doc = add_dimension(doc, self.document.dim, f"{key!r} of {self.where}")
            if doc is not None:
                found[key] = {name: value for name, value in doc.items() if name != "consolidated_metadata"}
        return found | self.document.metadata

    @property
    def zarr_format(self) -> int:
        """The version of zarr's metadata, which is the same in all pieces."""
        return next((array.meta.zarr_format for array in self._documents.arrays.values() if array.meta is not None), 2)

    @property
    def inline_grids(self) -> Mapping[str, ChunkGrid]:
        return self._inline_grids

    def find_some_urls(self) -> Steps[Sequence[str | None]]:
        return (yield from self.first.find_some_urls())

    def lookup(self, key: str) -> Steps[Entry | None]:
        if self._documents.is_document(key):
            return (yield from self._documents.lookup(key))
        path, array, grid = yield from self._find_array(key)
        coords = None if grid is None else grid.encoding.decode(make_relative(key, path), len(grid.counts))
        if array is None or grid is None or coords is None:
            if (
                array is not None
                and array.is_stacked
                and array.stored_grid.decode(make_relative(key, path)) is not None
            ):
                return None  # a chunk's key in the piece, which has another key here
            return (yield from self.first.lookup(key))
        if grid.number_of(coords) is None:
            return None
        if path == self.document.coordinate:
            return Inline(self._values)
        if array.recut is not None:
            return (yield from self._join_chunk(path, array, array.recut, coords))
        number, placed = array.locate(coords)
        (entry,) = yield from self._find_entries(number, path, array, [placed])
        return entry

    def make_lookups(self, keys: Sequence[str]) -> list[LookUp]:
        """Return look-ups for all ``keys``: one for all chunks of an array that lie in the same piece."""
        found: list[LookUp] = []
        by_part: dict[tuple[str, int], tuple[list[int], list[Sequence[int]]]] = {}
        for number, key in enumerate(keys):
            at = None if self._documents.is_document(key) else find_chunk(self.grids, key)
            array = None if at is None else self._documents.arrays.get(at.array)
            if at is None or array is None or not array.starts or array.grid is None:
                found.append(self.make_single_lookup(number, key))
                continue
            piece, placed = array.locate(array.grid.coords(at.number))
            numbers, chunks = by_part.setdefault((at.array, piece), ([], []))
            numbers.append(number)
            chunks.append(placed)
        for (path, piece), (numbers, chunks) in by_part.items():
            found.append(LookUp(numbers, self._find_entries(piece, path, self._documents.arrays[path], chunks)))
        return found

    def list_keys_of_other_parts(self, key: str) -> Iterator[str]:
        at = find_chunk(self.grids, key)
        array = None if at is None else self._documents.arrays.get(at.array)
        if at is None or array is None or not array.starts or array.grid is None or array.recut is not None:
            return
        coords = array.grid.coords(at.number)
        here, local = array.locate(coords)
        count = len(array.starts) - 1
        both = (number for step in range(1, count) for number in (here + step, here - step) if 0 <= number < count)
        for number in (here, *islice(both, self._keep // 2)):
            piece = self._first_piece if number == self._first else self._pieces.peek(number)
            first = local if number == here else [*coords[: array.axis], 0, *coords[array.axis + 1 :]]
            unread = [first] if piece is None else _find_unread_blocks(piece, at.array, array, first)
            for placed in unread:
                yield join(at.array, array.grid.encoding.encode(array.move(placed, array.starts[number])))

    def _find_entries(
        self, number: int, path: str, array: ConcatArray, chunks: Sequence[Sequence[int]]
    ) -> Steps[list[Entry | None]]:
        """Return the entries of chunks of a piece; ``chunks`` are coordinates relative to the piece's start."""
        assert array.grid is not None, "an array that is joined has a grid"
        piece, fit = yield from self._open_and_fit(number, path, array)
        stored = [fit.find_stored_chunk(placed) for placed in chunks]
        encode = (fit.encoding or array.grid.encoding).encode
        keys = [join(path, encode(array.find_stored_coords(coords))) for coords in stored if coords is not None]
        look_ups = piece.make_lookups(keys)
        in_part: list[Entry | None] = [None] * len(keys)
        for look_up, some in zip(look_ups, (yield from run_together([each.steps for each in look_ups])), strict=True):
            for at, entry in zip(look_up.places, some, strict=True):
                in_part[at] = entry
        if fit.recoding is not None:
            in_part = [fit.recoding.recode_entry(entry) for entry in in_part]
        entries = iter(in_part)
        return [None if coords is None else next(entries) for coords in stored]

    def _join_chunk(self, path: str, array: ConcatArray, recut: Recut, coords: Sequence[int]) -> Steps[Entry]:
        """Return the entry of a chunk of a recut array, joined from entries of pieces."""
        starts, size = self._starts, recut.chunks[array.axis]
        begin = coords[array.axis] * size
        first = bisect_right(starts, begin) - 1
        stop = min(bisect_left(starts, begin + size), len(starts) - 1)
        numbers = range(first, stop)[: SECTIONS + 1]  # `check_sections` refuses more than SECTIONS
        pieces = yield from run_together([self._open_and_fit(number, path, array) for number in numbers])
        flat = []
        try:
            for number, (piece, fit) in zip(numbers, pieces, strict=True):
                if fit.source is not None:  # None: the piece lacks the array
                    last, meta = number == len(starts) - 2, fit.source.meta
                    sections = cut_sections(recut, coords, starts[number], array.axis, meta, fit.places, is_last=last)
                    flat += [(piece, fit.source, w) for w in sections]
            check_sections([source.meta for _, source, _ in flat])
        except ValueError as e:
            raise ManifestError(f"{path!r} of {self.where}: {e}") from e
        keys = [join(path, source.tail(array.find_stored_coords(w.coords))) for _, source, w in flat]
        found = yield from run_together([piece.lookup(key) for (piece, _, _), key in zip(flat, keys, strict=True)])
        return join_sections(recut, [(source, w, entry) for (_, source, w), entry in zip(flat, found, strict=True)])

    def _find_array(self, key: str) -> Steps[tuple[str, ConcatArray | None, ChunkGrid | None]]:
        """Return path, array and grid of the joined array that ``key`` lies below; "", None, None if there is none."""
        path = yield from self._documents.discover_array(key)
        array = None if path is None else self._documents.arrays.get(path)
        if path is None or array is None or array.meta is None:
            return "", None, None
        return path, array, array.grid

    def _open_and_fit(self, number: int, path: str, array: ConcatArray) -> Steps[tuple[KeySpace, Fit]]:
        """Return a piece, and how its array ``path`` fits the first piece's; ManifestError if it does not fit.

        Concurrent calls share the work: a piece is opened once, and each of its arrays is compared once.
        """
        piece = self._find_open_piece(number)
        if piece is None:
            piece = yield from self._sharing.run_once(
                number, partial(self._find_open_piece, number), partial(self._open_and_keep, number)
            )
        fit = piece.fits.get(path)
        if fit is None:
            compare = partial(self._find_fit, number, piece, path, array)
            fit = yield from self._sharing.run_once((piece, path), partial(piece.fits.get, path), compare)
        return piece.space, fit

    def _find_open_piece(self, number: int) -> _OpenPiece | None:
        """Return a piece if it is open, and mark it as the piece read last."""
        return self._first_piece if number == self._first else self._pieces.get(number)

    def _open_and_keep(self, number: int) -> Steps[_OpenPiece]:
        piece = _OpenPiece((yield from self._open_piece(number)))
        self.has_hierarchies |= piece.space.may_be_rewritten
        self._pieces.put(number, piece)
        return piece

    def _find_fit(self, number: int, piece: _OpenPiece, path: str, array: ConcatArray) -> Steps[Fit]:
        fit = piece.fits[path] = yield from self._compare(number, piece.space, path, array)
        return fit

    def _compare(self, number: int, piece: KeySpace, path: str, array: ConcatArray) -> Steps[Fit]:
        """Compare the array of an open piece with the first piece's."""
        line = self.document.pieces[number]
        where = f"the set {line.name!r} of {self.where}"
        first, recut = array.meta, array.recut
        assert first is not None, "an array that is not along the dimension has no pieces"
        elements = self._find_placements(number, path, first, where)
        places = elements if recut is not None else _find_chunk_places(elements, path, first, where)
        name = "zarr.json" if first.zarr_format == 3 else ".zarray"
        data = yield from piece.read(join(path, name))
        attributes = (yield from piece.read(join(path, ".zattrs"))) if first.zarr_format == 2 else None
        coordinate = self.document.bounds.get(path)  # bounds have the units of their coordinate
        units = {} if coordinate is None else (yield from self._read_units(piece, coordinate, first.zarr_format, where))
        compared = line.length, data, attributes, units, line.places, line.take
        plain = self._plain.get(path)
        if data is not None and plain is not None and plain[0] == compared:
            return plain[1]
        doc = _parse(data, join(path, name), where)
        if doc is not None and array.is_stacked:
            doc = add_dimension(doc, self.document.dim, f"{path!r} of {where}")
        meta = None if doc is None else zarrmeta.array_meta(doc, f"{join(path, name)!r} of {where}")
        other = next(each for each in METADATA if each != name)
        if doc is None and (yield from piece.read(join(path, other))) is not None:
            raise ManifestError(
                f"{path!r} of {where}: expected metadata of zarr format {first.zarr_format}, as in the first set, "
                f"found {other!r}"
            )
        if meta is None and (self.document.join == "outer" or line.is_gap):
            return Fit(is_absent=True)
        if meta is None:
            raise ManifestError(f"{where} has no array {path!r}, which other sets have along {self.document.dim!r}")
        expected = list(first.shape)
        expected[array.axis] = line.length
        for axis, placement in elements.items():
            expected[axis] = placement.length
        if list(meta.shape) != expected:
            raise ManifestError(f"{path!r} of {where}: expected the shape {expected}, found {list(meta.shape)}")
        own = (yield from self.first.read(join(path, ".zattrs"))) if first.zarr_format == 2 else None
        shown: dict[str, Any] = {}
        if coordinate is not None:
            shown = yield from self._read_units(self.first, coordinate, first.zarr_format, "the first set")
        theirs = _make_facts(attributes, units, path, meta, where)
        mine = _make_facts(own, shown, path, first, f"the first set, {self.document.pieces[self._first].name!r}")
        found = fit(path, mine, theirs, recut, places)
        if found.is_same:
            self._plain[path] = compared, found
        return found

    def _find_placements(self, number: int, path: str, first: ArrayMeta, where: str) -> dict[int, Placement]:
        """Return, by axis, the places of a piece's elements along dimensions where it has only some elements."""
        found: dict[int, Placement] = {}
        for dim, placement in self.document.pieces[number].places.items():
            axis = self.document.unions[dim].get(path)
            if axis is None:
                continue
            try:
                if axis >= len(first.shape) or axis == self.document.axes[path]:
                    own = self.document.axes[path]
                    raise ValueError(
                        f"its dimension {dim!r} is axis {axis}: expected 0 to {len(first.shape) - 1}, except {own}, "
                        f"the axis of {self.document.dim!r}"
                    )
                placement.check(first.shape[axis])
            except ValueError as e:
                raise ManifestError(f"{path!r} of {where}: {e}") from e
            found[axis] = placement
        line, axis = self.document.pieces[number], self.document.axes[path]
        if line.take is not None:
            found[axis] = Placement.of_slice(line.take[0], line.length, line.take[1])
        return found

    def _read_units(self, piece: KeySpace, path: str, zarr_format: int, where: str) -> Steps[dict[str, Any]]:
        """Return the attributes of a coordinate that give the units of the coordinate and of its bounds."""
        key = join(path, "zarr.json" if zarr_format == 3 else ".zattrs")
        doc = _parse((yield from piece.read(key)), key, where) or {}
        found = doc.get("attributes") if zarr_format == 3 else doc
        return {name: found[name] for name in UNITS if name in found} if isinstance(found, dict) else {}

    def _check_coordinate(self, path: str) -> None:
        """Raise ManifestError unless the document has a value of the coordinate for each element of each piece."""
        meta = self._documents.arrays[path].meta
        size_of_one = None if meta is None else itemsize_of(meta)
        if meta is None or size_of_one is None or len(meta.shape) != 1:
            raise ManifestError(
                f"{self.where}: expected {path!r} to be an array of numbers or fixed-length text with one dimension"
            )
        for piece in self.document.pieces:
            size = len(piece.values or b"")
            if size != piece.length * size_of_one:
                raise ManifestError(
                    f"{self.where}: the set {piece.name!r} has {size} bytes of {path!r}: expected {piece.length} "
                    f"elements of {size_of_one} bytes"
                )

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        path, array, grid = yield from self._find_array(join(prefix, "x"))
        if array is None or grid is None:
            names = yield from self.first.children(prefix)
            return None if names is None else (yield from self._documents.correct_sizes(prefix, names))
        if prefix == path:
            return (yield from self._list_array(path, array, grid))
        leading = grid.parse_leading(make_relative(prefix, path))
        if leading is None:
            return (yield from self.first.children(prefix))
        if self._makes_chunks(path, array):
            return self._list_made_chunks(path, array, grid, make_relative(prefix, path)) or None
        if len(leading) <= array.axis:
            return (yield from self._list_in_all_pieces(path, array, grid, leading)) or None
        if not 0 <= leading[array.axis] < grid.counts[array.axis]:
            return None
        number, _ = array.locate(leading)
        return (yield from self._list_in_piece(number, path, array, grid, leading)) or None

    def is_directory(self, prefix: str) -> Steps[bool]:
        if (yield from self.first.is_directory(prefix)):
            return True
        _, array, grid = yield from self._find_array(join(prefix, "x"))
        if array is None or grid is None:
            return False
        return (yield from self.children(prefix)) is not None

    def _list_array(self, path: str, array: ConcatArray, grid: ChunkGrid) -> Steps[Sequence[Listed] | None]:
        """List the directory of an array: its documents, and the chunks of all pieces."""
        names = yield from self.first.children(path)
        shown = yield from self._documents.correct_sizes(path, names or ())
        grids = {grid, array.stored_grid}
        others = [n for n in shown if not any(g.has_name(n.name, is_directory=n.is_directory) for g in grids)]
        chunks = [Listed("c", None, True) for n in shown if n.name == "c" and n not in others and grid.is_nested]
        if self._makes_chunks(path, array):
            chunks = self._list_made_chunks(path, array, grid, "")
        elif not chunks:
            chunks = yield from self._list_in_all_pieces(path, array, grid, None)
        return sorted([*others, *chunks], key=by_name) if names is not None or chunks else None

    def _makes_chunks(self, path: str, array: ConcatArray) -> bool:
        """Return whether chunks are made while reading; if not, the pieces have the chunks."""
        return path == self.document.coordinate or array.recut is not None

    def _find_chunk_size(self, path: str, array: ConcatArray) -> int | None:
        """Return the size in bytes of chunks that are made while reading; None if it is known only then."""
        if path == self.document.coordinate:
            return len(self._values)
        return None if array.recut is None else array.recut.nbytes

    def _list_made_chunks(self, path: str, array: ConcatArray, grid: ChunkGrid, directory: str) -> list[Listed]:
        """List a directory of an array all of whose chunks are made while reading."""
        found = grid.find_directory(directory)
        if found is not None and len(found.numbers) > LISTED:
            raise NotListable(
                f"{path!r} of {self.where} has {len(found.numbers)} names: expected at most {LISTED} to be listed. "
                "Read each by its key"
            )
        return sorted(_list_chunks(found, self._find_chunk_size(path, array)), key=by_name)

    def _list_in_all_pieces(
        self, path: str, array: ConcatArray, grid: ChunkGrid, leading: Sequence[int] | None
    ) -> Steps[list[Listed]]:
        """List the chunks of all pieces, and their directories, whose coordinates begin with ``leading``.

        None lists the array's own directory.
        """
        found: dict[str, Listed] = {}
        for some in iterate_batches(range(len(self.document.pieces)), TOGETHER):
            listings = yield from run_together(
                [self._list_in_piece(number, path, array, grid, leading) for number in some]
            )
            found |= {listed.name: listed for listing in listings for listed in listing}
            if len(found) > LISTED:
                directory = path if leading is None else join(path, grid.directory_of(leading))
                found_text = f"{directory!r} of {self.where} has {len(found)} names or more"
                raise NotListable(f"{found_text}: expected at most {LISTED} to be listed. Read each by its key")
        return sorted(found.values(), key=by_name)

    def _list_in_piece(
        self, number: int, path: str, array: ConcatArray, grid: ChunkGrid, leading: Sequence[int] | None
    ) -> Steps[list[Listed]]:
        """List a piece's directory of chunks whose coordinates begin with ``leading``, by the names shown."""
        piece, fit = yield from self._open_and_fit(number, path, array)
        start, stored = array.starts[number], array.stored_grid
        if fit.encoding is not None and not (fit.recoding is not None and fit.recoding.shows_absent):
            own = msgspec.structs.replace(stored, encoding=fit.encoding)
            directory = "" if leading is None else grid.directory_of(leading)
            return (yield from _list_respelled(piece, path, own, array, fit, grid.encoding, start, directory))
        if array.is_stacked and not leading and len(grid.counts) > 1 and grid.is_nested:  # each piece is a directory
            return [] if self.document.pieces[number].is_gap else [Listed(str(start), None, True)]
        directory = path
        if leading is not None:
            local = fit.find_stored_chunk(array.move(leading, -start) if len(leading) > array.axis else leading)
            if local is None:
                return []
            directory = join(path, stored.directory_of(array.find_stored_coords(local)))
        if fit.recoding is not None and fit.recoding.shows_absent:  # chunks that the piece lacks exist here, too
            own = array.find_grid_of_piece(number, fit.places)
            names: Sequence[Listed] = _list_chunks(own.find_directory(make_relative(directory, path)), None)
        else:
            names = (yield from piece.children(directory)) or ()
        named = []
        for listed in names:
            tail = make_relative(join(directory, listed.name), path)
            coords = stored.parse_leading(tail) if listed.is_directory else stored.decode(tail)
            placed = None if coords is None else fit.find_shown_chunk((0, *coords) if array.is_stacked else coords)
            if placed is not None:
                here = array.move(placed, start) if len(placed) > array.axis else placed
                name = (str(here[-1]) if here else "c") if grid.is_nested else grid.encoding.encode(here)
                # The sizes of recoded chunks are known only after recoding.
                size = listed.size if fit.recoding is None or listed.is_directory else None
                named.append(msgspec.structs.replace(listed, name=name, size=size))
        return named

    def contents(self, prefix: str = "", errors: dict[str, Exception] | None = None) -> Steps[Contents]:
        found = yield from self.first.contents(prefix, errors)
        members: dict[str, Any] = {}
        others = {key: size for key, size in found.others.items() if find_chunk(self.grids, key) is None}
        for key in found.members:
            if not zarrmeta.is_metadata(key):
                others[key] = None
                continue
            try:
                members[key] = yield from self.read(key)
            except (OSError, RefShardError) as e:
                _record_error(errors, key, e)
        joined = {
            path: array
            for path in found.arrays
            if (array := self._documents.arrays.get(path)) is not None and array.meta is not None
        }
        # All arrays together: each piece is then opened once, not once for each array.
        steps = [self._find_chunks(path, array, found.arrays[path], errors) for path, array in joined.items()]
        chunks = dict(zip(joined, (yield from run_together(steps)), strict=True))
        return Contents(members, {**found.arrays, **chunks}, others, found.indexes)

    def _find_chunks(
        self, path: str, array: ConcatArray, first: ArrayChunks, errors: dict[str, Exception] | None
    ) -> Steps[ArrayChunks]:
        """Return the chunks that a joined array may have; ``first`` are the chunks of the first piece."""
        assert array.grid is not None, "an array that is joined has a grid"
        columns, sizes, count = [np.zeros(0, np.uint64)], list[UInt64s | None](), 0
        try:
            if self._makes_chunks(path, array):
                count, size = array.grid.size, self._find_chunk_size(path, array)
                self._check_count(path, count)
                size = WHOLE if size is None else size
                return ArrayChunks(array.grid, np.arange(count, dtype=np.uint64), np.full(count, size, np.uint64))
            for some in iterate_batches(range(len(self.document.pieces)), TOGETHER):
                found = yield from run_together([self._find_numbers(number, path, array, first) for number in some])
                for numbers, own in found:
                    count += len(numbers)
                    self._check_count(path, count)
                    columns.append(numbers)
                    sizes.append(own)
        except (OSError, RefShardError) as e:
            _record_error(errors, path, e)
        # Sizes are known only for chunks that were listed, so these exist.
        known = [own for own in sizes if own is not None]
        are_listed = len(known) == len(sizes) and len(known) > 0
        return ArrayChunks(array.grid, np.concatenate(columns), np.concatenate(known) if are_listed else None)

    def _check_count(self, path: str, count: int) -> None:
        if count > COUNTED:
            raise NotListable(
                f"{path!r} of {self.where} has {count} chunks or more: expected at most {COUNTED} to be listed. Read "
                "each by its key"
            )

    def _find_numbers(
        self, number: int, path: str, array: ConcatArray, first: ArrayChunks
    ) -> Steps[tuple[UInt64s, UInt64s | None]]:
        """Return the numbers that chunks of a piece have in the joined array; and sizes, if the piece lists chunks."""
        assert array.grid is not None, "an array that is joined has a grid"
        piece, fit = yield from self._open_and_fit(number, path, array)
        own = array.find_shown_grid_of_piece(number, fit.places)
        chunks = ArrayChunks(own, (), np.zeros(0, np.uint64))
        if fit.recoding is not None and fit.recoding.shows_absent:  # chunks that the piece lacks exist here, too
            self._check_count(path, own.size)
            chunks = ArrayChunks(own, [range(own.size)], np.full(own.size, WHOLE, np.uint64))
        elif not fit.is_absent and number == self._first:
            chunks = first
        elif not fit.is_absent:
            known = (yield from piece.contents(path)).arrays.get(path)
            chunks = (yield from KeySpace.contents(piece, path)).arrays[path] if known is None else known
        self._check_count(path, chunks.count)
        along: dict[int, Move] = {axis: placement.find_places for axis, placement in fit.places.items()}
        along[array.axis] = move_to_cube(array.starts[number], fit.places.get(array.axis))
        numbers, is_inside = move_numbers(chunks.column, own, array.grid, along)
        sizes = chunks.sizes
        if sizes is not None and fit.recoding is not None:  # sizes are known only after recoding
            sizes = np.full(len(numbers), WHOLE, np.uint64)
        return numbers[is_inside], None if sizes is None else sizes[is_inside]

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        shown = self._documents.arrays.get(array)
        if shown is None or shown.grid is None or not shown.starts:
            return (yield from super().chunks(array, numbers, grid))
        column = np.arange(numbers.start, numbers.stop, dtype=np.uint64) if isinstance(numbers, range) else numbers
        builder = ChunksBuilder(len(column))
        stride, count = math.prod(shown.grid.counts[shown.axis + 1 :]), shown.grid.counts[shown.axis]
        coords = column.astype(np.int64) // stride % count
        owners = np.searchsorted(np.array(shown.starts), coords, side="right") - 1
        order = np.argsort(owners, kind="stable")
        rows = [some for some in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1) if len(some)]
        for batch in iterate_batches(rows, TOGETHER):
            steps = [self._find_chunks_in_piece(int(owners[some[0]]), array, shown, column[some]) for some in batch]
            for some, (places, resolve, chunks) in zip(batch, (yield from run_together(steps)), strict=True):
                builder.put_chunks(some[places], chunks, resolve)
        return builder.finish()

    def _find_chunks_in_piece(
        self, number: int, path: str, array: ConcatArray, numbers: UInt64s
    ) -> Steps[tuple[npt.NDArray[np.int64], Callable[[str | None], str], Chunks]]:
        """Return where the chunks of a piece lie: positions in ``numbers``, the piece's ``resolve``, and the chunks."""
        assert array.grid is not None, "an array that is joined has a grid"
        piece, fit = yield from self._open_and_fit(number, path, array)
        if fit.is_absent:
            return np.zeros(0, np.int64), piece.resolve, ChunksBuilder(0).finish()
        along: dict[int, Move] = {axis: placement.find_elements for axis, placement in fit.places.items()}
        along[array.axis] = move_to_piece(array.starts[number], fit.places.get(array.axis))
        own = array.find_shown_grid_of_piece(number, fit.places)
        stored, is_inside = move_numbers(numbers, array.grid, own, along)
        stored, places = stored[is_inside], np.flatnonzero(is_inside)
        own = array.find_grid_of_piece(number, fit.places)
        own = own if fit.encoding is None else msgspec.structs.replace(own, encoding=fit.encoding)
        if fit.recoding is None:
            return places, piece.resolve, (yield from piece.chunks(path, find_range(stored), own))
        builder = ChunksBuilder(len(stored))
        for row, entry in enumerate(
            (yield from piece.find_entries([join(path, tail) for tail in make_tails(own, stored)]))
        ):
            builder.put_entry(row, fit.recoding.recode_entry(entry))
        return places, piece.resolve, builder.finish()


def move_to_cube(start: int, placement: Placement | None) -> Move:
    """Return the move from chunk coordinates of a piece, which begins at ``start``, to those of the joined array.

    The result is -1 for chunks that are not shown.
    """
    if placement is None:
        return shift_by(start)
    places = placement.find_places

    def move(coords: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        found = places(coords)
        return np.where(found < 0, found, found + start)

    return move


def move_to_piece(start: int, placement: Placement | None) -> Move:
    """Return the move from chunk coordinates of the joined array to those of a piece, which begins at ``start``."""
    elements = None if placement is None else placement.find_elements
    return shift_by(-start) if elements is None else lambda coords: elements(coords - start)


def _record_error(errors: dict[str, Exception] | None, key: str, error: Exception) -> None:
    if errors is None:
        raise error
    errors[key] = error


def _list_respelled(
    piece: KeySpace,
    path: str,
    stored: ChunkGrid,
    array: ConcatArray,
    fit: Fit,
    encoding: ChunkKeyEncoding,
    start: int,
    directory: str,
) -> Steps[list[Listed]]:
    """List a ``directory`` of the array, by the shown names, in a piece that encodes chunk keys in another way."""
    found: dict[str, Listed] = {}
    folders = [""]
    while folders:
        folder = folders.pop()
        for listed in (yield from piece.children(join(path, folder))) or ():
            tail = join(folder, listed.name)
            if listed.is_directory:
                folders += (
                    [tail] if stored.is_nested and (tail == "c" or stored.parse_leading(tail) is not None) else []
                )
                continue
            coords = stored.decode(tail)
            placed = None if coords is None else fit.find_shown_chunk((0, *coords) if array.is_stacked else coords)
            if placed is None:
                continue
            shown = encoding.encode(array.move(placed, start))
            if not directory or shown.startswith(directory + "/"):
                name, slash, _ = make_relative(shown, directory).partition("/")
                size = None if slash or fit.recoding is not None else listed.size
                found[name] = Listed(name, size, bool(slash))
    return list(found.values())


def _find_chunk_places(
    elements: Mapping[int, Placement], path: str, first: ArrayMeta, where: str
) -> dict[int, Placement]:
    """Convert places of ``elements`` to places of chunks; ManifestError where chunks would be divided."""
    found: dict[int, Placement] = {}
    for axis, placement in elements.items():
        chunks = placement.convert_to_chunks((first.chunks or ())[axis], first.shape[axis])
        if chunks is None:
            raise ManifestError(
                f"{path!r} of {where} lies at {placement.runs} of axis {axis}: expected places on the borders of chunks"
            )
        found[axis] = chunks
    return found


def _make_facts(aside: bytes | None, units: Mapping[str, Any], path: str, meta: ArrayMeta, where: str) -> ArrayFacts:
    attributes = meta.raw.get("attributes")
    if meta.zarr_format == 2:
        attributes = _parse(aside, join(path, ".zattrs"), where)
    return ArrayFacts(where, meta, {**units, **(attributes or {})})


def _parse(data: bytes | None, key: str, where: str) -> dict[str, Any] | None:
    try:
        doc = None if data is None else zarrmeta.loads(data)
    except ValueError as e:
        raise ManifestError(f"{key!r} of {where} is damaged: {e}") from e
    return doc if isinstance(doc, dict) else None


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a document and its first piece."""
    most = options.max_manifest_bytes
    document: ConcatDocument = yield Load(probe.document(most), ParsedIndex(ConcatDocument.read, (probe.url, most)))
    resolve = make_resolver(options, None if probe.is_in_memory else directory_of(probe.url))
    return (yield from _open_document(document, probe.url, options, resolve))


def _open_document(
    document: ConcatDocument, where: str, options: OpenOptions, resolve: Callable[[str | None], str]
) -> Steps[KeySpace]:
    """Return the key space of a document; this opens its first piece."""
    version = document.zarr_format or options.zarr_format
    theirs = msgspec.structs.replace(
        options, shards="whole", base_url=None, depth=options.depth + 1, zarr_format=version
    )
    if options.depth > DEEPEST:
        raise ManifestError(
            f"{where} nests sets that join sets more than {DEEPEST} levels deep: join their inputs directly"
        )
    open_other = options.open_other
    if open_other is None:
        raise ManifestError(f"{where} joins other sets: expected `open_other` in the options, which opens them")

    def open_piece(number: int) -> Steps[KeySpace]:
        piece = document.pieces[number]
        if piece.document is not None:
            return (yield from _open_document(piece.document, where, theirs, resolve))
        if piece.is_gap:
            return Gap()
        url = resolve(piece.url)
        choices = (*document.select, *piece.select)
        if number != document.first and all(choice.only_leaves_out for choice in choices):
            choices = ()  # only the arrays in `axes` are read, and these choices do not change the arrays
        is_converted = any(choice.zarr_format for choice in piece.select)  # its documents have another version
        known = options.root_documents if is_converted else theirs.root_documents
        roots = known if choices else known[:1]  # one shows that it is a hierarchy
        steps = open_selected(open_other(url, msgspec.structs.replace(theirs, root_documents=roots)), choices)
        if is_trusted(url):
            return (yield from steps)
        origin = server_of(url)
        return PieceView((yield from with_origin_of_piece(steps, (origin,))), origin)

    first = yield from open_piece(document.first)
    space = ConcatKeySpace(document, where, first, open_piece, resolve, options.cache_size)
    yield from space.register_arrays()
    # All other pieces have the first one's version, and are probably zarr hierarchies if it is one.
    theirs = msgspec.structs.replace(theirs, zarr_format=space.zarr_format)
    while first.cube is not None:
        first = first.cube.first
    if first.is_hierarchy:
        roots = ("zarr.json",) if space.zarr_format == 3 else (".zgroup", ".zattrs", zarrmeta.CONSOLIDATED)
        theirs = msgspec.structs.replace(theirs, root_documents=roots)
    whole: KeySpace = space
    if document.beside:
        beside = yield from run_together([_open_document(other, where, theirs, resolve) for other in document.beside])
        whole = yield from merge(space, beside)
    return (yield from apply_choices(whole, document.view))
