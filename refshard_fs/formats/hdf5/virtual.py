"""Virtual datasets of HDF5: their values lie in other datasets, in the same file or in other files. No I/O here.

A mapping places a selection of a source dataset in the virtual dataset. If mappings consist of whole chunks, and all
sources have the type of the virtual dataset and the same chunk shape and filters, each chunk of the virtual dataset is
an unchanged chunk of a source. Otherwise its chunks are joined from parts of the sources' chunks when they are read.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.array_group import LISTABLE, choose_chunks
from refshard_fs.core.keys import ChunkGrid, parent
from refshard_fs.core.model import Inline, Listed, Load, Raw, Steps, run_together
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf5.datasets import Dataset, DatasetChunks, OpenedFile, StoredChunk
from refshard_fs.formats.hdf5.datatypes import Datatype
from refshard_fs.formats.hdf5.file import Fields, Sizes, verify_checksum
from refshard_fs.formats.hdf5.filters import FilterRecipe
from refshard_fs.formats.hdf5.selections import (
    NOTHING,
    UNLIMITED,
    Blocks,
    Box,
    BoxPair,
    Coordinates,
    Hyperslab,
    Places,
    Selection,
    clip,
    count_elements,
    list_ends,
    pair_selections,
    parse_selection,
    select_all,
)
from refshard_fs.formats.hdf5.structure import HDF5Object, VirtualLayout, VirtualMapping

OWN: Final = "."  # in a mapping, the file name that means "this file"
MOST_SOURCES: Final = 1 << 16  # mappings of one dataset
MOST_SECTIONS: Final = 4096  # parts of chunks that are joined to one
MOST_JOINED: Final = 1 << 30  # bytes of these chunks, decoded
MOST_CHAINED: Final = 16  # virtual datasets in a chain, in which each is the source of the one before
VIRTUAL: Final = "it is a virtual dataset"


# Parsing of mappings.


def parse_mappings(data: bytes, sizes: Sizes) -> tuple[VirtualMapping, ...]:
    """Parse the mappings of a virtual dataset. Raise ManifestError for mappings of an unsupported kind."""
    fields = Fields(verify_checksum(data, "the mappings of a virtual dataset"), sizes)
    version, count = fields.unpack("BN")
    if version > 1:
        raise ManifestError(f"its mappings are of version {version}: expected 0 or 1")
    if count > min(MOST_SOURCES, len(data)):
        raise ManifestError(f"it has {count} mappings: expected at most {min(MOST_SOURCES, len(data))}")
    mappings: list[VirtualMapping] = []
    files: list[str] = []
    datasets: list[str] = []
    for _ in range(count):
        flags = fields.read_uint(1) if version else 0
        files.append(OWN if flags & 4 else _parse_name(fields, flags & 1, files))
        datasets.append(_parse_name(fields, flags & 2, datasets))
        selection, place = parse_selection(fields), parse_selection(fields)
        if selection is not NOTHING and place is not NOTHING:
            mappings.append(VirtualMapping(files[-1], datasets[-1], selection, place))
    return tuple(mappings)


def _parse_name(fields: Fields, is_shared: int, names: Sequence[str]) -> str:
    """Parse the next name. In place of a shared name, the number of another mapping with the same name is stored."""
    if is_shared:
        number = fields.read_uint(fields.sizes.length)
        if number >= len(names):
            raise ValueError(
                f"a mapping shares the name of mapping {number}: expected the number of an earlier mapping"
            )
        return names[number]
    return fields.read_text()


# Names of sources: "%b" stands for the number of a source, and "%%" for "%".


def is_numbered(name: str) -> bool:
    """Return whether a name stands for the names of many sources."""
    return "%b" in name.replace("%%", "")


def number_name(name: str, number: int = 0) -> str:
    """Return the name of the source with a ``number``. Raise ManifestError for a name in another pattern."""

    def replace(match: re.Match[str]) -> str:
        if match[1] not in ("b", "%"):
            raise ManifestError(f"one of its sources has the name {name[:100]!r}: expected only %b and %% after a %")
        return str(number) if match[1] == "b" else "%"

    return re.sub("%(.?)", replace, name, flags=re.DOTALL)


def list_source_files(objects: Mapping[str, HDF5Object]) -> tuple[list[str], list[str]]:
    """Return the names of other files in the mappings of all virtual datasets, and numbered names, each sorted."""
    layouts = [hdf5_object.layout for hdf5_object in objects.values() if isinstance(hdf5_object.layout, VirtualLayout)]
    names = sorted({source.file for layout in layouts for source in layout.sources} - {OWN})
    plain: list[str] = []
    for name in itertools.filterfalse(is_numbered, names):
        with contextlib.suppress(ManifestError):  # `resolve_extents` reports the dataset
            plain.append(number_name(name))
    return plain, [name for name in names if is_numbered(name)]


# The datasets of a file, as sources.


class SourceDatasets:
    """The datasets of one file by path. ``chunks`` are the chunks of those that are shown.

    ``others`` are paths that may lead to further objects: they cannot be read, or lie in other files.
    """

    def __init__(self, objects: Mapping[str, HDF5Object], others: Iterable[str]) -> None:
        self.chunks: dict[str, DatasetChunks] = {}
        self._groups = {path for path, hdf5_object in objects.items() if hdf5_object.is_group} - {*others}
        self._others = {*objects, *others} - self._groups

    def find_path(self, name: str) -> str | None:
        """Return the path of the dataset with a ``name``; None if its group has no such object.

        Raise ManifestError if the group does not exist, or cannot be read.
        """
        path = "/".join(part for part in name.split("/") if part not in ("", "."))
        group = parent(path)[0]
        if path in self._others or path in self._groups or path in self.chunks:
            return path
        if group not in self._groups:
            raise ManifestError(f"{VIRTUAL} with the source {name!r}: expected a group at {group!r}, found none")
        return None

    def find(self, name: str, where: str) -> DatasetChunks | None:
        """Return the chunks of a dataset; None if the file has no object at the path.

        Raise ManifestError, with the name of this file, ``where``, if the dataset is not shown.
        """
        path = self.find_path(name)
        if path is None or path in self.chunks:
            return None if path is None else self.chunks[path]
        raise ManifestError(
            f"{VIRTUAL} with the source {name!r} in {where}: expected a dataset there that can be shown, found none"
        )


# Takes the names of file and dataset. Returns the dataset's chunks; None if it does not exist. May raise ManifestError.
FindSource = Callable[[str, str], DatasetChunks | None]


# Datasets that grow with their sources.


class _SourceNotReady(Exception):
    """The extent of a source in the same file, a virtual dataset, is not known yet."""


def resolve_extents(
    objects: Mapping[str, HDF5Object], find: FindSource, find_own: Callable[[str], str | None]
) -> tuple[dict[str, HDF5Object], list[str]]:
    """Compute extents and mappings of virtual datasets that grow, from the present extents of their sources.

    Return all objects of the file, and the paths of its virtual datasets, each after its sources. ``find`` finds
    sources in other files, ``find_own`` the path of a source in this file.
    """
    resolved = dict(objects)
    in_order: list[str] = []
    waiting = {
        path
        for path, hdf5_object in objects.items()
        if isinstance(hdf5_object.layout, VirtualLayout) and hdf5_object.refusal is None
    }

    def find_shape(file: str, dataset: str) -> tuple[int, ...] | None:
        if file != OWN:
            chunks = find(file, dataset)
            return None if chunks is None else chunks.dataset.outer_shape
        path = find_own(dataset)
        if path in waiting:
            raise _SourceNotReady
        return None if path is None else resolved[path].shape or () if path in resolved else ()

    for _ in range(MOST_CHAINED):
        found: list[str] = []
        for path in sorted(waiting):
            try:
                resolved[path] = _resolve_extent(resolved[path], find_shape)
            except _SourceNotReady:
                continue
            except ManifestError as e:
                resolved[path] = msgspec.structs.replace(resolved[path], refusal=_name_virtual(e))
            found.append(path)
        waiting.difference_update(found)
        in_order += found
    for path in waiting:
        reason = f"{VIRTUAL}: expected a chain of at most {MOST_CHAINED} virtual datasets, and no circle"
        resolved[path] = msgspec.structs.replace(resolved[path], refusal=reason)
    return resolved, in_order


def _name_virtual(error: ManifestError) -> str:
    return str(error) if str(error).startswith(VIRTUAL) else f"{VIRTUAL}: {error}"


def _resolve_extent(dataset: HDF5Object, find_shape: Callable[[str, str], tuple[int, ...] | None]) -> HDF5Object:
    """Return a virtual dataset without mappings that grow, and without mappings of sources that do not exist."""
    assert isinstance(dataset.layout, VirtualLayout)
    shape = list(dataset.shape or ())
    grown: dict[int, int] = {}  # extents by axis
    least = [0] * len(shape)
    mappings: list[VirtualMapping] = []
    for mapping in dataset.layout.sources:
        growing = _find_growing_axis(mapping.place)
        if mapping.place is not None:
            ends = list_ends(mapping.place)
            if len(ends) != len(shape):
                raise ManifestError(
                    f"a mapping has {len(ends)} axes: expected {len(shape)}, as many as the dataset has"
                )
            least = [most if axis == growing else max(most, ends[axis]) for axis, most in enumerate(least)]
        pieces = list(itertools.islice(_list_pieces(mapping, growing, find_shape), MOST_SOURCES + 1 - len(mappings)))
        mappings += pieces
        if len(mappings) > MOST_SOURCES:
            raise ManifestError(f"it has more than {MOST_SOURCES} sources: expected at most {MOST_SOURCES}")
        if growing is not None:
            ends_of_pieces = [list_ends(piece.place)[growing] for piece in pieces if piece.place is not None]
            grown[growing] = max(grown.get(growing, 0), *ends_of_pieces, 0)
    for axis, extent in grown.items():
        shape[axis] = max(extent, least[axis])
    if math.prod(max(extent, 1) for extent in shape) >= 1 << 63:
        raise ManifestError(f"it has the shape {shape}: expected fewer than 2**63 elements")
    layout = msgspec.structs.replace(dataset.layout, sources=tuple(mappings))
    return msgspec.structs.replace(dataset, shape=tuple(shape), layout=layout)


def _find_growing_axis(selection: Selection) -> int | None:
    if selection is None or isinstance(selection, Blocks):
        return None
    return next((axis for axis, part in enumerate(selection) if part.size == UNLIMITED), None)


def _list_pieces(
    mapping: VirtualMapping, growing: int | None, find_shape: Callable[[str, str], tuple[int, ...] | None]
) -> Iterator[VirtualMapping]:
    """Yield the mappings of today's sources, of a mapping that grows along the axis ``growing`` of the dataset."""
    file, dataset, selection, place = mapping
    source_axis = _find_growing_axis(selection)
    are_many = is_numbered(file) or is_numbered(dataset)
    if are_many != (growing is not None and source_axis is None) or (source_axis is not None and growing is None):
        found = f"{file!r}, {dataset!r}"
        raise ManifestError(
            f"its mapping of {found}: expected selections that grow in both source and dataset or in neither, or a "
            "selection that grows only in the dataset, with %b in a name of the source"
        )
    for number in itertools.count():
        names = number_name(file, number), number_name(dataset, number)
        shape = find_shape(*names)
        if shape is None:
            return
        piece = VirtualMapping(*names, selection, place)
        if growing is not None:
            row = _get_axis(place, growing)
            if source_axis is None:
                block = select_all(row.block, row.start + number * row.stride)
                piece = piece._replace(place=_replace_axis(place, growing, block))
            else:
                source = _get_axis(selection, source_axis)
                if source_axis >= len(shape):
                    raise ManifestError(
                        f"its mapping of {dataset!r} grows along axis {source_axis}: expected a source with this axis, "
                        f"found the shape {shape}"
                    )
                size = int(source.count_before(shape[source_axis]))
                if not size:
                    return
                piece = piece._replace(
                    selection=_replace_axis(selection, source_axis, clip(source, size)),
                    place=_replace_axis(place, growing, clip(row, size)),
                )
        yield piece
        if not are_many:
            return


def _get_axis(selection: Selection, axis: int) -> Hyperslab:
    """Return the selection along an axis that grows."""
    assert isinstance(selection, tuple)
    part = selection[axis]
    assert isinstance(part, Hyperslab)
    return part


def _replace_axis(selection: Selection, axis: int, part: Hyperslab) -> Box:
    assert isinstance(selection, tuple)
    return (*selection[:axis], part, *selection[axis + 1 :])


# Locating chunks.


class LocatedMapping(NamedTuple):
    """A mapping of elements or, if it consists of whole chunks, of chunks. ``chunks`` are those of its source."""

    chunks: DatasetChunks
    source: Box
    place: Box
    axes: tuple[int | None, ...]  # see `BoxPair`

    def find_ordinals(
        self, coordinates: Sequence[Coordinates], count: int
    ) -> tuple[list[Coordinates], npt.NDArray[np.bool_]]:
        """Return the ordinals of ``count`` places for each axis, and whether the places belong to the mapping."""
        ordinals = [axis.count_before(values) for axis, values in zip(self.place, coordinates, strict=True)]
        is_inside = np.ones(count, bool)
        for axis, values, before in zip(self.place, coordinates, ordinals, strict=True):
            is_inside &= axis.count_before(values + 1) > before
        return ordinals, is_inside

    def locate(self, ordinals: Sequence[Coordinates]) -> list[Coordinates]:
        """Return the coordinates in the source, for each of its axes."""
        return [
            part.locate(np.zeros(1, np.int64) if axis is None else ordinals[axis])
            for part, axis in zip(self.source, self.axes, strict=True)
        ]

    def scale(self, shape: tuple[int, ...]) -> tuple[LocatedMapping, tuple[int, ...]] | None:
        """Return the mapping of chunks, and the shape of a chunk of the virtual dataset, which has ``shape``.

        Return None if the mapping does not consist of whole chunks.
        """
        dataset = self.chunks.dataset
        if dataset.filters and not getattr(dataset.layout, "are_edges_filtered", True):
            return None
        chunk = [1] * len(shape)
        for axis, extent in zip(self.axes, dataset.chunk, strict=True):
            if axis is not None:
                chunk[axis] = extent
            elif extent > 1:
                return None
        if any(part.end > extent for part, extent in zip(self.source, dataset.outer_shape, strict=True)):
            return None
        if any(
            part.end % size and part.end != extent for part, size, extent in zip(self.place, chunk, shape, strict=True)
        ):
            return None
        source = [part.scale(extent) for part, extent in zip(self.source, dataset.chunk, strict=True)]
        place = [part.scale(extent) for part, extent in zip(self.place, chunk, strict=True)]
        if None in source or None in place:
            return None
        scaled = self._replace(
            source=tuple(part for part in source if part is not None),
            place=tuple(part for part in place if part is not None),
        )
        return scaled, tuple(chunk)


def resolve_mappings(dataset: HDF5Object, find: FindSource) -> tuple[HDF5Object, list[LocatedMapping]]:
    """Return a virtual dataset with its chunk shape and filters, and its located mappings.

    A dataset that is not virtual is returned unchanged, without mappings. Raises ManifestError if a source cannot be
    shown, or has elements that cannot be converted.
    """
    if not isinstance(dataset.layout, VirtualLayout):
        return dataset, []
    shape = dataset.shape or ()
    elements: list[LocatedMapping] = []
    whole: list[LocatedMapping] = []
    encodings: set[tuple[Any, ...]] = set()  # (chunk shape, filters) of the sources
    for mapping in dataset.layout.sources:
        chunks = find(mapping.file, mapping.dataset)
        if chunks is None:
            continue
        label = f"{mapping.dataset!r} of {mapping.file!r}"
        assert dataset.datatype is not None
        is_stored = _check_elements(dataset.datatype, chunks.dataset, label) and not isinstance(chunks, JoinedChunks)
        for pair in _pair_elements(mapping, chunks.dataset.outer_shape, shape, label, MOST_SOURCES - len(elements)):
            elements.append(LocatedMapping(chunks, *pair))
            scaled = elements[-1].scale(shape) if is_stored and len(whole) == len(elements) - 1 else None
            if scaled is not None:
                whole.append(scaled[0])
                encodings.add((scaled[1], chunks.dataset.filters))
    assert dataset.datatype is not None
    if len(whole) == len(elements) and len(encodings) == 1:
        chunk, filters = encodings.pop()
        layout = msgspec.structs.replace(dataset.layout, chunk=chunk)
        return msgspec.structs.replace(dataset, layout=layout, filters=filters), whole
    layout = msgspec.structs.replace(dataset.layout, chunk=choose_chunks(shape, dataset.datatype.size), are_joined=True)
    return msgspec.structs.replace(dataset, layout=layout, filters=()), elements


def _check_elements(datatype: Datatype, source: Dataset, label: str) -> bool:
    """Return whether the elements of a source have the ``datatype`` of the virtual dataset, byte by byte.

    Raise ManifestError unless they have it, or can be converted without loss.
    """
    if source.object_codec:
        raise ManifestError(f"{VIRTUAL}: expected elements of fixed length in {label}, found variable ones")
    if source.datatype == datatype:
        return True
    if not (_is_number(source.datatype) and _is_number(datatype) and _is_lossless(source.datatype, datatype)):
        found, own = (_name_type(each) for each in (source.datatype, datatype))
        raise ManifestError(
            f"{VIRTUAL} of the datatype {own}: expected in {label} the same datatype, or numbers that can be converted "
            f"without loss, found {found}. Read the source"
        )
    return False


def _name_type(datatype: Datatype) -> str:
    return f"{datatype.kind} ({datatype.dtype})" if datatype.dtype is not None else repr(datatype.kind)


def _is_number(datatype: Datatype) -> bool:
    return datatype.kind in ("integer", "float") and not datatype.is_recast and datatype.dtype is not None


def _is_lossless(source: Datatype, target: Datatype) -> bool:
    """Return whether numbers can be converted without loss. numpy calls int64 to float64 safe, but it rounds."""
    assert source.dtype is not None
    assert target.dtype is not None
    is_rounded = source.kind != target.kind and source.size == 8
    return np.can_cast(source.dtype, target.dtype, "safe") and not is_rounded


def _pair_elements(
    mapping: VirtualMapping, source_shape: tuple[int, ...], shape: tuple[int, ...], label: str, most: int
) -> Iterator[BoxPair]:
    """Yield the pairs of boxes of a mapping. Raise ManifestError if the selections do not fit."""
    selection = tuple(map(select_all, source_shape)) if mapping.selection is None else mapping.selection
    place = tuple(map(select_all, shape)) if mapping.place is None else mapping.place
    ranks = len(list_ends(selection)), len(list_ends(place))
    if ranks != (len(source_shape), len(shape)):
        raise ManifestError(
            f"{VIRTUAL}: expected selections of {len(source_shape)} and {len(shape)} axes in its mapping of {label}, "
            f"found {ranks[0]} and {ranks[1]}"
        )
    if count_elements(selection) == count_elements(place) == 0:
        return
    try:
        yield from pair_selections(selection, place, most)
    except ManifestError as e:
        raise ManifestError(f"{VIRTUAL}: in its mapping of {label}, {e}") from None


class VirtualChunks(DatasetChunks):
    """The chunks of a virtual dataset, which are chunks of other datasets: the mappings are mappings of chunks."""

    def __init__(
        self, opened: OpenedFile, dataset: Dataset, grid: ChunkGrid, mappings: Sequence[LocatedMapping]
    ) -> None:
        super().__init__(opened, dataset, grid, {})
        self._mappings = mappings
        self._begins = np.array([[part.start for part in mapping.place] for mapping in mappings], np.int64)
        self._ends = np.array([[part.end for part in mapping.place] for mapping in mappings], np.int64)

    def list_existing(self) -> Steps[list[Listed] | None]:
        if not self.fills_itself or self.grid.size > LISTABLE:
            return None
        stored = yield from self.find_stored_chunks(range(self.grid.size))
        return self.list_written(np.array(sorted(stored), np.uint64))

    def find_stored_chunks(self, numbers: Sequence[int]) -> Steps[dict[int, StoredChunk]]:
        if not numbers:
            return {}
        sorted_numbers = np.array(sorted(set(numbers)), np.int64)
        counts = self.grid.counts[: len(self.dataset.chunk)]
        coordinates = np.array(np.unravel_index(sorted_numbers, counts or (1,))).reshape(-1, len(sorted_numbers))
        coordinates = coordinates[: len(counts)]
        owners = np.full(len(sorted_numbers), -1)
        located: dict[int, tuple[npt.NDArray[np.intp], list[Coordinates]]] = {}  # rows, and coordinates in the source
        for number in self.find_overlapping(coordinates.min(axis=1), coordinates.max(axis=1) + 1):
            begin, end = self._begins[number][:, None], self._ends[number][:, None]
            near = np.flatnonzero(((coordinates >= begin) & (coordinates < end)).all(axis=0))
            ordinals, is_inside = self._mappings[number].find_ordinals([axis[near] for axis in coordinates], len(near))
            owners[near[is_inside]] = number  # if mappings overlap, the last one counts
            located[number] = near, self._mappings[number].locate(ordinals)
        # Sources, numbers of chunks in this dataset, and in the source.
        searches: list[tuple[DatasetChunks, list[int], list[int]]] = []
        for number, (near, source_coordinates) in located.items():
            is_owned = owners[near] == number
            source = self._mappings[number].chunks
            columns = [np.broadcast_to(axis, len(near))[is_owned] for axis in source_coordinates]
            source_numbers = _number_chunks(source, columns, int(is_owned.sum()))
            searches.append((source, sorted_numbers[near[is_owned]].tolist(), source_numbers))
        lookups = [source.find_stored_chunks(source_numbers) for source, _, source_numbers in searches]
        result: dict[int, StoredChunk] = {}
        for (source, own_numbers, source_numbers), stored in zip(
            searches, (yield from run_together(lookups)), strict=True
        ):
            unwritten = self._make_unwritten_chunk(source) if len(stored) < len(set(source_numbers)) else None
            for own_number, source_number in zip(own_numbers, source_numbers, strict=True):
                chunk = stored.get(source_number, unwritten)
                if chunk is not None:
                    result[own_number] = chunk
        return result

    def find_overlapping(self, first: Coordinates, last: Coordinates) -> list[int]:
        """Return the numbers of the mappings whose bounds overlap the coordinates [first, last)."""
        numbers: list[int] = np.flatnonzero(((self._begins < last) & (self._ends > first)).all(axis=1)).tolist()
        return numbers

    def _make_unwritten_chunk(self, source: DatasetChunks) -> StoredChunk | None:
        """Make a chunk of the source's fill value; None if the virtual dataset has the same fill value."""
        values = source.make_fill_elements()
        if values == self.make_fill_elements():
            return None
        return StoredChunk(Inline(values), (1 << len(self.dataset.filters)) - 1)


class JoinedChunks(VirtualChunks):
    """The chunks of a virtual dataset, joined from parts of chunks of other datasets."""

    def list_existing(self) -> Steps[list[Listed] | None]:
        yield from ()
        return None

    def find_stored_chunks(self, numbers: Sequence[int]) -> Steps[dict[int, StoredChunk]]:
        chosen = list(dict.fromkeys(numbers))
        joined = yield from run_together([self._join(number) for number in chosen])
        return {number: StoredChunk(Inline(data)) for number, data in zip(chosen, joined, strict=True)}

    def _join(self, number: int) -> Steps[bytes]:
        """Return the elements of a chunk of the virtual dataset. If mappings overlap, the last one counts."""
        chunk, datatype = self.dataset.chunk, self.dataset.datatype
        coords = self.grid.coords(number)[: len(chunk)]
        first = [coord * extent for coord, extent in zip(coords, chunk, strict=True)]
        last = [min(at + extent, end) for at, extent, end in zip(first, chunk, self.dataset.outer_shape, strict=True)]
        places = [range(*bounds) for bounds in zip(first, last, strict=True)]
        request = _Request(places, list(range(len(chunk))), [range(len(axis)) for axis in places])
        sections = self._choose_sections(number, request)
        numbers: dict[DatasetChunks, dict[int, None]] = {}
        for section in sections:
            if section.number is not None:
                numbers.setdefault(section.chunks, {})[section.number] = None
        found = yield from run_together([source.find_stored_chunks(list(own)) for source, own in numbers.items()])
        stored = {
            (source, own): stored_chunk
            for source, chunks in zip(numbers, found, strict=True)
            for own, stored_chunk in chunks.items()
        }
        answers = yield tuple(Load(stored_chunk.entry, Raw()) for stored_chunk in stored.values())
        raw = dict(zip(stored, answers, strict=True))
        data = bytearray(self.make_fill_elements())
        decoded, plain = None, b""  # most sections lie in the same chunk as the section before
        for section in sections:
            source, place = section.chunks, (section.chunks, section.number or 0)
            is_same = source.dataset.datatype == datatype
            dtypes = [f"V{datatype.size}"] * 2 if is_same else [source.dataset.datatype.dtype, datatype.dtype]
            elements = np.frombuffer(data, dtypes[1]).reshape(chunk)
            if section.number is None:
                elements[section.target] = np.frombuffer(source.fill_element, dtypes[0])[0]
                continue
            if place != decoded and place in stored:
                mask = source.find_mask(section.number, stored[place])
                plain = FilterRecipe(source.dataset.codecs, mask).decode_elements(raw[place])
            elif place != decoded:
                plain = source.make_fill_elements()
            decoded = place
            values = np.asarray(np.frombuffer(plain, dtypes[0]).reshape(source.dataset.chunk)[section.source])
            with np.errstate(invalid="ignore"):  # numpy warns of signalling NaN
                elements[section.target] = values.reshape(elements[section.target].shape)
        return bytes(data)

    def _choose_sections(self, number: int, request: _Request) -> list[_Section]:
        """Return the sections of a chunk. Raise ManifestError if they are too many, or from too large chunks."""
        found = list(itertools.islice(self.list_sections(request), MOST_SECTIONS + 1))
        sections = [section for section in found if section is not None]
        size = sum(section.chunks.dataset.raw_size for section in sections if section.number is not None)
        if len(found) > MOST_SECTIONS or size > MOST_JOINED:
            count = f"more than {MOST_SECTIONS}" if len(found) > MOST_SECTIONS else len(sections)
            raise ManifestError(
                f"{self._url}: {self.where}: chunk {number} is joined from {count} parts of its sources: expected at "
                f"most {MOST_SECTIONS}, from chunks of at most {MOST_JOINED} bytes in all. Read the sources"
            )
        return sections

    def list_sections(self, request: _Request) -> Iterator[_Section | None]:
        """Yield the sections of requested elements that have a source; None for each mapping without such elements."""
        first, last = (np.array([axis[at] for axis in request.coordinates], np.int64) for at in (0, -1))
        for number in self.find_overlapping(first, last + 1):
            mapping = self._mappings[number]
            below = request.move(mapping)
            if below is None:
                yield None
            elif isinstance(mapping.chunks, JoinedChunks):  # parts without a source show the fill value
                yield _Section(mapping.chunks, None, (), _join_indexes(list(map(_make_index, below.targets))))
                yield from mapping.chunks.list_sections(below)
            else:
                yield from below.cut(mapping.chunks)


def make_virtual_chunks(
    opened: OpenedFile, dataset: Dataset, grid: ChunkGrid, mappings: Sequence[LocatedMapping]
) -> VirtualChunks:
    """Return the chunks of a virtual dataset, given the result of `resolve_mappings`."""
    are_joined = isinstance(dataset.layout, VirtualLayout) and dataset.layout.are_joined
    return (JoinedChunks if are_joined else VirtualChunks)(opened, dataset, grid, mappings)


class _Section(NamedTuple):
    """A part of chunk ``number`` of a source, and its place in a chunk of the virtual dataset.

    If the number is None, the fill value of ``chunks`` is shown at this place.
    """

    chunks: DatasetChunks
    number: int | None
    source: tuple[Any, ...]  # an index of numpy
    target: tuple[Any, ...]


class _Request(NamedTuple):
    """Elements of a dataset that are shown in a chunk of a virtual dataset.

    For each axis of the dataset, the request has ascending coordinates, and the axis of the chunk; None if there is one
    coordinate, and no such axis. ``targets`` are the positions in the chunk, for each of the chunk's axes.
    """

    coordinates: Sequence[Places]
    axes: Sequence[int | None]
    targets: Sequence[Places]

    def move(self, mapping: LocatedMapping) -> _Request | None:
        """Return the request for the elements of a mapping's source; None if there are none."""
        targets, ordinals = list(self.targets), list[Places]()
        for part, coordinates, axis in zip(mapping.place, self.coordinates, self.axes, strict=True):
            chosen: Places
            if isinstance(coordinates, range) and coordinates.step == 1:
                numbers = range(*(int(part.count_before(end)) for end in (coordinates.start, coordinates.stop)))
                chosen = _shift(part.locate_run(numbers), -coordinates.start) if numbers else numbers
                ordinals.append(numbers)
            else:
                values = _make_array(coordinates)
                before = part.count_before(values)
                chosen = np.flatnonzero(part.count_before(values + 1) > before)
                ordinals.append(before[chosen])
            if not len(chosen):
                return None
            if axis is not None:
                targets[axis] = _take(targets[axis], chosen)
        axes = [None if axis is None else self.axes[axis] for axis in mapping.axes]
        located: list[Places] = []
        outer_shape = mapping.chunks.dataset.outer_shape
        for part, number, axis, extent in zip(mapping.source, mapping.axes, axes, outer_shape, strict=True):
            own = range(1) if number is None else ordinals[number]
            found = part.locate_run(own) if isinstance(own, range) else part.locate(own)
            count = bisect.bisect_left(found, extent)  # elements beyond the end are not shown
            if not count:
                return None
            located.append(found[:count])
            if axis is not None:
                targets[axis] = targets[axis][:count]
        return _Request(located, axes, targets)

    def cut(self, chunks: DatasetChunks) -> Iterator[_Section | None]:
        """Yield a section for each chunk of the dataset; None for each if they are more than `MOST_SECTIONS`."""
        borders = [
            _find_borders(coordinates, extent)
            for coordinates, extent in zip(self.coordinates, chunks.dataset.chunk, strict=True)
        ]
        count = math.prod(len(inner) + 1 for inner in borders)
        if count > MOST_SECTIONS:
            yield from itertools.repeat(None, count)
            return
        groups: list[list[tuple[int, _Index, _Index]]] = []  # of each axis: coordinate of a chunk, and indexes
        for inner, coordinates, axis, extent in zip(
            borders, self.coordinates, self.axes, chunks.dataset.chunk, strict=True
        ):
            groups.append([])
            for part in itertools.starmap(slice, itertools.pairwise([0, *inner, len(coordinates)])):
                coord = int(coordinates[part.start]) // extent
                source = _make_index(_shift(coordinates[part], -coord * extent))
                target = slice(0) if axis is None else _make_index(self.targets[axis][part])
                groups[-1].append((coord, source, target))
        whole = [_make_index(target) for target in self.targets]
        for cells in itertools.product(*groups):
            targets = list(whole)
            for axis, (_, _, target) in zip(self.axes, cells, strict=True):
                if axis is not None:
                    targets[axis] = target
            (number,) = _number_chunks(chunks, [np.array([coord]) for coord, _, _ in cells], 1)
            yield _Section(chunks, number, _join_indexes([source for _, source, _ in cells]), _join_indexes(targets))


_Index = slice | Coordinates


def _make_array(places: Places) -> Coordinates:
    return np.arange(places.start, places.stop, places.step) if isinstance(places, range) else places


def _shift(places: Places, distance: int) -> Places:
    if isinstance(places, range):
        return range(places.start + distance, places.stop + distance, places.step)
    return places + distance


def _take(places: Places, chosen: Places) -> Places:
    """Return the chosen ones of ``places``."""
    if isinstance(places, range) and places.step == 1:
        return _shift(chosen, places.start)
    return _make_array(places)[_make_array(chosen)]


def _find_borders(places: Places, extent: int) -> Sequence[int]:
    """Return the numbers of the places that are the first in a chunk of ``extent`` places, except number 0."""
    if isinstance(places, range) and places.step == 1:
        return range((places.start // extent + 1) * extent - places.start, len(places), extent)
    borders: list[int] = (np.flatnonzero(np.diff(_make_array(places) // extent)) + 1).tolist()
    return borders


def _make_index(places: Places) -> _Index:
    """Return an index for ascending places: a slice if possible, because it takes less time."""
    if isinstance(places, range):
        return slice(places.start, places.stop, places.step)
    step = int(places[1] - places[0]) if len(places) > 1 else 1
    is_regular = len(places) < 3 or bool((np.diff(places) == step).all())
    return slice(int(places[0]), int(places[-1]) + 1, step) if is_regular else places


def _join_indexes(axes: Sequence[_Index]) -> tuple[Any, ...]:
    """Return the index of an array for the indexes of its axes."""
    if all(isinstance(axis, slice) for axis in axes):
        return tuple(axes)
    arrays = [np.arange(axis.start, axis.stop, axis.step) if isinstance(axis, slice) else axis for axis in axes]
    return np.ix_(*arrays)


def _number_chunks(chunks: DatasetChunks, coordinates: Sequence[Coordinates], count: int) -> list[int]:
    """Return the numbers of ``count`` chunks at coordinates of the chunk grid."""
    numbers = np.zeros(count, np.int64)
    for axis, extent in zip(coordinates, chunks.grid.counts, strict=False):
        numbers = numbers * extent + axis
    result: list[int] = numbers.tolist()
    return result
