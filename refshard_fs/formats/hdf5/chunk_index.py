"""Where the chunks of an HDF5 dataset lie: every index there is, descended as far as a selection needs. No I/O here.

A node is decoded to columns, once, and remembered by whoever reads it. Nodes are read apart from one another: what
lies between two of them is chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.model import Load, Parsed, Steps
from refshard_fs.formats.hdf5.file import Fields, MetadataFile, Sizes
from refshard_fs.formats.hdf5.heaps import BTree2, Child, b_tree_2_size, parse_b_tree_2

UInt64s = npt.NDArray[np.uint64]
NOWHERE: Final = np.uint64(2**64 - 1)  # the undefined address: a chunk that was never written


class Found(NamedTuple):
    """Chunks that were written, ascending by number: where they lie, their bytes there, and which filters they skip."""

    numbers: UInt64s
    addresses: UInt64s
    sizes: UInt64s
    masks: npt.NDArray[np.uint32]


class Index(Protocol):
    """The chunk index of one dataset."""

    def find(self, numbers: UInt64s | None) -> Steps[Found]:
        """Return those of the chunks ``numbers`` (ascending, each once) that were written; None: all of them."""


class Place(msgspec.Struct, frozen=True):
    """What all indexes of a dataset need to know: the file, and the chunks in the dataset's extent.

    ``counts`` are the chunks along each dimension; ``most`` those that its greatest extent has, None without limit.
    ``stored`` are the bytes of a chunk that no filter made smaller. Addresses count from ``base``.
    """

    file: MetadataFile
    chunk: tuple[int, ...]
    counts: tuple[int, ...]
    most: tuple[int | None, ...]
    stored: int
    has_filters: bool

    def load(self, address: int, length: int, what: str, parse: Callable[..., object], *arguments: Hashable) -> Load:
        """Return the need of one node, which ``parse`` makes of its bytes and the ``arguments``."""
        return Load(self.file.metadata(address, length, what), Parsed(parse, arguments))

    @property
    def sizes(self) -> Sizes:
        """Bytes of the file's addresses and lengths."""
        return self.file.sizes

    @property
    def room(self) -> int:
        """Bytes of the file from its base address on."""
        return self.file.room(0)

    @property
    def size(self) -> int:
        """Number of chunks."""
        return math.prod(self.counts)


def nothing() -> Found:
    """Return no chunks."""
    empty = np.empty(0, np.uint64)
    return Found(empty, empty, empty, np.empty(0, np.uint32))


def joined(parts: Sequence[Found]) -> Found:
    """Return ``parts`` as one, ascending by number; ValueError where a chunk comes twice."""
    if not parts:
        return nothing()
    numbers, addresses, sizes, masks = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(numbers, kind="stable")
    numbers = numbers[order]
    if (numbers[1:] == numbers[:-1]).any():
        raise ValueError("a chunk index has a chunk twice")
    return Found(numbers, addresses[order], sizes[order], masks[order])


def within(found: Found, room: int) -> Found:
    """Return ``found``; ValueError where a chunk does not lie within ``room`` bytes."""
    wrong = (found.addresses > np.uint64(room)) | (found.sizes > np.uint64(room) - np.minimum(found.addresses, room))
    if wrong.any():
        place = int(wrong.argmax())
        at, size = found.addresses[place], found.sizes[place]
        raise ValueError(f"chunk {found.numbers[place]} of {size} bytes at {at} lies beyond the end of the file")
    return found


# ----------------------------------------------------------------------------------------------------
# Version 1 B-trees.


class Node(NamedTuple):
    """A node of a version 1 B-tree: its ``firsts`` are the numbers of the chunks that its children begin with."""

    level: int
    firsts: UInt64s
    children: UInt64s
    sizes: UInt64s
    masks: npt.NDArray[np.uint32]
    are_in: npt.NDArray[np.bool_]  # whether a chunk lies in the dataset's extent

    @property
    def nbytes(self) -> int:
        return 29 * len(self.firsts) + 512


def parse_node(data: bytes, chunk: tuple[int, ...], counts: tuple[int, ...], sizes: Sizes, room: int) -> Node:
    """Return a node of a version 1 B-tree of chunks."""
    fields = Fields(data, sizes)
    fields.expect(b"TREE")
    kind, level, count = fields.uint(1), fields.uint(1), fields.uint(2)
    if kind != 1:
        raise ValueError(f"a node of a B-tree of chunks is of type {kind}, not 1")
    fields.take(2 * sizes.address)
    rank, width = len(chunk), sizes.address
    entry = np.dtype([("size", "<u4"), ("mask", "<u4"), ("at", "<u8", (rank + 1,)), ("child", "u1", (width,))])
    found = np.frombuffer(fields.take(count * entry.itemsize), entry)
    addresses = uints(found["child"])
    coords, rest = np.divmod(found["at"][:, :rank].astype(np.uint64), np.array(chunk, np.uint64))
    if rest.any() or found["at"][:, rank].any():
        raise ValueError("a B-tree of chunks has one that begins between others")
    firsts, are_in = ranks(coords, counts)
    if (firsts[1:] < firsts[:-1]).any():
        raise ValueError("a node of a B-tree of chunks is not in order")
    if (addresses >= np.uint64(room)).any():
        raise ValueError("a node of a B-tree of chunks points beyond the end of the file")
    return Node(level, firsts, addresses, found["size"].astype(np.uint64), found["mask"].copy(), are_in)


def uints(raw: npt.NDArray[np.uint8], *, is_address: bool = True) -> UInt64s:
    """Return little-endian numbers of any width, a row each; `NOWHERE` is what is undefined, or beyond 64 bits."""
    count, width = raw.shape
    full = np.zeros((count, max(width, 8)), np.uint8)
    full[:, :width] = raw
    found = np.ascontiguousarray(full[:, :8]).view("<u8")[:, 0].astype(np.uint64)
    if width > 8:
        found[full[:, 8:].any(axis=1)] = NOWHERE
    if width < 8 and is_address:
        found[(raw == 255).all(axis=1)] = NOWHERE
    return found


def ranks(coords: UInt64s, counts: tuple[int, ...]) -> tuple[UInt64s, npt.NDArray[np.bool_]]:
    """Return how many chunks of the extent come before each of ``coords``, and whether that is itself one of them."""
    numbers = np.zeros(len(coords), np.uint64)
    is_beyond = np.zeros(len(coords), np.bool_)
    for axis, count in enumerate(counts):
        here = coords[:, axis]
        numbers = numbers * np.uint64(count) + np.where(is_beyond, np.uint64(0), np.minimum(here, np.uint64(count)))
        is_beyond |= here >= np.uint64(count)
    return numbers, ~is_beyond


class BTree1:
    """A version 1 B-tree of chunks."""

    def __init__(self, place: Place, address: int, k: int) -> None:
        """``k`` is half of the entries of a node."""
        self._place = place
        self._root = address
        key = 8 + 8 * (len(place.chunk) + 1)
        self._size = 8 + 2 * place.sizes.address + (2 * k + 1) * key + 2 * k * place.sizes.address
        self._how = place.chunk, place.counts, place.sizes, place.room

    def find(self, numbers: UInt64s | None) -> Steps[Found]:
        level: list[tuple[int, UInt64s | None]] = [(self._root, numbers)]
        above: int | None = None
        found: list[Found] = []
        what = "a node of a B-tree of chunks"
        while level:
            if len({address for address, _ in level}) < len(level) or len(level) * self._size > self._place.room:
                raise ValueError("a B-tree of chunks comes to a node twice: it has a loop")
            load = self._place.load
            nodes: Sequence[Node] = yield tuple(load(at, self._size, what, parse_node, *self._how) for at, _ in level)
            below: list[tuple[int, UInt64s | None]] = []
            for (address, wanted), node in zip(level, nodes, strict=True):
                if above is not None and node.level != above - 1:
                    raise ValueError(f"{what} at {address} is of level {node.level}, below one of level {above}")
                if not node.level:
                    found.append(_leaf(node, wanted))
                elif wanted is None:
                    below += [(child, None) for child in node.children.tolist()]
                else:
                    below += _children(node, wanted)
            above, level = nodes[0].level, below
            if any(node.level != above for node in nodes):
                raise ValueError("a B-tree of chunks has nodes of several levels beside each other")
        return within(joined(found), self._place.room)


def _leaf(node: Node, wanted: UInt64s | None) -> Found:
    keep = node.are_in
    if wanted is not None:
        keep = keep & np.isin(node.firsts, wanted)
    return Found(node.firsts[keep], node.children[keep], node.sizes[keep], node.masks[keep])


def _children(node: Node, wanted: UInt64s) -> list[tuple[int, UInt64s | None]]:
    """Return the children of an inner node that may have some of ``wanted``, and which."""
    places = np.searchsorted(node.firsts, wanted, "right")
    return [(int(node.children[at - 1]), some) for at, some in _grouped(places, wanted) if at]


# ----------------------------------------------------------------------------------------------------
# Version 2 B-trees, of datasets that can grow along several dimensions.


class Node2(NamedTuple):
    """A node of a version 2 B-tree of chunks: its records, by the numbers of their chunks, and its children."""

    records: Found
    are_in: npt.NDArray[np.bool_]
    children: list[Child]

    @property
    def nbytes(self) -> int:
        return 29 * len(self.records.numbers) + 120 * len(self.children) + 512


def parse_node_2(
    data: bytes, tree: BTree2, depth: int, count: int, counts: tuple[int, ...], stored: int, has_filters: bool
) -> Node2:
    """Return a node of a version 2 B-tree of chunks, of which its parent tells depth and number of records."""
    raw, children = tree.node(data, depth, count)
    rows = np.frombuffer(raw, np.uint8).reshape(count, tree.record_size)
    first = tree.record_size - 8 * len(counts)  # of the coordinates
    addresses, sizes, masks = elements(rows[:, :first], tree.sizes.address, stored, has_filters)
    coords = np.ascontiguousarray(rows[:, first:]).view("<u8").astype(np.uint64)
    numbers, are_in = ranks(coords, counts)
    if (numbers[1:] < numbers[:-1]).any():
        raise ValueError("a node of a v2 B-tree of chunks is not in order")
    return Node2(Found(numbers, addresses, sizes, masks), are_in, children)


def elements(
    rows: npt.NDArray[np.uint8], address: int, stored: int, has_filters: bool
) -> tuple[UInt64s, UInt64s, npt.NDArray[np.uint32]]:
    """Return addresses, sizes and filter masks of the elements of an index, a row of bytes each."""
    count, width = rows.shape
    addresses = uints(rows[:, :address])
    if not has_filters:
        if width != address:
            raise ValueError(f"a chunk index has elements of {width} bytes; an address has {address}")
        return addresses, np.full(count, stored, np.uint64), np.zeros(count, np.uint32)
    if not 0 < width - address - 4 <= 8:
        raise ValueError(f"a chunk index has elements of {width} bytes")
    sizes = uints(rows[:, address : width - 4], is_address=False)
    masks = np.ascontiguousarray(rows[:, width - 4 :]).view("<u4")[:, 0]
    return addresses, sizes, masks.astype(np.uint32)


class BTreeOfGrowing:
    """A version 2 B-tree of chunks."""

    def __init__(self, place: Place, address: int) -> None:
        self._place = place
        self._address = address

    def find(self, numbers: UInt64s | None) -> Steps[Found]:
        place, what = self._place, "a node of a v2 B-tree of chunks"
        size = b_tree_2_size(place.sizes)
        tree: BTree2 = yield place.load(self._address, size, "a v2 B-tree of chunks", parse_b_tree_2, place.sizes)
        if tree.type != (11 if place.has_filters else 10) or tree.record_size <= 8 * len(place.chunk):
            raise ValueError(f"its chunk index is a v2 B-tree of type {tree.type}, records of {tree.record_size} bytes")
        if tree.total * tree.record_size > place.room:
            raise ValueError(f"a v2 B-tree of {tree.total} chunks is larger than its file")
        level: list[tuple[Child, UInt64s | None]] = []
        if tree.root is not None and tree.total:
            level.append(((tree.root, tree.root_records), numbers))
        found: list[Found] = []
        for depth in range(tree.depth, -1, -1):
            if not level:
                break
            if len(level) * tree.node_size > place.room:
                raise ValueError("a v2 B-tree of chunks has more nodes than its file has room for")
            how = place.counts, place.stored, place.has_filters
            loads = [
                place.load(at, tree.node_size, what, parse_node_2, tree, depth, count, *how) for (at, count), _ in level
            ]
            nodes: Sequence[Node2] = yield tuple(loads)
            below: list[tuple[Child, UInt64s | None]] = []
            for (_, wanted), node in zip(level, nodes, strict=True):
                if wanted is None:
                    found.append(_kept(node.records, node.are_in))
                    below += [(child, None) for child in node.children]
                    continue
                found.append(_kept(node.records, node.are_in & np.isin(node.records.numbers, wanted)))
                places = np.searchsorted(node.records.numbers, wanted, "right")
                below += [(node.children[at], some) for at, some in _grouped(places, wanted) if node.children]
            level = below
        return within(joined(found), place.room)


def _kept(found: Found, keep: npt.NDArray[np.bool_]) -> Found:
    return Found(found.numbers[keep], found.addresses[keep], found.sizes[keep], found.masks[keep])


def _grouped(places: npt.NDArray[np.intp], wanted: UInt64s) -> list[tuple[int, UInt64s]]:
    """Return each of ``places``, which ascend, once, and those of ``wanted`` that have it."""
    cuts = np.flatnonzero(places[1:] != places[:-1]) + 1
    firsts = places[np.append(0, cuts)].tolist() if len(places) else []
    return list(zip(firsts, np.split(wanted, cuts), strict=False))


# ----------------------------------------------------------------------------------------------------
# Datasets without an index to read.


class Single:
    """The one chunk of a dataset."""

    def __init__(self, place: Place, address: int, size: int, mask: int) -> None:
        self._place = place
        self._found = (address, size, mask)

    def find(self, numbers: UInt64s | None) -> Steps[Found]:
        yield from ()
        if self._place.size != 1:
            raise ValueError(f"it has {self._place.size} chunks, and an index of a single one")
        if numbers is not None and not len(numbers):
            return nothing()
        address, size, mask = self._found
        column = np.zeros(1, np.uint64)
        found = Found(column, column + np.uint64(address), column + np.uint64(size), np.full(1, mask, np.uint32))
        return within(found, self._place.room)


class Implicit:
    """Chunks that lie one after the other, all of them, in the order of their positions."""

    def __init__(self, place: Place, address: int) -> None:
        self._place = place
        self._address = np.uint64(address)

    def find(self, numbers: UInt64s | None) -> Steps[Found]:
        yield from ()
        place = self._place
        total = math.prod(place.counts) * place.stored
        if total > place.room:
            raise ValueError(f"its chunks take {total} bytes, more than the file has")
        if numbers is None:
            numbers = np.arange(place.size, dtype=np.uint64)
        positions = to_positions(numbers, place)
        addresses = self._address + positions * np.uint64(place.stored)
        sizes = np.full(len(numbers), place.stored, np.uint64)
        return within(Found(numbers, addresses, sizes, np.zeros(len(numbers), np.uint32)), place.room)


# ----------------------------------------------------------------------------------------------------
# Positions: the numbers of chunks where the dataset has its greatest extent, which do not change as it grows.


def to_positions(numbers: UInt64s, place: Place) -> UInt64s:
    """Return the positions of chunks; a dimension without limit counts as the first."""
    coords: list[UInt64s] = []
    left = numbers
    for count in reversed(place.counts):
        left, here = np.divmod(left, np.uint64(max(count, 1)))
        coords.insert(0, here)
    positions = np.zeros(len(numbers), np.uint64)
    for axis in _axes(place):
        positions = positions * np.uint64(place.most[axis] or 1) + coords[axis]
    return positions


def to_numbers(positions: UInt64s, place: Place) -> tuple[UInt64s, npt.NDArray[np.bool_]]:
    """Return the numbers of the chunks at ``positions``, and which of them lie in the dataset's extent."""
    coords = np.zeros((len(positions), len(place.counts)), np.uint64)
    left = positions
    axes = _axes(place)
    for axis in reversed(axes[1:]):
        left, coords[:, axis] = np.divmod(left, np.uint64(max(place.most[axis] or 1, 1)))
    if axes:
        coords[:, axes[0]] = left
    return ranks(coords, place.counts)


def _axes(place: Place) -> list[int]:
    """Return the dimensions in the order of their positions."""
    unlimited = [axis for axis, most in enumerate(place.most) if most is None]
    return unlimited + [axis for axis, most in enumerate(place.most) if most is not None]
