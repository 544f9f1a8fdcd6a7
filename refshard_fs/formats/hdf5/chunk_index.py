"""Find where the chunks of an HDF5 dataset lie. All kinds of chunk index are read as trees, level by level. No I/O.

A block of an index (a header, a node, a page) is decoded to a `Node`: the locations of some chunks, and pointers to
the blocks below. Each block is decoded once and cached. A tree is sorted by key. In a B-tree, the key of a chunk is
the chunk's number in the dataset's current extent; in a fixed or extensible array, its number in the maximum extent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.model import Load, Steps
from refshard_fs.errors import RefShardError
from refshard_fs.formats.hdf5.file import Fields, MetadataFile, Sizes, unpack_block, verify_checksum
from refshard_fs.formats.hdf5.heaps import B_TREE_2, BTree2, parse_b_tree_2

UInt64s = npt.NDArray[np.uint64]
UNDEFINED_ADDRESS: Final = np.uint64(2**64 - 1)  # HDF5's mark for "no address": the chunk was never written
_END_OF_KEYS: Final = 1 << 64  # all keys are smaller
NEAR: Final = 16 << 10  # bytes before and after a block: blocks within these bytes are read in the same request
_MOST_PAGE_BITS: Final = 40  # a page of an array has 2**bits elements: more than 2**40 are damage


class ChunkLocations(NamedTuple):
    """Locations of written chunks: each field is a column with a row for each chunk.

    ``numbers`` are chunk numbers, or the chunks' keys in an index. ``addresses`` and ``sizes`` are in bytes. In
    ``masks``, bit N is set if the chunk skips filter N.
    """

    numbers: UInt64s
    addresses: UInt64s
    sizes: UInt64s
    masks: npt.NDArray[np.uint32]

    def select_chunks(self, keep: npt.NDArray[np.bool_ | np.intp]) -> ChunkLocations:
        """Return the selected chunks; ``keep`` is a boolean mask or an array of positions."""
        return ChunkLocations(self.numbers[keep], self.addresses[keep], self.sizes[keep], self.masks[keep])


class ChunkSpace(msgspec.Struct, frozen=True):
    """The extents of a dataset in chunks, and sizes in its file.

    ``chunk`` is the shape of a chunk. ``counts`` are the numbers of chunks along each dimension in the current extent,
    ``most_counts`` in the maximum extent (None: unlimited). Both sizes are in bytes: ``raw_size`` of a chunk before
    filters, ``room`` of the file after its base address.
    """

    sizes: Sizes
    room: int
    chunk: tuple[int, ...]
    counts: tuple[int, ...]
    most_counts: tuple[int | None, ...]
    raw_size: int
    has_filters: bool

    @property
    def axes(self) -> list[int]:
        """The dimensions in the order in which keys of arrays count the chunks: an unlimited dimension comes first."""
        return sorted(range(len(self.most_counts)), key=lambda axis: self.most_counts[axis] is not None)

    def convert_to_keys(self, numbers: UInt64s) -> UInt64s:
        """Convert chunk numbers to keys of a fixed or extensible array, or of chunks without an index."""
        coords: list[UInt64s] = []
        for count in reversed(self.counts):
            numbers, column = np.divmod(numbers, np.uint64(max(count, 1)))
            coords.insert(0, column)
        keys = np.zeros_like(numbers)
        for axis in self.axes:
            keys = keys * np.uint64(self.most_counts[axis] or 1) + coords[axis]
        return keys

    def convert_to_numbers(self, keys: UInt64s) -> tuple[UInt64s, npt.NDArray[np.bool_]]:
        """Convert keys of a fixed or extensible array to chunk numbers.

        The second result is a mask of the chunks within the dataset's current extent.
        """
        coords = np.zeros((len(keys), len(self.counts)), np.uint64)
        first_axis, *other_axes = self.axes
        for axis in reversed(other_axes):
            keys, coords[:, axis] = np.divmod(keys, np.uint64(self.most_counts[axis] or 1))
        coords[:, first_axis] = keys
        return self.number_coords(coords)

    def number_coords(self, coords: UInt64s) -> tuple[UInt64s, npt.NDArray[np.bool_]]:
        """Return the chunk number for each row of ``coords``, and a mask of the rows within the current extent.

        Coordinates outside the extent get the number of the next chunk, in C order, within the extent.
        """
        numbers = np.zeros(len(coords), np.uint64)
        is_beyond = np.zeros(len(coords), np.bool_)
        for axis, count in enumerate(self.counts):
            column = coords[:, axis]
            numbers = numbers * np.uint64(count) + np.where(
                is_beyond, np.uint64(0), np.minimum(column, np.uint64(count))
            )
            is_beyond |= column >= np.uint64(count)
        return numbers, ~is_beyond

    def decode_elements(self, rows: npt.NDArray[np.uint8], keys: UInt64s) -> ChunkLocations:
        """Decode elements of an index, one in each row of bytes. Return the chunks that were written."""
        (count, width), address = rows.shape, self.sizes.address
        sizes, masks = np.full(count, self.raw_size, np.uint64), np.zeros(count, np.uint32)
        if self.has_filters and 0 < width - address - 4 <= 8:
            sizes = _decode_uints(rows[:, address : width - 4])
            masks = np.ascontiguousarray(rows[:, width - 4 :]).view("<u4")[:, 0].astype(np.uint32)
        elif self.has_filters or width != address:
            expected = f"{address} of an address" + (", 1 to 8 of a size and 4 of a mask" if self.has_filters else "")
            raise ValueError(f"its chunk index has elements of {width} bytes: expected {expected}")
        addresses = _decode_uints(rows[:, :address], undefined=UNDEFINED_ADDRESS)
        return ChunkLocations(keys, addresses, sizes, masks).select_chunks(addresses != UNDEFINED_ADDRESS)


def _decode_uints(raw: npt.NDArray[np.uint8], undefined: np.uint64 | None = None) -> UInt64s:
    """Decode little-endian integers of up to 8 bytes, one in each row.

    A row whose bits are all set becomes ``undefined``, unless that is None.
    """
    full = np.zeros((len(raw), 8), np.uint8)
    full[:, : raw.shape[1]] = raw
    integers = full.view("<u8")[:, 0].astype(np.uint64)
    return integers if undefined is None else np.where((raw == 255).all(axis=1), undefined, integers)


# Trees of blocks.


class Child(NamedTuple):
    """A pointer to a block of ``length`` bytes, which locates the chunks whose keys are in [first, last).

    ``parse(data, space, *arguments)`` decodes the block; ``space`` is the dataset's `ChunkSpace`.
    """

    first: int
    last: int
    address: int
    length: int
    parse: Callable[..., Node]
    arguments: tuple[Any, ...] = ()


class Node(NamedTuple):
    """A decoded block: locations of chunks by key, and pointers to child blocks, which are sorted by key.

    ``firsts`` and ``lasts`` are ``first`` and ``last`` of all children, as columns.
    """

    chunks: ChunkLocations
    children: tuple[Child, ...] = ()
    firsts: UInt64s = np.empty(0, np.uint64)
    lasts: UInt64s = np.empty(0, np.uint64)

    @property
    def nbytes(self) -> int:
        return 28 * len(self.chunks.numbers) + 200 * len(self.children) + 512

    def select_children(self, keys: UInt64s | None) -> Iterator[tuple[Child, UInt64s | None]]:
        """Yield each child that may locate some of ``keys`` (sorted; None: all keys), together with these keys."""
        if keys is None:
            yield from [(child, None) for child in self.children]
        elif len(self.children) == 1:
            yield self.children[0], keys
        else:
            begins, ends = np.searchsorted(keys, self.firsts), np.searchsorted(keys, self.lasts)
            for position in np.flatnonzero(ends > begins).tolist():
                yield self.children[position], keys[begins[position] : ends[position]]


_EMPTY: Final = np.empty(0, np.uint64)
NO_CHUNKS: Final = ChunkLocations(_EMPTY, _EMPTY, _EMPTY, np.empty(0, np.uint32))


def _make_node(space: ChunkSpace, chunks: ChunkLocations, children: Iterable[Child]) -> Node:
    """Make a node. Raise ValueError if a child ends beyond the file, or the children together are larger than it."""
    blocks: list[Child] = []
    total = 0
    for child in children:
        total += child.length
        if child.address + child.length > space.room:
            found = f"a block of its chunk index has {child.length} bytes at {child.address}"
            raise ValueError(f"{found}: expected it to end within the {space.room} bytes of the file")
        if total > space.room:
            raise ValueError(
                f"the blocks of its chunk index have {total} bytes or more: expected at most the {space.room} bytes of "
                "the file"
            )
        blocks.append(child)
    firsts, lasts = [child.first for child in blocks], [min(child.last, _END_OF_KEYS - 1) for child in blocks]
    return Node(chunks, tuple(blocks), np.array(firsts, np.uint64), np.array(lasts, np.uint64))


class ChunkIndex:
    """The chunk index of a dataset: a fixed or extensible array (``is_array``), or a B-tree. It begins at ``root``."""

    def __init__(self, file: MetadataFile, space: ChunkSpace, root: Child, *, is_array: bool) -> None:
        self._file = file
        self._space = space
        self._root = root
        self._is_array = is_array
        self._read: set[int] = set()  # addresses of blocks that were read
        self._unread: dict[int, int] = {}  # by address of a known block that was not read: its first key

    def list_numbers_in_unread_blocks(self) -> list[int]:
        """Return the number of one chunk in each block that is known but was not read yet."""
        keys = np.array(list(self._unread.values()), np.uint64)
        numbers, is_inside = self._space.convert_to_numbers(keys) if self._is_array else (keys, keys >= 0)
        return list(map(int, numbers[is_inside]))

    def find(self, numbers: UInt64s | None) -> Steps[ChunkLocations]:
        """Return the locations of the chunks ``numbers`` (sorted, each once; None: all) that were written."""
        space, batches = self._space, [NO_CHUNKS]
        keys = np.sort(space.convert_to_keys(numbers)) if self._is_array and numbers is not None else numbers
        level: list[tuple[Child, UInt64s | None]] = [(self._root, keys)]
        adjoining: list[Child] = []
        while level:
            children = [child for child, _ in level]
            addresses = [child.address for child in children]
            if len(set(addresses)) < len(level):
                twice = next(address for address in addresses if addresses.count(address) > 1)
                raise ValueError(f"its chunk index points twice to the block at {twice}: expected different blocks")
            if (total := sum(child.length for child in children)) > space.room:
                raise ValueError(
                    f"the blocks of its chunk index have {total} bytes: expected at most the {space.room} of the file"
                )
            try:
                nodes: Sequence[Node] = yield tuple(map(self._load, (*children, *adjoining)))
            except (OSError, RefShardError, ValueError):
                if not adjoining:
                    raise
                for child in adjoining:  # these may be damaged: read them again only for a chunk in them
                    self._unread.pop(child.address, None)
                adjoining = []
                nodes = yield tuple(map(self._load, children))
            self._mark_as_read((*children, *adjoining), nodes)
            nodes = nodes[: len(level)]
            batches += [node.chunks for node in nodes if len(node.chunks.numbers)]
            level = [
                child
                for node, (_, child_keys) in zip(nodes, level, strict=True)
                for child in node.select_children(child_keys)
            ]
            adjoining = self._list_adjoining(nodes, {child.address for child, _ in level})
        locations = (
            batches[-1] if len(batches) == 2 else ChunkLocations(*map(np.concatenate, zip(*batches, strict=True)))
        )
        if keys is not None:  # `isin` takes five times as long as == for a single key
            locations = locations.select_chunks(
                locations.numbers == keys[0] if len(keys) == 1 else np.isin(locations.numbers, keys)
            )
        if self._is_array:
            chunk_numbers, is_inside = space.convert_to_numbers(locations.numbers)
            locations = locations._replace(numbers=chunk_numbers).select_chunks(is_inside)
        if len(locations.numbers) > 1:
            locations = locations.select_chunks(np.argsort(locations.numbers, kind="stable"))
            is_repeated = locations.numbers[1:] == locations.numbers[:-1]
            if is_repeated.any():
                number = locations.numbers[is_repeated.argmax()]
                raise ValueError(f"its chunk index lists chunk {number} twice: expected each chunk once")
        return check_bounds(locations, space.room)

    def _load(self, child: Child) -> Load:
        return self._file.load(
            child.address, child.length, "its chunk index", child.parse, self._space, *child.arguments
        )

    def _list_adjoining(self, nodes: Iterable[Node], selected: Collection[int]) -> list[Child]:
        """Return unread children of ``nodes`` beside children at the addresses ``selected``, without gaps.

        They lie within `NEAR` bytes of a selected child. Writers allocate the halves of a divided block together, and
        the next look-ups need the other half.
        """
        found: dict[int, Child] = {}
        if not self._unread.keys().isdisjoint(selected):
            for node in nodes:
                unread = sorted((child for child in node.children if child.address in self._unread), key=_BY_ADDRESS)
                for run in _split_runs(unread):
                    for ordered in (run, run[::-1]):
                        room = 0  # bytes after the last selected child in which further children are near
                        for child in ordered:
                            room = NEAR if child.address in selected else room - child.length
                            if room >= 0 and child.address not in selected:
                                found[child.address] = child
        return list(found.values())

    def _mark_as_read(self, blocks: Iterable[Child], nodes: Iterable[Node]) -> None:
        for block, node in zip(blocks, nodes, strict=True):
            if block.address not in self._read:
                self._read.add(block.address)
                self._unread.pop(block.address, None)
                self._unread |= {
                    child.address: child.first for child in node.children if child.address not in self._read
                }


_BY_ADDRESS: Final = attrgetter("address")


def _split_runs(children: Iterable[Child]) -> Iterator[list[Child]]:
    """Yield the runs of ``children``, sorted by address, that follow each other without a gap."""
    run: list[Child] = []
    for child in children:
        if run and run[-1].address + run[-1].length != child.address:
            yield run
            run = []
        run.append(child)
    if run:
        yield run


def check_bounds(locations: ChunkLocations, room: int) -> ChunkLocations:
    """Return ``locations``. Raise ValueError if a chunk ends beyond ``room``, the bytes after the base address."""
    wrong = (locations.addresses > np.uint64(room)) | (
        locations.sizes > np.uint64(room) - np.minimum(locations.addresses, room)
    )
    if wrong.any():
        number, address, size, _ = (column[wrong.argmax()] for column in locations)
        raise ValueError(
            f"chunk {number} has {size} bytes at {address}: expected it to end within the {room} bytes of the file"
        )
    return locations


class ConsecutiveChunks:
    """The chunks of a dataset without an index: they lie one after the other, each with ``size`` bytes."""

    def __init__(self, space: ChunkSpace, address: int, size: int, mask: int = 0) -> None:
        self._space = space
        self._address = address
        self._size = size
        self._mask = mask

    def list_numbers_in_unread_blocks(self) -> list[int]:
        """Return an empty list: there are no blocks."""
        return []

    def find(self, numbers: UInt64s | None) -> Steps[ChunkLocations]:
        """Return the locations of the chunks ``numbers`` (None: all)."""
        yield from ()
        count = math.prod(self._space.counts)
        if count * self._size > self._space.room:
            raise ValueError(
                f"its chunks take {count * self._size} bytes: expected at most the {self._space.room} of the file"
            )
        numbers = np.arange(count, dtype=np.uint64) if numbers is None else numbers
        addresses = np.uint64(self._address) + self._space.convert_to_keys(numbers) * np.uint64(self._size)
        sizes, masks = np.full(len(numbers), self._size, np.uint64), np.full(len(numbers), self._mask, np.uint32)
        return check_bounds(ChunkLocations(numbers, addresses, sizes, masks), self._space.room)


Index = ChunkIndex | ConsecutiveChunks


def make_index(file: MetadataFile, space: ChunkSpace, kind: str, address: int, parameters: Any) -> Index:
    """Make the chunk index of this ``kind``, whose first block lies at ``address``.

    ``parameters`` come from the data layout message. For "B-tree 1" they are half of the largest number of entries in
    a node, which the superblock says.
    """
    sizes = space.sizes
    match kind:
        case "B-tree 1":
            key = 8 + 8 * (len(space.chunk) + 1)
            size = 8 + 2 * sizes.address + (2 * parameters + 1) * key + 2 * parameters * sizes.address
            return ChunkIndex(
                file, space, Child(0, _END_OF_KEYS, address, size, _parse_b_tree_1, (size, None)), is_array=False
            )
        case "B-tree 2":
            size = sizes.measure_block(B_TREE_2)
            return ChunkIndex(file, space, Child(0, _END_OF_KEYS, address, size, _parse_b_tree_2), is_array=False)
        case "single" if math.prod(space.counts) <= 1:
            return ConsecutiveChunks(space, address, *(parameters or (space.raw_size,)))
        case "implicit" if None not in space.most_counts:
            return ConsecutiveChunks(space, address, space.raw_size)
        case "fixed array" if None not in space.most_counts:
            root = Child(0, _END_OF_KEYS, address, sizes.measure_block(_FIXED), _parse_fixed_array)
            return ChunkIndex(file, space, root, is_array=True)
        case "extensible array" if space.most_counts.count(None) == 1:
            root = Child(0, _END_OF_KEYS, address, sizes.measure_block(_EXTENSIBLE), _parse_extensible_array)
            return ChunkIndex(file, space, root, is_array=True)
    limits = space.most_counts
    raise ValueError(
        f"its chunk index is of the kind {kind!r}: expected a kind that fits the maximum counts of chunks {limits} "
        "(None: unlimited)"
    )


# B-trees: version 1, and version 2 of datasets that can grow along several dimensions.


def _parse_b_tree_1(data: bytes, space: ChunkSpace, size: int, parent_level: int | None) -> Node:
    """Parse a node of ``size`` bytes of a version 1 B-tree; the root has no ``parent_level``."""
    fields, name = Fields(data, space.sizes), "a node of a B-tree of chunks"
    fields.expect(b"TREE")
    kind, level, count, _, _ = fields.unpack("BBHPP")
    if kind != 1 or (parent_level is not None and level != parent_level - 1):
        expected = "type 1" if parent_level is None else f"type 1 and level {parent_level - 1}"
        raise ValueError(f"{name} has type {kind} and level {level}: expected {expected}")
    rank, address = len(space.chunk), space.sizes.address
    entry = np.dtype([("size", "<u4"), ("mask", "<u4"), ("at", "<u8", (rank + 1,)), ("child", "u1", (address,))])
    entries = np.frombuffer(fields.take(count * entry.itemsize), entry)
    addresses = _decode_uints(entries["child"], undefined=UNDEFINED_ADDRESS)
    coords, remainders = np.divmod(entries["at"][:, :rank].astype(np.uint64), np.array(space.chunk, np.uint64))
    if remainders.any() or entries["at"][:, rank].any():
        row = (remainders.any(axis=1) | (entries["at"][:, rank] > 0)).argmax()
        found = entries["at"][row].tolist()
        raise ValueError(
            f"{name} has a chunk at {found}: expected multiples of {space.chunk}, and 0 as the last number"
        )
    firsts, is_inside = space.number_coords(coords)
    if (firsts[1:] < firsts[:-1]).any():
        raise ValueError(f"{name} lists chunks in the wrong order: expected ascending coordinates")
    if (addresses >= np.uint64(space.room)).any():
        raise ValueError(
            f"{name} points to byte {addresses.max()}: expected a byte within the {space.room} of the file"
        )
    if not level:
        return Node(
            ChunkLocations(firsts, addresses, entries["size"].astype(np.uint64), entries["mask"].copy()).select_chunks(
                is_inside
            )
        )
    edges = [*firsts.tolist(), _END_OF_KEYS]
    pointers = zip(edges, edges[1:], addresses.tolist(), strict=False)
    return _make_node(space, NO_CHUNKS, [Child(*pointer, size, _parse_b_tree_1, (size, level)) for pointer in pointers])


def _parse_b_tree_2(data: bytes, space: ChunkSpace) -> Node:
    """Parse the header of a version 2 B-tree. Return a node with a pointer to the root of the tree."""
    tree = parse_b_tree_2(data, space.sizes)
    expected_type, coords_size = 11 if space.has_filters else 10, 8 * len(space.chunk)
    if tree.type != expected_type or tree.record_size <= coords_size:
        found = f"a v2 B-tree of type {tree.type} with records of {tree.record_size} bytes"
        raise ValueError(
            f"its chunk index is {found}: expected type {expected_type}, and records of more than {coords_size} bytes"
        )
    if tree.total * tree.record_size > space.room:
        found = f"a v2 B-tree has {tree.total} records of {tree.record_size} bytes"
        raise ValueError(f"{found}: expected at most the {space.room} bytes of the file")
    if tree.root is None or not tree.total:
        return Node(NO_CHUNKS)
    arguments = tree, tree.depth, tree.root_records
    return _make_node(
        space, NO_CHUNKS, [Child(0, _END_OF_KEYS, tree.root, tree.node_size, _parse_b_tree_2_node, arguments)]
    )


def _parse_b_tree_2_node(data: bytes, space: ChunkSpace, tree: BTree2, depth: int, count: int) -> Node:
    """Parse a node of a version 2 B-tree. Its parent stores its number of records, ``count``; depth 0 is a leaf."""
    raw, pointers = tree.parse_node(data, depth, count)
    rows = np.frombuffer(raw, np.uint8).reshape(count, tree.record_size)
    coords_start = tree.record_size - 8 * len(space.counts)  # position of the coordinates
    keys, is_inside = space.number_coords(np.ascontiguousarray(rows[:, coords_start:]).view("<u8").astype(np.uint64))
    if (keys[1:] < keys[:-1]).any():
        raise ValueError("a node of a v2 B-tree lists chunks in the wrong order: expected ascending coordinates")
    edges = [0, *keys.tolist(), _END_OF_KEYS]
    children = [
        Child(edges[i], edges[i + 1], address, tree.node_size, _parse_b_tree_2_node, (tree, depth - 1, records))
        for i, (address, records) in enumerate(pointers)
    ]
    return _make_node(space, space.decode_elements(rows[is_inside, :coords_start], keys[is_inside]), children)


# Fixed and extensible arrays. Long arrays are cut into pages. A bitmap says which pages were written; only these are
# read.


def _parse_elements(data: bytes, space: ChunkSpace, signature: bytes, skipped: int, first_key: int, width: int) -> Node:
    """Parse a block of elements of ``width`` bytes, which begin after ``skipped`` bytes with the key ``first_key``."""
    if not data.startswith(signature):
        found = f"a block of a chunk index begins with {data[:5]!r}"
        raise ValueError(f"{found}: expected {signature!r}, a signature and the version 0")
    rows = np.frombuffer(verify_checksum(data, "a block of a chunk index")[skipped:], np.uint8).reshape(-1, width)
    return Node(space.decode_elements(rows, np.arange(first_key, first_key + len(rows), dtype=np.uint64)))


def _make_block(signature: bytes, skipped: int, first_key: int, count: int, address: int, width: int) -> Child:
    """Make a pointer to a block whose ``count`` elements begin after ``skipped`` bytes (0 in a page)."""
    arguments = signature, skipped, first_key, width
    return Child(first_key, first_key + count, address, skipped + count * width + 4, _parse_elements, arguments)


def _list_pages(
    flags: npt.NDArray[np.uint8], first_key: int, count: int, page_size: int, address: int, width: int
) -> Iterator[Child]:
    """Yield a pointer to each written page of a block of ``count`` elements; ``flags`` has a bit for each page."""
    for number in np.flatnonzero(flags).tolist():
        position = number * page_size
        yield _make_block(
            b"",
            0,
            first_key + position,
            min(page_size, count - position),
            address + number * (page_size * width + 4),
            width,
        )


def _check_array(space: ChunkSpace, client: int, width: int, page_bits: int) -> None:
    if client != int(space.has_filters) or page_bits > _MOST_PAGE_BITS or not width:
        raise ValueError(
            f"its chunk index is damaged: expected the client ID {int(space.has_filters)}, elements of at least 1 "
            f"byte, and pages of at most 2**{_MOST_PAGE_BITS} elements; found the client ID {client}, elements of "
            f"{width} bytes, and pages of 2**{page_bits} elements"
        )


_FIXED: Final = "BBBNP"


def _parse_fixed_array(data: bytes, space: ChunkSpace) -> Node:
    """Parse the header of a fixed array: the chunk index of a dataset without unlimited dimensions."""
    client, width, page_bits, count, address = unpack_block(data, space.sizes, b"FAHD", _FIXED)
    _check_array(space, client, width, page_bits)
    if count < math.prod(space.counts):
        chunk_count = math.prod(space.counts)
        raise ValueError(f"a fixed array has {count} elements: expected at least {chunk_count}, one for each chunk")
    if address is None:  # no chunk was written
        return Node(NO_CHUNKS)
    if count * width > space.room:
        size = f"{count} elements of {width} bytes"
        raise ValueError(f"a fixed array has {size}: expected at most the {space.room} bytes of the file")
    page_size = 1 << page_bits
    if count <= page_size:
        return _make_node(
            space, NO_CHUNKS, [_make_block(b"FADB\0", space.sizes.measure_block("BP") - 4, 0, count, address, width)]
        )
    form = f"BP{-(-count // (8 * page_size))}s"
    arguments = form, address, count, width, page_size
    return _make_node(
        space,
        NO_CHUNKS,
        [Child(0, _END_OF_KEYS, address, space.sizes.measure_block(form), _parse_page_bits, arguments)],
    )


def _parse_page_bits(
    data: bytes, space: ChunkSpace, form: str, address: int, count: int, width: int, page_size: int
) -> Node:
    """Parse the start of a fixed array's data block: the bitmap of the pages that follow."""
    *_, bits = unpack_block(data, space.sizes, b"FADB", form)
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=-(-count // page_size))
    return _make_node(space, NO_CHUNKS, _list_pages(flags, 0, count, page_size, address + len(data), width))


_EXTENSIBLE: Final = "BBBBBBB6NP"


class ExtensibleArray(msgspec.Struct, frozen=True):
    """The header of an extensible array: the chunk index of a dataset with one unlimited dimension.

    Elements lie in data blocks; data blocks are counted in super blocks, and are larger in later super blocks. The
    index block points to the data blocks of the first super blocks. Each further super block has a secondary block that
    points to its data blocks.
    """

    client: int  # 0: chunks without filters, 1: with filters
    width: int  # bytes of an element
    count_bits: int  # bits of the largest possible number of elements
    index_elements: int  # number of elements in the index block
    smallest_block: int  # number of elements of the smallest data block
    least_pointers: int  # the smallest number of data blocks in a secondary block
    page_bits: int  # a page has 2**page_bits elements

    def measure_super_block(self, number: int) -> tuple[int, int, int]:
        """Return the first key of super block ``number``, its count of data blocks, and the elements in each block."""
        first_key = self.index_elements + ((1 << number) - 1) * self.smallest_block
        return first_key, 1 << number // 2, (1 << (number + 1) // 2) * self.smallest_block

    def count_pages(self, number: int) -> int:
        """Return the number of pages in each data block of super block ``number``; 0 if the blocks have no pages."""
        _, _, count = self.measure_super_block(number)
        return count >> self.page_bits if count > 1 << self.page_bits else 0

    def list_data_blocks(
        self, space: ChunkSpace, number: int, addresses: Sequence[int | None], bits: bytes
    ) -> Iterator[Child]:
        """Yield a pointer to each data block of super block ``number``, or to each written page of them.

        ``addresses`` has the address of each data block (None: not written), ``bits`` is the bitmap of their pages.
        """
        start, _, count = self.measure_super_block(number)
        pages, skipped = self.count_pages(number), space.sizes.measure_block(f"BP{-(-self.count_bits // 8)}s") - 4
        flags = np.unpackbits(np.frombuffer(bits, np.uint8))
        for position, address in enumerate(addresses):
            first_key, page_flags = start + position * count, flags[position * pages : (position + 1) * pages]
            if address is None:
                continue
            if len(page_flags) < pages:
                raise ValueError(
                    "the index block of an extensible array points to a data block with pages: expected no pages"
                )
            if pages:
                yield from _list_pages(
                    page_flags, first_key, count, 1 << self.page_bits, address + skipped + 4, self.width
                )
            else:
                yield _make_block(b"EADB\0", skipped, first_key, count, address, self.width)


def _parse_extensible_array(data: bytes, space: ChunkSpace) -> Node:
    """Parse the header of an extensible array. Return a node with a pointer to the index block."""
    *parameters, address = unpack_block(data, space.sizes, b"EAHD", _EXTENSIBLE)
    array = ExtensibleArray(*parameters[:7])
    _check_array(space, array.client, array.width, array.page_bits)
    powers = all(value and not value & (value - 1) for value in (array.smallest_block, array.least_pointers))
    if not powers or not 0 < array.count_bits < 64:
        sizes = f"data blocks from {array.smallest_block} elements, {array.least_pointers} pointers"
        raise ValueError(
            f"its chunk index is damaged: {sizes}, counts of {array.count_bits} bits: "
            "expected powers of 2, and counts of 1 to 63 bits"
        )
    if address is None:
        return Node(NO_CHUNKS)
    direct, by_index = 2 * (array.least_pointers - 1), 2 * (array.least_pointers.bit_length() - 1)
    secondary = max(2 + array.count_bits - array.smallest_block.bit_length() - by_index, 0)
    form = f"BP{array.index_elements * array.width}s{direct}P{secondary}P"
    arguments = array, form, direct, by_index
    return _make_node(
        space,
        NO_CHUNKS,
        [Child(0, _END_OF_KEYS, address, space.sizes.measure_block(form), _parse_index_block, arguments)],
    )


def _parse_index_block(
    data: bytes, space: ChunkSpace, array: ExtensibleArray, form: str, direct: int, by_index: int
) -> Node:
    """Parse the index block of an extensible array: its elements, data blocks and secondary blocks."""
    _, _, raw, *addresses = unpack_block(data, space.sizes, b"EAIB", form)
    rows = np.frombuffer(raw, np.uint8).reshape(array.index_elements, array.width)
    children: list[Child] = []
    position = 0
    for number in range(by_index):
        _, blocks, _ = array.measure_super_block(number)
        children += array.list_data_blocks(space, number, addresses[position : position + blocks], b"")
        position += blocks
    for number, address in enumerate(addresses[direct:], by_index):
        first_key, blocks, count = array.measure_super_block(number)
        bitmap = blocks * -(-array.count_pages(number) // 8)
        secondary_form = f"BP{-(-array.count_bits // 8)}s{bitmap}s{blocks}P"
        if address is not None:
            length = space.sizes.measure_block(secondary_form)
            children.append(
                Child(
                    first_key,
                    first_key + blocks * count,
                    address,
                    length,
                    _parse_secondary_block,
                    (array, number, secondary_form),
                )
            )
    return _make_node(space, space.decode_elements(rows, np.arange(array.index_elements, dtype=np.uint64)), children)


def _parse_secondary_block(data: bytes, space: ChunkSpace, array: ExtensibleArray, number: int, form: str) -> Node:
    """Parse a secondary block, which points to the data blocks of super block ``number``."""
    _, _, _, bits, *addresses = unpack_block(data, space.sizes, b"EASB", form)
    return _make_node(space, NO_CHUNKS, array.list_data_blocks(space, number, addresses, bits))
