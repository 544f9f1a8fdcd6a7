"""Where HDF5 keeps many small things: v2 B-trees, fractal heaps, the global heap, local heaps. No I/O here.

All that is read at one depth of a tree is read in one round. Depths only fall, so that no tree has a loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from refshard_fs.core.model import Steps, together
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf5.file import Fields, MetadataFile, Sizes, both, verified

MOST_ROWS: Final = 1 << 10  # of a doubling table, whose blocks double every row
Child = tuple[int, int]  # address of a node, and how many records it has


# ----------------------------------------------------------------------------------------------------
# Version 2 B-trees: records of one size, sorted, in nodes of one size.


class BTree2(msgspec.Struct, frozen=True):
    """The header of a version 2 B-tree, and the arithmetic of its nodes."""

    type: int
    node_size: int
    record_size: int
    depth: int
    root: int | None
    root_records: int
    total: int
    sizes: Sizes

    @property
    def capacities(self) -> list[tuple[int, int]]:
        """The most records that a node has, and all below it together, by its depth: 0 is a leaf's."""
        leaf = (self.node_size - 10) // self.record_size
        found = [(leaf, leaf)]
        for depth in range(1, self.depth + 1):
            pointer = self.sizes.address + _width(leaf) + (_width(found[-1][1]) if depth > 1 else 0)
            most = (self.node_size - 10 - pointer) // (self.record_size + pointer)
            found.append((most, (most + 1) * found[-1][1] + most))
        return found

    def node(self, data: bytes, depth: int, records: int) -> tuple[bytes, list[Child]]:
        """Return the records of a node, and its children; ValueError where it is damaged."""
        capacities = self.capacities
        if records > capacities[depth][0]:
            raise ValueError(f"a node of {records} records; it has room for {capacities[depth][0]}")
        fields = Fields(data, self.sizes)
        fields.expect(b"BTIN" if depth else b"BTLF", 0)
        if fields.uint(1) != self.type:
            raise ValueError("a node of a v2 B-tree of another type")
        found = fields.take(records * self.record_size)
        children: list[Child] = []
        for _ in range(records + 1 if depth else 0):
            address, count = fields.address(), fields.uint(_width(capacities[0][0]))
            if depth > 1:
                fields.take(_width(capacities[depth - 1][1]))
            if address is None:
                raise ValueError("a node of a v2 B-tree has a child without an address")
            children.append((address, count))
        verified(data[: fields.at + 4], "a node of a v2 B-tree")
        return found, children


def _width(most: int) -> int:
    """Return how many bytes numbers up to ``most`` take."""
    return max((most.bit_length() + 7) // 8, 1)


def parse_b_tree_2(data: bytes, sizes: Sizes) -> BTree2:
    """Return the header that ``data`` starts with; ValueError where it cannot be true."""
    fields = Fields(data, sizes)
    fields.expect(b"BTHD", 0)
    kind, node_size, record_size, depth = fields.uint(1), fields.uint(4), fields.uint(2), fields.uint(2)
    fields.take(2)
    root, records, total = fields.address(), fields.uint(2), fields.length()
    verified(data[: fields.at + 4], "a v2 B-tree")
    if not 0 < record_size <= node_size - 10 or depth > 16 or node_size > 1 << 26:
        raise ValueError(f"a v2 B-tree of depth {depth} has nodes of {node_size} bytes, records of {record_size}")
    found = BTree2(kind, node_size, record_size, depth, root, records, total, sizes)
    if found.capacities[-1][0] < 1:
        raise ValueError(f"a v2 B-tree of depth {depth} has nodes of {node_size} bytes, too few for it")
    return found


def b_tree_2_size(sizes: Sizes) -> int:
    """Return how many bytes the header of a v2 B-tree has."""
    return 22 + sizes.address + sizes.length


def read_records(file: MetadataFile, address: int) -> Steps[list[bytes]]:
    """Return all records of the v2 B-tree at ``address``."""
    header = yield from file.read(address, b_tree_2_size(file.sizes), "a v2 B-tree")
    tree = parse_b_tree_2(header, file.sizes)
    if tree.total * tree.record_size > file.size:
        raise ValueError(f"a v2 B-tree of {tree.total} records is larger than its file")
    level: list[Child] = [] if tree.root is None or not tree.total else [(tree.root, tree.root_records)]
    found: list[bytes] = []
    for depth in range(tree.depth, -1, -1):
        if len(level) * tree.node_size > file.size:
            raise ValueError(f"a v2 B-tree of {len(level)} nodes is larger than its file")
        nodes = yield from together([file.read(at, tree.node_size, "a node of a v2 B-tree") for at, _ in level])
        below: list[Child] = []
        for (_, count), node in zip(level, nodes, strict=True):
            records, children = tree.node(node, depth, count)
            found += [records[at : at + tree.record_size] for at in range(0, len(records), tree.record_size)]
            below += children
        level = below
    if len(found) != tree.total:
        raise ValueError(f"a v2 B-tree has {len(found)} records, not {tree.total} as its header says")
    return found


# ----------------------------------------------------------------------------------------------------
# Fractal heaps: objects by an id that says where they lie.


class FractalHeap(msgspec.Struct, frozen=True):
    """The header of a fractal heap."""

    id_size: int
    flags: int
    most_managed: int
    huge: int | None  # the B-tree of objects that are too large for the heap
    width: int
    start_size: int
    most_direct: int
    bits: int
    root: int | None
    rows: int
    has_filters: bool

    @property
    def offset_size(self) -> int:
        """Bytes of an offset within the heap."""
        return (self.bits + 7) // 8

    @property
    def length_size(self) -> int:
        """Bytes of an object's length."""
        return _width(min(self.most_direct, self.most_managed))

    def row_size(self, row: int) -> int:
        """Return the bytes of a block of that row."""
        return self.start_size << max(row - 1, 0)

    @property
    def direct_rows(self) -> int:
        """Rows of direct blocks: those after them are of indirect ones."""
        return (self.most_direct // self.start_size).bit_length() + 1


def parse_fractal_heap(data: bytes, sizes: Sizes) -> FractalHeap:
    """Return the header of a fractal heap; ValueError where it cannot be true."""
    fields = Fields(data, sizes)
    fields.expect(b"FRHP", 0)
    id_size, filters, flags, most = fields.uint(2), fields.uint(2), fields.uint(1), fields.uint(4)
    fields.length()
    huge = fields.address()
    fields.length()
    fields.address()
    for _ in range(8):
        fields.length()
    width, start, direct, bits = fields.uint(2), fields.length(), fields.length(), fields.uint(2)
    fields.take(2)
    root, rows = fields.address(), fields.uint(2)
    if filters:
        fields.take(sizes.length + 4 + filters)
    verified(data[: fields.at + 4], "a fractal heap")
    powers = all(n and not n & (n - 1) for n in (width, start, direct))
    if not powers or not start <= direct or direct > 1 << 32 or rows > MOST_ROWS or not 0 < bits <= 64:
        raise ValueError(f"a fractal heap of blocks of {start} to {direct} bytes, {width} a row, {rows} rows")
    return FractalHeap(id_size, flags, most, huge, width, start, direct, bits, root, rows, bool(filters))


def read_fractal_heap(file: MetadataFile, address: int) -> Steps[FractalHeap]:
    """Return the header of the fractal heap at ``address``."""
    least = 22 + 12 * file.sizes.length + 3 * file.sizes.address + 4
    data = yield from file.peek(address, least, least + 512, "a fractal heap")
    heap = parse_fractal_heap(data, file.sizes)
    file.expect(heap.root, heap.start_size)  # its objects are asked for once their ids are read, beside this
    return heap


def read_dense(file: MetadataFile, info: bytes, skipped: int) -> Steps[tuple[FractalHeap, list[bytes]] | None]:
    """Return the heap and the records of the links, or attributes, that an info message tells of; None if of none.

    The highest number of these takes ``skipped`` bytes of the message, where it is there.
    """
    fields = file.fields(info)
    version, flags = fields.uint(1), fields.uint(1)
    if version:
        raise ValueError(f"a message of links or attributes is of version {version}; version 0 is known")
    fields.take(skipped if flags & 1 else 0)
    heap, tree = fields.address(), fields.address()
    if heap is None or tree is None:
        return None
    return (yield from both(read_fractal_heap(file, heap), read_records(file, tree)))


def heap_objects(file: MetadataFile, heap: FractalHeap, ids: Sequence[bytes]) -> Steps[list[bytes]]:
    """Return the objects whose ids these are, all of them read in the same rounds."""
    if heap.has_filters:
        raise ManifestError("a fractal heap is filtered, which is not read")
    found: list[bytes] = [b""] * len(ids)
    managed: dict[int, tuple[int, int]] = {}
    huge: dict[int, int] = {}
    spans: dict[int, tuple[int, int]] = {}
    for place, raw in enumerate(ids):
        fields = Fields(raw, file.sizes)
        kind = fields.uint(1)
        if kind >> 6:
            raise ValueError(f"an id of a fractal heap is of version {kind >> 6}")
        match kind >> 4 & 3:
            case 0:
                managed[place] = fields.uint(heap.offset_size), fields.uint(heap.length_size)
            case 1 if heap.id_size - 1 >= file.sizes.address + file.sizes.length:
                at = fields.address()
                if at is None:
                    raise ValueError("a huge object of a fractal heap has no address")
                spans[place] = at, fields.length()
            case 1:
                huge[place] = fields.uint(min(file.sizes.length, fields.left()))
            case 2 if heap.id_size <= 18:
                found[place] = fields.take((kind & 15) + 1)
            case 2:
                found[place] = fields.take(((kind & 15) << 8 | fields.uint(1)) + 1)
            case _:
                raise ValueError(f"an id of a fractal heap is of type {kind >> 4 & 3}")
    if huge:
        if heap.huge is None:
            raise ValueError("a fractal heap has huge objects, and no B-tree of them")
        by_key: dict[int, tuple[int, int]] = {}
        for record in (yield from read_records(file, heap.huge)):
            fields = Fields(record, file.sizes)
            at, length, key = fields.address(), fields.length(), fields.length()
            if at is not None:
                by_key[key] = at, length
        for place, key in huge.items():
            if key not in by_key:
                raise ValueError(f"a fractal heap has no huge object {key}")
            spans[place] = by_key[key]
    if managed:
        spans |= zip(managed, (yield from _located(file, heap, list(managed.values()))), strict=True)
    reads = [file.read(at, length, "an object of a fractal heap") for at, length in spans.values()]
    for place, data in zip(spans, (yield from together(reads)), strict=True):
        found[place] = data
    return found


def _located(file: MetadataFile, heap: FractalHeap, objects: Sequence[tuple[int, int]]) -> Steps[list[tuple[int, int]]]:
    """Return (address, length) of the managed ``objects``, (offset, length) pairs in the heap."""
    if heap.root is None:
        raise ValueError("a fractal heap without blocks has objects")
    found: list[tuple[int, int]] = [(0, 0)] * len(objects)
    if not heap.rows:
        blocks = [(heap.root, 0, heap.start_size, list(range(len(objects))))]
        indirect: list[tuple[int, int, int, list[int]]] = []
    else:
        blocks, indirect = [], [(heap.root, 0, heap.rows, list(range(len(objects))))]
    while indirect or blocks:
        for at, offset, size, places in blocks:
            for place in places:
                begin, length = objects[place]
                if not offset <= begin <= begin + length <= offset + size:
                    raise ValueError(f"an object of a fractal heap at {begin} does not lie in one block")
                found[place] = at + begin - offset, length
        blocks = []
        reads = [_indirect(file, heap, at, rows) for at, _, rows, _ in indirect]
        tables = yield from together(reads)
        below: list[tuple[int, int, int, list[int]]] = []
        for (_, offset, rows, places), table in zip(indirect, tables, strict=True):
            children: dict[int, list[int]] = {}
            for place in places:
                children.setdefault(_entry(heap, objects[place][0] - offset, rows), []).append(place)
            for entry, some in children.items():
                child = table[entry]
                if child is None:
                    raise ValueError("an object of a fractal heap lies in a block that there is not")
                row, column = divmod(entry, heap.width)
                size = heap.row_size(row)
                begin = offset + (heap.width * heap.row_size(row) if row else 0) + column * size
                if row < heap.direct_rows:
                    blocks.append((child, begin, size, some))
                else:
                    below.append((child, begin, _rows(heap, size), some))
        indirect = below
    return found


def _entry(heap: FractalHeap, offset: int, rows: int) -> int:
    """Return the number of the block, in a table of ``rows``, in which byte ``offset`` of its space lies."""
    row = (offset // (heap.width * heap.start_size)).bit_length()
    if offset < 0 or row >= rows:
        raise ValueError(f"a fractal heap has no byte {offset} in a table of {rows} rows")
    first = heap.width * heap.row_size(row) if row else 0
    return row * heap.width + (offset - first) // heap.row_size(row)


def _rows(heap: FractalHeap, size: int) -> int:
    """Return how many rows an indirect block has that stands for ``size`` bytes."""
    rows = (size // (heap.width * heap.start_size)).bit_length()
    if rows < 1:
        raise ValueError(f"a fractal heap has an indirect block of {size} bytes")
    return rows


def _indirect(file: MetadataFile, heap: FractalHeap, address: int, rows: int) -> Steps[list[int | None]]:
    what = "an indirect block of a fractal heap"
    size = 5 + file.sizes.address + heap.offset_size + rows * heap.width * file.sizes.address + 4
    data = yield from file.read(address, size, what)
    verified(data, what)
    fields = Fields(data, file.sizes)
    fields.expect(b"FHIB", 0)
    fields.take(file.sizes.address + heap.offset_size)
    return [fields.address() for _ in range(rows * heap.width)]


# ----------------------------------------------------------------------------------------------------
# The global heap: collections of objects that elements of variable length refer to.


GLOBAL: Final = 4096  # bytes of a collection, unless an object needs more


def parse_collection(data: bytes, sizes: Sizes) -> dict[int, bytes]:
    """Return the objects of a collection, by their index; ``data`` are all of it."""
    found: dict[int, bytes] = {}
    prefix = 8 + sizes.length
    at = prefix
    while at + prefix <= len(data):
        index, length = (
            int.from_bytes(data[at : at + 2], "little"),
            int.from_bytes(data[at + 8 : at + prefix], "little"),
        )
        if not index:  # what is free; nothing follows
            break
        at += prefix
        if at + length > len(data):
            raise ValueError(f"object {index} of the global heap has {length} bytes, beyond its collection's end")
        found[index] = data[at : at + length]
        at += length + -length % 8
    return found


def collection_size(data: bytes, sizes: Sizes) -> int:
    """Return how many bytes the collection has of which ``data`` are the first."""
    fields = Fields(data, sizes)
    fields.expect(b"GCOL", 1)
    fields.take(3)
    size = fields.length()
    if size < 8 + sizes.length:
        raise ValueError(f"a collection of the global heap has {size} bytes")
    return size


class Collection(NamedTuple):
    """The objects of a collection by their index; none where it has more bytes (``size``) than were read."""

    size: int
    objects: Mapping[int, bytes]

    @property
    def nbytes(self) -> int:
        return self.size + 128 * len(self.objects)


def begun_collection(data: bytes, sizes: Sizes) -> Collection:
    """Return the collection of the global heap that ``data`` begin with, of which there may not be all bytes."""
    size = collection_size(data, sizes)
    return Collection(size, parse_collection(data[:size], sizes) if size <= len(data) else {})


def read_collection(file: MetadataFile, address: int) -> Steps[bytes]:
    """Return the collection of the global heap at ``address``, for `parse_collection`."""
    what = "a collection of the global heap"
    data = yield from file.peek(address, 8 + file.sizes.length, GLOBAL, what)
    return (yield from file.read(address, collection_size(data, file.sizes), what))


# ----------------------------------------------------------------------------------------------------
# Local heaps: the names of old groups.


def read_local_heap(file: MetadataFile, address: int) -> Steps[bytes]:
    """Return the data segment of the local heap at ``address``."""
    what = "a local heap"
    data = yield from file.read(address, 8 + 2 * file.sizes.length + file.sizes.address, what)
    fields = file.fields(data)
    fields.expect(b"HEAP", 0)
    fields.take(3)
    size = fields.length()
    fields.length()
    at = fields.address()
    if at is None:
        raise ValueError("a local heap has no data")
    return (yield from file.read(at, size, what))


def text_at(segment: bytes, offset: int) -> str:
    """Return the text that begins at ``offset`` of a local heap's data segment."""
    end = segment.find(b"\0", offset)
    if offset >= len(segment) or end < 0:
        raise ValueError(f"a local heap of {len(segment)} bytes has no text at {offset}")
    return segment[offset:end].decode("utf-8", "surrogateescape")
