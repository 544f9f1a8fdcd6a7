"""Read v2 B-trees, fractal heaps, the global heap and local heaps, which hold small objects. No I/O here.

Each level of a tree is read in one round. The depth decreases with each level, so no tree can have a loop.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from refshard_fs.core.model import Steps, run_together
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf5.file import Fields, MetadataFile, Sizes, unpack_block, verify_checksum

MOST_ROWS: Final = 1 << 10  # rows of a doubling table: the size of blocks doubles with every row
NodePointer = tuple[int, int]  # address of a node, and its number of records


# Version 2 B-trees: sorted records of equal size in nodes of equal size.


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
        """The largest numbers of records (in a node, in it and all nodes below it), by depth; depth 0 is a leaf."""
        leaf = (self.node_size - 10) // self.record_size
        found = [(leaf, leaf)]
        for depth in range(1, self.depth + 1):
            pointer = self.sizes.address + _count_bytes_for(leaf) + (_count_bytes_for(found[-1][1]) if depth > 1 else 0)
            most = (self.node_size - 10 - pointer) // (self.record_size + pointer)
            found.append((most, (most + 1) * found[-1][1] + most))
        return found

    def node(self, data: bytes, depth: int, records: int) -> tuple[bytes, list[NodePointer]]:
        """Return the records and children of a node. Raise ValueError if it is damaged."""
        capacities = self.capacities
        if records > capacities[depth][0]:
            raise ValueError(f"a node of a v2 B-tree has {records} records: expected at most {capacities[depth][0]}")
        count = _count_bytes_for(capacities[0][0])
        below = _count_bytes_for(capacities[depth - 1][1]) if depth > 1 else 0
        pointers = (records + 1) * (self.sizes.address + count + below) if depth else 0
        form = f"B{records * self.record_size}s{pointers}s"
        kind, found, raw = unpack_block(data, self.sizes, b"BTIN" if depth else b"BTLF", form)
        if kind != self.type:
            raise ValueError(f"a node of a v2 B-tree is of type {kind}: expected {self.type}")
        fields = Fields(raw, self.sizes)
        children: list[NodePointer] = []
        while fields.at < pointers:
            address, many = fields.address(), fields.uint(count)
            fields.take(below)
            if address is None:
                raise ValueError("a node of a v2 B-tree has a child without an address")
            children.append((address, many))
        return found, children


def _count_bytes_for(most: int) -> int:
    """Return the number of bytes that an integer up to ``most`` takes."""
    return max((most.bit_length() + 7) // 8, 1)


def parse_b_tree_2(data: bytes, sizes: Sizes) -> BTree2:
    """Parse the header of a v2 B-tree. Raise ValueError if its values are impossible."""
    found = BTree2(sizes, *unpack_block(data, sizes, b"BTHD", B_TREE_2))
    size, record = found.node_size, found.record_size
    if not 0 < record <= size - 10 or found.depth > 16 or size > 1 << 26 or found.capacities[-1][0] < 1:
        raise ValueError(f"a v2 B-tree is damaged: depth {found.depth}, nodes of {size} bytes, records of {record}")
    return found


def read_records(file: MetadataFile, address: int) -> Steps[list[bytes]]:
    """Read all records of the v2 B-tree at ``address``."""
    header = yield from file.read(address, file.sizes.block(B_TREE_2), "a v2 B-tree")
    tree = parse_b_tree_2(header, file.sizes)
    if tree.total * tree.record_size > file.size:
        raise ValueError(f"a v2 B-tree of {tree.total} records is larger than its file")
    level: list[NodePointer] = [] if tree.root is None or not tree.total else [(tree.root, tree.root_records)]
    found: list[bytes] = []
    for depth in range(tree.depth, -1, -1):
        if len(level) * tree.node_size > file.size:
            raise ValueError(f"the {len(level)} nodes of a v2 B-tree are larger than its file")
        nodes = yield from run_together([file.read(at, tree.node_size, "a node of a v2 B-tree") for at, _ in level])
        below: list[NodePointer] = []
        for (_, count), node in zip(level, nodes, strict=True):
            records, children = tree.node(node, depth, count)
            found += [records[at : at + tree.record_size] for at in range(0, len(records), tree.record_size)]
            below += children
        level = below
    if len(found) != tree.total:
        raise ValueError(f"a v2 B-tree has {len(found)} records: its header says {tree.total}")
    return found


# Fractal heaps: an object is found by an id that encodes its place.


Block = tuple[int, int, int]  # start in the heap's address space, size in bytes, address in the file


class FractalHeap(msgspec.Struct, frozen=True):
    """The header of a fractal heap. Its blocks form a doubling table: their size doubles with every row."""

    id_size: int
    filters: int  # size of the pipeline that filters blocks, in bytes
    flags: int
    most_managed: int
    huge: int | None  # address of the B-tree of objects that are too large for the heap
    width: int
    start_size: int
    most_direct: int
    bits: int
    root: int | None
    rows: int
    blocks: tuple[Block, ...] = ()  # the direct blocks, if they were read with the header

    @property
    def offset_size(self) -> int:
        """Size of an offset within the heap, in bytes."""
        return (self.bits + 7) // 8

    @property
    def length_size(self) -> int:
        """Size of an object's length, in bytes."""
        return _count_bytes_for(min(self.most_direct, self.most_managed))

    @property
    def direct_rows(self) -> int:
        """Number of rows of direct blocks; the rows after them have indirect blocks."""
        return (self.most_direct // self.start_size).bit_length() + 1


def read_fractal_heap(file: MetadataFile, address: int) -> Steps[FractalHeap]:
    """Read the header of the fractal heap at ``address``. Raise ValueError if its values are impossible."""
    length, place = file.sizes.length, file.sizes.address
    form = f"HHBI{length}xP{length + place + 8 * length}xHNNH2xPH"
    data = yield from file.read(address, file.sizes.block(form), "a fractal heap")
    (filters,) = struct.unpack_from("<H", data, 7)
    if filters:
        raise ManifestError("a fractal heap is filtered, which is not supported")
    heap = FractalHeap(*unpack_block(data, file.sizes, b"FRHP", form))
    sizes = heap.width, heap.start_size, heap.most_direct
    are_powers = all(n and not n & (n - 1) for n in sizes) and 16 <= heap.start_size <= heap.most_direct <= 1 << 32
    if not are_powers or heap.rows > MOST_ROWS or not 0 < heap.bits <= 64:
        raise ValueError(f"a fractal heap has blocks of impossible sizes: {heap}")
    file.expect(heap.root, heap.start_size)  # objects are read after their ids; read the first block beside the ids
    return heap


# For links and attributes: size of the largest number in the info message, size of a record in the B-tree, and the
# position of the heap id in a record.
_DENSE: Final = {"links": (8, 11, slice(4, None)), "attributes": (2, 17, slice(8))}
_SHARED_RECORD: Final = 2  # flag in the record of an attribute that lies in the file's heap of shared attributes


def read_dense_objects(
    file: MetadataFile, info: bytes, what: str, shared: FractalHeap | None = None
) -> Steps[list[tuple[bytes, bytes]]]:
    """Read the "links" or "attributes" of an info message, each with its record; none without a heap.

    ``shared`` is the file's heap of shared attributes, if it has one.
    """
    skipped, record_size, ids = _DENSE[what]
    fields = file.fields(info)
    version, flags = fields.unpack("BB")
    if version:
        raise ValueError(f"an info message of {what} is of version {version}: expected 0")
    heap, tree = fields.unpack(f"{skipped if flags & 1 else 0}xPP")
    if heap is None or tree is None:  # they are stored as messages
        return []
    many: list[Steps[Any]] = [read_fractal_heap(file, heap), read_records(file, tree)]
    header, records = yield from run_together(many)
    if any(len(record) != record_size for record in records):
        raise ValueError(f"the records in the B-tree of {what} have the wrong size: expected {record_size} bytes")
    elsewhere = [what == "attributes" and bool(record[8] & _SHARED_RECORD) for record in records]
    if shared is None and any(elsewhere):
        raise ValueError("the heap of shared attributes does not exist")
    found: list[tuple[bytes, bytes]] = []
    for where, is_shared in ((header, False), (shared, True)):
        some = [record for record, other in zip(records, elsewhere, strict=True) if other is is_shared]
        if where is not None and some:
            data = yield from read_heap_objects(file, where, [record[ids] for record in some])
            found += zip(some, data, strict=True)
    return found


def read_shared_heaps(file: MetadataFile, address: int, count: int) -> Steps[dict[int, FractalHeap]]:
    """Read the table of shared messages with this ``count`` of indexes. Return a heap for each type of messages."""
    data = yield from file.read(address, file.sizes.block(f"{count * 14}s{2 * count}P") - 1, "the table of messages")
    fields = file.fields(verify_checksum(data, "the table of shared messages"))
    fields.expect(b"SMTB")
    found: dict[int, FractalHeap] = {}
    for _ in range(count):
        types, heap = fields.unpack("2xH10xPP")[::2]
        header = None if heap is None else (yield from read_fractal_heap(file, heap))
        if header is not None:
            blocks = (yield from _read_direct_blocks(file, header)) if header.root is not None else []
            found |= {
                number: msgspec.structs.replace(header, blocks=tuple(blocks))
                for number in range(16)
                if types >> number & 1
            }
    return found


def read_heap_objects(file: MetadataFile, heap: FractalHeap, ids: Sequence[bytes]) -> Steps[list[bytes]]:
    """Read the objects with these ids, all in the same rounds."""
    kinds = {raw[0] >> 4 & 3 for raw in ids if raw}
    names_address = heap.id_size - 1 >= file.sizes.address + file.sizes.length
    blocks = heap.blocks
    if _MANAGED in kinds and not blocks:
        blocks = tuple((yield from _read_direct_blocks(file, heap)))
    huge: dict[int, tuple[int, int]] = {}
    if _HUGE in kinds and not names_address:
        if heap.huge is None:
            raise ValueError("a fractal heap has huge objects but no B-tree of them")
        records = [file.fields(record).unpack("PNN") for record in (yield from read_records(file, heap.huge))]
        huge = {key: (at, length) for at, length, key in records if at is not None}
    found: list[bytes] = [b""] * len(ids)
    spans: dict[int, tuple[int, int]] = {}
    for place, raw in enumerate(ids):
        fields = file.fields(raw)
        kind = fields.uint(1)
        match kind >> 4:  # the upper two bits are the version, 0
            case 0:
                spans[place] = _locate_managed(blocks, fields.uint(heap.offset_size), fields.uint(heap.length_size))
            case 1:
                key = 0 if names_address else fields.uint(min(file.sizes.length, len(raw) - 1))
                at, length = fields.unpack("PN") if names_address else huge.get(key, (None, 0))
                if at is None:
                    raise ValueError("a huge object of a fractal heap is not in its B-tree")
                spans[place] = at, length
            case 2:
                is_long = heap.id_size > 18
                found[place] = fields.take((((kind & 15) << 8 | fields.uint(1)) if is_long else kind & 15) + 1)
            case _:
                raise ValueError(f"an id of a fractal heap has the unknown version and type {kind >> 4}")
    reads = [file.read(at, length, "an object of a fractal heap") for at, length in spans.values()]
    for place, data in zip(spans, (yield from run_together(reads)), strict=True):
        found[place] = data
    return found


_MANAGED, _HUGE = 0, 1  # types of objects


def _locate_managed(blocks: Sequence[Block], offset: int, length: int) -> tuple[int, int]:
    """Return (address, length) of the object at ``offset`` of the heap's address space; ``blocks`` are ascending."""
    place = bisect_right(blocks, offset, key=lambda block: block[0]) - 1
    begin, size, address = blocks[place] if place >= 0 else (0, 0, 0)
    if offset + length > begin + size:
        raise ValueError(f"an object of a fractal heap at {offset} does not lie within one block")
    return address + offset - begin, length


def _read_direct_blocks(file: MetadataFile, heap: FractalHeap) -> Steps[list[Block]]:
    """Read the indirect blocks of a heap, and return all direct blocks, ascending."""
    if heap.root is None:
        raise ValueError("a fractal heap has objects but no blocks")
    found: list[Block] = [] if heap.rows else [(0, heap.start_size, heap.root)]
    level = [(0, heap.rows, heap.root)] if heap.rows else []
    total = 0
    while level:
        tables = yield from run_together(
            [_read_indirect_block(file, heap, address, rows) for _, rows, address in level]
        )
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


def _read_indirect_block(file: MetadataFile, heap: FractalHeap, address: int, rows: int) -> Steps[list[int | None]]:
    """Read an indirect block with this number of ``rows``, and return the addresses of the blocks below it."""
    form = f"P{heap.offset_size}s{rows * heap.width}P"
    data = yield from file.read(address, file.sizes.block(form), "an indirect block of a fractal heap")
    _, _, *addresses = unpack_block(data, file.sizes, b"FHIB", form)
    return addresses


# The global heap: collections of objects that variable-length elements refer to.


GLOBAL: Final = 4096  # bytes of a collection, unless an object is larger


class Collection(NamedTuple):
    """The objects of a collection by index; no objects if only a part of its ``size`` bytes was read."""

    size: int
    objects: Mapping[int, bytes]

    @property
    def nbytes(self) -> int:
        return self.size + 128 * len(self.objects)


def parse_collection(data: bytes, sizes: Sizes) -> Collection:
    """Parse a collection of the global heap; ``data`` may be only its first bytes."""
    fields = Fields(data, sizes)
    fields.expect(b"GCOL", 1)
    (size,) = fields.unpack("3xN")
    prefix = fields.at
    if size < prefix:
        raise ValueError(f"a collection of the global heap has the impossible size of {size} bytes")
    found: dict[int, bytes] = {}
    at, end = prefix, size if size <= len(data) else 0
    head = struct.Struct(sizes.plain("H6xN"))
    while at + prefix <= end:
        index, length = head.unpack_from(data, at)
        if not index:  # free space, up to the end of the collection
            break
        at += prefix
        if at + length > end:
            raise ValueError(f"object {index} of the global heap, of {length} bytes, ends beyond its collection")
        found[index] = data[at : at + length]
        at += length + -length % 8
    return Collection(size, found)


def read_collections(file: MetadataFile, addresses: Iterable[int]) -> Steps[dict[tuple[int, int], bytes]]:
    """Read the collections of the global heap at ``addresses``, and return their objects by (address, index)."""
    distinct = sorted(set(addresses))
    found = yield from run_together([_read_collection(file, address) for address in distinct])
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


# Local heaps: names of links in old groups.


def read_local_heap(file: MetadataFile, address: int) -> Steps[bytes]:
    """Read the data segment of the local heap at ``address``."""
    what = "a local heap"
    form = "3xNNP"
    fields = file.fields((yield from file.read(address, file.sizes.block(form) - 4, what)))
    fields.expect(b"HEAP", 0)
    size, _, at = fields.unpack(form)
    if at is None:
        raise ValueError("a local heap has no address of its data")
    return (yield from file.read(at, size, what))
