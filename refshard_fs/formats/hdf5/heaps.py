"""Where HDF5 keeps many small things: v2 B-trees, fractal heaps, the global heap, local heaps. No I/O here.

All that is read at one depth of a tree is read in one round. Depths only fall, so that no tree has a loop.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from refshard_fs.core.model import Steps, together
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf5.file import Fields, MetadataFile, Sizes, unpack_block

MOST_ROWS: Final = 1 << 10  # of a doubling table, whose blocks double every row
Child = tuple[int, int]  # address of a node, and how many records it has


# ----------------------------------------------------------------------------------------------------
# Version 2 B-trees: records of one size, sorted, in nodes of one size.


B_TREE_2: Final = "BIHH2xPHN"


class BTree2(msgspec.Struct, frozen=True):
    """The header of a version 2 B-tree, and the arithmetic of its nodes."""

    sizes: Sizes
    type: int
    node_size: int
    record_size: int
    depth: int
    root: int | None
    root_records: int
    total: int

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
        count = _width(capacities[0][0])
        below = _width(capacities[depth - 1][1]) if depth > 1 else 0
        pointers = (records + 1) * (self.sizes.address + count + below) if depth else 0
        form = f"B{records * self.record_size}s{pointers}s"
        kind, found, raw = unpack_block(data, self.sizes, b"BTIN" if depth else b"BTLF", form)
        if kind != self.type:
            raise ValueError("a node of a v2 B-tree of another type")
        fields = Fields(raw, self.sizes)
        children: list[Child] = []
        while fields.at < pointers:
            address, many = fields.address(), fields.uint(count)
            fields.take(below)
            if address is None:
                raise ValueError("a node of a v2 B-tree has a child without an address")
            children.append((address, many))
        return found, children


def _width(most: int) -> int:
    """Return how many bytes numbers up to ``most`` take."""
    return max((most.bit_length() + 7) // 8, 1)


def parse_b_tree_2(data: bytes, sizes: Sizes) -> BTree2:
    """Return the header that ``data`` are; ValueError where it cannot be true."""
    found = BTree2(sizes, *unpack_block(data, sizes, b"BTHD", B_TREE_2))
    size, record = found.node_size, found.record_size
    if not 0 < record <= size - 10 or found.depth > 16 or size > 1 << 26 or found.capacities[-1][0] < 1:
        raise ValueError(f"a v2 B-tree of depth {found.depth} has nodes of {size} bytes, records of {record}")
    return found


def read_records(file: MetadataFile, address: int) -> Steps[list[bytes]]:
    """Return all records of the v2 B-tree at ``address``."""
    header = yield from file.read(address, file.sizes.block(B_TREE_2), "a v2 B-tree")
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
    """The header of a fractal heap, and the arithmetic of its blocks, whose sizes double every row of a table."""

    id_size: int
    filters: int  # bytes of the filters that blocks are encoded with
    flags: int
    most_managed: int
    huge: int | None  # the B-tree of objects that are too large for the heap
    width: int
    start_size: int
    most_direct: int
    bits: int
    root: int | None
    rows: int

    @property
    def offset_size(self) -> int:
        """Bytes of an offset within the heap."""
        return (self.bits + 7) // 8

    @property
    def length_size(self) -> int:
        """Bytes of an object's length."""
        return _width(min(self.most_direct, self.most_managed))

    @property
    def direct_rows(self) -> int:
        """Rows of direct blocks: those after them are of indirect ones."""
        return (self.most_direct // self.start_size).bit_length() + 1


def read_fractal_heap(file: MetadataFile, address: int) -> Steps[FractalHeap]:
    """Return the header of the fractal heap at ``address``; ValueError where it cannot be true."""
    length, place = file.sizes.length, file.sizes.address
    form = f"HHBI{length}xP{length + place + 8 * length}xHNNH2xPH"
    data = yield from file.read(address, file.sizes.block(form), "a fractal heap")
    (filters,) = struct.unpack_from("<H", data, 7)
    if filters:
        raise ManifestError("a fractal heap is filtered, which is not read")
    heap = FractalHeap(*unpack_block(data, file.sizes, b"FRHP", form))
    sizes = heap.width, heap.start_size, heap.most_direct
    are_powers = all(n and not n & (n - 1) for n in sizes) and 16 <= heap.start_size <= heap.most_direct <= 1 << 32
    if not are_powers or heap.rows > MOST_ROWS or not 0 < heap.bits <= 64:
        raise ValueError(f"a fractal heap of blocks that cannot be: {heap}")
    file.expect(heap.root, heap.start_size)  # its objects are asked for once their ids are read, beside this
    return heap


# Of links and of attributes: bytes of the highest number in their info message, bytes of a record in their B-tree, and
# where in it is the id of an object in the heap.
_DENSE: Final = {"links": (8, 11, slice(4, None)), "attributes": (2, 17, slice(8))}


def dense_objects(file: MetadataFile, info: bytes, what: str) -> Steps[list[tuple[bytes, bytes]]]:
    """Return the "links" or "attributes" that an info message tells of, each with its record; none if of none."""
    skipped, record_size, ids = _DENSE[what]
    fields = file.fields(info)
    version, flags = fields.unpack("BB")
    if version:
        raise ValueError(f"a message of links or attributes is of version {version}; version 0 is known")
    heap, tree = fields.unpack(f"{skipped if flags & 1 else 0}xPP")
    if heap is None or tree is None:  # they are messages
        return []
    many: list[Steps[Any]] = [read_fractal_heap(file, heap), read_records(file, tree)]
    header, records = yield from together(many)
    if any(len(record) != record_size for record in records):
        raise ValueError(f"the B-tree of {what} has no records of {what}")
    objects = yield from heap_objects(file, header, [record[ids] for record in records])
    return list(zip(records, objects, strict=True))


def heap_objects(file: MetadataFile, heap: FractalHeap, ids: Sequence[bytes]) -> Steps[list[bytes]]:
    """Return the objects whose ids these are, all of them read in the same rounds."""
    kinds = {raw[0] >> 4 & 3 for raw in ids if raw}
    names_address = heap.id_size - 1 >= file.sizes.address + file.sizes.length
    blocks = (yield from _direct_blocks(file, heap)) if _MANAGED in kinds else []
    huge: dict[int, tuple[int, int]] = {}
    if _HUGE in kinds and not names_address:
        if heap.huge is None:
            raise ValueError("a fractal heap has huge objects, and no B-tree of them")
        records = [file.fields(record).unpack("PNN") for record in (yield from read_records(file, heap.huge))]
        huge = {key: (at, length) for at, length, key in records if at is not None}
    found: list[bytes] = [b""] * len(ids)
    spans: dict[int, tuple[int, int]] = {}
    for place, raw in enumerate(ids):
        fields = file.fields(raw)
        kind = fields.uint(1)
        match kind >> 4:  # the upper bits are a version
            case 0:
                spans[place] = _managed(blocks, fields.uint(heap.offset_size), fields.uint(heap.length_size))
            case 1:
                key = 0 if names_address else fields.uint(min(file.sizes.length, len(raw) - 1))
                at, length = fields.unpack("PN") if names_address else huge.get(key, (None, 0))
                if at is None:
                    raise ValueError("a fractal heap does not have a huge object")
                spans[place] = at, length
            case 2:
                is_long = heap.id_size > 18
                found[place] = fields.take((((kind & 15) << 8 | fields.uint(1)) if is_long else kind & 15) + 1)
            case _:
                raise ValueError(f"an id of a fractal heap is of the version and type {kind >> 4}")
    reads = [file.read(at, length, "an object of a fractal heap") for at, length in spans.values()]
    for place, data in zip(spans, (yield from together(reads)), strict=True):
        found[place] = data
    return found


_MANAGED, _HUGE = 0, 1  # types of objects
_Block = tuple[int, int, int]  # where it begins in the heap's space, its bytes, and its address in the file


def _managed(blocks: Sequence[_Block], offset: int, length: int) -> tuple[int, int]:
    """Return (address, length) of the object at ``offset`` of the heap's space, of which ``blocks`` ascend."""
    place = bisect_right(blocks, offset, key=lambda block: block[0]) - 1
    begin, size, address = blocks[place] if place >= 0 else (0, 0, 0)
    if offset + length > begin + size:
        raise ValueError(f"an object of a fractal heap at {offset} does not lie in one block")
    return address + offset - begin, length


def _direct_blocks(file: MetadataFile, heap: FractalHeap) -> Steps[list[_Block]]:
    """Return all direct blocks of a heap, ascending."""
    if heap.root is None:
        raise ValueError("a fractal heap without blocks has objects")
    found: list[_Block] = [] if heap.rows else [(0, heap.start_size, heap.root)]
    level = [(0, heap.rows, heap.root)] if heap.rows else []
    total = 0
    while level:
        tables = yield from together([_indirect_block(file, heap, address, rows) for _, rows, address in level])
        below: list[tuple[int, int, int]] = []
        for (begin, _, _), table in zip(level, tables, strict=True):
            for entry, address in enumerate(table):
                row = entry // heap.width
                size = heap.start_size << max(row - 1, 0)
                if address is not None and row < heap.direct_rows:
                    found.append((begin, size, address))
                    total += size
                elif address is not None:
                    below.append((begin, (size // (heap.width * heap.start_size)).bit_length(), address))
                begin += size
        if total > file.size:
            raise ValueError("the blocks of a fractal heap are larger than its file")
        level = below
    return sorted(found)


def _indirect_block(file: MetadataFile, heap: FractalHeap, address: int, rows: int) -> Steps[list[int | None]]:
    """Return the addresses of the blocks below an indirect block of so many ``rows``."""
    form = f"P{heap.offset_size}s{rows * heap.width}P"
    data = yield from file.read(address, file.sizes.block(form), "an indirect block of a fractal heap")
    _, _, *addresses = unpack_block(data, file.sizes, b"FHIB", form)
    return addresses


# ----------------------------------------------------------------------------------------------------
# The global heap: collections of objects that elements of variable length refer to.


GLOBAL: Final = 4096  # bytes of a collection, unless an object needs more


class Collection(NamedTuple):
    """The objects of a collection by their index; none where it has more bytes (``size``) than were read."""

    size: int
    objects: Mapping[int, bytes]

    @property
    def nbytes(self) -> int:
        return self.size + 128 * len(self.objects)


def parse_collection(data: bytes, sizes: Sizes) -> Collection:
    """Return the collection of the global heap that ``data`` begin with, of which there may not be all bytes."""
    fields = Fields(data, sizes)
    fields.expect(b"GCOL", 1)
    (size,) = fields.unpack("3xN")
    prefix = fields.at
    if size < prefix:
        raise ValueError(f"a collection of the global heap has {size} bytes")
    found: dict[int, bytes] = {}
    at, end = prefix, size if size <= len(data) else 0
    head = struct.Struct(sizes.plain("H6xN"))
    while at + prefix <= end:
        index, length = head.unpack_from(data, at)
        if not index:  # what is free; nothing follows
            break
        at += prefix
        if at + length > end:
            raise ValueError(f"object {index} of the global heap has {length} bytes, beyond its collection's end")
        found[index] = data[at : at + length]
        at += length + -length % 8
    return Collection(size, found)


def read_collections(file: MetadataFile, addresses: Iterable[int]) -> Steps[dict[tuple[int, int], bytes]]:
    """Return the objects of the collections of the global heap at ``addresses``, by (address, index)."""
    distinct = sorted(set(addresses))
    found = yield from together([_read_collection(file, address) for address in distinct])
    return {
        (address, index): data
        for address, objects in zip(distinct, found, strict=True)
        for index, data in objects.items()
    }


def _read_collection(file: MetadataFile, address: int) -> Steps[Mapping[int, bytes]]:
    length, what = min(GLOBAL, file.room(address)), "a collection of the global heap"
    while True:
        found: Collection | ValueError = yield file.load(address, length, what, parse_collection, file.sizes)
        if isinstance(found, ValueError):
            raise found
        if found.size <= length:
            return found.objects
        length = found.size


# ----------------------------------------------------------------------------------------------------
# Local heaps: the names of old groups.


def read_local_heap(file: MetadataFile, address: int) -> Steps[bytes]:
    """Return the data segment of the local heap at ``address``."""
    what = "a local heap"
    form = "3xNNP"
    fields = file.fields((yield from file.read(address, file.sizes.block(form) - 4, what)))
    fields.expect(b"HEAP", 0)
    size, _, at = fields.unpack(form)
    if at is None:
        raise ValueError("a local heap has no data")
    return (yield from file.read(at, size, what))
