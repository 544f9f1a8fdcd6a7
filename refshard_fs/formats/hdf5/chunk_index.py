"""Find where the chunks of an HDF5 dataset lie. All kinds of chunk index are read as trees, level by level. No I/O.

A block of an index (a header, a node, a page) is decoded to a `Node`: the locations of some chunks, and the blocks
below it. Each block is decoded once and cached. A tree is sorted by key. In a B-tree, the key of a chunk is its number
in the dataset's current extent; in a fixed or extensible array, its number in the dataset's maximum extent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.model import Steps
from refshard_fs.formats.hdf5.file import Fields, MetadataFile, Sizes, unpack_block, verify_checksum
from refshard_fs.formats.hdf5.heaps import B_TREE_2, BTree2, parse_b_tree_2

UInt64s = npt.NDArray[np.uint64]
UNDEFINED_ADDRESS: Final = np.uint64(2**64 - 1)  # the undefined address: nothing was written to the chunk
_LAST_KEY: Final = 1 << 64  # above all keys
_MOST_BITS: Final = 40  # largest exponent of an array's or a page's number of elements


class ChunkLocations(NamedTuple):
    """Locations of written chunks, as columns.

    ``numbers`` are chunk numbers, or keys within an index; ``masks`` have a bit for each filter that a chunk skips.
    """

    numbers: UInt64s
    addresses: UInt64s
    sizes: UInt64s
    masks: npt.NDArray[np.uint32]

    def where(self, keep: npt.NDArray[np.bool_ | np.intp]) -> ChunkLocations:
        """Return the chunks that ``keep`` selects, a mask or positions."""
        return ChunkLocations(self.numbers[keep], self.addresses[keep], self.sizes[keep], self.masks[keep])


class ChunkSpace(msgspec.Struct, frozen=True):
    """The extents of a dataset in chunks, and the sizes in its file.

    ``counts`` are the numbers of chunks along each dimension, ``most`` for the maximum extent (None: unlimited).
    ``raw_size`` is the size of a chunk before filters, ``room`` the size of the file after its base address, in bytes.
    """

    sizes: Sizes
    room: int
    chunk: tuple[int, ...]
    counts: tuple[int, ...]
    most: tuple[int | None, ...]
    raw_size: int
    has_filters: bool

    @property
    def axes(self) -> list[int]:
        """The dimensions in the order in which array keys count them: an unlimited dimension comes first."""
        return sorted(range(len(self.most)), key=lambda axis: self.most[axis] is not None)

    def to_keys(self, numbers: UInt64s) -> UInt64s:
        """Convert chunk numbers to keys of an array, or of chunks without an index."""
        coords: list[UInt64s] = []
        for count in reversed(self.counts):
            numbers, here = np.divmod(numbers, np.uint64(max(count, 1)))
            coords.insert(0, here)
        keys = np.zeros_like(numbers)
        for axis in self.axes:
            keys = keys * np.uint64(self.most[axis] or 1) + coords[axis]
        return keys

    def to_numbers(self, keys: UInt64s) -> tuple[UInt64s, npt.NDArray[np.bool_]]:
        """Convert keys of an array to chunk numbers, and return which of them lie in the dataset's current extent."""
        coords = np.zeros((len(keys), len(self.counts)), np.uint64)
        first, *others = self.axes
        for axis in reversed(others):
            keys, coords[:, axis] = np.divmod(keys, np.uint64(self.most[axis] or 1))
        coords[:, first] = keys
        return self.number_coords(coords)

    def number_coords(self, coords: UInt64s) -> tuple[UInt64s, npt.NDArray[np.bool_]]:
        """Return the chunk number for each row of ``coords``, and a mask of the rows within the current extent.

        Coordinates outside the extent get the number of the next chunk in C order.
        """
        numbers = np.zeros(len(coords), np.uint64)
        is_beyond = np.zeros(len(coords), np.bool_)
        for axis, count in enumerate(self.counts):
            here = coords[:, axis]
            numbers = numbers * np.uint64(count) + np.where(is_beyond, np.uint64(0), np.minimum(here, np.uint64(count)))
            is_beyond |= here >= np.uint64(count)
        return numbers, ~is_beyond

    def elements(self, rows: npt.NDArray[np.uint8], keys: UInt64s) -> ChunkLocations:
        """Decode the elements of an index, one row of bytes each, and return the written chunks."""
        (count, width), address = rows.shape, self.sizes.address
        sizes, masks = np.full(count, self.raw_size, np.uint64), np.zeros(count, np.uint32)
        if self.has_filters and 0 < width - address - 4 <= 8:
            sizes = _decode_uints(rows[:, address : width - 4])
            masks = np.ascontiguousarray(rows[:, width - 4 :]).view("<u4")[:, 0].astype(np.uint32)
        elif self.has_filters or width != address:
            raise ValueError(f"its chunk index has elements of {width} bytes: an address has {address}")
        addresses = _decode_uints(rows[:, :address], undefined=UNDEFINED_ADDRESS)
        return ChunkLocations(keys, addresses, sizes, masks).where(addresses != UNDEFINED_ADDRESS)


def _decode_uints(raw: npt.NDArray[np.uint8], undefined: np.uint64 | None = None) -> UInt64s:
    """Decode little-endian integers of up to 8 bytes, one a row; a row of all set bits is ``undefined``."""
    full = np.zeros((len(raw), 8), np.uint8)
    full[:, : raw.shape[1]] = raw
    found = full.view("<u8")[:, 0].astype(np.uint64)
    return found if undefined is None else np.where((raw == 255).all(axis=1), undefined, found)


# Trees of blocks.


class Child(NamedTuple):
    """A pointer to a block that locates the chunks with keys in [first, last).

    ``parse(data, space, *arguments)`` decodes the block, where ``space`` is the dataset's `ChunkSpace`.
    """

    first: int
    last: int
    address: int
    length: int
    parse: Callable[..., Node]
    arguments: tuple[Any, ...] = ()


class Node(NamedTuple):
    """A decoded block: locations of chunks, by key, and the child blocks, with their ranges of keys as columns."""

    chunks: ChunkLocations
    children: tuple[Child, ...] = ()
    firsts: UInt64s = np.empty(0, np.uint64)
    lasts: UInt64s = np.empty(0, np.uint64)

    @property
    def nbytes(self) -> int:
        return 28 * len(self.chunks.numbers) + 200 * len(self.children) + 512

    def select_children(self, keys: UInt64s | None) -> Iterator[tuple[Child, UInt64s | None]]:
        """Yield each child that may hold some of ``keys``, with those keys (None: all). An only child gets all keys."""
        if keys is None:
            yield from [(child, None) for child in self.children]
        elif len(self.children) == 1:
            yield self.children[0], keys
        else:
            begins, ends = np.searchsorted(keys, self.firsts), np.searchsorted(keys, self.lasts)
            for place in np.flatnonzero(ends > begins).tolist():
                yield self.children[place], keys[begins[place] : ends[place]]


_EMPTY: Final = np.empty(0, np.uint64)
NO_CHUNKS: Final = ChunkLocations(_EMPTY, _EMPTY, _EMPTY, np.empty(0, np.uint32))


def _make_node(space: ChunkSpace, chunks: ChunkLocations, children: Iterable[Child]) -> Node:
    """Make a node. Raise ValueError if its children overlap: together they are larger than the file."""
    found: list[Child] = []
    total = 0
    for child in children:
        total += child.length
        if max(total, child.address + child.length) > space.room:
            raise ValueError("the blocks of a chunk index are larger than its file")
        found.append(child)
    firsts, lasts = [child.first for child in found], [min(child.last, _LAST_KEY - 1) for child in found]
    return Node(chunks, tuple(found), np.array(firsts, np.uint64), np.array(lasts, np.uint64))


class ChunkIndex:
    """The chunk index of a dataset; ``root`` is its first block."""

    def __init__(self, file: MetadataFile, space: ChunkSpace, root: Child, *, is_array: bool) -> None:
        self._file = file
        self._space = space
        self._root = root
        self._is_array = is_array
        self._read: set[int] = set()  # addresses of the blocks that were read
        self._unread: dict[int, int] = {}  # address of each known, unread block: a key that it holds

    def numbers_in_unread_blocks(self) -> list[int]:
        """Return the number of one chunk in each known block that was not read yet."""
        keys = np.array(list(self._unread.values()), np.uint64)
        numbers, are_in = self._space.to_numbers(keys) if self._is_array else (keys, keys >= 0)
        return list(map(int, numbers[are_in]))

    def find(self, numbers: UInt64s | None) -> Steps[ChunkLocations]:
        """Return the locations of the written chunks among ``numbers`` (ascending, unique; None: all chunks)."""
        space, found = self._space, [NO_CHUNKS]
        keys = np.sort(space.to_keys(numbers)) if self._is_array and numbers is not None else numbers
        level: list[tuple[Child, UInt64s | None]] = [(self._root, keys)]
        while level:
            children = [child for child, _ in level]
            are_distinct = len({child.address for child in children}) == len(level)
            if not are_distinct or sum(child.length for child in children) > space.room:
                raise ValueError("its chunk index leads to one block twice, or has blocks larger than its file")
            nodes: Sequence[Node] = yield tuple(
                self._file.load(child.address, child.length, "its chunk index", child.parse, space, *child.arguments)
                for child in children
            )
            found += [node.chunks for node in nodes if len(node.chunks.numbers)]
            self._note_read(children, nodes)
            level = [
                below for node, (_, some) in zip(nodes, level, strict=True) for below in node.select_children(some)
            ]
        whole = found[-1] if len(found) == 2 else ChunkLocations(*map(np.concatenate, zip(*found, strict=True)))
        if keys is not None:  # for one key, == takes a fifth of the time of `isin`
            whole = whole.where(whole.numbers == keys[0] if len(keys) == 1 else np.isin(whole.numbers, keys))
        if self._is_array:
            own, are_in = space.to_numbers(whole.numbers)
            whole = whole._replace(numbers=own).where(are_in)
        if len(whole.numbers) > 1:
            whole = whole.where(np.argsort(whole.numbers, kind="stable"))
            if (whole.numbers[1:] == whole.numbers[:-1]).any():
                raise ValueError("a chunk index lists a chunk twice")
        return check_bounds(whole, space.room)

    def _note_read(self, blocks: Iterable[Child], nodes: Iterable[Node]) -> None:
        for block, node in zip(blocks, nodes, strict=True):
            if block.address not in self._read:
                self._read.add(block.address)
                self._unread.pop(block.address, None)
                self._unread |= {one.address: one.first for one in node.children if one.address not in self._read}


def check_bounds(found: ChunkLocations, room: int) -> ChunkLocations:
    """Return ``found``. Raise ValueError if a chunk ends after ``room`` bytes."""
    wrong = (found.addresses > np.uint64(room)) | (found.sizes > np.uint64(room) - np.minimum(found.addresses, room))
    if wrong.any():
        number, address, size, _ = (column[wrong.argmax()] for column in found)
        raise ValueError(f"chunk {number} of {size} bytes at {address} ends beyond the end of the file")
    return found


class ConsecutiveChunks:
    """Chunks without an index: each has ``size`` bytes, and they lie in the order of their keys."""

    def __init__(self, space: ChunkSpace, address: int, size: int, mask: int = 0) -> None:
        self._space = space
        self._address = address
        self._size = size
        self._mask = mask

    def numbers_in_unread_blocks(self) -> list[int]:
        """Return an empty list: there are no blocks."""
        return []

    def find(self, numbers: UInt64s | None) -> Steps[ChunkLocations]:
        """Return the locations of the chunks ``numbers``; None: of all chunks."""
        yield from ()
        count = math.prod(self._space.counts)
        if count * self._size > self._space.room:
            raise ValueError(f"its chunks take {count * self._size} bytes, more than the size of the file")
        numbers = np.arange(count, dtype=np.uint64) if numbers is None else numbers
        addresses = np.uint64(self._address) + self._space.to_keys(numbers) * np.uint64(self._size)
        sizes, masks = np.full(len(numbers), self._size, np.uint64), np.full(len(numbers), self._mask, np.uint32)
        return check_bounds(ChunkLocations(numbers, addresses, sizes, masks), self._space.room)


Index = ChunkIndex | ConsecutiveChunks


def make_index(file: MetadataFile, space: ChunkSpace, kind: str, address: int, parameters: Any) -> Index:
    """Make the index of a ``kind`` at ``address``, with the ``parameters`` of the data layout message."""
    sizes = space.sizes
    match kind:
        case "B-tree 1":  # parameters: half of the maximum number of entries in a node
            key = 8 + 8 * (len(space.chunk) + 1)
            size = 8 + 2 * sizes.address + (2 * parameters + 1) * key + 2 * parameters * sizes.address
            return ChunkIndex(
                file, space, Child(0, _LAST_KEY, address, size, _parse_b_tree_1, (size, None)), is_array=False
            )
        case "B-tree 2":
            size = sizes.block(B_TREE_2)
            return ChunkIndex(file, space, Child(0, _LAST_KEY, address, size, _parse_b_tree_2), is_array=False)
        case "single" if math.prod(space.counts) <= 1:
            return ConsecutiveChunks(space, address, *(parameters or (space.raw_size,)))
        case "implicit" if None not in space.most:
            return ConsecutiveChunks(space, address, space.raw_size)
        case "fixed array" if None not in space.most:
            root = Child(0, _LAST_KEY, address, sizes.block(_FIXED), _parse_fixed_array)
            return ChunkIndex(file, space, root, is_array=True)
        case "extensible array" if space.most.count(None) == 1:
            root = Child(0, _LAST_KEY, address, sizes.block(_EXTENSIBLE), _parse_extensible_array)
            return ChunkIndex(file, space, root, is_array=True)
    raise ValueError(f"its chunk index, of the kind {kind!r}, does not fit its maximum extents {space.most}")


# B-trees: version 1, and version 2 of datasets that can grow along several dimensions.


def _parse_b_tree_1(data: bytes, space: ChunkSpace, size: int, above: int | None) -> Node:
    """Parse a node of a version 1 B-tree, ``size`` bytes long, below a node of level ``above`` (None: the root)."""
    fields, what = Fields(data, space.sizes), "a node of a B-tree of chunks"
    fields.expect(b"TREE")
    kind, level, count, _, _ = fields.unpack("BBHPP")
    if kind != 1 or (above is not None and level != above - 1):
        raise ValueError(f"{what} has type {kind} and level {level}: expected type 1, a level below {above}")
    rank, address = len(space.chunk), space.sizes.address
    entry = np.dtype([("size", "<u4"), ("mask", "<u4"), ("at", "<u8", (rank + 1,)), ("child", "u1", (address,))])
    found = np.frombuffer(fields.take(count * entry.itemsize), entry)
    addresses = _decode_uints(found["child"], undefined=UNDEFINED_ADDRESS)
    coords, rest = np.divmod(found["at"][:, :rank].astype(np.uint64), np.array(space.chunk, np.uint64))
    if rest.any() or found["at"][:, rank].any():
        raise ValueError(f"{what} has a chunk that does not begin at a multiple of the chunk's shape")
    firsts, are_in = space.number_coords(coords)
    if (firsts[1:] < firsts[:-1]).any():
        raise ValueError(f"{what} is not in order")
    if (addresses >= np.uint64(space.room)).any():
        raise ValueError(f"{what} points beyond the end of the file")
    if not level:
        return Node(
            ChunkLocations(firsts, addresses, found["size"].astype(np.uint64), found["mask"].copy()).where(are_in)
        )
    edges = [*firsts.tolist(), _LAST_KEY]
    places = zip(edges, edges[1:], addresses.tolist(), strict=False)
    return _make_node(space, NO_CHUNKS, [Child(*place, size, _parse_b_tree_1, (size, level)) for place in places])


def _parse_b_tree_2(data: bytes, space: ChunkSpace) -> Node:
    """Parse the header of a version 2 B-tree."""
    tree = parse_b_tree_2(data, space.sizes)
    if tree.type != (11 if space.has_filters else 10) or tree.record_size <= 8 * len(space.chunk):
        raise ValueError(
            f"a v2 B-tree of type {tree.type}, with records of {tree.record_size} bytes, is not a chunk index"
        )
    if tree.total * tree.record_size > space.room:
        raise ValueError(f"a v2 B-tree of {tree.total} chunks is larger than its file")
    if tree.root is None or not tree.total:
        return Node(NO_CHUNKS)
    how = tree, tree.depth, tree.root_records
    return _make_node(space, NO_CHUNKS, [Child(0, _LAST_KEY, tree.root, tree.node_size, _parse_b_tree_2_node, how)])


def _parse_b_tree_2_node(data: bytes, space: ChunkSpace, tree: BTree2, depth: int, count: int) -> Node:
    """Parse a node of a version 2 B-tree; its parent gives ``depth`` and the number of records."""
    raw, below = tree.node(data, depth, count)
    rows = np.frombuffer(raw, np.uint8).reshape(count, tree.record_size)
    first = tree.record_size - 8 * len(space.counts)  # position of the coordinates
    keys, are_in = space.number_coords(np.ascontiguousarray(rows[:, first:]).view("<u8").astype(np.uint64))
    if (keys[1:] < keys[:-1]).any():
        raise ValueError("a node of a v2 B-tree of chunks is not in order")
    edges = [0, *keys.tolist(), _LAST_KEY]
    children = [
        Child(edges[i], edges[i + 1], at, tree.node_size, _parse_b_tree_2_node, (tree, depth - 1, many))
        for i, (at, many) in enumerate(below)
    ]
    return _make_node(space, space.elements(rows[are_in, :first], keys[are_in]), children)


# Arrays. Long arrays are cut into pages, and a bitmap says which pages were written: only these are read.


def _parse_elements(data: bytes, space: ChunkSpace, signature: bytes, skipped: int, first: int, width: int) -> Node:
    """Parse elements of ``width`` bytes after ``skipped`` bytes; their keys begin at ``first``."""
    if not data.startswith(signature):
        raise ValueError(f"expected the signature {signature!r}, found {data[:4]!r}")
    rows = np.frombuffer(verify_checksum(data, "a block of a chunk index")[skipped:], np.uint8).reshape(-1, width)
    return Node(space.elements(rows, np.arange(first, first + len(rows), dtype=np.uint64)))


def _make_block(signature: bytes, skipped: int, first: int, count: int, at: int, width: int) -> Child:
    """Make a pointer to a block of ``count`` elements, ``skipped`` bytes after its start (a page: 0 bytes)."""
    how = signature, skipped, first, width
    return Child(first, first + count, at, skipped + count * width + 4, _parse_elements, how)


def _list_pages(
    flags: npt.NDArray[np.uint8], first: int, count: int, page: int, at: int, width: int
) -> Iterator[Child]:
    """Yield the written pages of a block of ``count`` elements; ``flags`` has a bit for each page."""
    for number in np.flatnonzero(flags).tolist():
        done = number * page
        yield _make_block(b"", 0, first + done, min(page, count - done), at + number * (page * width + 4), width)


def _check_array(space: ChunkSpace, client: int, width: int, page_bits: int) -> None:
    if client != int(space.has_filters) or page_bits > _MOST_BITS or not width:
        raise ValueError(f"its chunk index is damaged: client {client}, 2**{page_bits} elements of {width} bytes")


_FIXED: Final = "BBBNP"


def _parse_fixed_array(data: bytes, space: ChunkSpace) -> Node:
    """Parse the header of a fixed array, the index of a dataset with a maximum extent."""
    client, width, page_bits, count, address = unpack_block(data, space.sizes, b"FAHD", _FIXED)
    _check_array(space, client, width, page_bits)
    if count < math.prod(space.counts):
        raise ValueError(f"a fixed array has {count} elements, fewer than the {math.prod(space.counts)} chunks")
    if address is None:  # all chunks were removed
        return Node(NO_CHUNKS)
    if count * width > space.room:
        raise ValueError(f"a fixed array of {count} elements is larger than its file")
    page = 1 << page_bits
    if count <= page:
        return _make_node(
            space, NO_CHUNKS, [_make_block(b"FADB\0", space.sizes.block("BP") - 4, 0, count, address, width)]
        )
    form = f"BP{-(-count // (8 * page))}s"
    how = form, address, count, width, page
    return _make_node(space, NO_CHUNKS, [Child(0, _LAST_KEY, address, space.sizes.block(form), _parse_page_bits, how)])


def _parse_page_bits(
    data: bytes, space: ChunkSpace, form: str, address: int, count: int, width: int, page: int
) -> Node:
    """Parse the start of a fixed array's data block: a bitmap of the pages that follow it."""
    *_, bits = unpack_block(data, space.sizes, b"FADB", form)
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=-(-count // page))
    return _make_node(space, NO_CHUNKS, _list_pages(flags, 0, count, page, address + len(data), width))


_EXTENSIBLE: Final = "BBBBBBB6NP"


class ExtensibleArray(msgspec.Struct, frozen=True):
    """The header of an extensible array, the index of a dataset with one unlimited dimension.

    Data blocks grow from one super block to the next. The index block points to the data blocks of the first super
    blocks; each further super block has a secondary block that points to its data blocks.
    """

    client: int
    width: int
    bits: int
    in_index: int  # number of elements in the index block
    least: int  # number of elements of the smallest data block
    pointers: int  # the smallest number of data blocks in a secondary block
    page_bits: int

    def super_block(self, number: int) -> tuple[int, int, int]:
        """Return the first key of a super block, its number of data blocks, and the number of elements of each."""
        first = self.in_index + ((1 << number) - 1) * self.least
        return first, 1 << number // 2, (1 << (number + 1) // 2) * self.least

    def pages(self, number: int) -> int:
        """Return the number of pages of each data block in a super block; 0: its blocks have no pages."""
        _, _, count = self.super_block(number)
        return count >> self.page_bits if count > 1 << self.page_bits else 0

    def data_blocks(
        self, space: ChunkSpace, number: int, addresses: Sequence[int | None], bits: bytes
    ) -> Iterator[Child]:
        """Yield the data blocks of a super block, or their written pages; ``bits`` is the bitmap of pages."""
        start, _, count = self.super_block(number)
        pages, skipped = self.pages(number), space.sizes.block(f"BP{-(-self.bits // 8)}s") - 4
        flags = np.unpackbits(np.frombuffer(bits, np.uint8))
        for place, at in enumerate(addresses):
            first, some = start + place * count, flags[place * pages : (place + 1) * pages]
            if at is None:
                continue
            if len(some) < pages:
                raise ValueError(
                    "the index block of an extensible array points to data blocks with pages, which it may not"
                )
            if pages:
                yield from _list_pages(some, first, count, 1 << self.page_bits, at + skipped + 4, self.width)
            else:
                yield _make_block(b"EADB\0", skipped, first, count, at, self.width)


def _parse_extensible_array(data: bytes, space: ChunkSpace) -> Node:
    """Parse the header of an extensible array."""
    *parameters, address = unpack_block(data, space.sizes, b"EAHD", _EXTENSIBLE)
    array = ExtensibleArray(*parameters[:7])
    _check_array(space, array.client, array.width, array.page_bits)
    powers = all(n and not n & (n - 1) for n in (array.least, array.pointers))
    if not powers or not 0 < array.bits < 64:
        raise ValueError(f"its chunk index is an extensible array with impossible parameters: {array}")
    if address is None:
        return Node(NO_CHUNKS)
    direct, by_index = 2 * (array.pointers - 1), 2 * (array.pointers.bit_length() - 1)
    secondary = max(2 + array.bits - array.least.bit_length() - by_index, 0)
    form = f"BP{array.in_index * array.width}s{direct}P{secondary}P"
    how = array, form, direct, by_index
    return _make_node(
        space, NO_CHUNKS, [Child(0, _LAST_KEY, address, space.sizes.block(form), _parse_index_block, how)]
    )


def _parse_index_block(
    data: bytes, space: ChunkSpace, array: ExtensibleArray, form: str, direct: int, by_index: int
) -> Node:
    """Parse the index block of an extensible array: its elements, data blocks and secondary blocks."""
    _, _, raw, *addresses = unpack_block(data, space.sizes, b"EAIB", form)
    rows = np.frombuffer(raw, np.uint8).reshape(array.in_index, array.width)
    children: list[Child] = []
    at = 0
    for number in range(by_index):
        _, blocks, _ = array.super_block(number)
        children += array.data_blocks(space, number, addresses[at : at + blocks], b"")
        at += blocks
    for number, address in enumerate(addresses[direct:], by_index):
        first, blocks, count = array.super_block(number)
        bitmap = blocks * -(-array.pages(number) // 8)
        how = f"BP{-(-array.bits // 8)}s{bitmap}s{blocks}P"
        if address is not None:
            length = space.sizes.block(how)
            children.append(
                Child(first, first + blocks * count, address, length, _parse_secondary_block, (array, number, how))
            )
    return _make_node(space, space.elements(rows, np.arange(array.in_index, dtype=np.uint64)), children)


def _parse_secondary_block(data: bytes, space: ChunkSpace, array: ExtensibleArray, number: int, form: str) -> Node:
    """Parse the secondary block of a super block."""
    _, _, _, bits, *addresses = unpack_block(data, space.sizes, b"EASB", form)
    return _make_node(space, NO_CHUNKS, array.data_blocks(space, number, addresses, bits))
