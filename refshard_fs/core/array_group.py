"""A group of arrays that zarr did not write: a format describes them and says where their chunks lie. No I/O here."""

from __future__ import annotations

import base64
import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise, repeat
from typing import Any, Final, Literal, Self

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import UInt64s
from refshard_fs.core.dtypes import with_single_fields
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding, add_to_tree, is_key, join, parent
from refshard_fs.core.keyspace import KeySpace, place, tails
from refshard_fs.core.model import Entry, Inline, Listed, Packed, Recipe, SizedRecipe, Span, Steps
from refshard_fs.core.version_3 import for_xarray, group_3, version_3
from refshard_fs.errors import DamagedIndex, ManifestError, NotListable

# Chunks of an array that are listed, 120 bytes each. A damaged header may claim any number; each can still be read.
LISTABLE: Final = 1 << 21
# Chunks that the file does not have and that are listed all the same, besides 16 for each that it has: 3 s of work.
UNWRITTEN: Final = 1 << 18
# How chunks are keyed, by zarr version: one level of names.
ENCODINGS: Final = {2: ChunkKeyEncoding("v2", "."), 3: ChunkKeyEncoding("default", ".")}
MOST_FILL: Final = 1 << 26  # bytes of a chunk that was never written, where one has to be made
_DIMENSIONS: Final = "_ARRAY_DIMENSIONS"  # where xarray looks for names in version 2
_SHOWN: Final = 100  # characters of a path that is too long
_TRIED: Final = 10_000  # numbers of pieces, for one that leaves no short last one
# Codecs that compress nothing.
_FILTERS: Final = frozenset(["shuffle", "fletcher32", "fixedscaleoffset", "vlen-utf8", "vlen-array"])
_MASKED: Final = "biuf"  # kinds of data types whose _FillValue xarray reads from version 3
PACKING: Final = ("scale_factor", "add_offset")  # attributes whose dtype is that of the values that xarray decodes
PACKING_TYPE: Final = "_refshard_packing"  # an attribute of arrays in sets: that dtype, which JSON does not tell
PIECE: Final = 4 << 20  # bytes of a chunk that a contiguous array is cut into: large enough for one request


class ArrayDescription(msgspec.Struct, frozen=True):
    """What zarr's metadata is to say of an array; ``where`` begins errors, ``order`` is that within a chunk.

    Without ``codecs`` chunks are raw. ``fill_value`` is None unless the file states a missing value, or lacks chunks:
    in version 2 xarray masks every element that has it, and so would mask zeros where it is 0.

    ``codecs``, in the order in which they encode a chunk, and ``fill_value`` are as version 2 spells them (see
    `spelled_fill`). xarray masks the fill value of version 2. Version 3 must have one: where there is none, it is zero,
    and xarray masks nothing by it. With ``is_masked``, xarray masks the fill value of version 3 as well: it is said
    once more, as ``_FillValue``.
    A ``dtype`` of objects stands for what its first codec encodes: ``vlen-utf8`` texts, ``vlen-array`` sequences.
    """

    where: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype[Any]
    dimensions: Sequence[str]
    attributes: Mapping[str, Any]
    codecs: Sequence[Mapping[str, Any]] = ()
    fill_value: Any = None
    order: Literal["C", "F"] = "C"
    is_masked: bool = False

    def grid(self, zarr_format: int) -> ChunkGrid:
        """Return the chunks and their keys."""
        return ChunkGrid.regular(self.shape, self.chunks, ENCODINGS[zarr_format])

    def metadata(self, zarr_format: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield name and content of the metadata documents."""
        attributes = {**self.attributes, _DIMENSIONS: self._dimensions()}
        try:
            dtype = with_single_fields(self.dtype, zarr_format)
        except ValueError as e:
            raise ManifestError(f"{self.where}: {e}") from None
        filters = [dict(codec) for codec in self.codecs]
        compressor = filters.pop() if filters and filters[-1]["id"] not in _FILTERS else None
        document = {
            "zarr_format": 2,
            "shape": self.shape,
            "chunks": self.chunks,
            "dtype": dtype.str if dtype.names is None else dtype.descr,
            "compressor": compressor,
            "fill_value": self.fill_value,
            "order": self.order,
            "filters": filters or None,
            "dimension_separator": ENCODINGS[2].separator,
        }
        if zarr_format == 3:
            if self.is_masked and self.fill_value is not None and self.dtype.kind in _MASKED:
                attributes["_FillValue"] = for_xarray(self.fill_value, self.dtype)
            yield "zarr.json", version_3(document, dtype, ENCODINGS[3], attributes, self.where)
            return
        if compressor is not None:  # of which version 2 says less
            compressor.pop("typesize", None)
        yield ".zarray", document
        yield ".zattrs", attributes

    def _dimensions(self) -> list[str]:
        """Return the dimensions' names: those that the attributes give, if they name each one."""
        match self.attributes.get(_DIMENSIONS):
            case [*names] if len(set(map(str, names))) == len(self.shape) and all(type(n) is str for n in names):
                return names
        return list(self.dimensions)


class Chunks:
    """Where the chunks of one array of a format are; `core.chunks.Chunks` are those of any source, as columns."""

    def entry(self, number: int) -> Steps[Entry | None]:
        """Return the entry of chunk ``number`` of the grid; None if there is no such chunk.

        Chunks are numbered in C order: the last dimension runs fastest. zarr expects those at the edge of the array as
        large as all others: where a file cuts them, `Padded` fills them. This is a generator: one that reads nothing
        begins with ``yield from ()``.
        """
        raise NotImplementedError

    def listed(self) -> Steps[list[Listed] | None]:
        """Return the chunks that exist, by their keys relative to the array; None if all of the grid do.

        Raises NotListable if they are too many.
        """
        yield from ()
        return None

    def numbers_in_unread_blocks(self, number: int) -> Iterator[int]:
        """Yield a chunk of each block of the array's index that was not read yet, those after ``number`` first."""
        return iter(())


class FilledChunks(Chunks):
    """Chunks of ``size`` bytes, decoded, some of which were never written.

    If zarr's fill value is the right one for these (``fills_itself``), they are missing, and readers fill them.
    Otherwise they are made here.
    """

    def __init__(self, where: str, grid: ChunkGrid, size: int, *, fills_itself: bool) -> None:
        self.where = where
        self.grid = grid
        self._size = size
        self.fills_itself = fills_itself
        self._unwritten: Inline | None = None

    def filled(self) -> bytes:
        """Return the encoded bytes of a chunk that was never written."""
        raise NotImplementedError

    def unwritten(self) -> Entry | None:
        """Return the entry of a chunk that was never written; None if readers fill it."""
        if self._unwritten is None and not self.fills_itself:
            self.check_size()
            self._unwritten = Inline(self.filled())
        return self._unwritten

    def check_size(self) -> None:
        """Raise ValueError if a chunk that was never written is too large to be made here."""
        if self._size > MOST_FILL:
            raise ValueError(f"a chunk of {self._size} bytes was never written: they are too many to make")

    def listed_of(self, written: UInt64s, sizes: Sequence[int] | None = None) -> list[Listed] | None:
        """Return the same as `listed`, given the chunks that were ``written`` and, if known, their sizes."""
        if self.fills_itself:
            return [
                Listed(tail, size) for tail, size in zip(tails(self.grid, written), sizes or repeat(None), strict=False)
            ]
        if self.grid.size > UNWRITTEN + 16 * len(written):
            raise NotListable(
                f"{self.where}: {self.grid.size} chunks, of which {len(written)} were written, are too many to list; "
                "each can still be read by its key"
            )
        return None


def encoded(data: Any, codecs: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a chunk encoded by ``codecs``, which are spelled as in version 2."""
    for codec in codecs:
        from numcodecs import get_codec  # slow to import, and few files need it

        data = get_codec(dict(codec)).encode(data)
    return bytes(data)


class Given(Chunks):
    """An array of one chunk, whose bytes are known."""

    def __init__(self, data: bytes) -> None:
        self._data = Inline(data)

    def entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        return self._data


def made(source: Entry, recipe: Recipe, size: int | None, where: str, cuts: tuple[tuple[int, int], ...] = ()) -> Entry:
    """Return the entry of what ``recipe`` makes of ``source``, or of its (offset, size) ``cuts``, joined.

    ``size`` is that of the result, if it is known. Bytes in memory are decoded at once; DamagedIndex, which names
    ``where``, if they are damaged.
    """
    if isinstance(source, Span):
        return Packed(source, recipe, size, parts=tuple(source.part(at, length) for at, length in cuts))
    assert isinstance(source, Inline)
    data = b"".join([source.data[at : at + length] for at, length in cuts]) if cuts else source.data
    try:
        return Inline(recipe.make(data))
    except ValueError as e:
        raise DamagedIndex("", where, str(e)) from e


def made_of_parts(
    source: Span | Inline, parts: Sequence[tuple[int, int]], recipe: Recipe, size: int | None, where: str
) -> Entry:
    """Return the entry of what ``recipe`` makes of (offset, size) ``parts`` of ``source``, joined; see `made`."""
    start, stop = min(at for at, _ in parts), max(at + length for at, length in parts)
    cuts = tuple((at - start, length) for at, length in parts)
    are_joined = all(at + length == after for (at, length), (after, _) in pairwise(cuts))
    return made(source.part(start, stop - start), recipe, size, where, () if are_joined else cuts)


class MadeChunks(Chunks):
    """The chunks that exist, by number: (offset, size) parts of ``source``, and the recipe that decodes them."""

    def __init__(
        self,
        source: Span | Inline,
        grid: ChunkGrid,
        chunks: Mapping[int, tuple[Sequence[tuple[int, int]], SizedRecipe]],
    ) -> None:
        self._source = source
        self._grid = grid
        self._chunks = chunks

    def entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        if number not in self._chunks:
            return None
        parts, recipe = self._chunks[number]
        return made_of_parts(self._source, parts, recipe, recipe.size, "the file")

    def listed(self) -> Steps[list[Listed] | None]:
        yield from ()
        return [Listed(self._grid.tail(number), None) for number in sorted(self._chunks)]


def _is_path(path: str) -> bool:
    """Whether an array or a group can have ``path``: a file's own names may be too long, or names of metadata."""
    return all(map(zarrmeta.is_node_name, path.split("/"))) and is_key(f"{path}/zarr.json") if path else True


class ArrayGroup(KeySpace):
    """The keys of ``arrays`` and their ``chunks``, both by path, in version ``zarr_format`` of zarr.

    ``attributes`` are those of the root, and ``groups`` has those of other groups by path; groups between the root and
    an array need not be in it. ``reports`` says why arrays are not shown, by path: their keys are errors, and not
    missing, for the file has them. ``others`` are documents that are no metadata of zarr, by key.
    """

    consolidates = True

    def __init__(
        self,
        arrays: Mapping[str, ArrayDescription],
        chunks: Mapping[str, Chunks],
        zarr_format: int,
        attributes: Mapping[str, Any],
        reports: Mapping[str, str] | None = None,
        others: Mapping[str, bytes] | None = None,
        groups: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.reports = dict(reports or {})
        for path in [path for path in (*arrays, *(groups or ())) if not _is_path(path)]:
            self.reports[path[:_SHOWN]] = (
                "its path can be no key: it is too long, climbs, or has a backslash, '::' or a name of metadata"
            )
        arrays = {path: array for path, array in arrays.items() if _is_path(path)}
        groups = {path: attributes for path, attributes in (groups or {}).items() if _is_path(path)}
        self.grids = {path: array.grid(zarr_format) for path, array in arrays.items()}
        self._chunks = chunks
        above = dict.fromkeys(name for path in (*self.grids, *groups) for name in _prefixes(path))
        self._groups = {"": attributes, **{path: groups.get(path, {}) for path in above if path not in self.grids}}
        self._documents = {**(others or {}), **_documents(arrays, self._groups, zarr_format)}

    @cached_property
    def _tree(self) -> dict[str, dict[str, bool]]:
        """Directory → name → whether it is a directory, too; few readers list."""
        tree: dict[str, dict[str, bool]] = {path: {} for path in (*self._groups, *self.grids)}
        for path in tree:
            add_to_tree(tree, path, is_directory=True)
        for key in self._documents:
            add_to_tree(tree, key)
        return tree

    def with_chunks(self, chunks: Mapping[str, Chunks]) -> Self:
        """Return the same arrays with the ``chunks`` of another file, whose metadata is the same."""
        other = copy.copy(self)
        other._chunks = chunks
        return other

    def metadata_lacks(self, marks: tuple[bytes, ...]) -> bool:
        return True  # zarr did not write it, so it has neither shards nor chunk manifests

    def lookup(self, key: str) -> Steps[Entry | None]:
        document = self._documents.get(key)
        if document is not None:
            return Inline(document)
        at = place(self.grids, key)
        if at is None:
            self.check_shown(key)
            return None
        return (yield from self._chunks[at.array].entry(at.number))

    def keys_of_other_parts(self, key: str) -> Iterator[str]:
        at = place(self.grids, key)
        if at is not None:
            for number in self._chunks[at.array].numbers_in_unread_blocks(at.number):
                yield join(at.array, self.grids[at.array].tail(number))

    def check_shown(self, key: str) -> None:
        """Raise ManifestError, which says why, if ``key`` would be of an array or a group that is not shown."""
        if not self.reports:
            return
        path = above = parent(key)[0]
        while above and above not in self.grids:
            if above in self.reports and (above != path or above not in self._tree):  # a group's own documents
                raise ManifestError(f"{key!r} cannot be read: {above!r} is not shown: {self.reports[above]}")
            above = parent(above)[0]

    def children(self, prefix: str) -> Steps[list[Listed] | None]:
        below = self._tree.get(prefix)
        if below is None:
            return None
        found = [
            Listed(name, None if is_directory else len(self._documents[join(prefix, name)]), is_directory)
            for name, is_directory in below.items()
        ]
        if prefix in self.grids:
            found += yield from self._listed(prefix)
        return sorted(found, key=lambda listed: listed.name)

    def is_directory(self, prefix: str) -> Steps[bool]:
        yield from ()
        return prefix in self._tree

    def _listed(self, path: str) -> Steps[list[Listed]]:
        found = yield from self._chunks[path].listed()
        if found is not None:
            return found
        grid = self.grids[path]
        if grid.size > LISTABLE:
            raise NotListable(
                f"{join(path, '*')}: {grid.size} chunks are too many to list; each can still be read by its key"
            )
        return [Listed(tail, None) for tail in grid.tails()]


class ArrayGroupBuilder:
    """Collects the arrays, groups and reports of a file that is opened."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.arrays: dict[str, ArrayDescription] = {}
        self.chunks: dict[str, Chunks] = {}
        self.groups: dict[str, dict[str, Any]] = {}
        self.reports: dict[str, str] = {}

    def add(self, path: str, array: ArrayDescription, chunks: Chunks) -> None:
        """Add an array."""
        self.arrays[path], self.chunks[path] = array, chunks

    def keyspace(self, zarr_format: int, attributes: Mapping[str, Any]) -> ArrayGroup:
        """Return the key space; ManifestError, which says why, if it would have no arrays."""
        if not self.arrays:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in list(self.reports.items())[:3])
            raise ManifestError(f"{self.url}: nothing in it can be shown. {reasons}")
        return ArrayGroup(self.arrays, self.chunks, zarr_format, attributes, self.reports, groups=self.groups)


def _documents(
    arrays: Mapping[str, ArrayDescription], groups: Mapping[str, Mapping[str, Any]], zarr_format: int
) -> dict[str, bytes]:
    """Return the metadata of ``arrays`` and ``groups``, by key; that of the root, whose path is "", has all others."""
    nodes = {path: list(array.metadata(zarr_format)) for path, array in arrays.items()}
    for path, attributes in groups.items():
        if zarr_format == 3:
            nodes[path] = [("zarr.json", group_3(attributes))]
        else:
            nodes[path] = [(".zgroup", {"zarr_format": 2}), (".zattrs", dict(attributes))]
    places: dict[str, int] = {}
    for path in nodes:
        for above in _prefixes(path):
            places.setdefault(above, len(places))
    # The order is that of the file; but zarr 3.1 loses what comes before the group that it lies in.
    in_order = sorted(nodes, key=lambda path: [places[above] for above in _prefixes(path)])
    whole = {join(path, name): zarrmeta.dumps(found) for path in in_order for name, found in nodes[path]}
    if zarr_format == 3:
        members = {parent(key)[0]: document for key, document in whole.items() if key != "zarr.json"}
        consolidated = {"kind": b'"inline"', "must_understand": b"false", "metadata": _joined(members)}
        root = {name: zarrmeta.dumps(value) for name, value in dict(nodes[""])["zarr.json"].items()}
        whole["zarr.json"] = _joined({**root, "consolidated_metadata": _joined(consolidated)})
    else:
        whole[".zmetadata"] = _joined({"zarr_consolidated_format": b"1", "metadata": _joined(whole)})
    return whole


def _prefixes(path: str) -> list[str]:
    """Return the groups that ``path`` lies in, from the outermost on, and the path; none for the root."""
    return list(accumulate(path.split("/"), join)) if path else []


def _joined(members: Mapping[str, bytes]) -> bytes:
    """Return the JSON object with ``members``, which are JSON texts: so each document is encoded only once."""
    return b"{%b}" % b",".join([b"%b:%b" % (zarrmeta.dumps(name), value) for name, value in members.items()])


def spelled_fill(raw: bytes, dtype: np.dtype[Any]) -> Any:
    r"""Return a fill value as version 2 metadata spells it; ``raw`` is one element of ``dtype``.

    >>> spelled_fill(b"\0\0\xc0\x7f", np.dtype("<f4")), spelled_fill(b"\1", np.dtype("|b1"))
    ('NaN', True)
    """
    if dtype.kind in "SV":
        return base64.b64encode(raw).decode()
    if dtype.kind in "mM":
        return int(np.frombuffer(raw, dtype.str[0] + "i8")[0])
    return _spelled(np.frombuffer(raw, dtype)[0].item())


def fill_of(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a number as version 2 metadata spells it as a fill value; None if no element of ``dtype`` can have it."""
    if type(value) not in (int, float) or dtype.kind not in "iufc":
        return None
    try:
        with np.errstate(all="ignore"):
            fill = np.array(value).astype(dtype)
    except OverflowError:
        return None
    is_same = bool(fill == value) or (dtype.kind in "fc" and value != value)
    return spelled_fill(fill.tobytes(), dtype) if is_same else None


def _spelled(value: Any) -> Any:
    match value:
        case complex():
            return [_spelled(value.real), _spelled(value.imag)]
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


# ----------------------------------------------------------------------------------------------------
# Contiguous arrays, shown as chunks of a suitable size.


def pieces(shape: Sequence[int], itemsize: int, most: int = PIECE) -> tuple[int, ...]:
    """Return a chunk shape for a contiguous array in C order: ranges of about ``most`` bytes, cut along the first axis.

    If one step along that axis is larger, a chunk has one step, and the next axis is cut. If a size between the
    largest one and half of it divides the axis, it is chosen: then no chunk has to be padded.

    >>> pieces((1000, 100, 100), 8), pieces((3, 4999, 1000), 8)
    ((50, 100, 100), (1, 524, 1000))
    """
    chunks = [max(extent, 1) for extent in shape]
    for axis in range(len(chunks)):
        step = itemsize * math.prod(chunks[axis + 1 :])
        extent = chunks[axis]
        largest = min(extent, max(most // step, 1))
        least = -(-extent // largest)
        equal = (extent // count for count in range(least, least + min(least, _TRIED)) if extent % count == 0)
        chunks[axis] = next(equal, largest)
        if chunks[axis] > 1:
            break
    return tuple(chunks)


class Padded(msgspec.Struct, frozen=True):
    """A recipe: the last chunk of an array, padded with zeros to the size that zarr expects."""

    size: int

    def make(self, raw: bytes) -> bytes:
        if len(raw) > self.size:
            raise ValueError(f"{len(raw)} bytes are more than the {self.size} of a chunk")
        return raw + bytes(self.size - len(raw))


class Contiguous(Chunks):
    """The ``chunks`` (see `pieces`) of a contiguous array in C order that begins at ``offset``.

    Steps along the first axis may be ``stride`` bytes apart, more than their elements take, as in records of several
    variables; then a chunk is one step, or a part of one. Raises ManifestError if the array ends beyond ``source``.
    """

    def __init__(
        self,
        source: Span | Inline,
        offset: int,
        shape: Sequence[int],
        chunks: Sequence[int],
        itemsize: int,
        where: str,
        stride: int | None = None,
    ) -> None:
        self._source = source
        self._offset = offset
        self._shape = tuple(shape)
        self._chunks = tuple(chunks)
        self._grid = ChunkGrid.regular(shape, chunks, ENCODINGS[2])
        strides = [itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        last = math.prod(shape[1:]) * itemsize
        if stride is not None and shape:
            if stride < last or (stride > last and chunks[0] != 1):
                raise ManifestError(f"{where}: its steps of {last} bytes are not {stride} bytes apart")
            strides[0] = stride
        self._strides = tuple(strides)
        self._size = math.prod(chunks) * itemsize
        end = offset + (strides[0] * (shape[0] - 1) + last if shape else itemsize)
        if source.size is not None and end > source.size and all(shape):
            raise ManifestError(f"{where}: it ends at byte {end}, beyond the {source.size} bytes of its file")

    def entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        found = self._source.part(*self.place(number))
        return found if found.size == self._size else made(found, Padded(self._size), self._size, "")

    def place(self, number: int) -> tuple[int, int]:
        """Return where chunk ``number`` begins, and the bytes of it that there are."""
        start, size = self._offset, self._size
        for axis, coord in enumerate(self._grid.coords(number)):
            first = coord * self._chunks[axis]
            start += first * self._strides[axis]
            there = min(self._chunks[axis], self._shape[axis] - first)
            size = size // self._chunks[axis] * there
        return start, size


class EvenlySpaced(Chunks):
    """A coordinate ``first + step * number`` of 64-bit floats, computed when it is read, in chunks of 512 KiB."""

    def __init__(self, first: float, step: float, count: int) -> None:
        self._first = first
        self._step = step
        self.chunk = min(count, 1 << 16)

    def entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        numbers = np.arange(number * self.chunk, (number + 1) * self.chunk)
        return Inline((self._first + self._step * numbers).astype("<f8").tobytes())
