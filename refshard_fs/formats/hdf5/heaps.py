"""Read v2 B-trees, fractal heaps, the global heap and local heaps, which hold small objects. No I/O here.

Each level of a tree is read in one round. The depth decreases with each level, so reading ends even if pointers form a
loop.
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

MOST_ROWS: Final = 1 << 10  # rows of a doubling table: more are damage, because block sizes double with every row
NodePointer = tuple[int, int]  # address of a node, and its number of records


# Version 2 B-trees: sorted records of equal size in nodes of equal size.


B_TREE_2: Final = "BIHH2xPHN"


class BTree2(msgspec.Struct, frozen=True):
    """The header of a version 2 B-tree. All sizes are in bytes; ``total`` is the number of records in all nodes."""

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
        """The largest numbers of records by depth (0: a leaf): in one node, and in the node with all nodes below it."""
        leaf = (self.node_size - 10) // self.record_size
        capacities = [(leaf, leaf)]
        for depth in range(1, self.depth + 1):
            pointer = (
                self.sizes.address + _count_bytes_for(leaf) + (_count_bytes_for(capacities[-1][1]) if depth > 1 else 0)
            )
            most_records = (self.node_size - 10 - pointer) // (self.record_size + pointer)
            capacities.append((most_records, (most_records + 1) * capacities[-1][1] + most_records))
        return capacities

    def parse_node(self, data: bytes, depth: int, records: int) -> tuple[bytes, list[NodePointer]]:
        """Parse a node at ``depth`` above the leaves, with this number of ``records``.

        Returns the bytes of its records, and pointers to its children. Raises ValueError if the node is damaged.
        """
        capacities = self.capacities
        if records > capacities[depth][0]:
            raise ValueError(f"a node of a v2 B-tree has {records} records: expected at most {capacities[depth][0]}")
        count = _count_bytes_for(capacities[0][0])
        total_width = _count_bytes_for(capacities[depth - 1][1]) if depth > 1 else 0
        pointers = (records + 1) * (self.sizes.address + count + total_width) if depth else 0
        form = f"B{records * self.record_size}s{pointers}s"
        node_type, raw_records, raw = unpack_block(data, self.sizes, b"BTIN" if depth else b"BTLF", form)
        if node_type != self.type:
            raise ValueError(f"a node of a v2 B-tree is of type {node_type}: expected {self.type}")
        fields = Fields(raw, self.sizes)
        children: list[NodePointer] = []
        while fields.at < pointers:
            address, record_count = fields.read_address(), fields.read_uint(count)
            fields.take(total_width)
            if address is None:
                raise ValueError("a node of a v2 B-tree has a child without an address: expected one for each child")
            children.append((address, record_count))
        return raw_records, children


def _count_bytes_for(most: int) -> int:
    """Return the number of bytes that an integer up to ``most`` takes."""
    return max((most.bit_length() + 7) // 8, 1)


def parse_b_tree_2(data: bytes, sizes: Sizes) -> BTree2:
    """Parse the header of a v2 B-tree. Raise ValueError if its values are impossible."""
    tree = BTree2(sizes, *unpack_block(data, sizes, b"BTHD", B_TREE_2))
    size, record = tree.node_size, tree.record_size
    if not 0 < record <= size - 10 or tree.depth > 16 or size > 1 << 26 or tree.capacities[-1][0] < 1:
        raise ValueError(
            f"a v2 B-tree has the depth {tree.depth}, nodes of {size} bytes and records of {record} bytes: expected a "
            "depth of at most 16, nodes of at most 64 MiB, and at least one record in a node"
        )
    return tree


def read_records(file: MetadataFile, address: int) -> Steps[list[bytes]]:
    """Read all records of the v2 B-tree at ``address``."""
    header = yield from file.read(address, file.sizes.measure_block(B_TREE_2), "a v2 B-tree")
    tree = parse_b_tree_2(header, file.sizes)
    if tree.total * tree.record_size > file.size:
        records_size = f"{tree.total} records of {tree.record_size} bytes"
        raise ValueError(f"a v2 B-tree has {records_size}: expected at most the {file.size} bytes of the file")
    level: list[NodePointer] = [] if tree.root is None or not tree.total else [(tree.root, tree.root_records)]
    records: list[bytes] = []
    for depth in range(tree.depth, -1, -1):
        if len(level) * tree.node_size > file.size:
            nodes_size = f"{len(level)} nodes of {tree.node_size} bytes"
            raise ValueError(f"a v2 B-tree has {nodes_size}: expected at most the {file.size} bytes of the file")
        nodes = yield from run_together([file.read(at, tree.node_size, "a node of a v2 B-tree") for at, _ in level])
        next_level: list[NodePointer] = []
        for (_, count), node in zip(level, nodes, strict=True):
            raw, children = tree.parse_node(node, depth, count)
            records += [raw[start : start + tree.record_size] for start in range(0, len(raw), tree.record_size)]
            next_level += children
        level = next_level
    if len(records) != tree.total:
        raise ValueError(f"a v2 B-tree has {len(records)} records: expected {tree.total}, as its header says")
    return records


# Fractal heaps: the id of an object encodes its place.


Block = tuple[int, int, int]  # start in the heap's address space, size in bytes, address in the file


class FractalHeap(msgspec.Struct, frozen=True):
    """The header of a fractal heap. Blocks form a doubling table: rows of ``width`` blocks, whose sizes double."""

    id_size: int
    filters: int  # bytes of the filter pipeline of blocks
    flags: int
    most_managed: int  # bytes of the largest object in a block
    huge: int | None  # address of the B-tree of objects that are too large for a block
    width: int  # blocks in a row
    start_size: int  # bytes of a block in the first row
    most_direct: int  # bytes of the largest direct block
    bits: int  # bits of the largest possible offset in the heap
    root: int | None  # address of the root block
    rows: int  # rows of the root block, if it is indirect; 0: it is direct
    blocks: tuple[Block, ...] = ()  # the direct blocks, if they were read together with the header

    @property
    def offset_size(self) -> int:
        """The size of an offset in the heap, in bytes."""
        return (self.bits + 7) // 8

    @property
    def length_size(self) -> int:
        """The size of the field with an object's length, in bytes."""
        return _count_bytes_for(min(self.most_direct, self.most_managed))

    @property
    def direct_rows(self) -> int:
        """The number of rows of direct blocks; blocks of further rows are indirect."""
        return (self.most_direct // self.start_size).bit_length() + 1


def read_fractal_heap(file: MetadataFile, address: int) -> Steps[FractalHeap]:
    """Read the header of the fractal heap at ``address``. Raise ValueError if its values are impossible."""
    length, address_size = file.sizes.length, file.sizes.address
    form = f"HHBI{length}xP{length + address_size + 8 * length}xHNNH2xPH"
    data = yield from file.read(address, file.sizes.measure_block(form), "a fractal heap")
    (filters,) = struct.unpack_from("<H", data, 7)
    if filters:
        raise ManifestError("the blocks of a fractal heap have filters: expected none, because these are not supported")
    heap = FractalHeap(*unpack_block(data, file.sizes, b"FRHP", form))
    sizes = heap.width, heap.start_size, heap.most_direct
    are_powers = (
        all(value and not value & (value - 1) for value in sizes)
        and 16 <= heap.start_size <= heap.most_direct <= 1 << 32
    )
    if not are_powers or heap.rows > MOST_ROWS or not 0 < heap.bits <= 64:
        found = f"{heap.rows} rows of {heap.width} blocks of {heap.start_size} to {heap.most_direct} bytes"
        raise ValueError(
            f"a fractal heap has {found}, and offsets of {heap.bits} bits: expected at most {MOST_ROWS} rows, powers "
            "of 2, blocks of 16 bytes to 4 GiB, and 1 to 64 bits"
        )
    file.prefetch(heap.root, heap.start_size)  # the objects in the root block are needed after their ids are read
    return heap


# For links and attributes: bytes of the largest creation order in the info message, bytes of a record in the B-tree,
# and the place of the heap id in a record.
_DENSE: Final = {"links": (8, 11, slice(4, None)), "attributes": (2, 17, slice(8))}
_SHARED_RECORD: Final = 2  # flag in the record of an attribute: the attribute lies in the heap of shared attributes


def read_dense_objects(
    file: MetadataFile, info: bytes, kind: str, shared: FractalHeap | None = None
) -> Steps[list[tuple[bytes, bytes]]]:
    """Read the objects that an info message refers to; ``kind`` is "links" or "attributes".

    Returns (record in the B-tree, message) for each object; an empty list if the message refers to no heap. ``shared``
    is the file's heap of shared attributes, if it has one.
    """
    skipped, record_size, ids = _DENSE[kind]
    fields = file.make_fields(info)
    version, flags = fields.unpack("BB")
    if version:
        raise ValueError(f"an info message of {kind} is of version {version}: expected 0")
    heap, tree = fields.unpack(f"{skipped if flags & 1 else 0}xPP")
    if heap is None or tree is None:  # the objects are messages of the object header
        return []
    reads: list[Steps[Any]] = [read_fractal_heap(file, heap), read_records(file, tree)]
    header, records = yield from run_together(reads)
    if wrong_sizes := {len(record) for record in records} - {record_size}:
        raise ValueError(f"the records in the B-tree of {kind} have {min(wrong_sizes)} bytes: expected {record_size}")
    shared_flags = [kind == "attributes" and bool(record[8] & _SHARED_RECORD) for record in records]
    if shared is None and any(shared_flags):
        raise ValueError("its attributes are shared: expected a heap of shared attributes in the file, found none")
    objects: list[tuple[bytes, bytes]] = []
    for source_heap, is_shared in ((header, False), (shared, True)):
        heap_records = [record for record, flag in zip(records, shared_flags, strict=True) if flag is is_shared]
        if source_heap is not None and heap_records:
            data = yield from read_heap_objects(file, source_heap, [record[ids] for record in heap_records])
            objects += zip(heap_records, data, strict=True)
    return objects


def read_shared_heaps(file: MetadataFile, address: int, count: int) -> Steps[dict[int, FractalHeap]]:
    """Read the table of shared messages, which has ``count`` indexes. Return the heaps by type of message."""
    data = yield from file.read(
        address, file.sizes.measure_block(f"{count * 14}s{2 * count}P") - 1, "the table of messages"
    )
    fields = file.make_fields(verify_checksum(data, "the table of shared messages"))
    fields.expect(b"SMTB")
    heaps: dict[int, FractalHeap] = {}
    for _ in range(count):
        types, heap = fields.unpack("2xH10xPP")[::2]
        header = None if heap is None else (yield from read_fractal_heap(file, heap))
        if header is not None:
            blocks = (yield from _read_direct_blocks(file, header)) if header.root is not None else []
            heaps |= {
                number: msgspec.structs.replace(header, blocks=tuple(blocks))
                for number in range(16)
                if types >> number & 1
            }
    return heaps


def read_heap_objects(file: MetadataFile, heap: FractalHeap, ids: Sequence[bytes]) -> Steps[list[bytes]]:
    """Read the objects with these ``ids``, all in the same rounds."""
    kinds = {raw[0] >> 4 & 3 for raw in ids if raw}
    have_addresses = heap.id_size - 1 >= file.sizes.address + file.sizes.length  # in the ids of huge objects
    blocks = heap.blocks
    if _MANAGED in kinds and not blocks:
        blocks = tuple((yield from _read_direct_blocks(file, heap)))
    huge: dict[int, tuple[int, int]] = {}
    if _HUGE in kinds and not have_addresses:
        if heap.huge is None:
            raise ValueError("a fractal heap has huge objects: expected a B-tree that locates them, found none")
        records = [file.make_fields(record).unpack("PNN") for record in (yield from read_records(file, heap.huge))]
        huge = {key: (address, length) for address, length, key in records if address is not None}
    objects: list[bytes] = [b""] * len(ids)
    spans: dict[int, tuple[int, int]] = {}
    for position, raw in enumerate(ids):
        fields = file.make_fields(raw)
        kind = fields.read_uint(1)
        match kind >> 4:  # the upper two bits are the version, 0
            case 0:
                spans[position] = _locate_managed(
                    blocks, fields.read_uint(heap.offset_size), fields.read_uint(heap.length_size)
                )
            case 1:
                key = 0 if have_addresses else fields.read_uint(min(file.sizes.length, len(raw) - 1))
                address, length = fields.unpack("PN") if have_addresses else huge.get(key, (None, 0))
                if address is None:
                    found = (
                        "an id without an address" if have_addresses else f"no record of its number {key} in the B-tree"
                    )
                    raise ValueError(f"a huge object of a fractal heap: expected its address, found {found}")
                spans[position] = address, length
            case 2:
                is_long = heap.id_size > 18
                objects[position] = fields.take(
                    (((kind & 15) << 8 | fields.read_uint(1)) if is_long else kind & 15) + 1
                )
            case _:
                raise ValueError(
                    f"an id of a fractal heap has version {kind >> 6} and type {kind >> 4 & 3}: "
                    "expected version 0 and type 0 to 2"
                )
    reads = [file.read(address, length, "an object of a fractal heap") for address, length in spans.values()]
    for position, data in zip(spans, (yield from run_together(reads)), strict=True):
        objects[position] = data
    return objects


_MANAGED, _HUGE = 0, 1  # types of objects, in their ids
_HAS_CHECKSUMS: Final = 2  # flag of a heap: its direct blocks have checksums


def _locate_managed(blocks: Sequence[Block], offset: int, length: int) -> tuple[int, int]:
    """Return (address, length) of the object at ``offset`` of the heap's address space; ``blocks`` are sorted."""
    position = bisect_right(blocks, offset, key=lambda block: block[0]) - 1
    begin, size, address = blocks[position] if position >= 0 else (0, 0, 0)
    if offset + length > begin + size:
        found = f"an object of a fractal heap has {length} bytes at {offset}"
        raise ValueError(f"{found}: expected it within one block, found {size} bytes at {begin}")
    return address + offset - begin, length


def _read_direct_blocks(file: MetadataFile, heap: FractalHeap) -> Steps[list[Block]]:
    """Read all blocks of a heap, and verify their checksums. Return its direct blocks, sorted by their starts."""
    if heap.root is None:
        raise ValueError("a fractal heap has objects: expected the address of its blocks, found none")
    direct_blocks: list[Block] = [] if heap.rows else [(0, heap.start_size, heap.root)]
    level = [(0, heap.rows, heap.root)] if heap.rows else []
    total = 0
    while level:
        tables = yield from run_together(
            [_read_indirect_block(file, heap, address, rows) for _, rows, address in level]
        )
        next_level: list[tuple[int, int, int]] = []
        for (begin, _, _), table in zip(level, tables, strict=True):
            for entry, address in enumerate(table):
                row = entry // heap.width
                size = heap.start_size << max(row - 1, 0)
                if address is not None and row < heap.direct_rows:
                    direct_blocks.append((begin, size, address))
                    total += size
                elif address is not None:
                    next_level.append((begin, (size // (heap.width * heap.start_size)).bit_length(), address))
                begin += size
        if total > file.size:
            raise ValueError(
                f"the blocks of a fractal heap have {total} bytes: expected at most the {file.size} of the file"
            )
        level = next_level
    if heap.flags & _HAS_CHECKSUMS:
        reads = [file.read(address, size, "a block of a fractal heap") for _, size, address in direct_blocks]
        for data in (yield from run_together(reads)):
            _verify_direct_block(data, 5 + file.sizes.address + heap.offset_size)
    return sorted(direct_blocks)


def _verify_direct_block(data: bytes, at: int) -> None:
    """Verify the checksum at byte ``at`` of a direct block; the checksum is of the block with zeros in its place."""
    verify_checksum(data[:at] + bytes(4) + data[at + 4 :] + data[at : at + 4], "a block of a fractal heap")


def _read_indirect_block(file: MetadataFile, heap: FractalHeap, address: int, rows: int) -> Steps[list[int | None]]:
    """Read an indirect block of ``rows`` rows, and return the addresses of the blocks below it (None: no block)."""
    form = f"P{heap.offset_size}s{rows * heap.width}P"
    data = yield from file.read(address, file.sizes.measure_block(form), "an indirect block of a fractal heap")
    _, _, *addresses = unpack_block(data, file.sizes, b"FHIB", form)
    return addresses


# The global heap: collections of objects, to which variable-length elements refer.


FIRST_READ: Final = 4096  # bytes of a collection that are read first: it is larger only if an object in it is large


class Collection(NamedTuple):
    """The objects of a collection by index; empty if only a part of its ``size`` bytes was read."""

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
        raise ValueError(f"a collection of the global heap has {size} bytes: expected at least {prefix}")
    objects: dict[int, bytes] = {}
    position, end = prefix, size if size <= len(data) else 0
    head = struct.Struct(sizes.convert_to_struct_format("H6xN"))
    while position + prefix <= end:
        index, length = head.unpack_from(data, position)
        if not index:  # free space, up to the end of the collection
            break
        position += prefix
        if position + length > end:
            found = f"object {index} of a collection of the global heap ends at byte {position + length}"
            raise ValueError(f"{found}: expected at most {end}, the size of the collection")
        objects[index] = data[position : position + length]
        position += length + -length % 8
    return Collection(size, objects)


def read_collections(file: MetadataFile, addresses: Iterable[int]) -> Steps[dict[tuple[int, int], bytes]]:
    """Read the collections of the global heap at ``addresses``, and return their objects by (address, index)."""
    distinct = sorted(set(addresses))
    collections = yield from run_together([_read_collection(file, address) for address in distinct])
    return {
        (address, index): data
        for address, objects in zip(distinct, collections, strict=True)
        for index, data in objects.items()
    }


def _read_collection(file: MetadataFile, address: int) -> Steps[Mapping[int, bytes]]:
    length, label = min(FIRST_READ, file.count_bytes_after(address)), "a collection of the global heap"
    while True:
        collection: Collection | ValueError = yield file.load(address, length, label, parse_collection, file.sizes)
        if isinstance(collection, ValueError):
            raise collection
        if collection.size <= length:
            return collection.objects
        length = collection.size


# Local heaps: names of links in old groups.


def read_local_heap(file: MetadataFile, address: int) -> Steps[bytes]:
    """Read the data segment of the local heap at ``address``."""
    label = "a local heap"
    form = "3xNNP"
    fields = file.make_fields((yield from file.read(address, file.sizes.measure_block(form) - 4, label)))
    fields.expect(b"HEAP", 0)
    size, _, data_address = fields.unpack(form)
    if data_address is None:
        raise ValueError(f"the local heap at {address}: expected the address of its data, found none")
    return (yield from file.read(data_address, size, label))
