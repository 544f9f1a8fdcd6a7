"""Show arrays of formats other than zarr as keys: the format describes the arrays, and locates chunks. No I/O here."""

from __future__ import annotations

import base64
import copy
import math
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from itertools import accumulate, pairwise, repeat
from types import TracebackType
from typing import Any, ClassVar, Final, Literal, Self

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import ArrayChunks, ChunksBuilder, Contents, Numbers, make_column
from refshard_fs.core.chunks import Chunks as ChunkColumns
from refshard_fs.core.dtypes import replace_array_fields
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding, add_to_tree, is_key, is_within, join, parent
from refshard_fs.core.keyspace import Chooser, KeySpace, LookUp, find_chunk, make_tails
from refshard_fs.core.model import Entry, Inline, Listed, Packed, Recipe, SizedRecipe, Span, Steps, run_together
from refshard_fs.core.version_3 import convert_document, convert_group, encode_for_xarray
from refshard_fs.errors import DamagedIndex, ManifestError, NotListable, RefShardError

# The most chunks of an array that are listed: each takes 120 bytes. A damaged header may claim any number of chunks.
LISTABLE: Final = 1 << 21
# The most unwritten chunks that are listed, besides 16 for each written chunk: listing so many takes 3 s.
UNWRITTEN: Final = 1 << 18
# The encoding of chunk keys by zarr version: all chunks of an array lie in one directory.
ENCODINGS: Final = {2: ChunkKeyEncoding("v2", "."), 3: ChunkKeyEncoding("default", ".")}
MOST_FILL: Final = 1 << 26  # bytes: the largest unwritten chunk that this package fills
_DIMENSIONS: Final = "_ARRAY_DIMENSIONS"  # the attribute with the names of dimensions, for xarray in version 2
_SHOWN: Final = 100  # characters of a long path that a report shows
_TRIED: Final = 10_000  # the most counts of chunks that are tried, to find one that divides the axis evenly
# Codecs that do not compress.
_FILTERS: Final = frozenset(["shuffle", "fletcher32", "fixedscaleoffset", "vlen-utf8", "vlen-bytes", "vlen-array"])
_MASKED: Final = "biuf"  # kinds of data types whose _FillValue xarray reads from version 3
PACKING: Final = ("scale_factor", "add_offset")  # xarray decodes packed values to the dtype of these attributes
PACKING_TYPE: Final = (
    "_refshard_packing"  # the attribute in which sets keep the dtype of `PACKING`, which JSON numbers lack
)
# The attribute that names attributes with objects, such as pyramids: xarray gets JSON texts, which NetCDF can hold.
OBJECTS: Final = "_refshard_objects"
PIECE: Final = 4 << 20  # bytes: contiguous arrays are cut into chunks of about this size, large enough for a request


class ArrayDescription(msgspec.Struct, frozen=True):
    """The description of an array, from which zarr's metadata are made.

    ManifestError if shape, chunks and dimensions do not fit together.

    ``where`` names the array at the beginning of errors. ``attributes`` are JSON values. ``order`` is the order of
    elements within a chunk. ``codecs`` are documents of version 2, in the order in which they encode a chunk; without
    any, chunks are raw. The first codec of a ``dtype`` of objects says what the objects are: ``vlen-utf8`` texts,
    ``vlen-bytes`` bytes, ``vlen-array`` sequences. ``file_codecs`` are names of codecs in the file that are not codecs
    of the array, because chunks are decoded before zarr sees them.

    ``fill_value`` is a JSON value of version 2 (see `encode_fill_value`). It is None unless the file has a missing
    value, or lacks chunks: in version 2 xarray masks all elements that equal the fill value, so 0 would mask zeros.
    Version 3 requires a fill value, so None becomes zero there, and xarray does not mask it. With ``is_masked``, the
    fill value of version 3 is repeated as the attribute ``_FillValue``, so that xarray masks it as well.
    """

    where: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype[Any]
    dimensions: Sequence[str]
    attributes: Mapping[str, Any] = {}
    codecs: Sequence[Mapping[str, Any]] = ()
    fill_value: Any = None
    order: Literal["C", "F"] = "C"
    is_masked: bool = False
    file_codecs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rank, names = len(self.shape), self._choose_dimensions()
        if (len(self.chunks), len(names)) != (rank, rank):
            raise ManifestError(
                f"{self.where}: expected {rank} chunk lengths and names of dimensions, for the shape {self.shape}; "
                f"got the chunks {self.chunks} and the names {names}"
            )
        if any(length < min(extent, 1) or extent < 0 for extent, length in zip(self.shape, self.chunks, strict=True)):
            raise ManifestError(
                f"{self.where}: expected lengths of at least 0, and chunks of at least 1 element, got the shape "
                f"{self.shape} in chunks {self.chunks}"
            )

    def grid(self, zarr_format: int) -> ChunkGrid:
        """Return the grid of chunks, whose keys are encoded as in version ``zarr_format``."""
        return ChunkGrid.regular(self.shape, self.chunks, ENCODINGS[zarr_format])

    def make_metadata(self, zarr_format: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield name and content of the metadata documents."""
        attributes = {**_name_objects(self.attributes), _DIMENSIONS: self._choose_dimensions()}
        try:
            dtype = replace_array_fields(self.dtype, zarr_format)
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
                attributes["_FillValue"] = encode_for_xarray(self.fill_value, self.dtype)
            yield "zarr.json", convert_document(document, dtype, ENCODINGS[3], attributes, self.where)
            return
        if compressor is not None:
            compressor.pop("typesize", None)  # a member of blosc's configuration in version 3 only
        yield ".zarray", document
        yield ".zattrs", attributes

    def _choose_dimensions(self) -> list[str]:
        """Return the names of the dimensions: from the attributes, if they have distinct names for all of them."""
        match self.attributes.get(_DIMENSIONS):
            case [*names] if len(set(map(str, names))) == len(self.shape) and all(type(n) is str for n in names):
                return names
        return list(self.dimensions)


class Chunks:
    """Locate the chunks of one array of a format; `core.chunks.Chunks`, in contrast, are columns of any source.

    ``are_many`` is true if listing the chunks takes long, and no other file has equal chunks: a join that does not read
    them does not list them. ``are_found_together`` is true if `find_entries` takes less time than `find_entry` for each
    chunk.
    """

    are_many: bool = False
    are_found_together: bool = False

    def find_entry(self, number: int) -> Steps[Entry | None]:
        """Return the entry of chunk ``number`` of the grid; None if the chunk does not exist.

        Chunks are numbered in C order: the last dimension runs fastest. zarr expects all chunks to have the same size:
        if a file cuts chunks at the edge of the array, `ZeroPaddingRecipe` fills them. The method is a generator: if it
        needs no reads, it begins with ``yield from ()``.
        """
        raise NotImplementedError

    def find_entries(self, numbers: Sequence[int]) -> Steps[Sequence[Entry | None]]:
        """Return the entries of several chunks, which are looked up together."""
        return (yield from run_together([self.find_entry(number) for number in numbers]))

    def list_existing(self) -> Steps[list[Listed] | None]:
        """Return the chunks that exist, by their keys relative to the array; None if all chunks of the grid exist.

        Override it if `find_entry` may return None: otherwise `ls` lists missing chunks, and `check` reports them.
        `FilledChunks.list_written` makes the result from chunk numbers. Raises NotListable if chunks are too many.
        """
        yield from ()
        return None

    def list_numbers_in_unread_blocks(self, number: int) -> Iterator[int]:
        """Yield one chunk number for each unread block of the array's index, the blocks after ``number`` first."""
        return iter(())


class FilledChunks(Chunks):
    """Chunks that have ``size`` bytes after decoding; some of them were never written to the file.

    If zarr's fill value is right for unwritten chunks (``fills_itself``), their keys do not exist, and zarr fills them.
    Otherwise this class makes their bytes.
    """

    def __init__(self, where: str, grid: ChunkGrid, size: int, *, fills_itself: bool) -> None:
        self.where = where
        self.grid = grid
        self._size = size
        self.fills_itself = fills_itself
        self._unwritten: Inline | None = None

    def encode_fill(self) -> bytes:
        """Return the encoded bytes of an unwritten chunk."""
        raise NotImplementedError

    def make_unwritten_entry(self) -> Entry | None:
        """Return the entry of an unwritten chunk; None if zarr fills it."""
        if self._unwritten is None and not self.fills_itself:
            self.check_size()
            self._unwritten = Inline(self.encode_fill())
        return self._unwritten

    def check_size(self) -> None:
        """Raise ValueError if an unwritten chunk is too large to be made here."""
        if self._size > MOST_FILL:
            raise ValueError(
                f"the chunk was never written, and filling it takes {self._size} bytes: expected at most {MOST_FILL}"
            )

    def list_written(self, written: npt.ArrayLike, sizes: Sequence[int] | None = None) -> list[Listed] | None:
        """Return the result of `list_existing`, given the numbers and, if known, sizes of the ``written`` chunks."""
        numbers = np.asarray(written, np.uint64)
        if self.fills_itself:
            return [
                Listed(tail, size)
                for tail, size in zip(make_tails(self.grid, numbers), sizes or repeat(None), strict=False)
            ]
        if self.grid.size > UNWRITTEN + 16 * len(numbers):
            raise NotListable(
                f"{self.where}: {self.grid.size} chunks ({len(numbers)} written) are too many to list: expected at "
                f"most {UNWRITTEN + 16 * len(numbers)}. Read each by its key"
            )
        return None


@contextmanager
def report_damage(url: str, where: str = "") -> Iterator[None]:
    """Convert a ValueError to a DamagedIndex that names the file at ``url`` and, if it is given, a place in it."""
    try:
        yield
    except RefShardError:
        raise
    except ValueError as e:
        raise DamagedIndex("", url, f"{where}: {e}" if where else str(e)) from e


def encode_chunk(data: Any, codecs: Sequence[Mapping[str, Any]]) -> bytes:
    """Encode a chunk with ``codecs``, documents of version 2."""
    for codec in codecs:
        from numcodecs import get_codec  # imported here, because the import is slow and few files need it

        data = get_codec(dict(codec)).encode(data)
    return bytes(data)


class SingleChunk(Chunks):
    """The one chunk of an array, whose bytes are in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = Inline(data)

    def find_entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        return self._data


def make_entry(
    source: Entry, recipe: Recipe, size: int | None, where: str, cuts: tuple[tuple[int, int], ...] = ()
) -> Entry:
    """Return the entry that ``recipe`` decodes from ``source``, or from its (offset, size) ranges ``cuts``, joined.

    ``size`` is the decoded size, if it is known. Bytes in memory are decoded at once; DamagedIndex, which names
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


def make_entry_of_parts(
    source: Span | Inline, parts: Sequence[tuple[int, int]], recipe: Recipe, size: int | None, where: str
) -> Entry:
    """Return the entry that ``recipe`` decodes from joined (offset, size) ``parts`` of ``source``; see `make_entry`."""
    start, stop = min(at for at, _ in parts), max(at + length for at, length in parts)
    cuts = tuple((at - start, length) for at, length in parts)
    are_joined = all(at + length == after for (at, length), (after, _) in pairwise(cuts))
    return make_entry(source.part(start, stop - start), recipe, size, where, () if are_joined else cuts)


class RecipeChunks(Chunks):
    """The chunks of an array by number: each has (offset, size) parts of ``source``, and a recipe to decode these."""

    def __init__(
        self,
        source: Span | Inline,
        grid: ChunkGrid,
        chunks: Mapping[int, tuple[Sequence[tuple[int, int]], SizedRecipe]],
    ) -> None:
        self._source = source
        self._grid = grid
        self._chunks = chunks

    def find_entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        if number not in self._chunks:
            return None
        parts, recipe = self._chunks[number]
        return make_entry_of_parts(self._source, parts, recipe, recipe.size, "the file")

    def list_existing(self) -> Steps[list[Listed] | None]:
        yield from ()
        return [Listed(self._grid.tail(number), None) for number in sorted(self._chunks)]


def _name_objects(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the attribute `OBJECTS`: the names of the attributes whose values contain JSON objects, if there are any."""
    names = [name for name, value in attributes.items() if _has_objects(value)]
    return {**attributes, OBJECTS: names} if names else attributes


def _has_objects(value: Any) -> bool:
    """Return whether a JSON value is an object, or has one in it."""
    pending = [value]
    while pending:  # not recursive: a document may nest lists more deeply than Python can call functions
        item = pending.pop()
        if isinstance(item, Mapping):
            return True
        pending += item if isinstance(item, list) else ()
    return False


def _is_path(path: str) -> bool:
    """Return whether a zarr node can have ``path``: names in a file may be too long, or names of metadata documents."""
    return all(map(zarrmeta.is_node_name, path.split("/"))) and is_key(f"{path}/zarr.json") if path else True


class ArrayGroup(KeySpace):
    """The keys of ``arrays`` and their ``chunks``, both by path, with metadata of version ``zarr_format`` of zarr.

    ``attributes`` are the attributes of the root; ``groups`` has the attributes of other groups by path, and groups
    between the root and an array may be left out. ``reports`` says by path why an array or a group of the file is not
    shown; reading its keys raises an error, because they are not missing. An array for which zarr has no metadata of
    the version is not shown; raise ManifestError if there are only such arrays.
    """

    consolidates = True

    def __init__(
        self,
        arrays: Mapping[str, ArrayDescription],
        chunks: Mapping[str, Chunks],
        zarr_format: int,
        attributes: Mapping[str, Any],
        reports: Mapping[str, str] | None = None,
        groups: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.reports = dict(reports or {})
        for path in [path for path in (*arrays, *(groups or ())) if not _is_path(path)]:
            self.reports[path[:_SHOWN]] = (
                f"its path has {len(path)} characters: expected a path that can be a key of zarr, which is not too "
                "long and has no empty name, '..', backslash, '::' or name of a metadata document"
            )
        arrays = {path: array for path, array in arrays.items() if _is_path(path)}
        groups = {path: attributes for path, attributes in (groups or {}).items() if _is_path(path)}
        nodes: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        for path, array in arrays.items():
            try:
                nodes[path] = list(array.make_metadata(zarr_format))
            except ManifestError as e:  # zarr has no metadata of this version for the array
                if len(arrays) == 1:
                    raise
                self.reports[path] = str(e)
        if arrays and not nodes:
            raise ManifestError(self.reports[next(iter(arrays))])
        arrays = {path: arrays[path] for path in nodes}
        self.grids = {path: array.grid(zarr_format) for path, array in arrays.items()}
        self.file_codecs = {path: array.file_codecs for path, array in arrays.items() if array.file_codecs}
        self.chunks_by_path = chunks
        above = dict.fromkeys(name for path in (*self.grids, *groups) for name in _list_ancestors(path))
        shown = {"": attributes, **{path: groups.get(path, {}) for path in above if path not in self.grids}}
        self.group_attributes = {path: _name_objects(members) for path, members in shown.items()}
        self._documents = _Documents(nodes, self.group_attributes, zarr_format)

    @cached_property
    def _tree(self) -> dict[str, dict[str, bool]]:
        """For each directory, its names, and whether each name is a directory; made at the first listing."""
        tree: dict[str, dict[str, bool]] = {path: {} for path in (*self.group_attributes, *self.grids)}
        for path in tree:
            add_to_tree(tree, path, is_directory=True)
        for key in self._documents:
            add_to_tree(tree, key)
        return tree

    def with_chunks(self, chunks: Mapping[str, Chunks]) -> Self:
        """Return the same arrays with the ``chunks`` of another file that has equal metadata."""
        other = copy.copy(self)
        other.chunks_by_path = chunks
        return other

    def metadata_lacks(self, marks: tuple[bytes, ...]) -> bool:
        return True  # only zarr's metadata have shards and chunk manifests

    def lookup(self, key: str) -> Steps[Entry | None]:
        document = self._documents.get(key)
        if document is not None:
            return Inline(document)
        at = find_chunk(self.grids, key)
        if at is None:
            self.check_shown(key)
            return None
        return (yield from self.chunks_by_path[at.array].find_entry(at.number))

    def make_lookups(self, keys: Sequence[str]) -> list[LookUp]:
        others, chunks = self.group_by_array(keys)
        lookups = []
        for path, pairs in chunks.items():
            places, numbers = zip(*pairs, strict=True)
            if self.chunks_by_path[path].are_found_together:
                lookups.append(LookUp(places, self.chunks_by_path[path].find_entries(numbers)))
            else:
                others += places
        return [*(self.make_single_lookup(place, keys[place]) for place in others), *lookups]

    def list_keys_of_other_parts(self, key: str) -> Iterator[str]:
        at = find_chunk(self.grids, key)
        if at is not None:
            for number in self.chunks_by_path[at.array].list_numbers_in_unread_blocks(at.number):
                yield join(at.array, self.grids[at.array].tail(number))

    def check_shown(self, key: str) -> None:
        """Raise ManifestError with the reason if ``key`` belongs to an array or a group that is not shown."""
        if not self.reports:
            return
        path = above = parent(key)[0]
        while above and above not in self.grids:
            # A reported group that is shown has all of its own documents: another key directly in it is missing.
            if above in self.reports and (above != path or above not in self._tree):
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
            found += yield from self._list_array(prefix)
        return sorted(found, key=lambda listed: listed.name)

    def is_directory(self, prefix: str) -> Steps[bool]:
        yield from ()
        return prefix in self._tree

    def contents(self, prefix: str = "", errors: dict[str, Exception] | None = None) -> Steps[Contents]:
        if errors is not None:  # the base class lists directories one by one, and records the error of each
            return (yield from super().contents(prefix, errors))
        return (yield from self._collect_contents(prefix))

    def contents_to_join(self, choose: Chooser) -> Steps[Contents]:
        many = [path for path in self.grids if self.chunks_by_path[path].are_many]
        chosen = choose(self._documents, self.grids) if many else ()
        return (yield from self._collect_contents("", frozenset(path for path in many if path in chosen)))

    def _collect_contents(self, prefix: str, shortened: Collection[str] = ()) -> Steps[Contents]:
        """Return the contents below ``prefix``, with only the first chunk of the arrays ``shortened``."""
        members: dict[str, bytes] = {}
        arrays: dict[str, ArrayChunks] = {}
        for key in self._documents:
            if not is_within(key, prefix):
                continue
            path, name = parent(key)
            members[key] = self._documents[key]
            if name in zarrmeta.ARRAY_DOCUMENTS and path in self.grids:
                grid = self.grids[path]
                if path in shortened:
                    arrays[path] = ArrayChunks(grid, [range(1)])
                    continue
                existing = yield from self._list_existing(path)
                column = None if existing is None else np.array([grid.number(file.name) for file in existing], "u8")
                arrays[path] = ArrayChunks(grid, [range(grid.size)] if column is None else column)
        return Contents(members, arrays)

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[ChunkColumns]:
        if array not in self.chunks_by_path or (grid is not None and grid != self.grids[array]):
            return (yield from super().chunks(array, numbers, grid))
        builder = ChunksBuilder(len(numbers))
        for row, entry in enumerate(
            (yield from self.chunks_by_path[array].find_entries(make_column(numbers).tolist()))
        ):
            builder.put_entry(row, entry)
        return builder.finish()

    def _list_array(self, path: str) -> Steps[list[Listed]]:
        found = yield from self._list_existing(path)
        return [Listed(tail, None) for tail in self.grids[path].tails()] if found is None else found

    def _list_existing(self, path: str) -> Steps[list[Listed] | None]:
        """Return the chunks of an array that exist; None if all chunks of its grid exist."""
        found = yield from self.chunks_by_path[path].list_existing()
        if found is None and self.grids[path].size > LISTABLE:
            size = self.grids[path].size
            found_text = f"{join(path, '*')}: {size} chunks are too many to list"
            raise NotListable(f"{found_text}: expected at most {LISTABLE}. Read each by its key")
        return found


class _ErrorReporter:
    """Convert an error to the report under ``path``.

    A generator with ``contextmanager`` and the error would refer to each other, so that all local variables of the
    calls that failed, which may be megabytes for each object, would stay until the next garbage collection.
    """

    def __init__(self, reports: dict[str, str], path: str) -> None:
        self._reports, self._path = reports, path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, ValueError | struct.error | DamagedIndex):
            return False
        self._reports[self._path] = str(error)
        return True


class ArrayGroupBuilder:
    """Collect the arrays, groups and reports of a file while it is opened."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.arrays: dict[str, ArrayDescription] = {}
        self.chunks: dict[str, Chunks] = {}
        self.groups: dict[str, dict[str, Any]] = {}
        self.reports: dict[str, str] = {}

    def add(self, path: str, array: ArrayDescription, chunks: Chunks) -> None:
        """Add the array ``path``; the groups that contain it need not be added."""
        self.arrays[path], self.chunks[path] = array, chunks

    def report_errors(self, path: str) -> AbstractContextManager[None]:
        """Convert an error about one object to the report under ``path``: other objects of the file are shown."""
        return _ErrorReporter(self.reports, path)

    def make_keyspace(self, zarr_format: int, attributes: Mapping[str, Any] = {}) -> ArrayGroup:
        """Return the key space; ManifestError with the reasons if no array can be shown."""
        if not self.arrays:
            reasons = [f"{name}: {reason}" for name, reason in self.reports.items()]
            more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
            because = f": {'; '.join(reasons[:3])}{more}" if reasons else ""
            raise ManifestError(f"{self.url}: expected at least one array that can be shown, found none{because}")
        return ArrayGroup(self.arrays, self.chunks, zarr_format, attributes, self.reports, groups=self.groups)


class _Documents(Mapping[str, bytes]):
    """The metadata of arrays and ``groups`` by key, with consolidated metadata at the root.

    ``arrays`` has the names and contents of each array's documents, by path.

    Each document is encoded when it is first read: a cube reads only one or two documents of a piece.
    """

    def __init__(
        self,
        arrays: Mapping[str, list[tuple[str, dict[str, Any]]]],
        groups: Mapping[str, Mapping[str, Any]],
        zarr_format: int,
    ) -> None:
        nodes = dict(arrays)
        for path, attributes in groups.items():
            if zarr_format == 3:
                nodes[path] = [("zarr.json", convert_group(attributes))]
            else:
                nodes[path] = [(".zgroup", {"zarr_format": 2}), (".zattrs", dict(attributes))]
        places: dict[str, int] = {}
        for path in nodes:
            for above in _list_ancestors(path):
                places.setdefault(above, len(places))
        # Nodes keep the order of the file, but each group comes before its members: zarr 3.1 loses members that come
        # before their group.
        in_order = sorted(nodes, key=lambda path: [places[above] for above in _list_ancestors(path)])
        self._plain = {join(path, name): found for path in in_order for name, found in nodes[path]}
        self._consolidated = "zarr.json" if zarr_format == 3 else zarrmeta.CONSOLIDATED
        self._keys = dict.fromkeys([*self._plain, self._consolidated])
        self._encoded: dict[str, bytes] = {}

    def __getitem__(self, key: str) -> bytes:
        data = self._encoded.get(key)
        if data is None:
            data = self._encoded[key] = self._consolidate() if key == self._consolidated else self._encode(key)
        return data

    def get(self, key: str, default: Any = None) -> Any:  # most keys are chunks: a KeyError for each would be slow
        return self[key] if key in self._keys else default

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def _encode(self, key: str) -> bytes:
        return zarrmeta.dumps(self._plain[key])

    def _consolidate(self) -> bytes:
        members = {key: self[key] for key in self._plain if key != self._consolidated}
        if self._consolidated != "zarr.json":
            return _join_members({"zarr_consolidated_format": b"1", "metadata": _join_members(members)})
        below = {parent(key)[0]: document for key, document in members.items()}
        consolidated = {"kind": b'"inline"', "must_understand": b"false", "metadata": _join_members(below)}
        root = {name: zarrmeta.dumps(value) for name, value in self._plain["zarr.json"].items()}
        return _join_members({**root, "consolidated_metadata": _join_members(consolidated)})


def _list_ancestors(path: str) -> list[str]:
    """Return the groups that contain ``path``, the outermost first, and then ``path``; an empty list for the root."""
    return list(accumulate(path.split("/"), join)) if path else []


def _join_members(members: Mapping[str, bytes]) -> bytes:
    """Make a JSON object of ``members``, whose values are JSON texts: so each document is encoded only once."""
    return b"{%b}" % b",".join([b"%b:%b" % (zarrmeta.dumps(name), value) for name, value in members.items()])


def encode_fill_value(raw: bytes, dtype: np.dtype[Any]) -> Any:
    r"""Convert ``raw``, one element of ``dtype``, to a fill value in metadata of version 2.

    >>> encode_fill_value(b"\0\0\xc0\x7f", np.dtype("<f4")), encode_fill_value(b"\1", np.dtype("|b1"))
    ('NaN', True)
    """
    if dtype.kind in "SV":
        return base64.b64encode(raw).decode()
    if dtype.kind in "mM":
        return int(np.frombuffer(raw, dtype.str[0] + "i8")[0])
    return _encode_number(np.frombuffer(raw, dtype)[0].item())


def convert_fill_value(value: Any, dtype: np.dtype[Any]) -> Any:
    """Convert a number to a fill value in metadata of version 2; None for all values that ``dtype`` cannot hold."""
    if type(value) not in (int, float) or dtype.kind not in "iufc":
        return None
    try:
        with np.errstate(all="ignore"):
            fill = np.array(value).astype(dtype)
    except OverflowError:
        return None
    is_same = bool(fill == value) or (dtype.kind in "fc" and value != value)
    return encode_fill_value(fill.tobytes(), dtype) if is_same else None


def _encode_number(value: Any) -> Any:
    match value:
        case complex():
            return [_encode_number(value.real), _encode_number(value.imag)]
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def choose_chunks(shape: Sequence[int], itemsize: int, most: int = PIECE) -> tuple[int, ...]:
    """Choose a chunk shape for a contiguous array in C order, with chunks of about ``most`` bytes.

    The array is cut along the first axis. If one step along it is larger than ``most``, a chunk has one step, and the
    next axis is cut. A length that divides the axis evenly is preferred, if it is at least half of the largest
    possible one, because then no chunk has to be padded.

    >>> choose_chunks((1000, 100, 100), 8), choose_chunks((3, 4999, 1000), 8)
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


class ZeroPaddingRecipe(msgspec.Struct, frozen=True):
    """A recipe that pads a chunk at the edge of an array with zeros to ``size`` bytes, which zarr expects."""

    size: int
    pads: ClassVar[bool] = True

    def make(self, raw: bytes) -> bytes:
        if len(raw) > self.size:
            raise ValueError(f"expected at most {self.size} bytes of a chunk, got {len(raw)}")
        return raw + bytes(self.size - len(raw))


class Contiguous(Chunks):
    """The ``chunks`` (see `choose_chunks`) of a contiguous array in C order that begins at ``offset``.

    ``stride`` is the distance in bytes between steps along the first axis. It may be larger than a step, for example
    in records of several variables; then a chunk is one step, or a part of it. Raises ManifestError if the array ends
    beyond ``source``, or if ``stride`` does not fit the shape or the chunks.
    """

    are_found_together = True

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
            if stride < last:
                raise ManifestError(
                    f"{where}: its records begin every {stride} bytes: expected at least {last}, the bytes of a record"
                )
            if stride > last and chunks[0] != 1:
                raise ManifestError(
                    f"{where}: its chunks have {chunks[0]} records, which have gaps: expected chunks of one record"
                )
            strides[0] = stride
        self._strides = tuple(strides)
        self._size = math.prod(chunks) * itemsize
        end = offset + (strides[0] * (shape[0] - 1) + last if shape else itemsize)
        if source.size is not None and end > source.size and all(shape):
            raise ManifestError(
                f"{where}: the file ends at byte {source.size}: expected values up to byte {end}. Fetch the file again"
            )

    def find_entry(self, number: int) -> Steps[Entry | None]:
        return (yield from self.find_entries([number]))[0]

    def find_entries(self, numbers: Sequence[int]) -> Steps[Sequence[Entry | None]]:
        yield from ()
        found = [self._source.part(*self.place(number)) for number in numbers]
        size = self._size
        return [part if part.size == size else make_entry(part, ZeroPaddingRecipe(size), size, "") for part in found]

    def place(self, number: int) -> tuple[int, int]:
        """Return the offset of chunk ``number``, and how many bytes of the chunk are in the file."""
        start, size = self._offset, self._size
        for axis, coord in enumerate(self._grid.coords(number)):
            first = coord * self._chunks[axis]
            start += first * self._strides[axis]
            length = min(self._chunks[axis], self._shape[axis] - first)
            size = size // self._chunks[axis] * length
        return start, size


class EvenlySpaced(Chunks):
    """Chunks of a coordinate of 64-bit floats, computed when they are read: element ``i`` is ``first + step * i``.

    A chunk has at most 512 KiB.
    """

    def __init__(self, first: float, step: float, count: int) -> None:
        self._first = first
        self._step = step
        self.chunk = min(count, 1 << 16)

    def find_entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        numbers = np.arange(number * self.chunk, (number + 1) * self.chunk)
        return Inline((self._first + self._step * numbers).astype("<f8").tobytes())
