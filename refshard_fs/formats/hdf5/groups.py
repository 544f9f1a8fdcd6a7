"""The links of HDF5 groups: in symbol tables with local heaps, in messages, or in fractal heaps. No I/O here."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from refshard_fs.core.model import Steps, together
from refshard_fs.formats.hdf5.file import MetadataFile
from refshard_fs.formats.hdf5.heaps import heap_objects, read_dense, read_local_heap
from refshard_fs.formats.hdf5.structure import LINK, LINK_INFO, SYMBOL_TABLE, Message

_GROUP_ENTRY, _SOFT_ENTRY = 1, 2  # how a symbol table says that an entry is a group or a soft link
_MOST_LEVELS: Final = 64  # of a symbol table's B-tree


class Link(NamedTuple):
    """One link: to the object at ``address``, or to the path ``target``; ``refusal`` is why it cannot be followed.

    ``table`` says where a group has its symbol table, by the link to it, which is known before its header is.
    """

    name: str
    address: int | None = None
    target: str | None = None
    refusal: str | None = None
    table: bytes | None = None


def is_group(messages: Sequence[Message]) -> bool:
    """Whether an object header with these messages is a group's."""
    return any(message.type in (LINK, LINK_INFO, SYMBOL_TABLE) for message in messages)


def read_links(file: MetadataFile, messages: Sequence[Message], group_k: int, leaf_k: int) -> Steps[list[Link]]:
    """Return the links of the group whose header has ``messages``; nodes of old groups have the sizes given."""
    found: list[Link] = []
    for message in messages:
        if message.type == SYMBOL_TABLE:
            found += yield from _old_links(file, message, group_k, leaf_k)
        elif message.type == LINK:
            found.append(parse_link(file, message.data))
        elif message.type == LINK_INFO:
            found += yield from _dense_links(file, message)
    return found


def parse_link(file: MetadataFile, data: bytes) -> Link:
    """Return the link that a link message says."""
    fields = file.fields(data)
    version, flags = fields.unpack("BB")
    if version != 1:
        raise ValueError(f"a link of version {version}; version 1 is known")
    kind = fields.uint(1) if flags & 8 else 0
    fields.take((8 if flags & 4 else 0) + (1 if flags & 16 else 0))
    name = fields.take(fields.uint(1 << (flags & 3))).decode("utf-8", "surrogateescape")
    match kind:
        case 0:
            return Link(name, fields.address())
        case 1:
            return Link(name, target=fields.take(fields.uint(2)).decode("utf-8", "surrogateescape"))
        case 64:
            parts = fields.take(fields.uint(2))[1:].split(b"\0")
            where = " in ".join(part.decode("utf-8", "replace") for part in reversed(parts[:2]))
            return Link(name, refusal=f"it is an external link, to {where}: other files are never opened")
    return Link(name, refusal=f"it is a link of type {kind}, which only the program that made it can follow")


def _dense_links(file: MetadataFile, message: Message) -> Steps[list[Link]]:
    dense = yield from read_dense(file, message.data, 8)
    if dense is None:  # its links are messages
        return []
    heap, records = dense
    objects = yield from heap_objects(file, heap, [record[4:] for record in records])
    return [parse_link(file, data) for data in objects]


def read_ahead(file: MetadataFile, table: bytes | None, group_k: int, leaf_k: int) -> Steps[None]:
    """Read the symbol table that a link tells of, while the header is read that decides: `read_links` finds it read."""
    if table is not None:
        with contextlib.suppress(ValueError):
            yield from _symbol_table(file, table, group_k, leaf_k)


def _symbol_table(file: MetadataFile, data: bytes, group_k: int, leaf_k: int) -> Steps[tuple[list[bytes], bytes]]:
    """Return the leaves of a group's B-tree, and the data of its heap."""
    fields = file.fields(data)
    tree, heap = fields.unpack("PP")
    if tree is None or heap is None:
        raise ValueError("a symbol table has no B-tree or no heap")
    many: list[Steps[Any]] = [_symbol_nodes(file, tree, group_k, leaf_k), read_local_heap(file, heap)]
    nodes, segment = yield from together(many)
    return nodes, segment


def _old_links(file: MetadataFile, message: Message, group_k: int, leaf_k: int) -> Steps[list[Link]]:
    nodes, segment = yield from _symbol_table(file, message.data, group_k, leaf_k)
    names = file.fields(segment)
    found: list[Link] = []
    named = 0
    for node in nodes:
        fields = file.fields(node)
        fields.expect(b"SNOD", 1)
        (count,) = fields.unpack("xH")
        for _ in range(count):
            offset, address, kind, table = fields.unpack("NPI4x16s")
            name, target = names.text_at(offset), None
            if kind == _SOFT_ENTRY:
                address, target = None, names.text_at(int.from_bytes(table[:4], "little"))
            found.append(Link(name, address, target, table=table if kind == _GROUP_ENTRY else None))
            named += len(name) + len(target or "")
            if named > len(segment):
                raise ValueError(f"the names in a local heap of {len(segment)} bytes overlap")
    return found


def _symbol_nodes(file: MetadataFile, address: int, group_k: int, leaf_k: int) -> Steps[list[bytes]]:
    """Return the leaves of a group's B-tree."""
    sizes = file.sizes
    size = struct.calcsize(sizes.plain(f"8x2P{2 * group_k}P{2 * group_k + 1}N"))
    leaf_size = struct.calcsize(sizes.plain(f"8x{2 * leaf_k * 24}x{2 * leaf_k}N{2 * leaf_k}P"))
    level = [address]
    above: int | None = None
    while above != 0 and level:
        if len(level) * 8 > file.size or len(set(level)) < len(level):
            raise ValueError("a group's B-tree has more nodes than there can be: it has a loop")
        nodes = yield from together([file.peek(at, 24, size, "a node of a group's B-tree") for at in level])
        below: list[int] = []
        for node in nodes:
            fields = file.fields(node)
            fields.expect(b"TREE")
            kind, depth, count = fields.unpack("BBH2P")[:3]
            if kind or depth > _MOST_LEVELS or (above is not None and depth != above - 1):
                raise ValueError(f"a group's B-tree has a node of type {kind}, level {depth} below one of {above}")
            below += [child for _, child in [fields.unpack("NP") for _ in range(count)]]
        if None in below:
            raise ValueError("a group's B-tree has a child without an address")
        above, level = depth, below
    return (yield from together([file.peek(at, 8, leaf_size, "a node of a symbol table") for at in level]))
