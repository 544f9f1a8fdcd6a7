"""Parse the structure of an HDF5 file: superblock, object headers, their messages. No I/O here.

Names follow the HDF5 File Format Specification. Every size is compared with the length of the file before bytes
are read, and checksums are verified.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from refshard_fs.core.model import Steps, run_together
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf5 import SIGNATURE, find_signature
from refshard_fs.formats.hdf5.datatypes import Datatype
from refshard_fs.formats.hdf5.file import PARSE_CACHE, Fields, MetadataFile, Sizes, verify_checksum
from refshard_fs.formats.hdf5.filters import Filter
from refshard_fs.formats.hdf5.selections import Selection

HEADER: Final = 512  # bytes of an object header that are read first: most headers are smaller
SMALL: Final = 1 << 16  # bytes: smaller coordinates are read whole, because xarray would read them in several rounds
MOST_DIMENSIONS: Final = 32
MOST_BLOCKS: Final = 1 << 16  # continuation blocks of one object header
UNDEFINED: Final = (1 << 32) - 1  # -1, the size of an undefined fill value in old files

# Types of messages in object headers.
DATASPACE: Final = 0x01
LINK_INFO: Final = 0x02
DATATYPE: Final = 0x03
OLD_FILL_VALUE: Final = 0x04
FILL_VALUE: Final = 0x05
LINK: Final = 0x06
EXTERNAL_FILES: Final = 0x07
LAYOUT: Final = 0x08
FILTERS: Final = 0x0B
ATTRIBUTE: Final = 0x0C
SHARED_MESSAGES: Final = 0x0F
CONTINUATION: Final = 0x10
SYMBOL_TABLE: Final = 0x11
B_TREE_K: Final = 0x13
DRIVER: Final = 0x14
ATTRIBUTE_INFO: Final = 0x15

_IS_SHARED: Final = 0x02  # flag of a message: its content lies in another place
_MUST_BE_KNOWN: Final = 0x80  # flag of a message: readers that do not know its type may not open the object
_FAMILY: Final = b"NCSAfami"
_MULTI: Final = b"NCSAmult"
_DRIVER_BLOCK: Final = 1024  # bytes of a driver information block that are read
_LAST_KNOWN: Final = 0x18  # the largest type of message in the specification
_ATTRIBUTE_HEAD = struct.Struct("<BBHHH")
_OLD_PREFIX, _PREFIX, _TRACKED_PREFIX = struct.Struct("<HHB3x"), struct.Struct("<BHB"), struct.Struct("<BHBH")


# The superblock.


class Superblock(msgspec.Struct, frozen=True):
    """The superblock of a file. ``root`` is the address of the root group's object header.

    ``chunk_k``, ``group_k`` and ``group_leaf_k`` are half of the most entries in a node of a chunk B-tree, in a node of
    a group's B-tree, and in a leaf of a group's B-tree. ``shared_messages`` are the address of the table of shared
    messages, and its number of indexes. ``driver`` is the address of the driver information block. ``end`` is the
    position in the file at which the data end.
    """

    root: int
    end: int
    group_leaf_k: int = 4
    group_k: int = 16
    chunk_k: int = 32
    extension: int | None = None
    driver: int | None = None
    shared_messages: tuple[int, int] | None = None


def parse_superblock(file: MetadataFile, head: bytes) -> Superblock:
    """Parse the superblock, and set the base address and sizes of ``file``. Raise ManifestError if there is none.

    It lies at the start of the file, or after a user block of 512 bytes, 1024, 2048 and so on.
    """
    start = find_signature(head)
    if start is None:
        raise ManifestError(f"expected an HDF5 signature in its first {len(head)} bytes, found none")
    fields = Fields(head, Sizes(), start + len(SIGNATURE))
    version = fields.read_uint(1)
    if version > 3:
        raise ManifestError(f"its superblock is of version {version}: expected 0 to 3")
    address, length = fields.unpack("4xBBx" if version < 2 else "BBx")
    if not {address, length} <= {2, 4, 8}:
        raise ManifestError(f"its addresses have {address} bytes, its lengths {length}: expected 2, 4 or 8")
    fields.sizes = Sizes(address, length)
    ks: dict[str, int] = {}
    extension = driver = None
    if version < 2:
        ks["group_leaf_k"], ks["group_k"] = fields.unpack("HH4x")
        if version == 1:
            (ks["chunk_k"],) = fields.unpack("H2x")
        base, _, end, driver, _, root = fields.unpack("PPPPNP")
    else:
        base, extension, end, root = fields.unpack("PPPP")
        verify_checksum(head[start : fields.at + 4], "the superblock")
    addresses = {"base address": base, "end": end, "root group": root}
    if base is None or end is None or root is None:
        missing = ", ".join(name for name, address in addresses.items() if address is None)
        raise ManifestError(f"its superblock: expected the addresses {', '.join(addresses)}; missing: {missing}")
    file.base = start  # the address in the superblock is wrong if the user block was added later
    file.sizes = fields.sizes
    end += start - base
    return msgspec.structs.replace(Superblock(root, end, extension=extension, driver=driver), **ks)


def read_extension(file: MetadataFile, superblock: Superblock) -> Steps[Superblock]:
    """Read the superblock's extension, if it has one, and return the superblock with the values in it.

    Raise ManifestError if the file is cut short, or is one of several files that make one HDF5 file.
    """
    is_short = superblock.end > file.size
    messages: Sequence[Message] = ()
    try:
        if superblock.driver is not None:
            block = yield from file.read_up_to(superblock.driver, 16, _DRIVER_BLOCK, "the driver information block")
            _, size, name = file.make_fields(block).unpack("B3xI8s")
            _check_driver(name, block[16 : 16 + size], is_short)
        if superblock.extension is not None:
            messages = yield from read_header(file, superblock.extension)
    except ManifestError:
        raise
    except ValueError:
        if not is_short:
            raise
    for message in messages:
        if message.type == B_TREE_K:
            chunk_k, group_k, leaf_k = file.make_fields(message.data).unpack("xHHH")
            superblock = msgspec.structs.replace(superblock, chunk_k=chunk_k, group_k=group_k, group_leaf_k=leaf_k)
        elif message.type == SHARED_MESSAGES:
            address, count = file.make_fields(message.data).unpack("xPB")
            superblock = msgspec.structs.replace(
                superblock, shared_messages=None if address is None else (address, count)
            )
        elif message.type == DRIVER:
            fields = file.make_fields(message.data)
            _, name, size = fields.unpack("B8sH")
            _check_driver(name, fields.take(size), is_short)
    if is_short:
        found = f"expected {superblock.end} bytes, found {file.size}"
        raise ManifestError(f"it is cut short: {found}. Was it written to the end?")
    return superblock


def _check_driver(name: bytes, information: bytes, is_short: bool) -> None:
    """Raise ManifestError unless the file is in one part, as far as the driver ``name`` tells."""
    if name == _FAMILY:
        if is_short:
            size = int.from_bytes(information[:8], "little")
            raise ManifestError(
                f"it is the first of several files of {size} bytes, which HDF5's family driver wrote: expected a file "
                "in one part. Join the files in the order of their numbers: cat NAME0.h5 NAME1.h5 ... > joined.h5"
            )
        return
    if name == _MULTI:
        raise ManifestError(
            "HDF5's split or multi driver wrote it in several files, this one for metadata: expected a file in one "
            "part. Copy its objects to a new file with h5py: h5py.File(NAME, driver='split')"
        )
    raise ManifestError(f"it has information for the driver {name!r} of HDF5: expected a file in one part")


# Object headers: their messages, from all of their blocks.


class Message(NamedTuple):
    """One message of an object header. If ``is_shared``, ``data`` is the place of its content, otherwise its content.

    ``order`` is the creation order of an attribute; 0 if the header does not track it.
    """

    type: int
    data: bytes
    is_shared: bool
    order: int = 0


def read_header(
    file: MetadataFile, address: int, on_messages: Callable[[list[Message]], None] = lambda messages: None
) -> Steps[list[Message]]:
    """Read all messages of the object header at ``address``, in the order of the header's blocks.

    ``on_messages`` is called with the messages of each round, as soon as they are read.
    """
    label = "an object header"
    data = yield from file.read_up_to(address, 16, HEADER, label)
    fields = file.make_fields(data)
    prefix = _OLD_PREFIX  # the start of each message: type, size and flags
    if data.startswith(b"OHDR"):
        fields.expect(b"OHDR", 2)
        flags = fields.read_uint(1)
        fields.take((16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0))
        size = fields.read_uint(1 << (flags & 3))
        prefix = _TRACKED_PREFIX if flags & 4 else _PREFIX
        block = yield from file.read(address, fields.at + size + 4, label)
        body = verify_checksum(block, f"the object header at {address}")[fields.at :]
    else:
        version, size = fields.unpack("B7xI")
        if version != 1:
            raise ValueError(f"the object header at {address} is of version {version}: expected 1 or 2")
        body = (yield from file.read(address, 16 + size, label))[16:]
    messages: list[Message] = []
    block_addresses = {address}
    bodies = [body]
    while bodies:
        round_messages = [message for body in bodies for message in _split_messages(body, prefix)]
        continuations = [
            file.make_fields(message.data).unpack("PN") for message in round_messages if message.type == CONTINUATION
        ]
        round_messages = [message for message in round_messages if message.type != CONTINUATION]
        on_messages(round_messages)
        messages += round_messages
        for continuation, _ in continuations:
            if len(block_addresses) > MOST_BLOCKS:
                found = f"the object header at {address} has {len(block_addresses)} blocks or more"
                raise ValueError(f"{found}: expected at most {MOST_BLOCKS}")
            if continuation is None or continuation in block_addresses:
                raise ValueError(f"an object header continues at {continuation}: expected the address of a new block")
            block_addresses.add(continuation)
        bodies = yield from run_together(
            [file.read(continuation, length, label) for continuation, length in continuations]
        )
        if prefix is not _OLD_PREFIX:
            for body in bodies:
                if not body.startswith(b"OCHK"):
                    found = f"a continuation of the object header at {address} begins with {body[:4]!r}"
                    raise ValueError(f"{found}: expected b'OCHK'")
            bodies = [verify_checksum(body, f"a continuation of the object header at {address}")[4:] for body in bodies]
    return messages


def _split_messages(block: bytes, prefix: struct.Struct) -> Iterator[Message]:
    """Yield the messages in one block of a header. ``prefix`` is the format of type, size and flags before each."""
    position = 0
    while position + prefix.size <= len(block):  # fewer bytes at the end are a gap
        kind, size, flags, *order = prefix.unpack_from(block, position)
        position += prefix.size + size
        if position > len(block):
            found = f"a message of type {kind:#06x} ends at byte {position} of its block of the object header"
            raise ValueError(f"{found}: expected at most {len(block)}, the size of the block")
        if kind > _LAST_KNOWN and flags & _MUST_BE_KNOWN:
            expected = f"expected a type up to {_LAST_KNOWN:#06x}, because readers may not ignore this message"
            raise ManifestError(f"it has a message of the unknown type {kind:#06x}: {expected}")
        yield Message(kind, block[position - size : position], bool(flags & _IS_SHARED), *order)


# Single messages.


class Dataspace(NamedTuple):
    """The extents of an array; ``shape`` is None in a null dataspace, which has no elements."""

    shape: tuple[int, ...] | None
    maxshape: tuple[int | None, ...]


@lru_cache(PARSE_CACHE)
def parse_dataspace(data: bytes, sizes: Sizes) -> Dataspace:
    """Parse the body of a dataspace message. Raise ValueError if it is damaged."""
    fields = Fields(data, sizes)
    version, rank, flags, kind = fields.unpack("BBBB")
    if version not in (1, 2):
        raise ValueError(f"a dataspace of version {version} is not supported: expected 1 or 2")
    if version == 1:
        fields.take(4)
    elif kind == 2:
        return Dataspace(None, ())
    if rank > MOST_DIMENSIONS:
        raise ValueError(f"a dataspace has {rank} dimensions: expected at most {MOST_DIMENSIONS}")
    shape = fields.unpack(f"{rank}N")
    unlimited = (1 << 8 * sizes.length) - 1
    limits = fields.unpack(f"{rank}N") if flags & 1 else shape
    maxshape = tuple([None if limit == unlimited else limit for limit in limits])
    if math.prod(max(extent, 1) for extent in shape) >= 1 << 63:
        raise ValueError(f"a dataspace has the shape {shape}: expected fewer than 2**63 elements")
    return Dataspace(shape, maxshape)


def parse_fill(data: bytes, sizes: Sizes, kind: int = FILL_VALUE) -> bytes | None:
    """Parse a fill value message of type ``kind``. Return the bytes of one element; None, for zeros, if it has none."""
    fields = Fields(data, sizes)
    has_value = True
    if kind == FILL_VALUE:
        version, flags = fields.unpack("BB")
        if version == 3:
            has_value = flags & 0x30 == 0x20  # bit 5: a fill value is defined; bit 4: it is undefined
        elif version in (1, 2):
            _, is_defined = fields.unpack("BB")
            has_value = (version == 1 or is_defined) and len(data) >= 8
        else:
            raise ValueError(f"a fill value message of version {version} is not supported: expected 1 to 3")
    size = fields.read_uint(4) if has_value else 0
    if size == UNDEFINED:
        return None
    return fields.take(size) or None


class Attribute(msgspec.Struct, frozen=True):
    """One attribute. Its elements are ``raw``, which is empty if ``shape`` is None.

    Elements may refer to objects in the global heap: ``heap`` has them by (address, index), and ``referred`` is the sum
    of their lengths in bytes.
    """

    name: str
    datatype: Datatype
    shape: tuple[int, ...] | None
    raw: bytes
    heap: Mapping[tuple[int, int], bytes] = {}
    referred: int = 0


class UnsharedAttribute(NamedTuple):
    """The parts of an attribute message. The datatype and the dataspace may be shared messages."""

    name: str
    datatype: Message
    dataspace: Message
    raw: bytes


def parse_attribute(data: bytes) -> UnsharedAttribute:
    """Split the body of an attribute message into its parts. Raise ValueError if it is damaged."""
    if len(data) < _ATTRIBUTE_HEAD.size:
        raise ValueError(f"an attribute has {len(data)} bytes: expected at least {_ATTRIBUTE_HEAD.size}")
    version, flags, *lengths = _ATTRIBUTE_HEAD.unpack_from(data)
    if not 1 <= version <= 3:
        raise ValueError(f"an attribute of version {version} is not supported: expected 1 to 3")
    position = _ATTRIBUTE_HEAD.size + (version == 3)  # version 3 adds a byte for the encoding; UTF-8 reads ASCII, too
    fields = []
    for length in lengths:
        fields.append(data[position : position + length])
        position += length + (-length % 8 if version == 1 else 0)
    if position > len(data):
        raise ValueError(f"an attribute has {len(data)} bytes: expected at least {position}, where its value begins")
    name = fields[0].split(b"\0")[0].decode("utf-8", "surrogateescape")
    shared = flags if version > 1 else 0
    datatype = Message(DATATYPE, fields[1], bool(shared & 1))
    return UnsharedAttribute(name, datatype, Message(DATASPACE, fields[2], bool(shared & 2)), data[position:])


# Data layouts.


class CompactLayout(msgspec.Struct, frozen=True):
    """The layout of elements in the object header."""

    data: bytes


class ContiguousLayout(msgspec.Struct, frozen=True):
    """The layout of elements that lie one after the other; ``address`` is None if nothing was written.

    ``size`` is in bytes; -1 if the message does not say it.
    """

    address: int | None
    size: int


class ChunkedLayout(msgspec.Struct, frozen=True):
    """The layout of elements in chunks of ``shape``, which an index of ``kind`` at ``address`` locates.

    ``parameters`` belong to the index. ``are_edges_filtered``: filters also apply to chunks that reach beyond the
    array.
    """

    shape: tuple[int, ...]
    itemsize: int
    kind: str  # "B-tree 1" "single" "implicit" "fixed array" "extensible array" "B-tree 2"
    address: int | None
    parameters: tuple[int, ...] = ()
    are_edges_filtered: bool = True


class ExternalPart(NamedTuple):
    """A part of a dataset's bytes: ``size`` bytes at ``offset`` of a ``file``."""

    file: str
    offset: int
    size: int


class ExternalFiles(msgspec.Struct, frozen=True):
    """The layout of elements in parts of other files: raw bytes, one part after the other."""

    parts: tuple[ExternalPart, ...]


class VirtualMapping(NamedTuple):
    """A mapping: the ``selection`` of a source dataset is shown at ``place`` of the virtual dataset."""

    file: str
    dataset: str
    selection: Selection
    place: Selection


class VirtualLayout(msgspec.Struct, frozen=True):
    """The layout of a virtual dataset, whose elements lie in other datasets.

    Its mappings are object ``index`` of the collection of the global heap at ``address``; ``sources`` are the parsed
    mappings. ``chunk`` is the shape of the sources' chunks or, if chunks ``are_joined`` from parts of these, of the
    joined chunks.
    """

    address: int | None
    index: int
    sources: tuple[VirtualMapping, ...] = ()
    chunk: tuple[int, ...] = ()
    are_joined: bool = False


Layout = CompactLayout | ContiguousLayout | ChunkedLayout | ExternalFiles | VirtualLayout
# Chunk indexes by type, with the format of their parameters in the message.
INDEXES: Final = {
    1: ("single", ""),
    2: ("implicit", ""),
    3: ("fixed array", "B"),
    4: ("extensible array", "5B"),
    5: ("B-tree 2", "IBB"),
}


def parse_layout(data: bytes, sizes: Sizes) -> Layout:
    """Parse the body of a data layout message. Raise ValueError if it is damaged."""
    fields = Fields(data, sizes)
    version = fields.read_uint(1)
    if not 1 <= version <= 5:
        raise ValueError(f"a data layout of version {version} is not supported: expected 1 to 5")
    if version < 3:
        rank, kind = fields.unpack("BB5x")
        address = fields.read_address() if kind else None
        extents = fields.unpack(f"{rank}I")
    else:
        kind = fields.read_uint(1)
    match kind:
        case 0:
            return CompactLayout(fields.take(fields.read_uint(4 if version < 3 else 2)))
        case 1:
            return ContiguousLayout(address, -1) if version < 3 else ContiguousLayout(*fields.unpack("PN"))
        case 2 if version > 3:
            return _parse_new_chunked(fields)
        case 2:
            if version == 3:
                rank, address = fields.unpack("BP")
                extents = fields.unpack(f"{rank}I")
            return _make_chunked(extents, "B-tree 1", address)
        case 3 if version > 3:
            return VirtualLayout(*fields.unpack("PI"))
    most = 2 if version < 4 else 3
    raise ValueError(f"a data layout of version {version} is of class {kind}: expected 0 to {most}")


def _parse_new_chunked(fields: Fields) -> ChunkedLayout:
    flags, rank, width = fields.unpack("BBB")
    if not 1 <= width <= 8:
        raise ValueError(f"extents of a chunk take {width} bytes each: expected 1 to 8")
    extents = [fields.read_uint(width) for _ in range(rank)]
    number = fields.read_uint(1)
    if number not in INDEXES:
        raise ValueError(f"a chunk index of type {number} is not supported: expected 1 to 5")
    kind, form = INDEXES[number]
    parameters = fields.unpack("NI" if kind == "single" and flags & 2 else form)
    return _make_chunked(extents, kind, fields.read_address(), parameters, not flags & 1)


def _make_chunked(
    extents: Sequence[int],
    kind: str,
    address: int | None,
    parameters: tuple[int, ...] = (),
    are_edges_filtered: bool = True,
) -> ChunkedLayout:
    if not 1 < len(extents) <= MOST_DIMENSIONS + 1 or not all(extents):
        limits = f"expected 1 to {MOST_DIMENSIONS} extents and the size of an element, all positive"
        raise ValueError(f"chunks have the extents {extents}: {limits}")
    return ChunkedLayout(tuple(extents[:-1]), extents[-1], kind, address, parameters, are_edges_filtered)


# Objects: groups and datasets.


Order = tuple[tuple[int, str], ...]  # the sort key of an object: creation order and name of each link on its path


class HDF5Object(msgspec.Struct, frozen=True):
    """A group, dataset or named datatype (``is_type``) at ``path``. A group lacks the fields of datasets.

    ``refusal`` says why the values of a dataset cannot be shown. ``unread`` says why attributes cannot be read, by
    name; the name is "" if it is not known. ``fill`` are the bytes of one element; None: zeros.
    """

    path: str
    address: int
    is_group: bool
    attributes: Mapping[str, Attribute]
    shape: tuple[int, ...] | None = None
    maxshape: tuple[int | None, ...] = ()
    datatype: Datatype | None = None
    layout: Layout | None = None
    filters: tuple[Filter, ...] = ()
    fill: bytes | None = None
    refusal: str | None = None
    unread: Mapping[str, str] = {}
    is_type: bool = False
    order: Order = ()
